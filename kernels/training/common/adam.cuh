// A step of Adam (Kingma & Ba 2015), with gradient clipping and early stopping.
//
// `message` has the gradient of a loss summed over samples, followed by the SUMS of the loss, both added up over all
// processes of the run. The step divides by the number of samples and clips the gradient's norm. It changes nothing if
// there were no samples, or if the update has been stopped.

constexpr float NORM_MARGIN = 1e-6f;  // keeps the quotient finite if the gradient is zero

// 1 - beta^steps, in float64: it is small in the first steps, where its rounding error would scale the step.
FN double bias_correction(double log_beta, i64 steps) { return 1.0 - exp(double(steps) * log_beta); }

struct Rates { float step_size, inverse_root_correction; };

template <class Call> FN Rates rates_of(const Call& call, i64 steps) {
    return {float(double(*call.learning_rate) / bias_correction(call.log_beta1, steps)),
            float(1.0 / square_root(bias_correction(call.log_beta2, steps)))};
}

// Whether the update is stopped, whether the step is taken, and the gradient's norm and factor.
struct Outcome { bool stopped, active; float norm, gradient_factor; };

// A step's outcome, from the message's sums: the KL divergence may stop the update; a long gradient is clipped.
template <class Call> FN Outcome outcome_of(const Call& call, bool stopped, float norm_of_sum) {
    const float* totals  = call.message + call.count;
    const float  samples = totals[ALIVE], divergence = totals[DIVERGENCE] / maximum(samples, 1.0f);
    const bool  stops = stopped || (call.stop != nullptr && divergence > call.max_kl), active = !stops && samples != 0;
    const float norm = norm_of_sum / samples;
    const float factor = call.max_norm > 0 ? minimum(1.0f, call.max_norm / (norm + NORM_MARGIN)) : 1.0f;
    return {stops, active, norm, factor / samples};
}

// Sets `stop`, or adds the totals to the metrics; counts an active step. One thread calls it, after all outcome_of().
template <class Call> FN void write_outcome(const Call& call, const Outcome& outcome, i64 steps) {
    const float* totals = call.message + call.count;
    if (outcome.stopped) {
        *call.stop = 1;
    } else if (call.metrics != nullptr) {
        float metrics[SUMS];  // loads overlap: all are read before any is written
        UNROLL
        for (int sum = 0; sum < SUMS; ++sum) metrics[sum] = call.metrics[sum] + totals[sum];
        UNROLL
        for (int sum = 0; sum < SUMS; ++sum) call.metrics[sum] = metrics[sum];
    }
    if (outcome.active) {
        *call.steps = steps;
        *call.norm  = outcome.norm;
    }
}

struct Moments { float gradient, mean, square, weight; };

template <class Call> FN Moments moments_of(const Call& call, Index i) {
    return {call.message[i], call.means[i], call.squares[i], call.weights[i]};
}

// Updates parameter i and its moments from `before`, with the gradient times gradient_factor; returns the new weight.
template <class Call>
FN float take_step(const Call& call, Index i, const Moments before, float gradient_factor, const Rates& rates) {
    const float gradient = before.gradient * gradient_factor;
    const float mean     = before.mean + call.rate1 * (gradient - before.mean);
    const float square   = call.beta2 * before.square + call.rate2 * (gradient * gradient);
    call.means[i]        = mean;
    call.squares[i]      = square;
    const float weight =
        before.weight - rates.step_size * mean / (square_root(square) * rates.inverse_root_correction + call.epsilon);
    call.weights[i]      = weight;
    return weight;
}
