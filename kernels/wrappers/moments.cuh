// Running mean and variance of each column, merged by the formulas of Chan, Golub & LeVeque (1979).
//
// A block reads its rows twice: for their mean, then for the squared deviations and the rounding error of the mean. So
// float32 is precise enough for single rows, however far the mean is from zero. Sums over blocks and launches are
// doubles, which can count rows for years.

struct BlockSums {
    float mean[TEAM], rest[TEAM], squares[TEAM];
    int   count[TEAM];
};
static_assert(sizeof(BlockSums) <= SHARED_BYTES, "a block has no room for its sums");

// Writes a block's moments: the number of rows, and each column's mean and sum of squared deviations. first(i) and
// again(i) return element i in the first and in the second pass; with SOME, only rows with counts(row) are included.
template <bool SOME, class Call, class Counts, class First, class Again>
FN void write_block_moments(const Block& block, BlockSums& sums, const Call& call, const Counts& counts,
                            const First& first, const Again& again) {
    const Span all = all_threads();
    float      sum[PLACES] = {}, rest[PLACES] = {}, squares[PLACES] = {}, mean[PLACES];
    int        count[PLACES] = {};
    for (Index row = block.first; row < block.end; row += SLOTS) {
        const Span span = block.span(row);
        FOR_EACH_LANE(k, span) {
            const bool  in = !SOME || counts(row + span.place(k) / WIDTH);
            const float x  = first(span.index(k));
            sum[k] += in ? x : 0.0f;
            if (SOME) count[k] += in;
        }
    }
    FOR_EACH_LANE(k, all) {
        sums.mean[all.place(k)] = sum[k];
        if (SOME) sums.count[all.place(k)] = count[k];
    }
    fold(sums.mean);
    if (SOME) fold(sums.count);
    const int   rows   = SOME ? sums.count[0] : int(block.end - block.first);
    const float divide = float(maximum(rows, 1));
    FOR_EACH_LANE(k, all) mean[k] = sums.mean[all.place(k) % WIDTH] / divide;
    for (Index row = block.first; row < block.end; row += SLOTS) {
        const Span span = block.span(row);
        FOR_EACH_LANE(k, span) {
            const bool  in       = !SOME || counts(row + span.place(k) / WIDTH);
            const float distance = again(span.index(k)) - mean[k];
            rest[k] += in ? distance : 0.0f;
            squares[k] += in ? distance * distance : 0.0f;
        }
    }
    FOR_EACH_LANE(k, all) {
        sums.rest[all.place(k)]    = rest[k];
        sums.squares[all.place(k)] = squares[k];
    }
    fold(sums.rest);
    fold(sums.squares);
    const Span columns = one_row(block);
    FOR_EACH_LANE(k, columns) {
        const int    j       = columns.place(k);
        const Index  at      = block.chunk * FEATURES + block.column + j;
        const double average = double(sums.rest[j]) / double(divide);
        call.means[at]       = double(mean[k]) + average;
        call.squares[at]     = maximum(0.0, double(sums.squares[j]) - double(sums.rest[j]) * average);
    }
    if (block.column == 0 && thread_rank() == 0) call.counts[block.chunk] = rows;
}

struct MergeSums {
    double total[TEAM], count[TEAM], squares[TEAM];
};
static_assert(sizeof(MergeSums) <= SHARED_BYTES, "a block has no room for its sums");

// Merges the blocks' moments into the running mean, variance and count; a row of this call is a block's moments.
KERNEL_OF_BLOCKS(kernel_merge, MergeCall, TEAM, 1) {
    const ScratchMemory memory(SHARED_BYTES);
    auto&             sums = *reinterpret_cast<MergeSums*>(memory.at);
    FOR_EACH_BLOCK(number) {
        const Block block(number, call);
        const Span  all = all_threads(), columns = one_row(block);
        double      total[PLACES] = {}, count[PLACES] = {}, squares[PLACES] = {}, mean[PLACES];
        for (Index row = block.first; row < block.end; row += SLOTS) {
            const Span span = block.span(row);
            FOR_EACH_LANE(k, span) {
                const double rows = double(call.counts[row + span.place(k) / WIDTH]);
                total[k] += rows * call.means[span.index(k)];
                count[k] += rows;
            }
        }
        FOR_EACH_LANE(k, all) {
            sums.total[all.place(k)] = total[k];
            sums.count[all.place(k)] = count[k];
        }
        fold(sums.total);
        fold(sums.count);
        const double added = sums.count[0];
        FOR_EACH_LANE(k, all) mean[k] = sums.total[all.place(k) % WIDTH] / maximum(added, 1.0);
        for (Index row = block.first; row < block.end; row += SLOTS) {
            const Span span = block.span(row);
            FOR_EACH_LANE(k, span) {
                const double distance = call.means[span.index(k)] - mean[k];
                const double rows     = double(call.counts[row + span.place(k) / WIDTH]);
                squares[k] += call.squares[span.index(k)] + rows * (distance * distance);
            }
        }
        FOR_EACH_LANE(k, all) sums.squares[all.place(k)] = squares[k];
        fold(sums.squares);
        if (added > 0) {
            FOR_EACH_LANE(k, columns) {
                const int    j = block.column + columns.place(k);
                const double before = call.count[j], shift = mean[k] - call.mean[j], share = added / (before + added);
                const double apart = shift * shift * before * share;
                call.var[j] = (call.var[j] * before + sums.squares[columns.place(k)] + apart) / (before + added);
                call.mean[j] += shift * share;
                call.count[j] = before + added;
            }
        }
    }
}
