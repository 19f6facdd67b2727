// Choices drawn from logits that are accumulators.

// The least of a row's four threads.
FN int over_row_least(int x) {
    x = minimum_of(x, from_lane_across(x, 1));
    return minimum_of(x, from_lane_across(x, 2));
}

// Draws an action for rows `first` and `first` + 8, and writes what of it lies below `end`; leaves log-probabilities.
template <int N> FN void draw_choices(const SampleCall& call, const float (&c)[N][4], Index first, Index end, float (&log_prob)[2]) {
    const int lane = warp_lane(), turn = lane % 4;
    u32       bits[4][LANES] = {};
    log_prob[0] = log_prob[1] = 0;
    UNROLL
    for (int d = 0; d < WIDTH; ++d) {
        const int size = size_of(d);
        float     most[2], reached[2] = {}, sums[2][N][2], wanted[2], logit[2];
        int       choice[2] = {size, size};
        most_of(most, c, d);
        if (d % 4 == 0 && !call.greedy) draw_bits(bits, call, d / 4, OneRow{first + 8 * (turn % 2), true});
        // How much of all shares there is up to each column, in the columns' order; -1 where a column has none.
        UNROLL
        for (int j = 0; j < N; ++j) {
            if (8 * j + 8 <= offset_of(d) || offset_of(d) + size <= 8 * j) continue;
            UNROLL
            for (int h = 0; h < 2; ++h) {
                float share[2];
                UNROLL
                for (int p = 0; p < 2; ++p) {
                    const int  column = 8 * j + turn * 2 + p;
                    const bool in     = offset_of(d) <= column && column < offset_of(d) + size;
                    share[p]          = in ? exponential(c[j][2 * h + p] - most[h]) : 0.0f;
                }
                const float own = share[0] + share[1], beside = from_lane_across(own, 1), two = own + beside;
                const float others = from_lane_across(two, 2);
                const float before = reached[h] + ((turn % 2 != 0 ? beside : 0.0f) + (turn >= 2 ? others : 0.0f));
                sums[h][j][0] = share[0] > 0 ? before + share[0] : -1.0f;
                sums[h][j][1] = share[1] > 0 ? before + own : -1.0f;
                reached[h] += two + others;
            }
        }
        UNROLL
        for (int h = 0; h < 2; ++h) {
            float unit;
            to_unit(u32(from_lane(int(bits[d % 4][0]), lane / 4 * 4 + h)), unit);
            wanted[h] = unit * reached[h];
        }
        for_columns<N>(d, [&](int j, int p, int column, bool in) {
            UNROLL
            for (int h = 0; h < 2; ++h) {
                if (in && sums[h][j][p] > wanted[h]) choice[h] = minimum_of(choice[h], column - offset_of(d));
            }
        });
        UNROLL
        for (int h = 0; h < 2; ++h) choice[h] = over_row_least(choice[h]);
        // The likeliest, also where roundings left a sum beyond all others.
        if (call.greedy || any_lane(maximum(choice[0], choice[1]) == size)) {
            int likeliest[2] = {size - 1, size - 1};
            for_columns<N>(d, [&](int j, int p, int column, bool in) {
                UNROLL
                for (int h = 0; h < 2; ++h) {
                    if (in && c[j][2 * h + p] == most[h]) likeliest[h] = minimum_of(likeliest[h], column - offset_of(d));
                }
            });
            UNROLL
            for (int h = 0; h < 2; ++h) {
                const int one = over_row_least(likeliest[h]);
                choice[h]     = call.greedy || choice[h] == size ? one : choice[h];
            }
        }
        const int columns[2] = {offset_of(d) + choice[0], offset_of(d) + choice[1]};
        number_at(logit, c, d, columns);
        UNROLL
        for (int h = 0; h < 2; ++h) {
            log_prob[h] += (logit[h] - most[h]) - logarithm(reached[h]);
            const Index row = first + 8 * h;
            if (turn == h && row < end) call.actions[row * WIDTH + d] = Element(choice[h] + start_of(d));
        }
    }
}
