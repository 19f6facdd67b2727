// Divides rewards by the standard deviation of the discounted return. A thread takes one replica at a time.

// Updates the discounted returns, gamma * discounted + reward, or only the reward where the step terminates; writes
// each block's moments of them, except where an episode was over before; in SameStep zeroes them where it ends.
KERNEL_OF_BLOCKS(kernel_accumulate, AccumulateCall, TEAM, 1) {
    const ScratchMemory memory(SHARED_BYTES);
    auto&             sums   = *reinterpret_cast<BlockSums*>(memory.at);
    const auto        counts = [&](Index row) { return !was_done(call.ended, row); };
    const auto        first  = [&](Index row) {
        const float before    = call.terminations[row] ? 0.0f : call.discounted[row] * call.gamma;
        const float after     = float(Reward(before) + call.rewards[row]);
        call.discounted[row]  = counts(row) ? after : call.discounted[row];
        return call.discounted[row];
    };
    const auto again = [&](Index row) { return call.discounted[row]; };
    FOR_EACH_BLOCK(number) {
        const Block block(number, call);
        write_block_moments<AUTORESET != SAME_STEP>(block, sums, call, counts, first, again);
        for (Index row = block.first; row < block.end; row += SLOTS) {
            const Span span = block.span(row);
            FOR_EACH_LANE(k, span) {
                const Index i    = span.index(k);
                const u8    ends = call.terminations[i] | call.truncations[i];
                if (AUTORESET == SAME_STEP) call.discounted[i] = ends ? 0.0f : call.discounted[i];
                else call.ended[i] = ends;
            }
        }
    }
}

// Writes the rewards, divided by the standard deviation of the discounted returns.
KERNEL_OF_BLOCKS(kernel_scale, ScaleCall, TEAM, 1) {
    const Reward deviation = square_root(Reward(*call.var + call.epsilon));
    FOR_EACH_BLOCK(number) {
        const Block block(number, call);
        for (Index row = block.first; row < block.end; row += SLOTS) {
            const Span span = block.span(row);
            FOR_EACH_LANE(k, span) call.scaled[span.index(k)] = call.rewards[span.index(k)] / deviation;
        }
    }
}
