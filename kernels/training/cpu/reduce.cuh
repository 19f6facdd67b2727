// Adds the partial sums of a gradient: a launch over tiles of LANES weights. Before it: network.cuh.

KERNEL(kernel_reduce, ReduceCall) {
    const Index end = minimum(range_end * LANES, Index(COUNT));
    for (Index first = range_first * LANES; first < end; first += LANES) {
        const int count = int(minimum(end - first, Index(LANES)));
        float     sum[LANES] = {};
        for (int part = 0; part < call.parts; ++part) {
            const float* const numbers = call.partials + part * STRIDE + first;
            OMP_SIMD(omp simd) for (int k = 0; k < count; ++k) sum[k] += numbers[k];
        }
        for (int k = 0; k < count; ++k) call.gradient[first + k] = sum[k];
    }
}
