// The nearest of many points to one of them: by squared distance, equal ones in the order of their numbers.

template <class Real> FN Real squared_distance(Real ax, Real ay, Real bx, Real by) {
    const Real dx = ax - bx, dy = ay - by;
    return dx * dx + dy * dy;
}

// A point, by its number, at a distance. Ordered by distance, then by number.
struct Near {
    real distance;
    int  number;
};

FN bool nearer(const Near& a, const Near& b) {
    return a.distance < b.distance || (a.distance == b.distance && a.number < b.number);
}

FN void order(Near& a, Near& b) {
    const bool swap = nearer(b, a);
    const Near low = swap ? b : a, high = swap ? a : b;
    a = low;
    b = high;
}

FN void order(real& a, real& b) {
    const real low = fast_minimum(a, b), high = fast_maximum(a, b);
    a = low;
    b = high;
}

FN void order(u32& a, u32& b) {
    const u32 low = minimum(a, b), high = maximum(a, b);
    a = low;
    b = high;
}

// One round of comparisons, of elements STEP apart, in a merge of runs of RUN.
template <int RUN, int STEP, int N, class T> FN void merge_round(T (&values)[N]) {
    constexpr int first = STEP % RUN;
    UNROLL
    for (int a = 0; a < N - STEP; ++a) {
        if (a >= first && (a - first) / STEP % 2 == 0 && a / (2 * RUN) == (a + STEP) / (2 * RUN)) order(values[a], values[a + STEP]);
    }
}

// Sorts 2^n values by Batcher's odd-even merge: the same comparisons whatever the values, so that neither threads of a
// warp nor a branch predictor are at odds.
template <int RUN = 1, int STEP = 1, int N, class T> FN void sort(T (&values)[N]) {
    merge_round<RUN, STEP>(values);
    if constexpr (STEP > 1) sort<RUN, STEP / 2>(values);
    else if constexpr (2 * RUN < N) sort<2 * RUN, 2 * RUN>(values);
}

// Points in a row, GROUP at a time: what fills the last group up is infinitely far away.
constexpr int GROUP = 16;
static_assert(2 * GROUP == 32, "two groups fill a word of marks");

FN constexpr int in_groups(int n) { return (n + 31) / 32 * 32; }

// About a distance within which at least `wanted` of the points lie, if so many are anywhere: of GROUP minima, each over
// its own share of the points, the `wanted`-th smallest. With 16 minima of 110 points and 11 wanted, 15 points lie within,
// on average.
FN real reach(const real* xs, const real* ys, int count, real x, real y, int wanted) {
    real least[GROUP];
    UNROLL
    for (int g = 0; g < GROUP; ++g) least[g] = infinity<real>();
    for (int start = 0; start < count; start += GROUP) {
        UNROLL
        for (int g = 0; g < GROUP; ++g) {
            const real dx = xs[start + g] - x, dy = ys[start + g] - y;
            least[g] = fast_minimum(least[g], multiply_add(dx, dx, dy * dy));
        }
    }
    sort(least);
    real found = least[0];
    UNROLL
    for (int g = 1; g < GROUP; ++g) found = g < wanted ? least[g] : found;
    return found;
}

// Where an agent keeps numbers: element k of agent i, so that neighbouring threads touch neighbouring elements.
struct Numbers {
    AgentNumber* at;
    FN AgentNumber& operator[](int k) const { return at[k * AGENTS]; }
};

// A max-heap of the nearest so far, in `kept`; distances are made anew when they are asked for.
struct Heap {
    const real *xs, *ys;
    real        x, y;
    Numbers     kept;

    FN Near at(int k) const { return of(kept[k]); }
    FN Near of(int number) const { return {squared_distance(xs[number], ys[number], x, y), number}; }

    // Puts `number` into the heap of `size` in place of what stands at `k`.
    FN void sink(int k, int size, int number) const {
        const Near own = of(number);
        for (;;) {
            int child = 2 * k + 1;
            if (child >= size) break;
            if (child + 1 < size && nearer(at(child), at(child + 1))) ++child;
            if (!nearer(own, at(child))) break;
            kept[k] = kept[child];
            k       = child;
        }
        kept[k] = AgentNumber(number);
    }
};

// Shifts a bit into `marks` for each of the GROUP points from `start` on: whether it lies within `limit`, about.
FN u32 marked(u32 marks, const real* xs, const real* ys, int start, real x, real y, real limit) {
    UNROLL
    for (int c = 0; c < GROUP; ++c) {
        const real dx = xs[start + c] - x, dy = ys[start + c] - y;
        marks = sign_shifted_in(marks, multiply_add(dx, dx, multiply_add(dy, dy, -limit)));
    }
    return marks;
}

// Which of the 32 points from `start` on lie within `limit`, about: the first in the highest bit.
FN u32 within(const real* xs, const real* ys, int start, int count, real x, real y, real limit) {
    const u32 first = marked(0, xs, ys, start, x, y, limit);
    return start + GROUP < count ? marked(first, xs, ys, start + GROUP, x, y, limit) : first << GROUP;
}

// Nothing lies beyond, but what is infinitely far.
FN real everywhere() { return largest<real>() / 4; }

