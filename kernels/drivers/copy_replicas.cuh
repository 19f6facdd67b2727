// Copies rows of arrays, one array after another: what a snapshot holds of some replicas out of a simulation, and into
// any replicas of one. Generated before it: ARRAYS, how many there are.

FN Index source_of(const CopyCall& call, Index row) {
    if (call.sources != nullptr) return call.sources[row];
    return call.each == 1 ? row : call.each >= call.count ? Index(0) : row / call.each;
}

// All items of a row, which are a word each.
template <class Word> FN void copy_row(const Rows& rows, Index from, Index to) {
    const u8* source = rows.source + from * rows.source_stride;
    u8*       target = rows.target + to * rows.target_stride;
    for (int item = 0; item < rows.items; ++item, source += rows.source_step, target += rows.target_step) {
        *reinterpret_cast<Word*>(target) = *reinterpret_cast<const Word*>(source);
    }
}

// Rows that are one word.
template <class Word, class Env>
FN void copy_words(const Rows& rows, const Index (&from)[LANES], const Index (&to)[LANES], const Env& env) {
    FOR_EACH_LANE(k, env) {
        *reinterpret_cast<Word*>(rows.target + to[k] * rows.target_stride) =
            *reinterpret_cast<const Word*>(rows.source + from[k] * rows.source_stride);
    }
}

KERNEL(kernel_copy, CopyCall) {
    FOR_EACH_ENV(env, call.count) {
        Index from[LANES], to[LANES];
        int   outside = 0;
        NOTE_LANES(outside, k, env) {
            const Index row = env.index(k);
            from[k] = source_of(call, row);
            to[k]   = call.targets != nullptr ? call.targets[row] : row;
            const Index asked = call.sources != nullptr ? from[k] : to[k];
            outside |= asked < 0 || asked >= call.limit;
        }
        if (outside) {  // known of numbers from the device alone: said at the next check, and nothing is written
            FOR_EACH_LANE_ALONE(k, env) {
                const Index asked = call.sources != nullptr ? from[k] : to[k];
                if (asked >= 0 && asked < call.limit) continue;
                lower(call.wrong, u64(env.index(k)));
                from[k] = to[k] = -1;
            }
        }
        int had[LANES] = {};  // an offset, as some have now; how many do is kept
        if (call.staggered != nullptr) {
            FOR_EACH_LANE(k, env) had[k] = to[k] >= 0 && call.offset[to[k]] != 0;
        }
        for (int a = 0; a < ARRAYS; ++a) {
            const Rows& rows = call.rows[a];
            const int   word = outside == 0 && rows.items == 1 ? rows.bytes : 0;
            if (word == 4) copy_words<u32>(rows, from, to, env);
            else if (word == 8) copy_words<u64>(rows, from, to, env);
            else if (word == 1) copy_words<u8>(rows, from, to, env);
            else {
                FOR_EACH_LANE_ALONE(k, env) {
                    if (from[k] < 0) continue;
                    if (rows.bytes == 8) copy_row<u64>(rows, from[k], to[k]);
                    else if (rows.bytes == 4) copy_row<u32>(rows, from[k], to[k]);
                    else copy_row<u8>(rows, from[k], to[k]);
                }
            }
        }
        if (call.staggered != nullptr) {
            FOR_EACH_LANE_ALONE(k, env) {
                const int has = to[k] >= 0 && call.offset[to[k]] != 0;
                if (has > had[k]) count_up(call.staggered);
                if (has < had[k]) count_down(call.staggered);
            }
        }
        if (call.counted != nullptr && env.index(0) == 0) *call.counted = call.counts_up;
        if (call.seeds != nullptr) {
            FOR_EACH_LANE(k, env) {
                if (outside == 0 || to[k] >= 0) call.seeds[to[k]] = call.first_seed + u64(env.index(k));
            }
        }
    }
}
