// What processes with a GPU each of one host tell one another, through memory of each that all of them can write to.
//
// A number goes to all others in a word with the number of the round. Words arrive as a whole, so that whoever finds the
// round's number there has the number itself, and waits for nothing else. Each process has two places for every number,
// used in turn: who writes those of a round has had all of the round before, and so nobody reads the one before that.

// The process gives BLOCK, the numbers of a block and a GPU's threads; BLOCKS, which a multiprocessor has room for: no
// more are launched than a GPU has room for, so that none waits for one that cannot begin; and PATIENCE, in nanoseconds.

constexpr int STRIDE = ON_GPU ? BLOCK : 1;  // from one number of a thread to its next

template <class Call> FN u64* place_of(const Call& call, int process, u32 round, int source, Index number) {
    u64* const memory = reinterpret_cast<u64*>(call.addresses[process]);
    return memory + (Index(round % 2) * PROCESSES + source) * call.room + number;
}

template <class Call> FN void tell_others(const Call& call, u32 round, Index number, u32 own) {
    UNROLL
    for (int other = 0; other < PROCESSES; ++other) {
        if (other != call.rank) store_word(place_of(call, other, round, call.rank, number), u64(round) << 32 | own);
    }
}

// What each process has told of a number, this one's own among it. One that is silent for too long is lost.
template <class Call> FN void hear(const Call& call, u32 round, Index number, u32 own, u32 (&found)[PROCESSES]) {
    bool missing = true;
    u64  until   = 0;
    for (u32 turn = 1; missing; ++turn) {
        missing = false;
        UNROLL
        for (int other = 0; other < PROCESSES; ++other) {
            u64 word = u64(round) << 32 | own;
            if (other != call.rank) word = load_word(place_of(call, call.rank, round, other, number));
            missing |= u32(word >> 32) != round;
            found[other] = u32(word);
        }
        if (turn % 4096 == 0) {
            if (until == 0) until = nanoseconds() + PATIENCE;
            if (nanoseconds() > until) give_up();
        }
    }
}

// The sum of a number over the processes, in their order. They have been told of this one's.
template <class Call> FN float summed_over_processes(const Call& call, u32 round, Index number, float own) {
    u32 found[PROCESSES];
    hear(call, round, number, bits_of(own), found);
    float sum = from_bits(found[0]);
    UNROLL
    for (int process = 1; process < PROCESSES; ++process) sum += from_bits(found[process]);
    return sum;
}

// Brings together what each process has.
template <class Call> FN void gather(const Call& call, Index block) {
    const u32   round = u32(call.rounds[block]) + 1;
    const Index end   = minimum(call.count, (block + 1) * BLOCK);
    for (Index number = block * BLOCK + thread_rank(); number < end; number += STRIDE) {
        tell_others(call, round, number, u32(call.own[number]));
    }
    for (Index number = block * BLOCK + thread_rank(); number < end; number += STRIDE) {
        u32 found[PROCESSES];
        hear(call, round, number, u32(call.own[number]), found);
        UNROLL
        for (int process = 0; process < PROCESSES; ++process) {
            call.gathered[process * call.count + number] = int(found[process]);
        }
    }
    block_barrier();
    if (thread_rank() == 0) call.rounds[block] = int(round);
}

// Puts into place the sums of so many numbers over the processes, in order of rank, and of the others the largest; NaN
// counts as larger than all.
template <class Call> FN void combine(const Call& call, Index block) {
    const u32   round = u32(call.rounds[block]) + 1;
    const Index first = block * BLOCK + thread_rank(), end = minimum(call.count, (block + 1) * BLOCK);
    for (Index number = first; number < end; number += STRIDE) {
        tell_others(call, round, number, bits_of(call.figures[number]));
    }
    for (Index number = first; number < end; number += STRIDE) {
        u32 found[PROCESSES];
        hear(call, round, number, bits_of(call.figures[number]), found);
        float combined = from_bits(found[0]);
        UNROLL
        for (int process = 1; process < PROCESSES; ++process) {
            const float value = from_bits(found[process]);
            if (number < call.added) {
                combined += value;
            } else if (combined == combined && !(value <= combined)) {
                combined = value;
            }
        }
        call.figures[number] = combined;
    }
    block_barrier();
    if (thread_rank() == 0) call.rounds[block] = int(round);
}
