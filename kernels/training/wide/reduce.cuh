// Adds up what the blocks of gradient.cuh and update.cuh found.

template <int NET> FN float over_blocks(const WideReduceCall& call, int place) {
    const int first = NETS > 1 && NET == 1 ? call.actors : 0, end = NETS > 1 && NET == 0 ? call.actors : call.blocks;
    float     sum   = 0;
    _Pragma("unroll 16")
    for (int block = first; block < end; ++block) sum += call.sums[block * SUMS_OF_BLOCK + place];
    return sum;
}

template <int NET, int L> FN bool sum_up(const WideReduceCall& call, int parameter, float& sum) {
    using Of              = Layer<NET, L>;
    constexpr int columns = L == 0 ? COLUMNS_1 : in_of(NET, L), weights = weight_at(NET, L), biases = bias_at(NET, L);
    constexpr int rows    = rows_of(NET, L), workers = workers_of(NET, L);
    const bool    weight = weights <= parameter && parameter < weights + rows * columns;
    const bool    bias   = biases <= parameter && parameter < biases + rows;
    if (weight || bias) {
        const int out = weight ? (parameter - weights) / columns : parameter - biases;
        const int in  = weight ? (parameter - weights) % columns : L == 0 ? FEATURES : 0;
        if (out >= out_of(NET, L) || (weight && in >= in_of(NET, L))) return true;  // padding
        const bool  plain = weight || L == 0;
        const int   row = Of::LAST ? in : out, column = Of::LAST ? out : in;
        const int   slice = plain || !Of::LAST ? row / SLICE * Of::PARTS + column / Of::COLUMNS : 0;
        const Index place = plain ? Index(row % SLICE) * Of::COLUMNS + column % Of::COLUMNS
                                  : Index(SLICE) * Of::COLUMNS + (Of::LAST ? column : row % SLICE);
        const float* from = call.partials + found_at<NET, L>().first + Index(slice) * workers * Of::SIZE + place;
        _Pragma("unroll 16")
        for (int worker = 0; worker < workers; ++worker) sum += from[Index(worker) * Of::SIZE];
        return true;
    }
    if constexpr (NORM && L + 1 < LAYERS) {
        const int  by_gain = parameter - gain_at(NET, L), by_shift = parameter - shift_at(NET, L);
        const bool gain = 0 <= by_gain && by_gain < rows, shift = 0 <= by_shift && by_shift < rows;
        if (gain || shift) {
            const int place = SUMS_OF_LOSS + LOG_STDS + bias_of(NET, L) + (gain ? by_gain : NORMED + by_shift);
            sum = over_blocks<NET>(call, place);
            return true;
        }
    }
    if constexpr (L + 1 < LAYERS) return sum_up<NET, L + 1>(call, parameter, sum);
    else if constexpr (NET + 1 < NETS) return sum_up<NET + 1, 0>(call, parameter, sum);
    else return false;
}

KERNEL_OF_BLOCKS(kernel_reduce, WideReduceCall, 256, 1) {
    const int column = block_number() * 256 + thread_rank();
    float     sum    = 0;
    if (column < call.parameters) {
        const bool log_std = LOG_STDS > 0 && LOG_STD_AT <= column && column < LOG_STD_AT + LOG_STDS;
        if (log_std) {
            sum = over_blocks<0>(call, SUMS_OF_LOSS + column - LOG_STD_AT);
        } else {
            sum_up<0, 0>(call, column, sum);
        }
        if (call.more) sum += call.gradient[column];
        if (log_std && call.last) {
            // One beyond a bound is as if at it; of its gradient only what leads back counts, lest it stay there.
            const float value    = call.flat[column];
            const bool  outwards = (value < LOG_STD_LOW && sum > 0) || (value > LOG_STD_HIGH && sum < 0);
            if (outwards) sum = 0;
        }
        call.gradient[column] = sum;
    } else if (column < call.parameters + SUMS_OF_LOSS) {
        const int s = column - call.parameters;
        sum         = s == VALUE_LOSS_SUM ? over_blocks<NETS - 1>(call, s) : over_blocks<0>(call, s);
        call.totals[s] = (call.more ? call.totals[s] : 0.0f) + sum;
    }
}
