// The loss of actor and critic for each sample, and its gradient by the policy's outputs and the value.
//
//   policy   PPO: max(-A ratio, -A clip(ratio, 1-c, 1+c)) (Schulman et al. 2017); A2C: -A log pi(a)
//   value    (v - return)^2 / 2, or the greater of it and that of the value as far as it may have moved
//   loss     policy + value_weight value - entropy_weight entropy
//
// Rows of agents that were not alive get zeros, whatever their inputs hold.

enum Scalar : int { ADVANTAGE_MEAN, INVERSE_DEVIATION, ENTROPY_WEIGHT, CLIP_RANGE };
enum Sum : int { POLICY_LOSS, VALUE_LOSS, ENTROPY, DIVERGENCE, CLIPPED, ALIVE };

// What a tile's samples say, and by how much the loss changes with the log-probability of the action.
struct Samples {
    Index place[LANES];
    int   alive[LANES];
    Total total;
    float by_log_prob[LANES];
};

template <class Env> FN void find(Samples& samples, const LossCall& call, const Env& env) {
    FOR_EACH_LANE(k, env) {
        const Index i       = env.index(k);
        const Index place   = call.indices == nullptr ? i : Index(call.indices[i]);
        samples.place[k]    = place;
        samples.alive[k]    = call.alive == nullptr || call.alive[place] != 0;
    }
}

struct Loss { float value, gradient; };

FN Loss value_loss(const LossCall& call, Index place, float value) {
    const float target = call.returns[place], error = value - target;
    Loss        loss   = {0.5f * error * error, error};
    if (call.clips_values) {
        const float old = call.old_values[place], moved = value - old;
        const float other = old + clip(moved, -call.value_clip, call.value_clip) - target;
        // One that has moved further than it may, to a smaller error than it would have had there, moves no more.
        const bool too_far = moved < -call.value_clip || call.value_clip < moved;
        if (too_far && 0.5f * other * other > loss.value) loss = {0.5f * other * other, 0.0f};
    }
    return loss;
}

struct PolicyLoss { float value, by_log_prob, divergence, clipped; };

FN PolicyLoss policy_loss(const LossCall& call, Index place, float log_prob) {
    const float advantage = (call.advantages[place] - call.scalars[ADVANTAGE_MEAN]) * call.scalars[INVERSE_DEVIATION];
    const float change    = log_prob - call.log_probs[place];
    const float ratio     = exponential(change);
    const float kl        = (ratio - 1.0f) - change;  // never negative, and on average the divergence
    if (!call.clipped) return {-advantage * log_prob, -advantage, kl, 0.0f};
    const float range   = call.scalars[CLIP_RANGE];
    const bool  outside = ratio < 1.0f - range || 1.0f + range < ratio;
    const float free = -advantage * ratio, bound = -advantage * clip(ratio, 1.0f - range, 1.0f + range);
    const bool  stopped = outside && free < bound;
    return {stopped ? bound : free, stopped ? 0.0f : free, kl, outside ? 1.0f : 0.0f};
}

// Writes what is known once the log-probability is, and leaves its weight in the gradient.
template <class Env> FN void weigh(Samples& samples, const LossCall& call, const Env& env) {
    FOR_EACH_LANE(k, env) {
        const Index      i      = env.index(k), place = samples.place[k];
        const bool       alive  = samples.alive[k] != 0;
        const PolicyLoss policy = policy_loss(call, place, samples.total.log_prob[k]);
        const Loss       value  = value_loss(call, place, call.values[i]);
        float* const     sums   = call.sums + i;
        samples.by_log_prob[k]        = policy.by_log_prob;
        call.d_values[i]              = alive ? call.value_weight * value.gradient : 0.0f;
        sums[POLICY_LOSS * call.rows] = alive ? policy.value : 0.0f;
        sums[VALUE_LOSS * call.rows]  = alive ? value.value : 0.0f;
        sums[ENTROPY * call.rows]     = alive ? samples.total.entropy[k] : 0.0f;
        sums[DIVERGENCE * call.rows]  = alive ? policy.divergence : 0.0f;
        sums[CLIPPED * call.rows]     = alive ? policy.clipped : 0.0f;
        sums[ALIVE * call.rows]       = alive ? 1.0f : 0.0f;
    }
}

// Of a choice whose logarithm of probability this is, and that was not taken.
FN float by_logit(const Samples& samples, const LossCall& call, float log_p, float entropy, int k) {
    const float p          = exponential(log_p);
    const float by_entropy = p > 0 ? p * (log_p + entropy) : p;
    const float sum        = call.scalars[ENTROPY_WEIGHT] * by_entropy - samples.by_log_prob[k] * p;
    return samples.alive[k] ? sum : 0.0f;
}

