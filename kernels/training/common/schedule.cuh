// Scheduled settings: piecewise linear functions of training progress, written to the device memory that kernels read.
//
// Points are pairs (fraction of the training, value) by rising fraction; the last one is at infinity.

constexpr int STRIDE = ON_GPU ? THREADS : 1;

// Interpolates the points of a schedule linearly at `progress`, a fraction of the training.
FN double value_at(const double* points, double progress) {
    if (progress <= points[0]) return points[1];
    for (;; points += 2) {
        const double left = points[0], low = points[1], right = points[2], high = points[3];
        if (!(progress > right)) return low + (high - low) * (progress - left) / (right - left);
    }
}

// Writes the current values of all schedules and increments the update counter. One block.
KERNEL_OF_BLOCKS(kernel_schedule, ScheduleCall, THREADS, 1) {
    FOR_EACH_BLOCK(block) {
        const Index  update = minimum(*call.clock, call.last);  // values stay constant after the end
        const double done =
            double(call.begun + update * call.steps) / double(call.begun + (call.last + 1) * call.steps);
        for (Index s = block + thread_rank(); s < call.schedules; s += STRIDE) {
            char* const target           = reinterpret_cast<char*>(call.clock) + call.distances[s];
            *reinterpret_cast<float*>(target) = float(value_at(call.points + s * call.points_each * 2, done));
        }
        block_barrier();
        if (thread_rank() == 0) *call.clock += 1;
    }
}
