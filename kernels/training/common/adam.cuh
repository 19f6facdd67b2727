// A step of Adam (Kingma & Ba 2015), and what comes before it.
//
// The gradient is that of a sum over samples, and behind it in `message` stand the sums over them: both have been added up
// over processes that train together. They are divided by the number of samples, and the gradient is shortened to a norm.
// Nothing changes where there were no samples, or where the update has been stopped.

constexpr float NORM_MARGIN = 1e-6f;  // keeps the quotient finite for a gradient of zero

// 1 - beta^steps, in double precision: early on it is small, and its error would be the step's.
FN double bias_correction(double log_beta, i64 steps) { return 1.0 - exp(double(steps) * log_beta); }

// What depends on the number of the step.
struct Rates { float step_size, inverse_root_correction; };

template <class Call> FN Rates rates_of(const Call& call, i64 steps) {
    return {float(double(*call.learning_rate) / bias_correction(call.log_beta1, steps)),
            float(1.0 / square_root(bias_correction(call.log_beta2, steps)))};
}

// What depends on the sums.
struct Outcome {
    bool  stopped, active;
    float norm, gradient_factor;
};

template <class Call> FN Outcome outcome_of(const Call& call, bool stopped, float norm_of_sum) {
    const float* totals  = call.message + call.count;
    const float  samples = totals[ALIVE], divergence = totals[DIVERGENCE] / maximum(samples, 1.0f);
    Outcome      outcome;
    outcome.stopped    = stopped || (call.stop != nullptr && divergence > call.most_kl);
    outcome.active     = !outcome.stopped && samples != 0;
    outcome.norm       = norm_of_sum / samples;
    const float factor = call.max_norm > 0 ? minimum(1.0f, call.max_norm / (outcome.norm + NORM_MARGIN)) : 1.0f;
    outcome.gradient_factor = factor / samples;
    return outcome;
}

// Of one thread, once all that decide have read what it replaces.
template <class Call> FN void write_outcome(const Call& call, const Outcome& outcome, i64 steps) {
    const float* totals = call.message + call.count;
    if (outcome.stopped) {
        *call.stop = 1;
    } else if (call.figures != nullptr) {
        float figures[SUMS];  // all are read before any is written, so that their latencies are one
        UNROLL
        for (int sum = 0; sum < SUMS; ++sum) figures[sum] = call.figures[sum] + totals[sum];
        UNROLL
        for (int sum = 0; sum < SUMS; ++sum) call.figures[sum] = figures[sum];
    }
    if (outcome.active) {
        *call.steps = steps;
        *call.norm  = outcome.norm;
    }
}

// What a parameter's step is worked out from.
struct Moments { float gradient, mean, square, weight; };

template <class Call> FN Moments moments_of(const Call& call, Index i) {
    return {call.message[i], call.means[i], call.squares[i], call.weights[i]};
}

// Returns what becomes of the weight.
template <class Call>
FN float take_step(const Call& call, Index i, const Moments before, float gradient_factor, const Rates& rates) {
    const float gradient = before.gradient * gradient_factor;
    const float mean     = before.mean + call.rate1 * (gradient - before.mean);
    const float square   = call.beta2 * before.square + call.rate2 * (gradient * gradient);
    call.means[i]        = mean;
    call.squares[i]      = square;
    const float weight   = before.weight - rates.step_size * mean / (square_root(square) * rates.inverse_root_correction + call.epsilon);
    call.weights[i]      = weight;
    return weight;
}
