// MultiDiscrete actions of a single agent: element j is clipped to Bounds::count(j) integers from Bounds::start(j) on.

template <int ELEMENTS, class Bounds> struct MultiDiscreteActions {
    struct Action {
        int value[ELEMENTS];
        FN int operator[](int j) const { return value[j]; }
    };
    using Drawn = i64;
    static constexpr int SIZE      = ELEMENTS;
    static constexpr u32 PER_BLOCK = ELEMENTS >= 4 ? 1 : 4 / ELEMENTS;  // actions per Philox block, at least 1

    int value[ELEMENTS][LANES];

    FN static i64 low(int j) { return Bounds::start(j); }
    FN static i64 high(int j) { return low(j) + Bounds::count(j) - 1; }

    FN Action get(int k) const {
        Action action;
        UNROLL
        for (int j = 0; j < ELEMENTS; ++j) action.value[j] = value[j][k];
        return action;
    }

    template <class T, class Env> FN bool load_as(const T* actions, Index base, const Env& env) {
        int outside = 0;
        FOR_EACH_LANE_OR(outside, k, env) {
            UNROLL
            for (int j = 0; j < ELEMENTS; ++j) {
                const i64 action  = actions[(base + env.index(k)) * ELEMENTS + j];
                const i64 clipped = clip(action, low(j), high(j));
                outside |= action != clipped;
                value[j][k] = int(clipped);
            }
        }
        return outside == 0;
    }

    template <class Env> FN bool load(const void* actions, int kind, Index base, const Env& env) {
        switch (kind) {
            case INT32: return load_as(static_cast<const int*>(actions), base, env);
            case UINT8: return load_as(static_cast<const u8*>(actions), base, env);
            default:    return load_as(static_cast<const i64*>(actions), base, env);
        }
    }

    FN u32 offence(const void* actions, int kind, Index i) const {
        bool outside = false;
        for (int j = 0; j < ELEMENTS; ++j) {
            const i64 element = integer_at(actions, kind, i * ELEMENTS + j);
            outside |= element < low(j) || element > high(j);
        }
        return outside ? ACTION_OUT_OF_RANGE : NO_OFFENCE;
    }

    // `number(j, word)` turns a random word into element j. `block` has the words of the first four elements; further
    // blocks are drawn here.
    template <class Number>
    FN void draw_each(int k, const Words& block, u32 step, u64 seed, u32 episode, const Number& number) {
        Words words = block;
        UNROLL
        for (int j = 0; j < ELEMENTS; ++j) {
            if (j != 0 && j % 4 == 0) words = random_words(seed, RANDOM_ACTION, 0, episode, step, u32(j / 4));
            value[j][k] = Bounds::start(j) + number(j, word_of(words, (step % PER_BLOCK * ELEMENTS + u32(j)) % 4));
        }
    }
    FN void draw(int k, const Words& block, u32 step, u64 seed, u32 episode) {
        draw_each(k, block, step, seed, episode,
                  [](int j, u32 word) { return int(u64(word) * u64(Bounds::count(j)) >> 32); });
    }
    FN void draw_possible(int k, const Words& block, u32 step, u64 seed, u32 episode, const bool* possible) {
        draw_each(k, block, step, seed, episode, [&](int j, u32 word) {
            const bool* element_mask = possible;
            possible += Bounds::count(j);
            return random_choice(element_mask, Bounds::count(j), word);
        });
    }

    FN void record(void* actions, Index i, int k) const {
        UNROLL
        for (int j = 0; j < ELEMENTS; ++j) static_cast<Drawn*>(actions)[i * ELEMENTS + j] = value[j][k];
    }
};
