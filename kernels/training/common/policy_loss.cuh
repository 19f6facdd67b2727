// The loss of actor and critic for each sample, and its gradients with respect to the policy's outputs and the value.
//
//   policy   PPO: max(-A ratio, -A clip(ratio, 1-c, 1+c)) (Schulman et al. 2017); A2C: -A log pi(a)
//   value    (v - return)^2 / 2; with value clipping the maximum of it and the same of old + clip(v - old, -c, c)
//   loss     policy + value_weight value - entropy_weight entropy
//
// Rows of inactive agents get zeros, even if their inputs are NaN.

enum Scalar : int { ADVANTAGE_MEAN, INVERSE_STD, ENTROPY_WEIGHT, CLIP_RANGE };
enum Sum : int { POLICY_LOSS, VALUE_LOSS, ENTROPY, DIVERGENCE, CLIPPED, ALIVE };

// A tile of samples, and the gradient of the loss with respect to each action's log-probability.
struct LossSamples {
    Index index[LANES];
    int   alive[LANES];
    Total total;
    float grad_log_prob[LANES];
};

// Sets each row's sample, by call.indices, and whether its agent was active.
template <class Env> FN void find_samples(LossSamples& samples, const LossCall& call, const Env& env) {
    FOR_EACH_LANE(k, env) {
        const Index i       = env.index(k);
        const Index index   = call.indices == nullptr ? i : Index(call.indices[i]);
        samples.index[k]    = index;
        samples.alive[k]    = call.alive == nullptr || call.alive[index] != 0;
    }
}

struct Loss { float value, gradient; };

// The loss of a predicted value of the sample at `index`, clipped around the old value if asked for, and its gradient.
FN Loss value_loss(const LossCall& call, Index index, float value) {
    const float target = call.returns[index], error = value - target;
    Loss        loss   = {0.5f * error * error, error};
    if (call.clips_values) {
        const float old = call.old_values[index], moved = value - old;
        const float bound = old + clip(moved, -call.value_clip, call.value_clip) - target;
        // The larger loss counts: beyond the clip range the clipped value's, which has no gradient.
        const bool beyond = moved < -call.value_clip || call.value_clip < moved;
        if (beyond && 0.5f * bound * bound > loss.value) loss = {0.5f * bound * bound, 0.0f};
    }
    return loss;
}

struct PolicyLoss { float value, grad_log_prob, divergence, clipped; };

// The policy's loss of the sample at `index`, from its action's new log-probability; with gradient and statistics.
FN PolicyLoss policy_loss(const LossCall& call, Index index, float log_prob) {
    const float advantage = (call.advantages[index] - call.scalars[ADVANTAGE_MEAN]) * call.scalars[INVERSE_STD];
    const float log_ratio = log_prob - call.log_probs[index];
    const float ratio     = exponential(log_ratio);
    const float kl        = (ratio - 1.0f) - log_ratio;  // non-negative estimate of the KL divergence
    if (!call.clipped) return {-advantage * log_prob, -advantage, kl, 0.0f};
    const float range   = call.scalars[CLIP_RANGE];
    const bool  outside = ratio < 1.0f - range || 1.0f + range < ratio;
    const float unclipped = -advantage * ratio, clipped = -advantage * clip(ratio, 1.0f - range, 1.0f + range);
    const bool  at_bound  = outside && unclipped < clipped;
    return {at_bound ? clipped : unclipped, at_bound ? 0.0f : unclipped, kl, outside ? 1.0f : 0.0f};
}

// Writes the losses and the value's gradient, and sets grad_log_prob; samples.total must have the log-probabilities.
template <class Env> FN void write_losses(LossSamples& samples, const LossCall& call, const Env& env) {
    FOR_EACH_LANE(k, env) {
        const Index      i      = env.index(k), index = samples.index[k];
        const bool       alive  = samples.alive[k] != 0;
        const PolicyLoss policy = policy_loss(call, index, samples.total.log_prob[k]);
        const Loss       value  = value_loss(call, index, call.values[i]);
        float* const     sums   = call.sums + i;
        samples.grad_log_prob[k]      = policy.grad_log_prob;
        call.grad_values[i]           = alive ? call.value_weight * value.gradient : 0.0f;
        sums[POLICY_LOSS * call.rows] = alive ? policy.value : 0.0f;
        sums[VALUE_LOSS * call.rows]  = alive ? value.value : 0.0f;
        sums[ENTROPY * call.rows]     = alive ? samples.total.entropy[k] : 0.0f;
        sums[DIVERGENCE * call.rows]  = alive ? policy.divergence : 0.0f;
        sums[CLIPPED * call.rows]     = alive ? policy.clipped : 0.0f;
        sums[ALIVE * call.rows]       = alive ? 1.0f : 0.0f;
    }
}

