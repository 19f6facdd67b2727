// Copies rows of arrays, one array after another, for snapshots: from some replicas of a simulation, and into any
// replicas. Generated before it: THREADS_OF_A_ROW, the threads that copy a row together.

// The source row that is copied to `row`: from call.sources, or row / each.
FN Index source_of(const CopyCall& call, Index row) {
    if (call.sources != nullptr) return call.sources[row];
    return call.each == 1 ? row : call.each >= call.count ? Index(0) : row / call.each;
}

// Copies every THREADS_OF_A_ROW-th item of a row, from this thread's on; an item is one Word.
template <class Word> FN void copy_row(const Rows& rows, Index from, Index to, int thread) {
    const u8* source = rows.source + from * rows.source_stride + thread * rows.source_step;
    u8*       target = rows.target + to * rows.target_stride + thread * rows.target_step;
    for (int item = thread; item < rows.items; item += THREADS_OF_A_ROW) {
        *reinterpret_cast<Word*>(target) = *reinterpret_cast<const Word*>(source);
        source += THREADS_OF_A_ROW * rows.source_step;
        target += THREADS_OF_A_ROW * rows.target_step;
    }
}

FN bool is_first(Index thread) { return thread % THREADS_OF_A_ROW == 0; }

// Copies rows of one Word, one per lane.
template <class Word, class Env>
FN void copy_words(const Rows& rows, const Index (&from)[LANES], const Index (&to)[LANES], const Env& env) {
    FOR_EACH_LANE(k, env) {
        *reinterpret_cast<Word*>(rows.target + to[k] * rows.target_stride) =
            *reinterpret_cast<const Word*>(rows.source + from[k] * rows.source_stride);
    }
}

// Copies each row of all arrays to its target replica, and updates the seeds and the number of replicas with an offset.
KERNEL(kernel_copy, CopyCall) {
    FOR_EACH_ENV(env, call.count * THREADS_OF_A_ROW) {
        Index from[LANES], to[LANES];
        int   outside = 0;
        FOR_EACH_LANE_OR(outside, k, env) {
            const Index row = env.index(k) / THREADS_OF_A_ROW;
            from[k] = source_of(call, row);
            to[k]   = call.targets != nullptr ? call.targets[row] : row;
            const Index requested = call.sources != nullptr ? from[k] : to[k];
            outside |= requested < 0 || requested >= call.limit;
        }
        if (outside) {  // only indices from the device can be: the next check reports them, their rows are not copied
            FOR_EACH_LANE_ALONE(k, env) {
                const Index requested = call.sources != nullptr ? from[k] : to[k];
                if (requested >= 0 && requested < call.limit) continue;
                lower(call.wrong, u64(env.index(k) / THREADS_OF_A_ROW));
                from[k] = to[k] = -1;
            }
        }
        // Only a row's first thread, which copies the offset, updates `staggered`, the number of offsets.
        int had[LANES] = {};
        if (call.staggered != nullptr) {
            FOR_EACH_LANE(k, env) had[k] = to[k] >= 0 && is_first(env.index(k)) && call.offset[to[k]] != 0;
        }
        for (int a = 0; a < call.arrays; ++a) {
            const Rows& rows = call.rows[a];
            const int   word = outside == 0 && rows.items == 1 && THREADS_OF_A_ROW == 1 ? rows.bytes : 0;
            if (word == 4) copy_words<u32>(rows, from, to, env);
            else if (word == 8) copy_words<u64>(rows, from, to, env);
            else if (word == 1) copy_words<u8>(rows, from, to, env);
            else FOR_EACH_LANE_ALONE(k, env) {
                if (from[k] < 0) continue;
                const int thread = int(env.index(k) % THREADS_OF_A_ROW);
                if (rows.bytes == 8) copy_row<u64>(rows, from[k], to[k], thread);
                else if (rows.bytes == 4) copy_row<u32>(rows, from[k], to[k], thread);
                else copy_row<u8>(rows, from[k], to[k], thread);
            }
        }
        if (call.staggered != nullptr) {
            FOR_EACH_LANE_ALONE(k, env) {
                const int has = to[k] >= 0 && is_first(env.index(k)) && call.offset[to[k]] != 0;
                if (has > had[k]) count_up(call.staggered);
                if (has < had[k]) count_down(call.staggered);
            }
        }
        if (call.counted != nullptr && env.index(0) == 0) *call.counted = call.counts_up;
        if (call.seeds != nullptr) {
            FOR_EACH_LANE(k, env) {
                if ((outside == 0 || to[k] >= 0) && is_first(env.index(k))) {
                    call.seeds[to[k]] = call.first_seed + u64(env.index(k) / THREADS_OF_A_ROW);
                }
            }
        }
    }
}