// An element's distribution, the choice that was taken, and the logarithm of its probability.
struct Taken {
    Categorical c;
    int         choice[LANES];
    float       log_p[LANES];
};

template <class Env>
FN void find_taken(Taken& one, const Samples& samples, const LossCall& call, const Rows& rows, int d, const Env& env) {
    measure(one.c, rows, d, env);
    FOR_EACH_LANE(k, env) {
        // An action outside is nobody's: the nearest, so that nothing outside of the row is read.
        const int choice = int(call.actions[samples.place[k] * WIDTH + d]) - start_of(d);
        one.choice[k]    = offset_of(d) + clip(choice, 0, size_of(d) - 1);
        one.log_p[k]     = log_probability(one.c, rows, one.choice[k], k);
    }
}

// Where l is a logit, p its probability and H the entropy: d log pi(a) / dl = [l is a's] - p, dH / dl = -p (log p + H).
template <class Env>
FN void discrete_loss(Samples& samples, const LossCall& call, const Rows& rows, const Env& env) {
    constexpr bool KEPT = AT_ONCE == WIDTH;  // what was measured of all elements; otherwise it is measured again
    Taken of_each[KEPT ? WIDTH : 1];
    sum_elements(samples.total, env, [&](Total& total, int d) {
        Taken& one = of_each[KEPT ? d : 0];
        find_taken(one, samples, call, rows, d, env);
        FOR_EACH_LANE(k, env) {
            total.log_prob[k] += one.log_p[k];
            total.entropy[k] += one.c.entropy[k];
        }
    });
    weigh(samples, call, env);
    // First as if none had been taken, then what those that were have more: a comparison of j with the action in the
    // loop is taken for true in its last turn by NVRTC 13.0.
    for_elements([&](int d) {
        Taken& one = of_each[KEPT ? d : 0];
        if (!KEPT) find_taken(one, samples, call, rows, d, env);
        for (int j = offset_of(d); j < offset_of(d) + size_of(d); ++j) {
            FOR_EACH_LANE(k, env) {
                const float log_p = log_probability(one.c, rows, j, k);
                rows.set(j, k, by_logit(samples, call, log_p, one.c.entropy[k], k));
            }
        }
        FOR_EACH_LANE(k, env) rows.add(one.choice[k], k, samples.alive[k] ? samples.by_log_prob[k] : 0.0f);
    });
}

// Where z is the sample's distance from the mean in standard deviations s: d log pi / d mean = z / s,
// d log pi / d log s = z^2 - 1, dH / d log s = 1.
template <class Env>
FN void gaussian_loss(Samples& samples, const LossCall& call, const Rows& rows, const Env& env) {
    clear(samples.total, env);
    for (int d = 0; d < WIDTH; ++d) {
        FOR_EACH_LANE(k, env) {
            const float mean = rows.get(d, k), log_std = rows.get(WIDTH + d, k);
            const float distance = gaussian_distance(call.actions[samples.place[k] * WIDTH + d], mean, log_std);
            samples.total.log_prob[k] += gaussian_log_probability(distance, log_std);
            samples.total.entropy[k] += gaussian_entropy(log_std);
        }
    }
    weigh(samples, call, env);
    for (int d = 0; d < WIDTH; ++d) {
        FOR_EACH_LANE(k, env) {
            const float mean = rows.get(d, k), log_std = rows.get(WIDTH + d, k);
            const float distance = gaussian_distance(call.actions[samples.place[k] * WIDTH + d], mean, log_std);
            const float by_mean = samples.by_log_prob[k] * (distance * exponential(-log_std));
            const float by_std  = samples.by_log_prob[k] * (distance * distance - 1.0f) - call.scalars[ENTROPY_WEIGHT];
            rows.set(d, k, samples.alive[k] ? by_mean : 0.0f);
            rows.set(WIDTH + d, k, samples.alive[k] ? by_std : 0.0f);
        }
    }
}

template <class Env> FN void loss(const LossCall& call, const LocalMemory& memory, const Env& env) {
    const Rows rows(memory, call.parameters, call.d_parameters, env, call.action_mask, call.indices);
    Samples    samples;
    find(samples, call, env);
    if constexpr (DISCRETE) discrete_loss(samples, call, rows, env);
    else gaussian_loss(samples, call, rows, env);
    rows.store(env);
}
