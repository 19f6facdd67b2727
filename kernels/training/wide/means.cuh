// Outputs of boxes as floats in shared memory, on a warpgroup's own rows, where the functions of distributions.cuh take
// them for those of the block's warps.

template <class Own> FN float* outputs_of_block(const Own& own) {
    return reinterpret_cast<float*>(own.rows) - own.group * GROUP * ROW_STRIDE;
}
template <class Own> FN float* outputs_of_warp(const Own& own) {
    return outputs_of_block(own) + thread_rank() / WARP * WARP * ROW_STRIDE;
}

// Those of 16 rows, each where its thread of the warp looks for it; log-deviations beside the means.
template <class Own, int N> FN void store_means(const Own& own, const float (&c)[N][4], const float* flat) {
    float* const outputs = outputs_of_warp(own);
    store_outputs<MEANS>(outputs, ROW_STRIDE, c, own.lane);
    if (own.lane < WARP_ROWS) {
        for (int d = 0; d < LOG_STDS; ++d) {
            outputs[own.lane * ROW_STRIDE + MEANS + d] = clip(flat[LOG_STD_AT + d], LOG_STD_LOW, LOG_STD_HIGH);
        }
    }
    warp_barrier();
}
