// Adam (Kingma & Ba 2015) over all parameters of a policy at once.
//
// The gradient is that of a sum over samples, and behind it stand the sums over them: both are added up over processes
// that train together, divided by the number of samples, and the gradient is shortened to a norm. Nothing changes where
// there were no samples, or where the update has been stopped. That is decided by the last block to come to it: the
// second kernel reads the outcome.

enum Factor : int { ACTIVE, GRADIENT_FACTOR, STEP_SIZE, INVERSE_ROOT_CORRECTION };

constexpr float NORM_MARGIN = 1e-6f;  // keeps the quotient finite for a gradient of zero

constexpr int WAYS = ON_GPU ? 1 : 8;  // sums at a time of one thread, which need not wait for one another

// 1 - beta^steps, in double precision: early on it is small, and its error would be the step's.
FN double bias_correction(double log_beta, i64 steps) { return 1.0 - exp(double(steps) * log_beta); }

FN void prepare(const CollectCall& call, float norm_of_sum) {
    const float* totals  = call.message + call.count;
    const float  samples = totals[ALIVE];
    if (call.stop != nullptr && totals[KL] / maximum(samples, 1.0f) > call.most_kl) *call.stop = 1;
    const bool going = call.stop == nullptr || *call.stop == 0;
    if (going && call.figures != nullptr) {
        for (int sum = 0; sum < SUMS; ++sum) call.figures[sum] += totals[sum];
    }
    const bool active = going && samples != 0;
    call.factors[ACTIVE] = active ? 1.0f : 0.0f;
    if (active) {
        const float norm   = norm_of_sum / samples;
        const float factor = call.max_norm > 0 ? minimum(1.0f, call.max_norm / (norm + NORM_MARGIN)) : 1.0f;
        const i64   steps  = *call.steps + 1;
        *call.steps        = steps;
        *call.norm         = norm;
        call.factors[GRADIENT_FACTOR] = factor / samples;
        call.factors[STEP_SIZE]       = float(double(*call.learning_rate) / bias_correction(call.log_beta1, steps));
        call.factors[INVERSE_ROOT_CORRECTION] = float(1.0 / square_root(bias_correction(call.log_beta2, steps)));
    }
}

KERNEL_OF_BLOCKS(kernel_collect, CollectCall, BLOCK, BLOCKS) {
    FOR_EACH_BLOCK(block) {
        const u32   round   = PROCESSES > 1 ? u32(call.rounds[block]) + 1 : 0;
        const Index first   = block * BLOCK + thread_rank(), end = minimum(call.count + SUMS, (block + 1) * BLOCK);
        float       squares[WAYS] = {};
        if (PROCESSES > 1) {
            for (Index n = first; n < end; n += STRIDE) tell_others(call, round, n, bits_of(call.message[n]));
        }
        for (Index n = first; n < end; n += STRIDE) {
            float value = call.message[n];
            if (PROCESSES > 1) {
                u32 found[PROCESSES];
                hear(call, round, n, bits_of(value), found);
                value = from_bits(found[0]);
                UNROLL
                for (int process = 1; process < PROCESSES; ++process) value += from_bits(found[process]);
                call.message[n] = value;
            }
            if (n < call.count) squares[n % WAYS] += value * value;
        }
        float own = 0;
        for (int way = 0; way < WAYS; ++way) own += squares[way];
        own = block_sum<BLOCK>(own);
        if (thread_rank() == 0) {
            call.squares[block] = own;
            if (PROCESSES > 1) call.rounds[block] = int(round);
        }
        if (last_block(call.arrived, call.blocks)) {
            float sum = 0;
            for (int other = thread_rank(); other < call.blocks; other += STRIDE) sum += call.squares[other];
            sum = block_sum<BLOCK>(sum);
            if (thread_rank() == 0) prepare(call, square_root(sum));
        }
    }
}

KERNEL_OF_BLOCKS(kernel_adam, AdamCall, BLOCK, 1) {
    FOR_EACH_BLOCK(block) {
        if (call.factors[ACTIVE] != 0) {
            const float factor = call.factors[GRADIENT_FACTOR], step_size = call.factors[STEP_SIZE];
            const float correction = call.factors[INVERSE_ROOT_CORRECTION];
            FOR_EACH_OF_BLOCK(i, block, BLOCK, call.count) {
                const float gradient = call.gradient[i] * factor;
                const float mean     = call.means[i] + call.rate1 * (gradient - call.means[i]);
                const float square   = call.beta2 * call.squares[i] + call.rate2 * (gradient * gradient);
                call.means[i]        = mean;
                call.squares[i]      = square;
                call.parameters[i] -= step_size * mean / (square_root(square) * correction + call.epsilon);
            }
        }
    }
}
