// Actions of a single agent: loaded from arrays of several dtypes, checked and clipped, or drawn at random.

// Reasons why an action is invalid.
enum Offence : u32 { NO_OFFENCE = 0, ACTION_OUT_OF_RANGE = 1, ACTION_NAN = 2, EPISODE_OVER = 3 };

enum ActionKind : int { INT64 = 0, INT32 = 1, UINT8 = 2, FLOAT32 = 3, FLOAT64 = 4 };

// Records an invalid action, unless an earlier launch or a lower position is recorded: `record[0]` is launch and kind,
// `record[1]` the lowest position in that launch, with the replica in the high bits.
FN void report(u64* record, u64 launch, u32 kind, u64 position) {
    const u64 id    = launch << 2 | kind;
    const u64 first = compare_and_swap(&record[0], 0, id);
    if (first == 0 || first == id) lower(&record[1], position);
}

// The index of a choice, drawn by the random `word` among the possible ones; among all, if none is possible.
FN int random_choice(const bool* possible, int choices, u32 word) {
    int count = 0;
    for (int j = 0; j < choices; ++j) count += possible[j];
    const bool any    = count != 0;
    const int  target = int(u64(word) * u64(any ? count : choices) >> 32);
    int passed = 0, index = 0;
    for (int j = 0; j < choices; ++j) {
        passed += any ? possible[j] : 1;
        index += passed <= target;
    }
    return index;
}

// Element `at` of an array of actions, whose dtype is `kind`, an ActionKind.
FN i64 integer_at(const void* actions, int kind, Index at) {
    switch (kind) {
        case INT32: return static_cast<const int*>(actions)[at];
        case UINT8: return static_cast<const u8*>(actions)[at];
        default:    return static_cast<const i64*>(actions)[at];
    }
}
FN real real_at(const void* actions, [[maybe_unused]] int kind, Index at) {
    if constexpr (sizeof(real) == sizeof(double)) {
        if (kind == FLOAT64) return static_cast<const double*>(actions)[at];
    }
    return static_cast<const float*>(actions)[at];
}

// Discrete actions: N integers from START on. Integers out of range are clipped. MASKED: there are action masks.
template <int N, int START, bool MASKED = false> struct DiscreteActions {
    using Action = int;
    using Drawn  = i64;  // dtype of recorded random actions
    static constexpr int  SIZE        = 1;
    static constexpr bool BINARY      = !MASKED && (N & (N - 1)) == 0 && N <= 256;  // several actions per word
    static constexpr int  BITS        = N <= 2 ? 1 : N <= 4 ? 2 : N <= 16 ? 4 : 8;
    static constexpr u32  PER_WORD    = BINARY ? 32 / BITS : 1;
    static constexpr u32  PER_BLOCK   = 4 * PER_WORD;  // actions from one call of philox()

    int value[LANES];

    FN Action get(int k) const { return value[k]; }

    // Clips in the type Wide, which can represent the bounds. Returns whether all actions are valid.
    template <class Wide, class T, class Env> FN bool load_as(const T* actions, Index base, const Env& env) {
        int outside = 0;
        FOR_EACH_LANE_OR(outside, k, env) {
            const Wide action  = load_streaming(actions + base + env.index(k));
            const Wide clipped = clip(action, Wide(START), Wide(START + N - 1));
            outside |= action != clipped;
            value[k] = int(clipped);
        }
        return outside == 0;
    }

    template <class Env> FN bool load(const void* actions, int kind, Index base, const Env& env) {
        switch (kind) {
            case INT32: return load_as<int>(static_cast<const int*>(actions), base, env);
            case UINT8:
                if constexpr (START >= 0 && START + N <= 256) return load_as<u8>(static_cast<const u8*>(actions), base, env);
                else return load_as<int>(static_cast<const u8*>(actions), base, env);
            default: return load_as<i64>(static_cast<const i64*>(actions), base, env);
        }
    }

    FN u32 offence(const void* actions, int kind, Index i) const {
        const i64 action = integer_at(actions, kind, i);
        return action < START || action > START + N - 1 ? ACTION_OUT_OF_RANGE : NO_OFFENCE;
    }

    FN void draw(int k, const Words& block, u32 step, u64, u32) {
        const u32 slot = step % PER_BLOCK;
        const u32 word = word_of(block, slot / PER_WORD);
        value[k] = START + (BINARY ? int(word >> (slot % PER_WORD * BITS)) & (N - 1) : int(u64(word) * N >> 32));
    }
    FN void draw_possible(int k, const Words& block, u32 step, u64, u32, const bool* possible) {
        value[k] = START + random_choice(possible, N, word_of(block, step % PER_BLOCK));
    }
    FN void record(void* actions, Index i, int k) const { static_cast<Drawn*>(actions)[i] = value[k]; }
};

// Box actions of SIZE reals: float32, or also float64 if `real` is double. NaN becomes zero; the rules clip to bounds.
template <int ELEMENTS, class Bounds> struct BoxActions {
    struct Action {
        real value[ELEMENTS];
        FN real operator[](int j) const { return value[j]; }
    };
    using Drawn = float;
    static constexpr int SIZE      = ELEMENTS;
    static constexpr u32 PER_BLOCK = ELEMENTS >= 4 ? 1 : 4 / ELEMENTS;  // actions per Philox block, at least 1

    real value[ELEMENTS][LANES];

    FN Action get(int k) const {
        Action action;
        UNROLL
        for (int j = 0; j < ELEMENTS; ++j) action.value[j] = value[j][k];
        return action;
    }

    template <class T, class Env> FN bool load_as(const T* actions, Index base, const Env& env) {
        int nan = 0;
        FOR_EACH_LANE_OR(nan, k, env) {
            UNROLL
            for (int j = 0; j < ELEMENTS; ++j) {
                const T action = load_streaming(actions + (base + env.index(k)) * ELEMENTS + j);
                nan |= action != action;
                value[j][k] = action == action ? real(action) : real(0);
            }
        }
        return nan == 0;
    }

    template <class Env> FN bool load(const void* actions, int kind, Index base, const Env& env) {
        if constexpr (sizeof(real) == sizeof(double)) {
            if (kind == FLOAT64) return load_as(static_cast<const double*>(actions), base, env);
        }
        return load_as(static_cast<const float*>(actions), base, env);
    }

    FN u32 offence(const void* actions, int kind, Index i) const {
        bool nan = false;
        for (int j = 0; j < ELEMENTS; ++j) {
            const real element = real_at(actions, kind, i * ELEMENTS + j);
            nan |= element != element;
        }
        return nan ? ACTION_NAN : NO_OFFENCE;
    }

    // Uniform within the bounds of the space, in float32 also if `real` is double, as float32 is recorded. `block` has
    // the random words of the first four elements; further blocks are drawn here.
    FN void draw(int k, const Words& block, u32 step, u64 seed, u32 episode) {
        Words words = block;
        UNROLL
        for (int j = 0; j < ELEMENTS; ++j) {
            if (j != 0 && j % 4 == 0) words = random_words(seed, RANDOM_ACTION, 0, episode, step, u32(j / 4));
            float unit;
            to_unit(word_of(words, (step % PER_BLOCK * ELEMENTS + u32(j)) % 4), unit);
            value[j][k] = Bounds::low(j) + (Bounds::high(j) - Bounds::low(j)) * unit;
        }
    }
    FN void record(void* actions, Index i, int k) const {
        UNROLL
        for (int j = 0; j < ELEMENTS; ++j) static_cast<Drawn*>(actions)[i * ELEMENTS + j] = float(value[j][k]);
    }
};
