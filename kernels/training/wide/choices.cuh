// Independent choices whose logits are accumulators: four threads of a warp share rows g and g + 8, two columns in eight
// each. What is said of a row is known to all four.

constexpr int CHOICE_ENDS = DISCRETE ? PARAMETERS : 0;

FN float over_row_most(float x) {
    x = greater(x, from_lane_across(x, 1));
    return greater(x, from_lane_across(x, 2));
}

// Calls `each(j, p, column, in)` for the columns, of 8 N, among which those of element d are, in their order. (Loops of
// other lengths for other elements would not be written out, and sums that they count through lie in no registers.)
template <int N, class Each> FN void for_columns(int d, const Each& each) {
    const int begin = offset_of(d), end = begin + size_of(d);
    UNROLL
    for (int j = 0; j < N; ++j) {
        if (8 * j + 8 <= begin || end <= 8 * j) continue;
        UNROLL
        for (int p = 0; p < 2; ++p) {
            const int column = 8 * j + warp_lane() % 4 * 2 + p;
            each(j, p, column, begin <= column && column < end);
        }
    }
}

// The number of one column of each row.
template <int N> FN void number_at(float (&found)[2], const float (&c)[N][4], int d, const int (&wanted)[2]) {
    found[0] = found[1] = 0;
    for_columns<N>(d, [&](int j, int p, int column, bool) {
        UNROLL
        for (int h = 0; h < 2; ++h) found[h] += column == wanted[h] ? c[j][2 * h + p] : 0.0f;
    });
    UNROLL
    for (int h = 0; h < 2; ++h) found[h] = over_row_sum(found[h]);
}

template <int N> FN void most_of(float (&most)[2], const float (&c)[N][4], int d) {
    most[0] = most[1] = -3.4e38f;
    for_columns<N>(d, [&](int j, int p, int, bool in) {
        UNROLL
        for (int h = 0; h < 2; ++h) most[h] = in ? greater(most[h], c[j][2 * h + p]) : most[h];
    });
    UNROLL
    for (int h = 0; h < 2; ++h) most[h] = over_row_most(most[h]);
}

// Forbids what a mask does; `place` is that of the row of each of the warp's first 16 threads, below 0 none.
template <int N> FN void forbid(float (&c)[N][4], const u8* mask, int place) {
    if (mask == nullptr) return;
    UNROLL
    for (int h = 0; h < 2; ++h) {
        const int of_row = from_lane(place, warp_lane() / 4 + 8 * h);
        UNROLL
        for (int j = 0; 8 * j < CHOICE_ENDS; ++j) {
            UNROLL
            for (int p = 0; p < 2; ++p) {
                const int  column = 8 * j + warp_lane() % 4 * 2 + p;
                const bool known  = of_row >= 0 && column < CHOICE_ENDS;
                if (known && mask[Index(of_row) * PARAMETERS + column] == 0) c[j][2 * h + p] = FORBIDDEN;
            }
        }
    }
}
