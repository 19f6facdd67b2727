// Of each step of a horizon: how many episodes ended, and the sums of what is known of those; a block for each number.

constexpr int   STRIDE = ON_GPU ? BLOCK : 1;
constexpr Index CHUNK  = 8;  // rows that are read before any is worked on: reads that wait for one another take longest

// The numbers of a step are the ends, the sums of the values at them, and the sum of their lengths.
KERNEL_OF_BLOCKS(kernel_episodes, EpisodesCall, BLOCK, 1) {
    FOR_EACH_BLOCK(block) {
        const Index number = block / call.steps, first = block % call.steps * call.rows, end = first + call.rows;
        double      sum = 0;
        for (Index some = first + thread_rank(); some < end; some += CHUNK * STRIDE) {
            int   length[CHUNK];
            float value[CHUNK];
            UNROLL
            for (int c = 0; c < CHUNK; ++c) {
                const Index row = some + c * STRIDE;
                length[c]       = row < end ? call.lengths[row * call.each] : 0;
            }
            UNROLL
            for (int c = 0; c < CHUNK; ++c) {
                const Index row  = some + c * STRIDE;
                const bool  asks = length[c] > 0 && number > 0 && number <= call.width;
                value[c]         = asks ? call.values[row * call.width + number - 1] : float(length[c]);
            }
            UNROLL
            for (int c = 0; c < CHUNK; ++c) sum += length[c] == 0 ? 0.0 : number == 0 ? 1.0 : double(value[c]);
        }
        sum = block_sum<BLOCK>(sum);
        if (thread_rank() == 0) call.sums[block] = float(sum);
    }
}
