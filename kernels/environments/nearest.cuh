// The nearest of many points, by squared distance; equal distances in the order of the points' numbers.

template <class Real> FN Real squared_distance(Real ax, Real ay, Real bx, Real by) {
    const Real dx = ax - bx, dy = ay - by;
    return dx * dx + dy * dy;
}

// A point's number and squared distance. Ordered by distance, then by number.
struct Near {
    real distance;
    int  number;
};

FN bool nearer(const Near& a, const Near& b) {
    return a.distance < b.distance || (a.distance == b.distance && a.number < b.number);
}

// order(a, b) swaps a and b if b is less.
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

// One round of compare-exchanges between elements STEP apart, which merges sorted runs of length RUN.
template <int RUN, int STEP, int N, class T> FN void merge_round(T (&values)[N]) {
    constexpr int first = STEP % RUN;
    UNROLL
    for (int a = 0; a < N - STEP; ++a) {
        const int b = a + STEP;
        if (a >= first && (a - first) / STEP % 2 == 0 && a / (2 * RUN) == b / (2 * RUN)) order(values[a], values[b]);
    }
}

// Sorts 2^n values by Batcher's odd-even mergesort, whose comparisons do not depend on the values: no thread divergence
// on a GPU, no branch mispredictions on a CPU.
template <int RUN = 1, int STEP = 1, int N, class T> FN void sort(T (&values)[N]) {
    merge_round<RUN, STEP>(values);
    if constexpr (STEP > 1) sort<RUN, STEP / 2>(values);
    else if constexpr (2 * RUN < N) sort<2 * RUN, 2 * RUN>(values);
}

// Points are processed in groups of GROUP; infinitely distant points pad the last group.
constexpr int GROUP = 16;
static_assert(2 * GROUP == 32, "two groups fill a word of marks");

FN constexpr int in_groups(int n) { return (n + 31) / 32 * 32; }

// An approximate squared distance within which at least `needed` points lie, if there are as many: the `needed`-th
// smallest of GROUP minima, minimum g over points g, g + GROUP and so on. (For 11 of 110 points, 15 lie within it.)
FN real squared_radius_of(const real* xs, const real* ys, int count, real x, real y, int needed) {
    real minima[GROUP];
    UNROLL
    for (int g = 0; g < GROUP; ++g) minima[g] = infinity<real>();
    for (int start = 0; start < count; start += GROUP) {
        UNROLL
        for (int g = 0; g < GROUP; ++g) {
            const real dx = xs[start + g] - x, dy = ys[start + g] - y;
            minima[g] = fast_minimum(minima[g], multiply_add(dx, dx, dy * dy));
        }
    }
    sort(minima);
    real squared_radius = minima[0];
    UNROLL
    for (int g = 1; g < GROUP; ++g) squared_radius = g < needed ? minima[g] : squared_radius;
    return squared_radius;
}

// An agent's array of point numbers, strided so that neighbouring threads access neighbouring elements.
struct Numbers {
    AgentNumber* at;
    FN AgentNumber& operator[](int k) const { return at[k * AGENTS]; }
};

// A max-heap of the nearest points so far; `numbers` stores only numbers, distances are recomputed.
struct Heap {
    const real *xs, *ys;
    real        x, y;
    Numbers     numbers;

    FN Near at(int k) const { return of(numbers[k]); }
    FN Near of(int number) const { return {squared_distance(xs[number], ys[number], x, y), number}; }

    // Replaces element `k` of a heap of `size` elements by `number`, and restores the heap order.
    FN void sink(int k, int size, int number) const {
        const Near sinking = of(number);
        for (;;) {
            int child = 2 * k + 1;
            if (child >= size) break;
            if (child + 1 < size && nearer(at(child), at(child + 1))) ++child;
            if (!nearer(sinking, at(child))) break;
            numbers[k] = numbers[child];
            k          = child;
        }
        numbers[k] = AgentNumber(number);
    }
};

// Shifts a bit into `marks` for each point of a group: 1 if it is about within squared distance `limit` of (x, y).
FN u32 marked(u32 marks, const real* xs, const real* ys, int start, real x, real y, real limit) {
    UNROLL
    for (int c = 0; c < GROUP; ++c) {
        const real dx = xs[start + c] - x, dy = ys[start + c] - y;
        marks = sign_shifted_in(marks, multiply_add(dx, dx, multiply_add(dy, dy, -limit)));
    }
    return marks;
}

// A bit for each of 32 points from `start` on, highest first: whether it is about within squared distance `limit`.
FN u32 within(const real* xs, const real* ys, int start, int count, real x, real y, real limit) {
    const u32 first = marked(0, xs, ys, start, x, y, limit);
    return start + GROUP < count ? marked(first, xs, ys, start + GROUP, x, y, limit) : first << GROUP;
}

// A limit beyond which only infinitely distant points are.
FN real no_limit() { return largest<real>() / 4; }

