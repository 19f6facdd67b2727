// Choices drawn from logits that are accumulators.

// Draws an action for rows `first` and `first` + 8, and writes what of it lies below `end`; leaves log-probabilities.
template <int N> FN void draw_choices(const SampleCall& call, const float (&c)[N][4], Index first, Index end, float (&log_prob)[2]) {
    const int lane = warp_lane(), half = lane % 2;
    u32       bits[4][LANES] = {};
    log_prob[0] = log_prob[1] = 0;
    UNROLL
    for (int d = 0; d < WIDTH; ++d) {
        float most[2], reached[2] = {}, share[2][N][2] = {}, wanted[2], logit[2];
        int   choice[2] = {};
        most_of(most, c, d);
        if (d % 4 == 0 && !call.greedy) draw_bits(bits, call, d / 4, OneRow{first + 8 * half, true});
        for_columns(d, [&](int j, int p, int column, bool in) {
            UNROLL
            for (int h = 0; h < 2; ++h) share[h][j][p] = in ? exponential(c[j][2 * h + p] - most[h]) : 0.0f;
        });
        // Sums in the columns' order, thread after thread, so that what has no share never ends a sum.
        UNROLL
        for (int j = offset_of(d) / 8; j <= (offset_of(d) + size_of(d) - 1) / 8; ++j) {
            UNROLL
            for (int turn = 0; turn < 4; ++turn) {
                UNROLL
                for (int h = 0; h < 2; ++h) {
                    const float once = reached[h] + share[h][j][0], twice = once + share[h][j][1];
                    reached[h]       = from_lane(twice, lane / 4 * 4 + turn);
                    if (lane % 4 == turn) {
                        share[h][j][0] = once;
                        share[h][j][1] = twice;
                    }
                }
            }
        }
        UNROLL
        for (int h = 0; h < 2; ++h) {
            float unit;
            to_unit(u32(from_lane(int(bits[d % 4][0]), lane / 4 * 4 + h)), unit);
            wanted[h] = unit * reached[h];
        }
        for_columns(d, [&](int j, int p, int column, bool in) {
            UNROLL
            for (int h = 0; h < 2; ++h) {
                // (the likeliest: how many columns come before the first that has the most)
                const bool before = call.greedy ? false : share[h][j][p] <= wanted[h];
                choice[h] += in && before ? 1 : 0;
            }
        });
        UNROLL
        for (int h = 0; h < 2; ++h) choice[h] = over_row_sum(choice[h]);
        if (call.greedy) {
            choice[0] = choice[1] = size_of(d) - 1;
            for_columns(d, [&](int j, int p, int column, bool in) {
                UNROLL
                for (int h = 0; h < 2; ++h) {
                    if (in && c[j][2 * h + p] == most[h]) choice[h] = minimum_of(choice[h], column - offset_of(d));
                }
            });
            UNROLL
            for (int h = 0; h < 2; ++h) {
                choice[h] = minimum_of(choice[h], from_lane_across(choice[h], 1));
                choice[h] = minimum_of(choice[h], from_lane_across(choice[h], 2));
            }
        }
        const int columns[2] = {offset_of(d) + choice[0], offset_of(d) + choice[1]};
        number_at(logit, c, d, columns);
        UNROLL
        for (int h = 0; h < 2; ++h) {
            log_prob[h] += (logit[h] - most[h]) - logarithm(reached[h]);
            const Index row = first + 8 * h;
            if (lane % 4 == h && row < end) call.actions[row * WIDTH + d] = Element(choice[h] + start_of(d));
        }
    }
}
