// Adam (Kingma & Ba 2015) over all parameters of a policy at once.
//
// The gradient is that of a sum over so many samples: it is divided by their number, and shortened to a norm. Nothing
// changes where there were no samples, or where the update has been stopped. That is decided by one thread beforehand:
// all others read the outcome.

enum Factor : int { ACTIVE, GRADIENT_FACTOR, STEP_SIZE, INVERSE_ROOT_CORRECTION };

constexpr float NORM_MARGIN = 1e-6f;  // keeps the quotient finite for a gradient of zero

// 1 - beta^steps, in double precision: early on it is small, and its error would be the step's.
FN double bias_correction(double beta, i64 steps) { return 1.0 - exp(double(steps) * log(beta)); }

KERNEL(kernel_prepare, PrepareCall) {
    FOR_EACH_ENV(env, 1) {
        FOR_EACH_LANE(k, env) {
            const float samples = *call.samples;
            const bool  active  = samples != 0 && (call.stop == nullptr || *call.stop == 0);
            call.factors[ACTIVE] = active ? 1.0f : 0.0f;
            if (active) {
                const float norm   = *call.norm_of_sum / samples;
                const float factor = call.max_norm > 0 ? minimum(1.0f, call.max_norm / (norm + NORM_MARGIN)) : 1.0f;
                const i64   steps  = *call.steps + 1;
                *call.steps        = steps;
                *call.norm         = norm;
                call.factors[GRADIENT_FACTOR] = factor / samples;
                call.factors[STEP_SIZE]       = float(double(*call.learning_rate) / bias_correction(call.beta1, steps));
                call.factors[INVERSE_ROOT_CORRECTION] = float(1.0 / square_root(bias_correction(call.beta2, steps)));
            }
        }
    }
}

KERNEL(kernel_adam, AdamCall) {
    FOR_EACH_ENV(env, call.count) {
        if (call.factors[ACTIVE] != 0) {
            const float factor = call.factors[GRADIENT_FACTOR], step_size = call.factors[STEP_SIZE];
            const float correction = call.factors[INVERSE_ROOT_CORRECTION];
            FOR_EACH_LANE(k, env) {
                const Index i        = env.index(k);
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
