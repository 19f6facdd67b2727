// What a horizon's advantages and returns are like: from the moments of each row those of all, and what the loss and the
// figures of the iteration take from them.
//
// The sums are in doubles, of what rows' means lie apart from the first row's first number; and in an order that depends
// on the number of rows alone.
//
// Generated before it: Figure, BLOCK, and SUMS: so many figures come first that the update adds to.

constexpr int    STRIDE          = ON_GPU ? BLOCK : 1;
constexpr double LEAST_DEVIATION = 1e-8, LEAST_VARIANCE = 1e-12;  // where all numbers are equal

FN double moment_of(const MeasureCall& call, Index row, int place) {
    return call.moments[row * call.row_stride + place * call.moment_stride];
}

// From the sums over all rows, at MEAN of what lies apart from the first, at SQUARES of its square.
FN void finish(const MeasureCall& call, const double (&sum)[MOMENTS]) {
    const double count = maximum(sum[COUNT], 1.0);
    double       first[QUANTITIES], mean[QUANTITIES], squares[QUANTITIES];
    for (int q = 0; q < QUANTITIES; ++q) {
        first[q]   = moment_of(call, 0, place_of(q, FIRST));
        mean[q]    = sum[place_of(q, MEAN)] / count;
        squares[q] = maximum(sum[place_of(q, SQUARES)] - sum[place_of(q, MEAN)] * mean[q], 0.0);
    }
    if (call.pooled != nullptr) {
        call.pooled[COUNT] = float(sum[COUNT]);
        for (int q = 0; q < QUANTITIES; ++q) {
            call.pooled[place_of(q, FIRST)]   = float(first[q]);
            call.pooled[place_of(q, MEAN)]    = float(mean[q]);
            call.pooled[place_of(q, SQUARES)] = float(squares[q]);
        }
        return;
    }
    if (call.normaliser != nullptr) {
        call.normaliser[0] = float(first[ADVANTAGE] + mean[ADVANTAGE]);
        call.normaliser[1] = float(1.0 / (square_root(squares[ADVANTAGE] / count) + LEAST_DEVIATION));
    }
    for (int s = 0; s < SUMS; ++s) call.figures[s] = 0;
    // Returns less values are the advantages.
    const double unexplained = squares[ADVANTAGE] / count / maximum(squares[RETURN] / count, LEAST_VARIANCE);
    call.figures[EXPLAINED_VARIANCE]  = float(1.0 - unexplained);
    call.figures[LARGEST_OBSERVATION] = *call.largest;
    *call.largest                     = 0;
}

KERNEL_OF_BLOCKS(kernel_measure, MeasureCall, BLOCK, 1) {
    FOR_EACH_BLOCK(block) {
        const Index share = (call.rows + call.blocks - 1) / call.blocks, end = minimum(call.rows, (block + 1) * share);
        double      sum[MOMENTS] = {};
        for (Index row = block * share + thread_rank(); row < end; row += STRIDE) {
            const double count = moment_of(call, row, COUNT);
            sum[COUNT] += count;
            UNROLL
            for (int q = 0; q < QUANTITIES; ++q) {
                const double first = moment_of(call, row, place_of(q, FIRST)) - moment_of(call, 0, place_of(q, FIRST));
                const double apart = first + moment_of(call, row, place_of(q, MEAN));
                sum[place_of(q, MEAN)] += count * apart;
                sum[place_of(q, SQUARES)] += count * apart * apart + moment_of(call, row, place_of(q, SQUARES));
            }
        }
        UNROLL
        for (int m = 0; m < MOMENTS; ++m) {
            sum[m] = block_sum<BLOCK>(sum[m]);
            if (thread_rank() == 0) call.sums[block * MOMENTS + m] = sum[m];
        }
        if (last_block(call.arrived, call.blocks)) {
            UNROLL
            for (int m = 0; m < MOMENTS; ++m) {
                double own = 0;
                for (int other = thread_rank(); other < call.blocks; other += STRIDE) own += call.sums[other * MOMENTS + m];
                sum[m] = block_sum<BLOCK>(own);
            }
            if (thread_rank() == 0) finish(call, sum);
        }
    }
}
