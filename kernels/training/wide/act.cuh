// Acting and values of wide perceptrons, and outputs of functions: all layers, and the sampling of actions, in one
// launch.

// --- choices whose logits are accumulators; four threads share rows g and g + 8, each has two of eight columns ---

constexpr int CHOICES = DISCRETE ? PARAMETERS : 0;

FN float row_max(float x) {
    x = fast_maximum(x, shuffle_xor(x, 1));
    return fast_maximum(x, shuffle_xor(x, 2));
}

// Calls each(j, p, column, in) for this thread's columns (p: 0 or 1, in group j of 8), in order, in each group that has
// a column of element d; `in`: the column itself is the element's. (A loop bounded by d is not unrolled: accumulators
// go to local memory.)
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

// Sets number[h] to row h's number in columns[h], one of action element d's, in all four threads that share the row.
template <int N> FN void select_column(float (&number)[2], const float (&c)[N][4], int d, const int (&columns)[2]) {
    number[0] = number[1] = 0;
    for_columns<N>(d, [&](int j, int p, int column, bool) {
        FOR_BOTH_ROWS(h) number[h] += column == columns[h] ? c[j][2 * h + p] : 0.0f;
    });
    FOR_BOTH_ROWS(h) number[h] = row_sum(number[h]);
}

// Sets max_logit[h] to the maximum of element d's columns in row h, in all four threads of the row.
template <int N> FN void max_of_columns(float (&max_logit)[2], const float (&c)[N][4], int d) {
    max_logit[0] = max_logit[1] = -3.4e38f;
    for_columns<N>(d, [&](int j, int p, int, bool in) {
        FOR_BOTH_ROWS(h) max_logit[h] = in ? fast_maximum(max_logit[h], c[j][2 * h + p]) : max_logit[h];
    });
    FOR_BOTH_ROWS(h) max_logit[h] = row_max(max_logit[h]);
}

// Sets masked choices' logits to FORBIDDEN; a warp's first 16 threads have the `index` of each mask, negative for none.
template <int N> FN void apply_mask(float (&c)[N][4], const u8* mask, int index) {
    if (mask == nullptr) return;
    FOR_BOTH_ROWS(h) {
        const int row = shuffle(index, warp_lane() / 4 + 8 * h);
        UNROLL
        for (int j = 0; 8 * j < CHOICES; ++j) {
            UNROLL
            for (int p = 0; p < 2; ++p) {
                const int  column   = 8 * j + warp_lane() % 4 * 2 + p;
                const bool in_range = row >= 0 && column < CHOICES;
                if (in_range && mask[Index(row) * PARAMETERS + column] == 0) c[j][2 * h + p] = FORBIDDEN;
            }
        }
    }
}

// The minimum of a row's four threads.
FN int row_min(int x) {
    x = minimum_of(x, shuffle_xor(x, 1));
    return minimum_of(x, shuffle_xor(x, 2));
}

