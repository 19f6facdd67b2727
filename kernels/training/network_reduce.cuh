// Adds up what the blocks of network_update.cuh found: each column of a matrix, in an order that depends on nothing but
// the number of rows, which are those of the blocks that had the actor or the critic.

constexpr int COLUMNS = 32, SLICES = 8;  // a block's columns, and how many threads share one

KERNEL_OF_BLOCKS(kernel_reduce, ReduceCall, COLUMNS * SLICES, 1) {
    auto&     slices  = *reinterpret_cast<float (*)[SLICES][COLUMNS]>(staging);
    const int columns = call.parameters + call.sums;
    FOR_EACH_BLOCK(block) {
        const int place = thread_rank() % COLUMNS, slice = thread_rank() / COLUMNS;
        const int column = int(block) * COLUMNS + place;
        const bool critic = (call.critic <= column && column < call.critic_end) || column == call.value_loss;
        const int  rows   = critic ? call.critics : call.actors;
        float      sum    = 0;
        if (column < columns) {
            _Pragma("unroll 8")
            for (int row = slice; row < rows; row += SLICES) sum += call.partials[Index(row) * columns + column];
        }
        slices[slice][place] = sum;
        block_barrier();
        if (slice != 0 || column >= columns) return;
        UNROLL
        for (int other = 1; other < SLICES; ++other) sum += slices[other][place];
        if (column >= call.parameters) {
            call.totals[column - call.parameters] = sum;
            return;
        }
        if (call.log_std <= column && column < call.log_std + call.log_stds) {
            // One beyond a bound is as if at it; of its gradient only what leads back counts, lest it stay there.
            const float log_std  = call.flat[column];
            const bool  outwards = (log_std < call.low && sum > 0) || (log_std > call.high && sum < 0);
            if (outwards) sum = 0;
        }
        call.gradient[column] = sum;
    }
}
