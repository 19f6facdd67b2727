// For each step of a horizon: the number of episodes that ended, and the sums of their metrics and lengths.

constexpr int   STRIDE = ON_GPU ? BLOCK : 1;
constexpr Index CHUNK  = 8;  // rows whose loads are issued before any is added, so that latencies overlap

// Each block sums one number over the episodes that ended in one step: 1 (for the count), a metric, or the length.
KERNEL_OF_BLOCKS(kernel_episodes, EpisodesCall, BLOCK, 1) {
    FOR_EACH_BLOCK(block) {
        const Index number = block / call.steps, first = block % call.steps * call.rows, end = first + call.rows;
        double      sum  = 0;
        for (Index chunk = first + thread_rank(); chunk < end; chunk += CHUNK * STRIDE) {
            int   length[CHUNK];
            float value[CHUNK];
            UNROLL
            for (int c = 0; c < CHUNK; ++c) {
                const Index row = chunk + c * STRIDE;
                length[c]       = row < end ? call.lengths[row * call.each] : 0;
            }
            UNROLL
            for (int c = 0; c < CHUNK; ++c) {
                const Index row         = chunk + c * STRIDE;
                const bool  reads_value = length[c] > 0 && number > 0 && number <= call.width;
                value[c]                = reads_value ? call.values[row * call.width + number - 1] : float(length[c]);
            }
            UNROLL
            for (int c = 0; c < CHUNK; ++c) sum += length[c] == 0 ? 0.0 : number == 0 ? 1.0 : double(value[c]);
        }
        sum = block_sum<BLOCK>(sum);
        if (thread_rank() == 0) call.sums[block] = float(sum);
    }
}