// Writes the `needed` nearest points within squared distance `limit` to heap.numbers, in order; returns their number.
NOINLINE int nearest_of_many(Heap heap, int count, int needed, real limit) {
    int size = 0;
    for (int start = 0; start < count; start += 32) {
        for (u32 marks = within(heap.xs, heap.ys, start, count, heap.x, heap.y, limit); marks != 0;) {
            const int bit = highest_bit(marks), c = start + 31 - bit;
            marks ^= 1u << bit;
            const Near point = heap.of(c);
            if (size < needed) {
                int k = size++;
                for (; k > 0 && nearer(heap.at((k - 1) / 2), point); k = (k - 1) / 2)
                    heap.numbers[k] = heap.numbers[(k - 1) / 2];
                heap.numbers[k] = AgentNumber(c);
            } else if (nearer(point, heap.at(0))) {
                heap.sink(0, size, c);
            }
        }
    }
    for (int end = size - 1; end > 0; --end) {
        const int last    = heap.numbers[end];
        heap.numbers[end] = heap.numbers[0];
        heap.sink(0, end, last);
    }
    return size;
}

// Up to FEW nearest points are sorted in registers, more of them in a heap.
constexpr int FEW = GROUP;

// Candidates that `nearest` stores; there are more only if many points are at the same distance.
constexpr int ROOM = 2 * GROUP;

FN constexpr int room_for(int needed) { return needed > ROOM ? needed : ROOM; }

// Sorts the heap's `count` candidates, whose numbers are ascending, by distance; only the first NEEDED remain valid.
template <int NEEDED> NOINLINE void sort_exactly(Heap heap, int count) {
    Near best[FEW];
    UNROLL
    for (int k = 0; k < FEW; ++k) best[k] = k < count ? heap.at(k) : Near{infinity<real>(), 0};
    sort(best);
    for (int k = FEW; k < count; ++k) {
        Near next = heap.at(k);
        UNROLL
        for (int j = 0; j < NEEDED; ++j) order(best[j], next);
    }
    UNROLL
    for (int k = 0; k < NEEDED; ++k) heap.numbers[k] = AgentNumber(best[k].number);
}

// Writes the NEEDED nearest of `count` candidates to `numbers`, by sorting one word per candidate: upper bits of its
// distance, which order like it, and its index. False, with `numbers` unset, if they do not tell two distances apart.
template <int NEEDED> FN bool sort_by_words(const Heap& heap, int count, AgentNumber (&numbers)[NEEDED]) {
    constexpr u32 index_bits = ROOM - 1, none = ~u32(0);
    const auto word = [&](int k) {
        const AgentNumber number = k < count ? heap.numbers[k] : AgentNumber(0);
        return (u32(bits_of(heap.of(number).distance)) & ~index_bits) | u32(k);
    };
    u32 first[FEW], best[NEEDED + 1];
    UNROLL
    for (int k = 0; k < FEW; ++k) {
        const u32 candidate = word(k);
        first[k]            = k < count ? candidate : none;
    }
    sort(first);
    UNROLL
    for (int k = 0; k <= NEEDED; ++k) best[k] = k < FEW ? first[k < FEW ? k : 0] : none;
    for (int k = FEW; k < count; ++k) {
        u32 next = word(k);
        UNROLL
        for (int j = 0; j <= NEEDED; ++j) order(best[j], next);
    }
    bool close = false;
    UNROLL
    for (int k = 0; k < NEEDED; ++k) close |= (best[k] ^ best[k + 1]) <= index_bits;
    if (close) {
        UNROLL
        for (int k = 0; k < NEEDED; ++k) {
            if (k + 1 >= count || (best[k] ^ best[k + 1]) > index_bits) continue;
            if (heap.at(int(best[k] & index_bits)).distance != heap.at(int(best[k + 1] & index_bits)).distance)
                return false;
        }
    }
    UNROLL
    for (int k = 0; k < NEEDED; ++k) numbers[k] = heap.numbers[int(best[k] & index_bits)];
    return true;
}

// Writes the NEEDED nearest of `count` points to `numbers`, nearest first, and returns how many there are, without
// infinitely distant ones. `room`, for candidates, needs room_for(NEEDED) elements; xs and ys need in_groups(count).
template <int NEEDED>
FN int nearest(const real* xs, const real* ys, int count, real x, real y, const Numbers& room,
               AgentNumber (&numbers)[NEEDED]) {
    static_assert(NEEDED <= FEW, "use nearest_of_many for more");
    const Heap heap{xs, ys, x, y, room};
    // Slightly larger than the squared radius, whose rounding differs from that of distances; positive and finite.
    const real margin = real(1) + real(1) / (1 << 20), positive = real(1e-30);
    const real squared_radius = squared_radius_of(xs, ys, count, x, y, NEEDED);
    const real limit = fast_minimum(multiply_add(squared_radius, margin, positive), no_limit());
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
    if constexpr (sizeof(real) == sizeof(u32)) sorted = found <= ROOM && sort_by_words<NEEDED>(heap, found, numbers);
    if (!sorted) {
        if (found > ROOM) found = nearest_of_many(heap, count, NEEDED, limit);
        else sort_exactly<NEEDED>(heap, found);
        UNROLL
        for (int k = 0; k < NEEDED; ++k) numbers[k] = room[k];
    }
    return found < NEEDED ? found : NEEDED;
}
