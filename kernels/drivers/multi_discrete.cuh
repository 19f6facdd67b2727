// Actions of one agent that are several whole numbers: element j is one of Bounds::count(j) from Bounds::start(j) up. One
// out of range counts as the nearest.

template <int ELEMENTS, class Bounds> struct MultiDiscreteActions {
    struct Action {
        int value[ELEMENTS];
        FN int operator[](int j) const { return value[j]; }
    };
    using Drawn = i64;
    static constexpr int SIZE      = ELEMENTS;
    static constexpr u32 PER_BLOCK = ELEMENTS >= 4 ? 1 : 4 / ELEMENTS;  // further words of an action: further blocks

    int value[ELEMENTS][LANES];

    FN static i64 least(int j) { return Bounds::start(j); }
    FN static i64 most(int j) { return least(j) + Bounds::count(j) - 1; }

    FN Action get(int k) const {
        Action action;
        UNROLL
        for (int j = 0; j < ELEMENTS; ++j) action.value[j] = value[j][k];
        return action;
    }

    template <class T, class Env> FN bool load_as(const T* actions, Index base, const Env& env) {
        int outside = 0;
        NOTE_LANES(outside, k, env) {
            UNROLL
            for (int j = 0; j < ELEMENTS; ++j) {
                const i64 given  = actions[(base + env.index(k)) * ELEMENTS + j];
                const i64 inside = clip(given, least(j), most(j));
                outside |= given != inside;
                value[j][k] = int(inside);
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

    template <class T> FN u32 offence_in(const T* action) const {
        bool outside = false;
        for (int j = 0; j < ELEMENTS; ++j) outside |= action[j] < least(j) || action[j] > most(j);
        return outside ? ACTION_OUT_OF_RANGE : NO_OFFENCE;
    }

    FN u32 offence(const void* actions, int kind, Index i) const {
        switch (kind) {
            case INT32: return offence_in(static_cast<const int*>(actions) + i * ELEMENTS);
            case UINT8: return offence_in(static_cast<const u8*>(actions) + i * ELEMENTS);
            default:    return offence_in(static_cast<const i64*>(actions) + i * ELEMENTS);
        }
    }

    // `number(j, word)` makes element j of its random word. `block` has those of the first four; those of the others are
    // drawn here.
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
            const bool* own = possible;
            possible += Bounds::count(j);
            return drawn_among(own, Bounds::count(j), word);
        });
    }

    FN void record(void* actions, Index i, int k) const {
        UNROLL
        for (int j = 0; j < ELEMENTS; ++j) static_cast<Drawn*>(actions)[i * ELEMENTS + j] = value[j][k];
    }
};