// Draws, or if greedy takes the most likely, actions of rows `first` and `first` + 8; writes those below row `end`.
template <int N>
FN void draw_choices(const SampleCall& call, const float (&c)[N][4], Index first, Index end, float (&log_prob)[2]) {
    const int lane = warp_lane(), quarter = lane % 4;
    u32       bits[4][LANES] = {};
    log_prob[0] = log_prob[1] = 0;
    UNROLL
    for (int d = 0; d < WIDTH; ++d) {
        const int size = size_of(d);
        float     max_logit[2], cumulative[2] = {}, sums[2][N][2], threshold[2], logit[2];
        int       choice[2] = {size, size};
        max_of_columns(max_logit, c, d);
        if (d % 4 == 0 && !call.greedy) draw_bits(bits, call, d / 4, OneRow{first + 8 * (quarter % 2), true});
        // Cumulative weights of the choices, in order of columns; -1 for choices of weight zero.
        UNROLL
        for (int j = 0; j < N; ++j) {
            if (8 * j + 8 <= offset_of(d) || offset_of(d) + size <= 8 * j) continue;
            FOR_BOTH_ROWS(h) {
                float weight[2];
                UNROLL
                for (int p = 0; p < 2; ++p) {
                    const int  column = 8 * j + quarter * 2 + p;
                    const bool in     = offset_of(d) <= column && column < offset_of(d) + size;
                    weight[p]         = in ? exponential(c[j][2 * h + p] - max_logit[h]) : 0.0f;
                }
                const float pair = weight[0] + weight[1], next = shuffle_xor(pair, 1), half = pair + next;
                const float other_half = shuffle_xor(half, 2);
                const float before =
                    cumulative[h] + ((quarter % 2 != 0 ? next : 0.0f) + (quarter >= 2 ? other_half : 0.0f));
                sums[h][j][0] = weight[0] > 0 ? before + weight[0] : -1.0f;
                sums[h][j][1] = weight[1] > 0 ? before + pair : -1.0f;
                cumulative[h] += half + other_half;
            }
        }
        FOR_BOTH_ROWS(h) {
            float unit;
            to_unit(u32(shuffle(int(bits[d % 4][0]), lane / 4 * 4 + h)), unit);
            threshold[h] = unit * cumulative[h];
        }
        for_columns<N>(d, [&](int j, int p, int column, bool in) {
            FOR_BOTH_ROWS(h) {
                if (in && sums[h][j][p] > threshold[h]) choice[h] = minimum_of(choice[h], column - offset_of(d));
            }
        });
        FOR_BOTH_ROWS(h) choice[h] = row_min(choice[h]);
        // Takes the most likely choice if greedy, or if rounding put the threshold above all sums.
        if (call.greedy || warp_any(maximum(choice[0], choice[1]) == size)) {
            int most_likely[2] = {size - 1, size - 1};
            for_columns<N>(d, [&](int j, int p, int column, bool in) {
                FOR_BOTH_ROWS(h) {
                    if (in && c[j][2 * h + p] == max_logit[h]) {
                        most_likely[h] = minimum_of(most_likely[h], column - offset_of(d));
                    }
                }
            });
            FOR_BOTH_ROWS(h) {
                const int first_of_equals = row_min(most_likely[h]);
                choice[h]                 = call.greedy || choice[h] == size ? first_of_equals : choice[h];
            }
        }
        const int columns[2] = {offset_of(d) + choice[0], offset_of(d) + choice[1]};
        select_column(logit, c, d, columns);
        FOR_BOTH_ROWS(h) {
            log_prob[h] += (logit[h] - max_logit[h]) - logarithm(cumulative[h]);
            const Index row = first + 8 * h;
            if (quarter == h && row < end) call.actions[row * WIDTH + d] = Element(choice[h] + start_of(d));
        }
    }
}

// Outputs as floats in the memory of a warpgroup's rows, where distributions.cuh expects them.

template <class Runner> FN float* block_outputs(const Runner& runner) {
    return reinterpret_cast<float*>(runner.rows) - runner.group * GROUP * ROW_STRIDE;
}
template <class Runner> FN float* warp_outputs(const Runner& runner) {
    return block_outputs(runner) + thread_rank() / WARP * WARP * ROW_STRIDE;
}

// Stores the means of a warp's 16 rows, followed by the log standard deviations, at warp_outputs().
template <class Net, class Runner, int N>
FN void store_means(const Runner& runner, const float (&c)[N][4], const float* flat) {
    float* const outputs = warp_outputs(runner);
    store_outputs<Net::MEANS>(outputs, ROW_STRIDE, c, runner.lane);
    if (runner.lane < WARP_ROWS) {
        for (int d = 0; d < Net::LOG_STDS; ++d) {
            outputs[runner.lane * ROW_STRIDE + Net::MEANS + d] =
                clip(flat[Net::LOG_STD_AT + d], LOG_STD_LOW, LOG_STD_HIGH);
        }
    }
    warp_barrier();
}

