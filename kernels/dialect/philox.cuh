// Random numbers as a pure function of a replica's 64-bit seed and a counter: draw, step, episode, and stream with
// agent. Without generator state, any division of replicas into threads and launches gives the same numbers.

enum Stream : u32 { RESET = 1, STEP = 2, SAMPLER = 3, RANDOM_ACTION = 4, PERMUTATION = 5, REPLAY = 6,
                    OBSERVATION_NOISE = 7, ACTION_NOISE = 8, STATE_PUSH = 9, PARAMETER = 10 };

constexpr u32 NEVER_BEGUN = ~0u;  // the episode number before a replica's first episode, which is number 0

struct Words { u32 x, y, z, w; };

// Four random words: Philox4x32-10 (Salmon, Moraes, Dror & Shaw, SC 2011).
FN Words philox(u64 key, Words counter) {
    constexpr u32 multiplier[2] = {0xD2511F53u, 0xCD9E8D57u};
    constexpr u32 weyl[2]       = {0x9E3779B9u, 0xBB67AE85u};
    u32   k0 = u32(key), k1 = u32(key >> 32);
    Words c = counter;
    UNROLL
    for (int round = 0; round < 10; ++round) {
        const u64 a = u64(multiplier[0]) * c.x, b = u64(multiplier[1]) * c.z;
        c  = {u32(b >> 32) ^ c.y ^ k0, u32(b), u32(a >> 32) ^ c.w ^ k1, u32(a)};
        k0 += weyl[0];
        k1 += weyl[1];
    }
    return c;
}

FN u32 word_of(const Words& words, u32 slot) {
    return slot < 2 ? (slot == 0 ? words.x : words.y) : (slot == 2 ? words.z : words.w);
}

FN Words random_words(u64 seed, Stream stream, u32 agent, u32 episode, u32 step, u32 draw) {
    return philox(seed, {draw, step, episode, u32(stream) << 24 | agent});
}

// A number in [0, 1) from 32 random bits: from the upper 24 for a float, from all for a double
FN void to_unit(u32 bits, float& unit)  { unit = float(int(bits >> 8)) * 5.9604644775390625e-8f; }
FN void to_unit(u32 bits, double& unit) { unit = double(bits) * 2.3283064365386962890625e-10; }
