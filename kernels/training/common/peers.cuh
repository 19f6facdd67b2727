// Messages between the processes of one host, each with a GPU, through peer memory that all of them can write to.
//
// A process sends a number to its peers as the low half of a 64-bit word; the high half is the number of the round.
// Words are written atomically: a reader that sees the current round has the number, without further synchronisation.
// Each number has two slots, for even and odd rounds: a process that writes round n has received all of round n - 1, so
// that no peer still reads round n - 2.
//
// Generated before it: PROCESSES; BLOCK, the numbers (and GPU threads) of a block; BLOCKS, the resident blocks of a
// multiprocessor; PATIENCE, the timeout in nanoseconds. All blocks of a launch must be resident: a block that waits
// for a number could otherwise keep its sender from starting.

constexpr int STRIDE = ON_GPU ? BLOCK : 1;  // between consecutive numbers of a thread

template <class Call> FN u64* slot_of(const Call& call, int process, u32 round, int sender, Index number) {
    u64* const memory = reinterpret_cast<u64*>(call.addresses[process]);
    return memory + (Index(round % 2) * PROCESSES + sender) * call.room + number;
}

// Writes a number and its round into this process's slot in the memory of every peer.
template <class Call> FN void send_to_peers(const Call& call, u32 round, Index number, u32 value) {
    UNROLL
    for (int peer = 0; peer < PROCESSES; ++peer) {
        if (peer != call.rank) store_word(slot_of(call, peer, round, call.rank, number), u64(round) << 32 | value);
    }
}

// Waits for a number of every process; gives up if a peer sends nothing within PATIENCE. `values` has them by rank,
// this process's `value` among them.
template <class Call> FN void receive(const Call& call, u32 round, Index number, u32 value, u32 (&values)[PROCESSES]) {
    bool missing  = true;
    u64  deadline = 0;
    for (u32 attempt = 1; missing; ++attempt) {
        missing = false;
        UNROLL
        for (int peer = 0; peer < PROCESSES; ++peer) {
            u64 word = u64(round) << 32 | value;
            if (peer != call.rank) word = load_word(slot_of(call, call.rank, round, peer, number));
            missing |= u32(word >> 32) != round;
            values[peer] = u32(word);
        }
        if (attempt % 4096 == 0) {
            if (deadline == 0) deadline = nanoseconds() + PATIENCE;
            if (nanoseconds() > deadline) trap();
        }
    }
}

// The sum of a number over the processes, in order of rank. send_to_peers() has sent this process's `value`.
template <class Call> FN float summed_over_processes(const Call& call, u32 round, Index number, float value) {
    u32 values[PROCESSES];
    receive(call, round, number, bits_of(value), values);
    float sum = from_bits(values[0]);
    UNROLL
    for (int process = 1; process < PROCESSES; ++process) sum += from_bits(values[process]);
    return sum;
}

// Gathers the numbers `local` of all processes into `gathered`, [processes, count].
template <class Call> FN void gather(const Call& call, Index block) {
    const u32   round = u32(call.rounds[block]) + 1;
    const Index end   = minimum(call.count, (block + 1) * BLOCK);
    for (Index number = block * BLOCK + thread_rank(); number < end; number += STRIDE) {
        send_to_peers(call, round, number, u32(call.local[number]));
    }
    for (Index number = block * BLOCK + thread_rank(); number < end; number += STRIDE) {
        u32 values[PROCESSES];
        receive(call, round, number, u32(call.local[number]), values);
        UNROLL
        for (int process = 0; process < PROCESSES; ++process) {
            call.gathered[process * call.count + number] = int(values[process]);
        }
    }
    block_barrier();
    if (thread_rank() == 0) call.rounds[block] = int(round);
}

// Combines numbers in place over the processes: sums the first `added`, in order of rank, and takes the maximum of the
// rest, where NaN counts as the largest.
template <class Call> FN void combine(const Call& call, Index block) {
    const u32   round = u32(call.rounds[block]) + 1;
    const Index first = block * BLOCK + thread_rank(), end = minimum(call.count, (block + 1) * BLOCK);
    for (Index number = first; number < end; number += STRIDE) {
        send_to_peers(call, round, number, bits_of(call.numbers[number]));
    }
    for (Index number = first; number < end; number += STRIDE) {
        u32 values[PROCESSES];
        receive(call, round, number, bits_of(call.numbers[number]), values);
        float combined = from_bits(values[0]);
        UNROLL
        for (int process = 1; process < PROCESSES; ++process) {
            const float value = from_bits(values[process]);
            if (number < call.added) combined += value;
            else if (combined == combined && !(value <= combined)) combined = value;
        }
        call.numbers[number] = combined;
    }
    block_barrier();
    if (thread_rank() == 0) call.rounds[block] = int(round);
}
