// Returns, lengths and durations of episodes, and queues of the last ones. A thread takes one replica at a time.
// Generated before it: clock_now(host): nanoseconds of the device's clock, or the host's time of the launch.

enum FinishedCount : int { NOW, BEFORE };  // all episodes finished so far, with this step and without

constexpr float SECONDS = 1e-9f;  // per nanosecond

// Adds a step to every replica's return and length; writes r, l and t (seconds) of episodes that it finishes, zeros for
// others, and counts them per block. Returns are sums in double precision, as in Gymnasium.
KERNEL_OF_BLOCKS(kernel_record, RecordCall, TEAM, 1) {
    const ScratchMemory memory(SHARED_BYTES);
    auto* const       finished = reinterpret_cast<int*>(memory.at);
    const Index       now      = clock_now(call.now);
    FOR_EACH_BLOCK(number) {
        const Block block(number, call);
        const Span  all = all_threads();
        int         count[PLACES] = {};
        for (Index row = block.first; row < block.end; row += SLOTS) {
            const Span span = block.span(row);
            FOR_EACH_LANE(k, span) {
                const Index  i      = span.index(k);
                const bool   over   = was_done(call.ended, i), done = (call.terminations[i] | call.truncations[i]) != 0;
                const bool   begins = over && AUTORESET == NEXT_STEP, ends = done && !over;
                const double before = begins ? 0.0 : call.returns[i];
                const int    steps  = begins ? 0 : call.lengths[i];
                const Index  start  = begins ? now : call.starts[i];
                const double total  = over ? before : before + double(call.rewards[i]);
                const int    length = over ? steps : steps + 1;
                const bool   reset  = ends && AUTORESET == SAME_STEP;
                call.returns[i]     = reset ? 0.0 : total;
                call.lengths[i]     = reset ? 0 : length;
                call.starts[i]      = reset ? now : start;
                call.r[i]           = ends ? total : 0.0;
                call.l[i]           = ends ? length : 0;
                call.t[i]           = ends ? float(now - start) * SECONDS : 0.0f;
                call.finished[i]    = u8(ends);
                count[k] += ends;
                if (AUTORESET != SAME_STEP) call.ended[i] = u8(done);
            }
        }
        FOR_EACH_LANE(k, all) finished[all.place(k)] = count[k];
        fold(finished);
        if (thread_rank() == 0) {
            call.counts[number] = finished[0];
            if (number == 0) call.episode_counts[BEFORE] = call.episode_counts[NOW];
        }
    }
}

// Appends the episodes that this step finished to the queues, in the order of the replicas: the n-th finished episode
// is at index n modulo the queues' length. A block with finished episodes sums the counts of all blocks.
KERNEL_OF_BLOCKS(kernel_enqueue, EnqueueCall, TEAM, 1) {
    const ScratchMemory memory(SHARED_BYTES);
    auto* const       sums = reinterpret_cast<int*>(memory.at);
    FOR_EACH_BLOCK(number) {
        const Block block(number, call);
        const int   count = call.counts[number];
        if (count > 0 || number == 0) {
            if (thread_rank() == 0) sums[0] = sums[1] = 0;
            block_barrier();
            int earlier = 0, total = 0;
            for (Index other = thread_rank(); other < call.blocks; other += THREADS) {
                earlier += other < number ? call.counts[other] : 0;
                total += call.counts[other];
            }
            add(sums[0], earlier);
            add(sums[1], total);
            block_barrier();
            const Index before = call.episode_counts[BEFORE];
            const int   all = sums[1], dropped = all - call.length;  // the first episodes, which later ones would overwrite
            int         index = sums[0];  // among this step's episodes
            if (number == 0 && thread_rank() == 0) call.episode_counts[NOW] = before + all;
            if (index + count > dropped) {
                for (Index first = block.first; first < block.end; first += THREADS) {
                    const Index i    = first + thread_rank();
                    const bool  ends = i < block.end && call.finished[i] != 0;
                    int         total;
                    const int   mine = index + block_rank<THREADS>(ends, total);
                    if (ends && mine >= dropped) {
                        const Index slot        = (before + mine) % call.length;
                        call.return_queue[slot] = call.r[i];
                        call.length_queue[slot] = call.l[i];
                        call.time_queue[slot]   = call.t[i];
                    }
                    index += total;
                    block_barrier();
                }
            }
        }
    }
}

// Zeroes returns and lengths and sets the start time, in all replicas or where call.mask is true.
KERNEL_OF_BLOCKS(kernel_begin, BeginCall, TEAM, 1) {
    const Index now = clock_now(call.now);
    FOR_EACH_BLOCK(number) {
        const Block block(number, call);
        for (Index i = block.first + thread_rank(); i < block.end; i += THREADS) {
            if (call.mask == nullptr || call.mask[i]) {
                call.returns[i] = 0;
                call.lengths[i] = 0;
                call.starts[i]  = now;
                if (AUTORESET != SAME_STEP) call.ended[i] = 0;
            }
        }
    }
}
