// Acting and valuing with wide perceptrons: all layers, and the drawing of actions, in one launch. And the outputs of
// functions.

// --- choices whose logits are accumulators ---

// Four threads of a warp share rows g and g + 8, two columns in eight each. What is said of a row is known to all four.

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

// The least of a row's four threads.
FN int over_row_least(int x) {
    x = minimum_of(x, from_lane_across(x, 1));
    return minimum_of(x, from_lane_across(x, 2));
}

// Draws an action for rows `first` and `first` + 8, and writes what of it lies below `end`; leaves log-probabilities.
template <int N>
FN void draw_choices(const SampleCall& call, const float (&c)[N][4], Index first, Index end, float (&log_prob)[2]) {
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

// --- boxes ---

// Outputs as floats on a warpgroup's own rows, where the functions of distributions.cuh take them for those of the
// block's warps.

template <class Own> FN float* outputs_of_block(const Own& own) {
    return reinterpret_cast<float*>(own.rows) - own.group * GROUP * ROW_STRIDE;
}
template <class Own> FN float* outputs_of_warp(const Own& own) {
    return outputs_of_block(own) + thread_rank() / WARP * WARP * ROW_STRIDE;
}

// Those of 16 rows, each where its thread of the warp looks for it; log-deviations beside the means.
template <class Net, class Own, int N> FN void store_means(const Own& own, const float (&c)[N][4], const float* flat) {
    float* const outputs = outputs_of_warp(own);
    store_outputs<Net::MEANS>(outputs, ROW_STRIDE, c, own.lane);
    if (own.lane < WARP_ROWS) {
        for (int d = 0; d < Net::LOG_STDS; ++d) {
            outputs[own.lane * ROW_STRIDE + Net::MEANS + d] = clip(flat[Net::LOG_STD_AT + d], LOG_STD_LOW, LOG_STD_HIGH);
        }
    }
    warp_barrier();
}

// --- launches ---

// An action of each of a warp's rows, by its outputs.
template <class Net, class Own, class Call, int N>
FN void draw_action(const Own& own, float (&c)[N][4], const Call& call, const SampleCall& sample, Index row, int place) {
    const bool wanted = own.lane < WARP_ROWS && place >= 0;
    if (Net::SHARED_TRUNK && call.values != nullptr) {
        own.store_values(c, Net::VALUE_AT);
        if (wanted) call.values[row] = own.values()[own.lane];
    }
    if constexpr (DISCRETE) {
        const Index first = row - own.lane % WARP_ROWS + own.lane / 4;
        float       log_prob[2];
        forbid(c, call.action_mask, place);
        draw_choices(sample, c, first, call.rows, log_prob);
        const int h = own.lane % 4;
        if (h < 2 && first + 8 * h < call.rows) call.log_probs[first + 8 * h] = h == 0 ? log_prob[0] : log_prob[1];
    } else {
        store_means<Net>(own, c, call.flat);
        const OneRow env = {row, wanted};
        const Rows   rows(outputs_at(outputs_of_block(own)), nullptr, nullptr, env);
        Total        total;
        draw_gaussians(total, sample, rows, env);
        if (wanted) call.log_probs[row] = total.log_prob[0];
    }
}

template <class Shape, class Call> FN void act(const Call& call) {
    using Net = NetOf<Shape, 0>;
    const SampleCall sample = {call.rows,    call.first_row, call.stream,    call.turn,    nullptr,
                               call.actions, call.acted, call.log_probs, nullptr,      call.greedy, nullptr};
    const auto in_order = [](Index row) { return int(row); };
    u32        largest  = 0;
    const auto use      = [&](const Own<Net>& own, Outputs<Net>& c, Index row, int place) {
        draw_action<Net>(own, c, call, sample, row, place);
    };
    run_wide<Net>(call, block_number(), block_count(), in_order, call.largest == nullptr ? nullptr : &largest, call.alive, use);
    raise_to(call.largest, largest);
}

template <class Shape, class Call> FN void values(const Call& call) {
    using Net = NetOf<Shape, Shape::NETS - 1>;
    u32        largest = 0;
    const auto find    = [&](Index row) { return int(call.places == nullptr ? row : call.places[row]); };
    const auto use     = [&](const Own<Net>& own, Outputs<Net>& c, Index row, int place) {
        own.store_values(c, Net::VALUE_AT);
        if (own.lane < WARP_ROWS && place >= 0) call.values[row] = own.values()[own.lane];
    };
    run_wide<Net>(call, block_number(), block_count(), find, call.largest == nullptr ? nullptr : &largest, call.alive, use);
    raise_to(call.largest, largest);
}

template <class Net, class Call> FN void find_outputs(const Call& call, int worker, int workers) {
    const auto in_order = [](Index row) { return int(row); };
    run_wide<Net>(call, worker, workers, in_order, nullptr, nullptr,
                  [&](const Own<Net>& own, Outputs<Net>& c, Index row, int) {
        constexpr int last = Net::LAYERS - 1;
        for_accumulators<Net, Net::outs_of(last) / 8, Net::out_of(last)>(
            own, call.rows, row / GROUP_ROWS,
            [&](int j, int q, Index place) { if (place >= 0) call.outputs[place] = c[j][q]; });
    });
}

template <class Shape, class Call> FN void outputs(const Call& call) {
    constexpr int last  = Shape::NETS - 1;
    const int     first = last > 0 ? block_count() / 2 : block_count(), block = block_number();
    if (block < first) find_outputs<NetOf<Shape, 0>>(call, block, first);
    else if constexpr (last > 0) find_outputs<NetOf<Shape, last>>(call, block - first, block_count() - first);
}
