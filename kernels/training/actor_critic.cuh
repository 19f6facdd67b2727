// Off-policy algorithms row by row of a batch: actions by an actor's outputs, what critics should say, and the derivatives
// of the losses. Actions are in units in which the bounds are -1 and 1.
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

// Chooses actions, and writes them beside the observations, as critics take them.
KERNEL(kernel_choose, ChooseCall) {
    FOR_EACH_ENV(env, call.rows) {
        FOR_EACH_LANE_ALONE(k, env) {
            const Index row = env.index(k);
            for (int i = 0; i < FEATURES; ++i) call.inputs[row * INPUTS + i] = call.observations[row * FEATURES + i];
        }
        float log_prob[LANES];
        FOR_EACH_LANE(k, env) log_prob[k] = 0;
        for (int d = 0; d < WIDTH; ++d) {
            FOR_EACH_LANE(k, env) {
                const Index row    = env.index(k);
                const float before = unsquashed(call.outputs, call.normal, row, d);
                float       action = elementary::tanh(before);
                if constexpr (STOCHASTIC) {
                    // of the tangent's derivative the logarithm is 2 (log 2 - x - softplus(-2 x)), exact far out, too
                    const float log_std = clip(call.outputs[row * OUTPUTS + WIDTH + d], LEAST_LOG_STD, MOST_LOG_STD);
                    const float normal  = call.normal[row * WIDTH + d];
                    log_prob[k] -= 0.5f * normal * normal + log_std + HALF_LOG_TWO_PI +
                                   2.0f * (LOG_TWO - before - softplus(-2.0f * before));
                } else if (call.noise > 0.0f) {
                    const float noise = clip(call.noise * call.normal[row * WIDTH + d], -call.most, call.most);
                    action            = clip(action + noise, -1.0f, 1.0f);
                }
                call.inputs[row * INPUTS + FEATURES + d] = action;
            }
        }
        if constexpr (STOCHASTIC) FOR_EACH_LANE(k, env) call.log_probs[env.index(k)] = log_prob[k];
    }
}

// The derivatives of half the squared difference of what critics say and should say.
KERNEL(kernel_judge, JudgeCall) {
    FOR_EACH_ENV(env, call.rows) {
        const float weight = STOCHASTIC ? exp(*call.log_temperature) : 0.0f;
        FOR_EACH_LANE(k, env) {
            const Index row   = env.index(k);
            float       least = call.targets[row * NETS];
            UNROLL
            for (int net = 1; net < NETS; ++net) least = minimum(least, call.targets[row * NETS + net]);
            if constexpr (STOCHASTIC) least -= weight * call.log_probs[row];
            const float aim = call.returns[row] + call.discounts[row] * least;
            const bool  found = call.found[row] != 0;
            float       loss = 0;
            UNROLL
            for (int net = 0; net < NETS; ++net) {
                const float off = found ? call.said[row * NETS + net] - aim : 0.0f;
                loss += 0.5f * off * off;
                call.by_said[row * NETS + net] = off;
            }
            call.sums[VALUE_LOSS * call.rows + row] = loss;
            call.sums[ALIVE * call.rows + row]      = found ? 1.0f : 0.0f;
        }
    }
}

// The derivatives of the actor's loss by what critics say: of a squashed Gaussian's the one that says least counts, else
// the first.
KERNEL(kernel_ask, AskCall) {
    FOR_EACH_ENV(env, call.rows) {
        FOR_EACH_LANE(k, env) {
            const Index row   = env.index(k);
            const bool  found = call.found[row] != 0;
            int         which = 0;
            if constexpr (STOCHASTIC) {
                UNROLL
                for (int net = 1; net < NETS; ++net) {
                    which = call.said[row * NETS + net] < call.said[row * NETS + which] ? net : which;
                }
            }
            UNROLL
            for (int net = 0; net < NETS; ++net) call.by_said[row * NETS + net] = found && net == which ? -1.0f : 0.0f;
            call.sums[POLICY_LOSS * call.rows + row] = found ? -call.said[row * NETS + which] : 0.0f;
            call.sums[ALIVE * call.rows + row]       = found ? 1.0f : 0.0f;
        }
    }
}

// The derivatives of the actor's loss by its outputs, and that of the temperature's loss by its logarithm.
KERNEL(kernel_steer, SteerCall) {
    FOR_EACH_ENV(env, call.rows) {
        const float weight = STOCHASTIC ? exp(*call.log_temperature) : 0.0f;
        for (int d = 0; d < WIDTH; ++d) {
            FOR_EACH_LANE(k, env) {
                const Index row    = env.index(k);
                const bool  found  = call.found[row] != 0;
                const float action = call.inputs[row * INPUTS + FEATURES + d];
                float       by     = 0;
                UNROLL
                for (int net = 0; net < NETS; ++net) by += call.by_actions[(row * NETS + net) * WIDTH + d];
                by *= 1.0f - action * action;
                if constexpr (STOCHASTIC) {
                    by += 2.0f * weight * action;
                    const float log_std = call.outputs[row * OUTPUTS + WIDTH + d];
                    const bool  within  = LEAST_LOG_STD <= log_std && log_std <= MOST_LOG_STD;
                    const float std     = exp(clip(log_std, LEAST_LOG_STD, MOST_LOG_STD));
                    const float by_std  = by * std * call.normal[row * WIDTH + d] - weight;
                    call.by_outputs[row * OUTPUTS + WIDTH + d] = found && within ? by_std : 0.0f;
                }
                call.by_outputs[row * OUTPUTS + d] = found ? by : 0.0f;
            }
        }
        if constexpr (STOCHASTIC) {
            FOR_EACH_LANE(k, env) {
                const Index row      = env.index(k);
                const bool  found    = call.found[row] != 0;
                const float log_prob = call.log_probs[row];
                call.sums[POLICY_LOSS * call.rows + row] += found ? weight * log_prob : 0.0f;
                call.sums[ENTROPY * call.rows + row]     = found ? -log_prob : 0.0f;
                call.by_temperature[row]                 = found ? -(log_prob + call.target_entropy) : 0.0f;
            }
        }
    }
}
