// The sums over the blocks of update.cuh in a launch behind it: alone, or with the step along them.

KERNEL_OF_BLOCKS(kernel_reduce, ReduceCall, STEP_THREADS, STEP_BLOCKS) {
    auto& memory = *reinterpret_cast<StepMemory<STEP_THREADS>*>(staging);
    for_each_strip(call, memory, [&](int, int column, float sum) {
        if (column < call.parameters) call.gradient[column] = sum;
        else if (column < call.parameters + SUMS) call.totals[column - call.parameters] = sum;
    });
}

KERNEL_OF_BLOCKS(kernel_step, StepCall, STEP_THREADS, STEP_BLOCKS) {
    add_up_and_step(call, *reinterpret_cast<StepMemory<STEP_THREADS>*>(staging));
}