// The gradient with respect to the logit of a choice that was not taken; `log_p` is its log-probability.
FN float logit_gradient(const LossSamples& samples, const LossCall& call, float log_p, float entropy, int k) {
    const float p            = exponential(log_p);
    const float grad_entropy = p > 0 ? p * (log_p + entropy) : p;
    const float sum          = call.scalars[ENTROPY_WEIGHT] * grad_entropy - samples.grad_log_prob[k] * p;
    return samples.alive[k] ? sum : 0.0f;
}

struct TakenChoice { Categorical c; int choice[LANES]; float log_p[LANES]; };

// Sets `taken` to the distribution of element d, and to the choice in each sample's action.
template <class Env>
FN void find_taken_choice(TakenChoice& taken, const LossSamples& samples, const LossCall& call, const Rows& rows, int d,
                          const Env& env) {
    compute_categorical(taken.c, rows, d, env);
    FOR_EACH_LANE(k, env) {
        // An inactive agent's action may be out of range: it is clipped, so that no read leaves the row.
        const int choice = int(call.actions[samples.index[k] * WIDTH + d]) - start_of(d);
        taken.choice[k]  = offset_of(d) + clip(choice, 0, size_of(d) - 1);
        taken.log_p[k]   = log_probability(taken.c, rows, taken.choice[k], k);
    }
}

// Writes the losses, and replaces the logits in `rows` by their gradients. With l, a logit, p, its probability, and H,
// the entropy: d log pi(a) / dl = [l is a's] - p, dH / dl = -p (log p + H).
template <class Env>
FN void discrete_loss(LossSamples& samples, const LossCall& call, const Rows& rows, const Env& env) {
    constexpr bool CACHED = AT_ONCE == WIDTH;  // whether all elements' distributions are kept, or computed twice
    TakenChoice cache[CACHED ? WIDTH : 1];
    sum_elements(samples.total, env, [&](Total& total, int d) {
        TakenChoice& taken = cache[CACHED ? d : 0];
        find_taken_choice(taken, samples, call, rows, d, env);
        FOR_EACH_LANE(k, env) {
            total.log_prob[k] += taken.log_p[k];
            total.entropy[k] += taken.c.entropy[k];
        }
    });
    write_losses(samples, call, env);
    // First the gradients as if no choice had been taken, then the taken choice's term. Comparing j with the action in
    // the loop would be shorter, but NVRTC 13.0 miscompiles it: the comparison is true in the last iteration.
    for_elements([&](int d) {
        TakenChoice& taken = cache[CACHED ? d : 0];
        if (!CACHED) find_taken_choice(taken, samples, call, rows, d, env);
        for (int j = offset_of(d); j < offset_of(d) + size_of(d); ++j) {
            FOR_EACH_LANE(k, env) {
                const float log_p = log_probability(taken.c, rows, j, k);
                rows.set(j, k, logit_gradient(samples, call, log_p, taken.c.entropy[k], k));
            }
        }
        FOR_EACH_LANE(k, env) rows.add(taken.choice[k], k, samples.alive[k] ? samples.grad_log_prob[k] : 0.0f);
    });
}

// Writes the losses, and replaces the outputs in `rows` by their gradients. With z, the sample's distance from the mean
// in standard deviations s: d log pi / d mean = z / s, d log pi / d log s = z^2 - 1, dH / d log s = 1.
template <class Env>
FN void gaussian_loss(LossSamples& samples, const LossCall& call, const Rows& rows, const Env& env) {
    clear(samples.total, env);
    for (int d = 0; d < WIDTH; ++d) {
        FOR_EACH_LANE(k, env) {
            const float mean = rows.get(d, k), log_std = rows.get(WIDTH + d, k);
            const float distance = gaussian_distance(call.actions[samples.index[k] * WIDTH + d], mean, log_std);
            samples.total.log_prob[k] += gaussian_log_probability(distance, log_std);
            samples.total.entropy[k] += gaussian_entropy(log_std);
        }
    }
    write_losses(samples, call, env);
    for (int d = 0; d < WIDTH; ++d) {
        FOR_EACH_LANE(k, env) {
            const float mean = rows.get(d, k), log_std = rows.get(WIDTH + d, k);
            const float distance = gaussian_distance(call.actions[samples.index[k] * WIDTH + d], mean, log_std);
            const float grad = samples.grad_log_prob[k], grad_mean = grad * (distance * exponential(-log_std));
            const float grad_log_std = grad * (distance * distance - 1.0f) - call.scalars[ENTROPY_WEIGHT];
            rows.set(d, k, samples.alive[k] ? grad_mean : 0.0f);
            rows.set(WIDTH + d, k, samples.alive[k] ? grad_log_std : 0.0f);
        }
    }
}

// Writes the losses of a tile's rows, and the gradients of the policy's outputs and of the values.
template <class Call, class Env> FN void loss(const Call& call, const ScratchMemory& memory, const Env& env) {
    const Rows  rows(memory, call.parameters, call.grad_parameters, env, call.action_mask, call.indices);
    LossSamples samples;
    find_samples(samples, call, env);
    if constexpr (DISCRETE) discrete_loss(samples, call, rows, env);
    else gaussian_loss(samples, call, rows, env);
    rows.store(env);
}
