// Adam over all parameters of a policy, on GPU and CPU, for gradients of any origin, in two launches.

enum Factor : int { ACTIVE, GRADIENT_FACTOR, STEP_SIZE, INVERSE_ROOT_CORRECTION };

constexpr int SUMS_AT_ONCE = ON_GPU ? 1 : 8;  // independent sums of a thread, so that additions overlap

// Writes the step's factors, which kernel_adam reads, and the metrics.
FN void prepare(const CollectCall& call, float norm_of_sum) {
    const i64     steps   = *call.steps + 1;
    const Outcome outcome = outcome_of(call, call.stop != nullptr && *call.stop != 0, norm_of_sum);
    const Rates   rates   = rates_of(call, steps);
    write_outcome(call, outcome, steps);
    call.factors[ACTIVE]                  = outcome.active ? 1.0f : 0.0f;
    call.factors[GRADIENT_FACTOR]         = outcome.gradient_factor;
    call.factors[STEP_SIZE]               = rates.step_size;
    call.factors[INVERSE_ROOT_CORRECTION] = rates.inverse_root_correction;
}

// Sums the message (the gradient, and the sums of the loss) over processes. The last block computes the gradient's norm
// and the step's factors.
KERNEL_OF_BLOCKS(kernel_collect, CollectCall, BLOCK, BLOCKS) {
    FOR_EACH_BLOCK(block) {
        const u32   round   = PROCESSES > 1 ? u32(call.rounds[block]) + 1 : 0;
        const Index first   = block * BLOCK + thread_rank(), end = minimum(call.count + SUMS, (block + 1) * BLOCK);
        float       squares[SUMS_AT_ONCE] = {};
        if (PROCESSES > 1) {
            for (Index n = first; n < end; n += STRIDE) send_to_peers(call, round, n, bits_of(call.message[n]));
        }
        Index n = first;
        if (!ON_GPU && PROCESSES == 1) {
            for (; n + SUMS_AT_ONCE <= minimum(end, call.count); n += SUMS_AT_ONCE) {
                for (int j = 0; j < SUMS_AT_ONCE; ++j) squares[j] += call.message[n + j] * call.message[n + j];
            }
        }
        for (; n < end; n += STRIDE) {
            float value = call.message[n];
            if (PROCESSES > 1) call.message[n] = value = summed_over_processes(call, round, n, value);
            if (n < call.count) squares[n % SUMS_AT_ONCE] += value * value;
        }
        float local = 0;
        for (int j = 0; j < SUMS_AT_ONCE; ++j) local += squares[j];
        local = block_sum<BLOCK>(local);
        if (thread_rank() == 0) {
            call.block_squares[block] = local;
            if (PROCESSES > 1) call.rounds[block] = int(round);
        }
        if (last_block(call.arrived, call.blocks)) {
            float sum = 0;
            for (int b = thread_rank(); b < call.blocks; b += STRIDE) sum += call.block_squares[b];
            sum = block_sum<BLOCK>(sum);
            if (thread_rank() == 0) prepare(call, square_root(sum));
        }
    }
}

// Updates all parameters and their moments, with the factors that kernel_collect wrote.
KERNEL_OF_BLOCKS(kernel_adam, AdamCall, BLOCK, 1) {
    const AdamCall local = call;  // a copy: a CPU's compiler assumes that the stores may alias it
    FOR_EACH_BLOCK(block) {
        if (local.factors[ACTIVE] != 0) {
            const float factor = local.factors[GRADIENT_FACTOR];
            const Rates rates  = {local.factors[STEP_SIZE], local.factors[INVERSE_ROOT_CORRECTION]};
            FOR_EACH_OF_BLOCK(i, block, BLOCK, local.count) take_step(local, i, moments_of(local, i), factor, rates);
        }
    }
}
