// A random permutation of 0 to count-1 without sorting: element i is a function of i, a key and a counter, `turn`.
//
// An element is a pair: its low `bits` bits, and the rest, which is below `size`. Each round adds to one half a
// pseudorandom function of the other: a generalised Feistel network (Black & Rogaway 2002). It permutes all pairs, a
// few more than `count`; a result outside 0 to count-1 is permuted again until it is inside (cycle walking). Round keys
// are Philox words of counter (draw, turn's low half, turn's high half, PERMUTATION << 24).

constexpr int ROUNDS = 8;

struct RoundKeys { u32 key[ROUNDS]; };

// Draws the keys of all rounds of permutation number `turn`.
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

// Hashes 32 bits so that the high bits depend on all; C. Wellons searched for the constants with the lowest bias.
FN u32 hashed(u32 x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    return (x ^ x >> 15) * 0x846ca68bu;
}

// Permutes one pair, left << bits | right, by all rounds; left is below `size`.
FN u32 permuted(u32 element, const RoundKeys& keys, int bits, u32 size) {
    const u32 mask = (1u << bits) - 1;
    u32       left = element >> bits, right = element & mask;
    UNROLL
    for (int round = 0; round < ROUNDS; round += 2) {
        left += u32(u64(hashed(right ^ keys.key[round])) * size >> 32);
        left  = minimum(left, left - size);  // modulo `size`: a negative difference wraps to a large number
        right = (right + (hashed(left ^ keys.key[round + 1]) >> (32 - bits))) & mask;
    }
    return left << bits | right;
}

// Writes `count` permuted groups of `each` indices. A thread has several elements, `threads` apart, as its round keys
// cost as much as two elements.
KERNEL(kernel_permute, PermutationCall) {
    const RoundKeys keys  = round_keys(call.stream[0], call.stream[1] + call.turn);
    const u32       count = u32(call.count), size = u32(call.size);
    FOR_EACH_ENV(env, call.threads) {
        for (Index begin = 0; begin < call.count; begin += call.threads) {
            u32 element[LANES];
            int outside = 0;
            FOR_EACH_LANE_OR(outside, k, env) {
                element[k] = permuted(minimum(u32(begin + env.index(k)), count - 1), keys, call.bits, size);
                outside |= element[k] >= count;
            }
            while (outside) {
                outside = 0;
                FOR_EACH_LANE_OR(outside, k, env) {
                    const u32 next = permuted(element[k], keys, call.bits, size);
                    element[k]     = element[k] >= count ? next : element[k];
                    outside |= element[k] >= count;
                }
            }
            for (int j = 0; j < call.each; ++j) {
                FOR_EACH_LANE(k, env) {
                    const Index i = begin + env.index(k);
                    if (i < call.count) call.indices[i * call.each + j] = int(element[k]) * call.each + j;
                }
            }
        }
    }
}
