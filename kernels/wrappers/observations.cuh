// Normalises observations to mean 0 and standard deviation 1, column by column.

// Writes each block's moments of the observations, for kernel_merge: of all rows, of those whose episode was not over
// before, or of a reset's mask.
KERNEL_OF_BLOCKS(kernel_measure, MeasureCall, TEAM, 1) {
    const ScratchMemory memory(SHARED_BYTES);
    auto&             sums  = *reinterpret_cast<BlockSums*>(memory.at);
    const auto        value = [&](Index i) { return call.observations[i]; };
    FOR_EACH_BLOCK(number) {
        const Block block(number, call);
        if (call.only != nullptr) {
            write_block_moments<true>(block, sums, call, [&](Index row) { return call.only[row] != 0; }, value, value);
        } else if (call.ended != nullptr) {
            write_block_moments<true>(block, sums, call, [&](Index row) { return call.ended[row] == 0; }, value, value);
        } else {
            write_block_moments<false>(block, sums, call, [](Index) { return true; }, value, value);
        }
    }
}

// Mean and scale of this thread's columns. The mean is a sum of two floats, to be exact for observations near it.
struct Factors {
    float high[PLACES], low[PLACES], inverse[PLACES], limit;

    FN Factors(const Block& block, const NormaliseCall& call) : limit(call.limit) {
        const Span all = all_threads();
        FOR_EACH_LANE(k, all) {
            const int    j    = minimum(block.column + all.place(k) % WIDTH, FEATURES - 1);
            const double mean = call.mean[j];
            high[k]           = float(mean);
            low[k]            = float(mean - double(high[k]));
            inverse[k]        = 1.0f / square_root(float(call.var[j] + call.epsilon));
        }
    }
    FN float normalised(float x, int k) const { return clip((x - high[k] - low[k]) * inverse[k], -limit, limit); }
};

// Writes the final observations, normalised, of the rows of `span` whose episode ended; zeros elsewhere if call.fill.
FN void normalise_final(const NormaliseCall& call, const Factors& factors, const Block& block, Index row,
                        const Span& span) {
    FOR_EACH_LANE(k, span) {
        const Index replica = row + span.place(k) / WIDTH;
        const Index raw     = replica * call.final_stride + block.column + span.place(k) % WIDTH;
        if (call.finished[replica]) call.normalised_final[span.index(k)] = factors.normalised(call.final_obs[raw], k);
        else if (call.fill) call.normalised_final[span.index(k)] = 0;
    }
}

// Writes the normalised observations, and final observations, if any; the running statistics stay as they are.
KERNEL_OF_BLOCKS(kernel_normalise, NormaliseCall, TEAM, 1) {
    FOR_EACH_BLOCK(number) {
        const Block   block(number, call);
        const Factors factors(block, call);
        for (Index row = block.first; row < block.end; row += SLOTS) {
            const Span span = block.span(row);
            FOR_EACH_LANE(k, span)
                call.normalised[span.index(k)] = factors.normalised(call.observations[span.index(k)], k);
            if (call.finished != nullptr) {
                const RowSpan rows = block.rows(row);
                int           ends = call.fill;
                FOR_EACH_LANE_OR(ends, k, rows) ends |= call.finished[rows.index(k)];
                if (ends) normalise_final(call, factors, block, row, span);
            }
        }
        if (call.ended != nullptr && block.column == 0) {
            for (Index row = block.first + thread_rank(); row < block.end; row += THREADS)
                call.ended[row] = call.terminations[row] | call.truncations[row];
        }
    }
}