// Draws an action for each of a warp's rows; writes actions, log-probabilities and, of a shared trunk, values.
template <class Net, class Runner, class Call, int N>
FN void draw_action(const Runner& runner, float (&c)[N][4], const Call& call, const SampleCall& sample, Index row,
                    int index) {
    const bool active = runner.lane < WARP_ROWS && index >= 0;
    if (Net::SHARED_TRUNK && call.values != nullptr) {
        runner.store_values(c, Net::VALUE_COLUMN);
        if (active) call.values[row] = runner.values()[runner.lane];
    }
    if constexpr (DISCRETE) {
        const Index first = row - runner.lane % WARP_ROWS + runner.lane / 4;
        float       log_prob[2];
        apply_mask(c, call.action_mask, index);
        draw_choices(sample, c, first, call.rows, log_prob);
        const int h = runner.lane % 4;
        if (h < 2 && first + 8 * h < call.rows) call.log_probs[first + 8 * h] = h == 0 ? log_prob[0] : log_prob[1];
    } else {
        store_means<Net>(runner, c, call.flat);
        const OneRow env = {row, active};
        const Rows   rows(outputs_at(block_outputs(runner)), nullptr, nullptr, env);
        Total        total;
        draw_gaussians(total, sample, rows, env);
        if (active) call.log_probs[row] = total.log_prob[0];
    }
}

// Draws an action for every row; raises `largest` to the largest magnitude in active agents' observations.
template <class Shape, class Call> FN void act(const Call& call) {
    using Net = NetOf<Shape, 0>;
    const SampleCall sample = {call.rows,    call.first_row, call.stream,    call.turn,    nullptr,
                               call.actions, call.acted, call.log_probs, nullptr,      call.greedy, nullptr};
    const auto in_order = [](Index row) { return int(row); };
    u32        largest  = 0;
    const auto use      = [&](const Runner<Net>& runner, Outputs<Net>& c, Index row, int index) {
        draw_action<Net>(runner, c, call, sample, row, index);
    };
    u32* const magnitude = call.largest == nullptr ? nullptr : &largest;
    run_network<Net>(call, block_number(), block_count(), in_order, magnitude, call.alive, use);
    raise_maximum(call.largest, largest);
}

// Writes the critic's value of every row; raises `largest` to the largest magnitude in active agents' observations.
template <class Shape, class Call> FN void values(const Call& call) {
    using Net = NetOf<Shape, Shape::NETS - 1>;
    u32        largest  = 0;
    const auto index_of = [&](Index row) { return int(call.indices == nullptr ? row : call.indices[row]); };
    const auto use      = [&](const Runner<Net>& runner, Outputs<Net>& c, Index row, int index) {
        runner.store_values(c, Net::VALUE_COLUMN);
        if (runner.lane < WARP_ROWS && index >= 0) call.values[row] = runner.values()[runner.lane];
    };
    u32* const magnitude = call.largest == nullptr ? nullptr : &largest;
    run_network<Net>(call, block_number(), block_count(), index_of, magnitude, call.alive, use);
    raise_maximum(call.largest, largest);
}

// Runs a worker's rows through one function, and writes its outputs.
template <class Net, class Call> FN void net_outputs(const Call& call, int worker, int workers) {
    const auto in_order = [](Index row) { return int(row); };
    run_network<Net>(call, worker, workers, in_order, nullptr, nullptr,
                     [&](const Runner<Net>& runner, Outputs<Net>& c, Index row, int) {
        constexpr int last = Net::LAYERS - 1;
        for_accumulators<Net, Net::padded_outs(last) / 8, Net::out_of(last)>(
            runner, call.rows, row / GROUP_ROWS,
            [&](int j, int q, Index index) { if (index >= 0) call.outputs[index] = c[j][q]; });
    });
}

// Writes the outputs of one or two functions, [rows, nets, outputs]; with two, half of the blocks run each.
template <class Shape, class Call> FN void outputs(const Call& call) {
    constexpr int last  = Shape::NETS - 1;
    const int     first = last > 0 ? block_count() / 2 : block_count(), block = block_number();
    if (block < first) net_outputs<NetOf<Shape, 0>>(call, block, first);
    else if constexpr (last > 0) net_outputs<NetOf<Shape, last>>(call, block - first, block_count() - first);
}