// The `wanted` nearest within `limit`, however many there are.
NOINLINE int nearest_of_many(Heap heap, int count, int wanted, real limit) {
    int size = 0;
    for (int start = 0; start < count; start += 32) {
        for (u32 marks = within(heap.xs, heap.ys, start, count, heap.x, heap.y, limit); marks != 0;) {
            const int bit = highest_bit(marks), c = start + 31 - bit;
            marks ^= 1u << bit;
            const Near point = heap.of(c);
            if (size < wanted) {
                int k = size++;
                for (; k > 0 && nearer(heap.at((k - 1) / 2), point); k = (k - 1) / 2) heap.kept[k] = heap.kept[(k - 1) / 2];
                heap.kept[k] = AgentNumber(c);
            } else if (nearer(point, heap.at(0))) {
                heap.sink(0, size, c);
            }
        }
    }
    for (int end = size - 1; end > 0; --end) {
        const int last = heap.kept[end];
        heap.kept[end] = heap.kept[0];
        heap.sink(0, end, last);
    }
    return size;
}

// Up to so many are found by comparing in registers; more of them, by a heap.
constexpr int FEW = GROUP;

// Numbers that `nearest` has room for while it looks; more only where many are at the same distance.
constexpr int ROOM = 2 * GROUP;

FN constexpr int room_for(int wanted) { return wanted > ROOM ? wanted : ROOM; }

// Sorts what is in the heap's room, `found` numbers in ascending order, by distance: the first WANTED of them go there.
template <int WANTED> NOINLINE void sort_exactly(Heap heap, int found) {
    Near best[FEW];
    UNROLL
    for (int k = 0; k < FEW; ++k) best[k] = k < found ? heap.at(k) : Near{infinity<real>(), 0};
    sort(best);
    for (int k = FEW; k < found; ++k) {
        Near next = heap.at(k);
        UNROLL
        for (int j = 0; j < WANTED; ++j) order(best[j], next);
    }
    UNROLL
    for (int k = 0; k < WANTED; ++k) heap.kept[k] = AgentNumber(best[k].number);
}

// The same, by what fits into one word: the upper bits of a distance, in whose order distances are, and the place among
// those found. Returns false where that cannot tell two distances apart that differ.
template <int WANTED> FN bool sort_by_words(const Heap& heap, int found, AgentNumber (&numbers)[WANTED]) {
    constexpr u32 place = ROOM - 1, none = ~u32(0);
    const auto word = [&](int k) { return (u32(bits_of(heap.of(k < found ? heap.kept[k] : AgentNumber(0)).distance)) & ~place) | u32(k); };
    u32 first[FEW], best[WANTED + 1];
    UNROLL
    for (int k = 0; k < FEW; ++k) {
        const u32 own = word(k);
        first[k]      = k < found ? own : none;
    }
    sort(first);
    UNROLL
    for (int k = 0; k <= WANTED; ++k) best[k] = k < FEW ? first[k < FEW ? k : 0] : none;
    for (int k = FEW; k < found; ++k) {
        u32 next = word(k);
        UNROLL
        for (int j = 0; j <= WANTED; ++j) order(best[j], next);
    }
    bool close = false;
    UNROLL
    for (int k = 0; k < WANTED; ++k) close |= (best[k] ^ best[k + 1]) <= place;
    if (close) {
        UNROLL
        for (int k = 0; k < WANTED; ++k) {
            if (k + 1 >= found || (best[k] ^ best[k + 1]) > place) continue;
            if (heap.at(int(best[k] & place)).distance != heap.at(int(best[k + 1] & place)).distance) return false;
        }
    }
    UNROLL
    for (int k = 0; k < WANTED; ++k) numbers[k] = heap.kept[int(best[k] & place)];
    return true;
}

// The numbers of the WANTED nearest of `count` points to (x, y), nearest first. Returns how many there are: infinitely far
// ones do not count. `room` has room for room_for(WANTED); the points' arrays have in_groups(count) elements.
template <int WANTED>
FN int nearest(const real* xs, const real* ys, int count, real x, real y, const Numbers& room, AgentNumber (&numbers)[WANTED]) {
    static_assert(WANTED <= FEW, "more are found by nearest_of_many");
    const Heap heap{xs, ys, x, y, room};
    // Somewhat more than the reach, which is rounded otherwise than distances are, and more than zero; and finite.
    const real margin = real(1) + real(1) / (1 << 20), least = real(1e-30);
    const real limit  = fast_minimum(multiply_add(reach(xs, ys, count, x, y, WANTED), margin, least), everywhere());
    int found = 0;
    for (int start = 0; start < count; start += 32) {
        for (u32 marks = within(xs, ys, start, count, x, y, limit); marks != 0;) {
            const int first = highest_bit(marks);
            marks ^= 1u << first;
            if (found < ROOM) room[found] = AgentNumber(start + 31 - first);
            ++found;
        }
    }
    bool sorted = false;
    if constexpr (sizeof(real) == sizeof(u32)) sorted = found <= ROOM && sort_by_words<WANTED>(heap, found, numbers);
    if (!sorted) {
        if (found > ROOM) found = nearest_of_many(heap, count, WANTED, limit);
        else sort_exactly<WANTED>(heap, found);
        UNROLL
        for (int k = 0; k < WANTED; ++k) numbers[k] = room[k];
    }
    return found < WANTED ? found : WANTED;
}
