// SAC, TD3 and DDPG for one row of a batch: actions from the actor's outputs, TD targets, and gradients of the losses.
// Actions are scaled so that the bounds are -1 and 1.
//
// Generated before it: FEATURES, WIDTH (elements of an action), NETS (critics), STOCHASTIC (SAC's squashed Gaussian:
// outputs are WIDTH means and WIDTH log standard deviations; otherwise WIDTH outputs), and indices of sums over rows.

// Loops over networks; unrolled, as arrays that a variable indexes would be in local memory.
#define FOR_EACH_NET(net, count) UNROLL for (int net = 0; net < (count); ++net)

constexpr int   OUTPUTS = (STOCHASTIC ? 2 : 1) * WIDTH, INPUTS = FEATURES + WIDTH;
constexpr int   LOG_STD = STOCHASTIC ? WIDTH : 0;  // index of the first log standard deviation
constexpr float MIN_LOG_STD = -5.0f, MAX_LOG_STD = 2.0f, HALF_LOG_TWO_PI = 0.918938533f, LOG_TWO = 0.693147181f;

// log(1 + e^x).
FN float softplus(float x) { return maximum(x, 0.0f) + elementary::log1p(exp(-elementary::abs(x))); }

FN float clipped_log_std(const float* outputs, Index row, int d) {
    return clip(outputs[row * OUTPUTS + LOG_STD + d], MIN_LOG_STD, MAX_LOG_STD);
}

// Element d of a row's action. STOCHASTIC: tanh of a normal sample; adds its log-probability to `log_prob`. Otherwise:
// tanh of the output, plus noise of at most `noise_limit`.
FN float action_element(const float* outputs, const float* normal, Index row, int d, float noise, float noise_limit,
                        float& log_prob) {
    const float mean = outputs[row * OUTPUTS + d];
    if constexpr (STOCHASTIC) {
        const float log_std = clipped_log_std(outputs, row, d), drawn = normal[row * WIDTH + d];
        const float x = mean + exp(log_std) * drawn;
        // The log of tanh's derivative is 2 (log 2 - x - softplus(-2 x)), exact for large x too.
        log_prob += -(0.5f * drawn * drawn + log_std + HALF_LOG_TWO_PI + 2.0f * (LOG_TWO - x - softplus(-2.0f * x)));
        return elementary::tanh(x);
    }
    const float action = elementary::tanh(mean);
    if (!(noise > 0.0f)) return action;
    return clip(action + clip(noise * normal[row * WIDTH + d], -noise_limit, noise_limit), -1.0f, 1.0f);
}

// SAC's entropy coefficient alpha.
FN float temperature_of(const float* log_temperature) { return STOCHASTIC ? exp(*log_temperature) : 0.0f; }

// The critic with the lowest Q-value; critics' Q-values are `stride` apart.
FN int lowest_critic(const float* q_values, Index stride) {
    int lowest = 0;
    UNROLL
    for (int net = 1; net < NETS; ++net) lowest = q_values[net * stride] < q_values[lowest * stride] ? net : lowest;
    return lowest;
}

// returned + discount * lowest next Q-value, from which STOCHASTIC first subtracts temperature * next_log_prob; the
// critics' Q-values are `stride` apart.
FN float td_target(const float* next_q, Index stride, float temperature, float next_log_prob, float returned,
                   float discount) {
    float lowest = next_q[0];
    UNROLL
    for (int net = 1; net < NETS; ++net) lowest = minimum(lowest, next_q[net * stride]);
    if constexpr (STOCHASTIC) lowest -= temperature * next_log_prob;
    return returned + discount * lowest;
}

// The critic whose Q-value the actor maximises: SAC's is the lowest.
FN int actors_critic(const float* q_values, Index stride) { return STOCHASTIC ? lowest_critic(q_values, stride) : 0; }

// Writes the actor loss's gradients with respect to element d's outputs; `grad` is that with respect to the action.
FN void actor_gradient(float* grad_outputs, const float* outputs, const float* normal, float action, float grad,
                       float temperature, Index row, int d) {
    grad *= 1.0f - action * action;
    if constexpr (STOCHASTIC) {
        grad += 2.0f * temperature * action;
        const float log_std = outputs[row * OUTPUTS + LOG_STD + d];
        const bool  inside  = MIN_LOG_STD <= log_std && log_std <= MAX_LOG_STD;
        const float std     = exp(clipped_log_std(outputs, row, d));
        grad_outputs[row * OUTPUTS + LOG_STD + d] = inside ? grad * std * normal[row * WIDTH + d] - temperature : 0.0f;
    }
    grad_outputs[row * OUTPUTS + d] = grad;
}
