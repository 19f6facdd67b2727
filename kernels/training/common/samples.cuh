// Samples and their loss, for updates of networks of any shape that run forward and backward in one launch.

struct Sample {
    int     index;  // index in the horizon; -1: no sample
    int     alive;
    float   log_prob, advantage, target, old_value;
    Element action[WIDTH];
};

template <class Call> FN int sample_index(const Call& call, Index number) {
    if (number >= call.rows) return -1;
    return call.indices == nullptr ? int(number) : call.indices[number];
}

// Loads what the losses of sample.index read, of the policy, of the value, or of both; without a sample, `alive` is 0.
template <class Call> FN void fetch_sample(Sample& sample, const Call& call, bool policy, bool value) {
    const int index = sample.index;
    sample.alive    = 0;
    if (index < 0) return;
    sample.alive = call.alive == nullptr ? 1 : call.alive[index];
    if (policy) {
        sample.log_prob  = call.log_probs[index];
        sample.advantage = call.advantages[index];
        UNROLL
        for (int d = 0; d < WIDTH; ++d) sample.action[d] = call.actions[Index(index) * WIDTH + d];
    }
    if (value) {
        sample.target    = call.returns[index];
        sample.old_value = call.clips_values ? call.old_values[index] : 0.0f;
    }
}

// The loss of a thread's samples, one at a time, and its sums. Each of a warp's first 16 threads has one row.
template <class Call> struct SampleLoss {
    const Call& call;
    float       sums[SUMS] = {}, scalars[4];

    FN explicit SampleLoss(const Call& call_) : call(call_) {
        UNROLL
        for (int j = 0; j < 4; ++j) scalars[j] = call.scalars[j];
    }

    FN void clear() { for (float& sum : sums) sum = 0; }

    // The loss arguments that all samples share.
    FN LossCall shared_arguments() const {
        LossCall arguments;
        arguments.scalars      = scalars;
        arguments.clipped      = call.clipped;
        arguments.clips_values = call.clips_values;
        arguments.value_clip   = call.value_clip;
        arguments.value_weight = call.value_weight;
        return arguments;
    }

    // Adds the policy's loss of a row, and overwrites its outputs with their gradients. The whole warp calls it.
    FN void policy(const Sample& sample, float* outputs) {
        const OneRow env = {0, warp_lane() < WARP_ROWS};
        const Rows   rows(outputs_at(outputs), nullptr, nullptr, env);
        float        unused = 0, unused_gradient, row_sums[SUMS] = {};
        LossCall     arguments = shared_arguments();
        arguments.rows         = 1;
        arguments.clips_values = 0;
        arguments.returns = arguments.values = arguments.old_values = &unused;
        arguments.actions     = sample.action;
        arguments.log_probs   = &sample.log_prob;
        arguments.advantages  = &sample.advantage;
        arguments.grad_values = &unused_gradient;
        arguments.sums        = row_sums;
        LossSamples samples;
        samples.index[0] = 0;
        samples.alive[0] = sample.alive != 0;
        if (!env.active) return;
        if constexpr (DISCRETE) discrete_loss(samples, arguments, rows, env);
        else gaussian_loss(samples, arguments, rows, env);
        UNROLL
        for (int s = 0; s < SUMS; ++s) sums[s] += s == VALUE_LOSS ? 0.0f : row_sums[s];
    }

    // Adds the value's loss, and overwrites the value with its gradient. Any thread may call it.
    FN void value(const Sample& sample, float* value) {
        if (warp_lane() >= WARP_ROWS) return;
        LossCall arguments   = shared_arguments();
        arguments.returns    = &sample.target;
        arguments.old_values = &sample.old_value;
        const Loss loss      = value_loss(arguments, 0, *value);
        *value               = sample.alive ? call.value_weight * loss.gradient : 0.0f;
        sums[VALUE_LOSS] += sample.alive ? loss.value : 0.0f;
    }

    // Writes the sums over WORKERS warps; all their threads call it, and `wait` is a barrier for them.
    template <int WORKERS, class Wait>
    FN void write(float* totals, float (&of_warps)[WORKERS][SUMS], bool policy, bool value, const Wait& wait) const {
        sum_over_warps(of_warps, policy, value, wait, [&](int s, float sum) { totals[s] = sum; });
    }
    // Calls use(s, sum) with each sum over WORKERS warps, in one thread.
    template <int WORKERS, class Wait, class Use>
    FN void sum_over_warps(float (&of_warps)[WORKERS][SUMS], bool policy, bool value, const Wait& wait,
                           const Use& use) const {
        UNROLL
        for (int s = 0; s < SUMS; ++s) {
            const float sum = warp_sum(sums[s]);
            if (warp_lane() == 0) of_warps[thread_rank() / WARP][s] = sum;
        }
        wait();
        const int s = thread_rank();
        if (s < SUMS && (s == VALUE_LOSS ? value : policy)) {
            float sum = 0;
            UNROLL
            for (int w = 0; w < WORKERS; ++w) sum += of_warps[w][s];
            use(s, sum);
        }
    }
};
