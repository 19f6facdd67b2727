// A random order of 0 to count-1 without sorting: element i is a function of i, a key and a turn.
//
// A Feistel network (Luby & Rackoff 1988) permutes the numbers of an even number of bits, and what falls outside of
// 0 to count-1 is sent through again until it falls inside, which is a permutation too (Black & Rogaway 2002). It takes
// fewer than four passes on average, since a quarter of the numbers or more lie inside. The round keys are Philox words
// of counter (draw, turn's low half, turn's high half, PERMUTATION << 24).

constexpr int ROUNDS = 8;

struct RoundKeys { u32 key[ROUNDS]; };

FN RoundKeys round_keys(u64 key, u64 turn) {
    RoundKeys keys;
    UNROLL
    for (int draw = 0; draw < ROUNDS / 4; ++draw) {
        const Words words = philox(key, {u32(draw), u32(turn), u32(turn >> 32), u32(PERMUTATION) << 24});
        keys.key[4 * draw]     = words.x;
        keys.key[4 * draw + 1] = words.y;
        keys.key[4 * draw + 2] = words.z;
        keys.key[4 * draw + 3] = words.w;
    }
    return keys;
}

// Scatters 32 bits so that each depends on all: the constants of a search by C. Wellons for the least bias.
FN u32 scattered(u32 x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

FN u32 permuted(u32 element, const RoundKeys& keys, int half_bits) {
    const u32 mask = (1u << half_bits) - 1;
    u32       left = element >> half_bits, right = element & mask;
    UNROLL
    for (int round = 0; round < ROUNDS; ++round) {
        const u32 mixed = left ^ (scattered(right ^ keys.key[round]) & mask);
        left            = right;
        right           = mixed;
    }
    return left << half_bits | right;
}

KERNEL(kernel_permute, PermutationCall) {
    const RoundKeys keys = round_keys(call.stream[0], call.stream[1] + call.turn);
    FOR_EACH_ENV(env, call.count) {
        const u32 count = u32(call.count);
        u32       element[LANES];
        int       outside = 0;
        NOTE_LANES(outside, k, env) {
            element[k] = permuted(u32(env.index(k)), keys, call.half_bits);
            outside |= element[k] >= count;
        }
        while (outside) {
            outside = 0;
            NOTE_LANES(outside, k, env) {
                const u32 next = permuted(element[k], keys, call.half_bits);
                element[k]     = element[k] >= count ? next : element[k];
                outside |= element[k] >= count;
            }
        }
        FOR_EACH_LANE(k, env) call.indices[env.index(k)] = int(element[k]);
    }
}
