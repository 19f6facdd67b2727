// Actions by an actor's outputs, in units in which the bounds are -1 and 1.
//
// Generated before it: FEATURES, WIDTH (elements of an action), NETS (critics), STOCHASTIC (a squashed Gaussian, whose
// outputs are WIDTH means and WIDTH logarithms of deviations; otherwise WIDTH outputs), and SUMS of rows: POLICY_LOSS,
// VALUE_LOSS, ENTROPY, ALIVE.

constexpr int   OUTPUTS = (STOCHASTIC ? 2 : 1) * WIDTH, INPUTS = FEATURES + WIDTH;
constexpr float LEAST_LOG_STD = -5.0f, MOST_LOG_STD = 2.0f, HALF_LOG_TWO_PI = 0.918938533f, LOG_TWO = 0.693147181f;

// log(1 + e^x).
FN float softplus(float x) { return maximum(x, 0.0f) + elementary::log1p(exp(-elementary::abs(x))); }

// Before it is squashed, an element of the action.
FN float unsquashed(const float* outputs, const float* normal, Index row, int d) {
    const float mean = outputs[row * OUTPUTS + d];
    if constexpr (!STOCHASTIC) return mean;
    return mean + exp(clip(outputs[row * OUTPUTS + (STOCHASTIC ? WIDTH : 0) + d], LEAST_LOG_STD, MOST_LOG_STD)) *
                      normal[row * WIDTH + d];
}

// The logarithm of an element's probability, of a squashed Gaussian, by what it was before it was squashed.
FN float log_probability(const float* outputs, const float* normal, Index row, int d, float before) {
    // of the tangent's derivative the logarithm is 2 (log 2 - x - softplus(-2 x)), exact far out, too
    const float log_std = clip(outputs[row * OUTPUTS + (STOCHASTIC ? WIDTH : 0) + d], LEAST_LOG_STD, MOST_LOG_STD);
    const float drawn   = normal[row * WIDTH + d];
    return -(0.5f * drawn * drawn + log_std + HALF_LOG_TWO_PI + 2.0f * (LOG_TWO - before - softplus(-2.0f * before)));
}

// The derivatives of the actor's loss by an element's outputs, where that by the action is `by`.
FN void steer(float* by_outputs, const float* outputs, const float* normal, float action, float by, float weight, Index row,
              int d) {
    by *= 1.0f - action * action;
    if constexpr (STOCHASTIC) {
        by += 2.0f * weight * action;
        const float log_std = outputs[row * OUTPUTS + (STOCHASTIC ? WIDTH : 0) + d];
        const bool  within  = LEAST_LOG_STD <= log_std && log_std <= MOST_LOG_STD;
        const float std     = exp(clip(log_std, LEAST_LOG_STD, MOST_LOG_STD));
        by_outputs[row * OUTPUTS + (STOCHASTIC ? WIDTH : 0) + d] = within ? by * std * normal[row * WIDTH + d] - weight : 0.0f;
    }
    by_outputs[row * OUTPUTS + d] = by;
}
