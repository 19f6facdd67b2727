// Adam over all parameters of a policy at once, in two launches: whatever the gradient comes from, and on a CPU.
//
// What the step is to be is decided by the last block to come to it: the second kernel reads the outcome.

enum Factor : int { ACTIVE, GRADIENT_FACTOR, STEP_SIZE, INVERSE_ROOT_CORRECTION };

constexpr int WAYS = ON_GPU ? 1 : 8;  // sums at a time of one thread, which need not wait for one another

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

KERNEL_OF_BLOCKS(kernel_collect, CollectCall, BLOCK, BLOCKS) {
    FOR_EACH_BLOCK(block) {
        const u32   round   = PROCESSES > 1 ? u32(call.rounds[block]) + 1 : 0;
        const Index first   = block * BLOCK + thread_rank(), end = minimum(call.count + SUMS, (block + 1) * BLOCK);
        float       squares[WAYS] = {};
        if (PROCESSES > 1) {
            for (Index n = first; n < end; n += STRIDE) tell_others(call, round, n, bits_of(call.message[n]));
        }
        Index n = first;
        if (!ON_GPU && PROCESSES == 1) {
            for (; n + WAYS <= minimum(end, call.count); n += WAYS) {
                for (int way = 0; way < WAYS; ++way) squares[way] += call.message[n + way] * call.message[n + way];
            }
        }
        for (; n < end; n += STRIDE) {
            float value = call.message[n];
            if (PROCESSES > 1) call.message[n] = value = summed_over_processes(call, round, n, value);
            if (n < call.count) squares[n % WAYS] += value * value;
        }
        float own = 0;
        for (int way = 0; way < WAYS; ++way) own += squares[way];
        own = block_sum<BLOCK>(own);
        if (thread_rank() == 0) {
            call.block_squares[block] = own;
            if (PROCESSES > 1) call.rounds[block] = int(round);
        }
        if (last_block(call.arrived, call.blocks)) {
            float sum = 0;
            for (int other = thread_rank(); other < call.blocks; other += STRIDE) sum += call.block_squares[other];
            sum = block_sum<BLOCK>(sum);
            if (thread_rank() == 0) prepare(call, square_root(sum));
        }
    }
}

KERNEL_OF_BLOCKS(kernel_adam, AdamCall, BLOCK, 1) {
    const AdamCall own = call;  // what is written could be its numbers, as far as a CPU's compiler knows
    FOR_EACH_BLOCK(block) {
        if (own.factors[ACTIVE] != 0) {
            const float factor = own.factors[GRADIENT_FACTOR];
            const Rates rates  = {own.factors[STEP_SIZE], own.factors[INVERSE_ROOT_CORRECTION]};
            FOR_EACH_OF_BLOCK(i, block, BLOCK, own.count) take_step(own, i, moments_of(own, i), factor, rates);
        }
    }
}
