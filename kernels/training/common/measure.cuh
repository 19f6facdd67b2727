// Statistics of a horizon's advantages and returns: combines the moments of all rows, and writes the normalisation of
// advantages and the iteration's metrics.
//
// Sums are float64, relative to the first sample of the first row, in an order that depends only on the number of rows.
//
// Generated before it: Metric, BLOCK, and SUMS, the number of metrics that updates accumulate, which come first.

constexpr int    STRIDE  = ON_GPU ? BLOCK : 1;
constexpr double MIN_STD = 1e-8, MIN_VARIANCE = 1e-12;  // lower bounds, if all samples are equal

FN double moment_of(const MeasureCall& call, Index row, int moment) {
    return call.moments[row * call.row_stride + moment * call.moment_stride];
}

// Writes the normalisation of advantages and the metrics; if `pooled` is not null, only the moments of all rows. `sum`
// has the sum (MEAN) and the sum of squares (SQUARES) of all samples, each minus the first sample.
FN void write_statistics(const MeasureCall& call, const double (&sum)[MOMENTS]) {
    const double count = maximum(sum[COUNT], 1.0);
    double       first[QUANTITIES], mean[QUANTITIES], squares[QUANTITIES];
    for (int q = 0; q < QUANTITIES; ++q) {
        first[q]   = moment_of(call, 0, moment_index(q, FIRST));
        mean[q]    = sum[moment_index(q, MEAN)] / count;
        squares[q] = maximum(sum[moment_index(q, SQUARES)] - sum[moment_index(q, MEAN)] * mean[q], 0.0);
    }
    if (call.pooled != nullptr) {
        call.pooled[COUNT] = float(sum[COUNT]);
        for (int q = 0; q < QUANTITIES; ++q) {
            call.pooled[moment_index(q, FIRST)]   = float(first[q]);
            call.pooled[moment_index(q, MEAN)]    = float(mean[q]);
            call.pooled[moment_index(q, SQUARES)] = float(squares[q]);
        }
        return;
    }
    if (call.normaliser != nullptr) {
        call.normaliser[0] = float(first[ADVANTAGE] + mean[ADVANTAGE]);
        call.normaliser[1] = float(1.0 / (square_root(squares[ADVANTAGE] / count) + MIN_STD));
    }
    for (int s = 0; s < SUMS; ++s) call.metrics[s] = 0;
    // Advantages are returns minus values: their variance is the unexplained part of the returns'.
    const double unexplained = squares[ADVANTAGE] / count / maximum(squares[RETURN] / count, MIN_VARIANCE);
    call.metrics[EXPLAINED_VARIANCE]  = float(1.0 - unexplained);
    call.metrics[LARGEST_OBSERVATION] = *call.largest;
    *call.largest                     = 0;
}

// Sums the moments of all rows in float64; the last block to finish writes the statistics.
KERNEL_OF_BLOCKS(kernel_measure, MeasureCall, BLOCK, 1) {
    FOR_EACH_BLOCK(block) {
        const Index share = (call.rows + call.blocks - 1) / call.blocks, end = minimum(call.rows, (block + 1) * share);
        double      sum[MOMENTS] = {};
        for (Index row = block * share + thread_rank(); row < end; row += STRIDE) {
            const double count = moment_of(call, row, COUNT);
            sum[COUNT] += count;
            UNROLL
            for (int q = 0; q < QUANTITIES; ++q) {
                const int    first = moment_index(q, FIRST);
                const double shift = moment_of(call, row, first) - moment_of(call, 0, first);
                const double mean  = shift + moment_of(call, row, moment_index(q, MEAN));
                sum[moment_index(q, MEAN)] += count * mean;
                sum[moment_index(q, SQUARES)] += count * mean * mean + moment_of(call, row, moment_index(q, SQUARES));
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
                double partial = 0;
                for (int b = thread_rank(); b < call.blocks; b += STRIDE) partial += call.sums[b * MOMENTS + m];
                sum[m] = block_sum<BLOCK>(partial);
            }
            if (thread_rank() == 0) write_statistics(call, sum);
        }
    }
}
