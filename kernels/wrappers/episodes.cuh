// Returns, lengths and durations of episodes, and queues of the last of them. A thread a replica.
//
// Generated before it: clock_now(host): nanoseconds, of the device's clock or of the host's when it launched.

enum Seen : int { NOW, BEFORE };  // episodes finished so far, with this step and without

constexpr float SECONDS = 1e-9f;

// One step of every replica. Returns are sums in double precision, as exact as Gymnasium's: one addition a replica.
KERNEL_OF_BLOCKS(kernel_record, RecordCall, TEAM, 1) {
    const ScratchMemory memory(SHARED_BYTES);
    auto* const       finished = reinterpret_cast<int*>(memory.at);
    const Index       now      = clock_now(call.now);
    FOR_EACH_BLOCK(number) {
        const Block block(number, call);
        const Span  all = all_places();
        int         count[PLACES] = {};
        for (Index row = block.first; row < block.end; row += SLOTS) {
            const Span span = block.span(row);
            FOR_EACH_LANE(k, span) {
                const Index  i      = span.index(k);
                const bool   over   = was_over(call.ended, i), done = (call.terminations[i] | call.truncations[i]) != 0;
                const bool   begins = over && AUTORESET == NEXT_STEP, ends = done && !over;
                const double before = begins ? 0.0 : call.returns[i];
                const int    steps  = begins ? 0 : call.lengths[i];
                const Index  start  = begins ? now : call.starts[i];
                const double gained = over ? before : before + double(call.rewards[i]);
                const int    taken  = over ? steps : steps + 1;
                const bool   anew   = ends && AUTORESET == SAME_STEP;
                call.returns[i]     = anew ? 0.0 : gained;
                call.lengths[i]     = anew ? 0 : taken;
                call.starts[i]      = anew ? now : start;
                call.r[i]           = ends ? gained : 0.0;
                call.l[i]           = ends ? taken : 0;
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
            if (number == 0) call.seen[BEFORE] = call.seen[NOW];
        }
    }
}

// Puts the episodes that this step finished into the queues, in the order of the replicas: number n of all that ever
// finished has place n modulo the queues' length. A block adds up what the others found, unless it has nothing to put.
KERNEL_OF_BLOCKS(kernel_enqueue, EnqueueCall, TEAM, 1) {
    const ScratchMemory memory(SHARED_BYTES);
    auto* const       sums = reinterpret_cast<int*>(memory.at);
    FOR_EACH_BLOCK(number) {
        const Block block(number, call);
        const int   own = call.counts[number];
        if (own > 0 || number == 0) {
            if (thread_rank() == 0) sums[0] = sums[1] = 0;
            block_barrier();
            int earlier = 0, every = 0;
            for (Index other = thread_rank(); other < call.blocks; other += THREADS) {
                earlier += other < number ? call.counts[other] : 0;
                every += call.counts[other];
            }
            add(sums[0], earlier);
            add(sums[1], every);
            block_barrier();
            const Index before = call.seen[BEFORE];
            const int   all = sums[1], dropped = all - call.length;  // of this step's, those that later ones overwrite
            int         place = sums[0];
            if (number == 0 && thread_rank() == 0) call.seen[NOW] = before + all;
            if (place + own > dropped) {
                for (Index first = block.first; first < block.end; first += THREADS) {
                    const Index i    = first + thread_rank();
                    const bool  kept = i < block.end && call.finished[i] != 0;
                    int         total;
                    const int   mine = place + block_rank<THREADS>(kept, total);
                    if (kept && mine >= dropped) {
                        const Index slot        = (before + mine) % call.length;
                        call.return_queue[slot] = call.r[i];
                        call.length_queue[slot] = call.l[i];
                        call.time_queue[slot]   = call.t[i];
                    }
                    place += total;
                    block_barrier();
                }
            }
        }
    }
}

// Begins episodes: where the mask says so, or everywhere.
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
