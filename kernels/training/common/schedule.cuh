// Values that change as training goes on, by straight lines between points; each is written where it is read.
//
// Points are pairs of a fraction of the training and a value, by rising fraction, the last at infinity.

constexpr int STRIDE = ON_GPU ? THREADS : 1;

FN double value_at(const double* points, double done) {
    if (done <= points[0]) return points[1];
    for (;; points += 2) {
        const double left = points[0], low = points[1], right = points[2], high = points[3];
        if (!(done > right)) return low + (high - low) * (done - left) / (right - left);
    }
}

// Of one block, which counts the update for the next time.
KERNEL_OF_BLOCKS(kernel_schedule, ScheduleCall, THREADS, 1) {
    FOR_EACH_BLOCK(block) {
        const Index  update = minimum(*call.clock, call.last);  // who goes on beyond the end keeps its values
        const double done = double(call.begun + update * call.steps) / double(call.begun + (call.last + 1) * call.steps);
        for (Index s = block + thread_rank(); s < call.schedules; s += STRIDE) {
            *reinterpret_cast<float*>(call.targets[s]) = float(value_at(call.points + s * call.points_each * 2, done));
        }
        block_barrier();
        if (thread_rank() == 0) *call.clock += 1;
    }
}
