// Off-policy algorithms row by row of a batch: actions by an actor's outputs, what critics should say, and the derivatives
// of the losses. Actions are in units in which the bounds are -1 and 1.

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
                    log_prob[k] += log_probability(call.outputs, call.normal, row, d, before);
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

// What critics should say. The derivatives of half the squared difference are what they say times `curvatures`, and
// `by_said` added.
KERNEL(kernel_aim, AimCall) {
    FOR_EACH_ENV(env, call.rows) {
        const float weight = STOCHASTIC ? exp(*call.log_temperature) : 0.0f;
        FOR_EACH_LANE(k, env) {
            const Index row   = env.index(k);
            float       least = call.targets[row * NETS];
            UNROLL
            for (int net = 1; net < NETS; ++net) least = minimum(least, call.targets[row * NETS + net]);
            if constexpr (STOCHASTIC) least -= weight * call.log_probs[row];
            const float aim   = call.returns[row] + call.discounts[row] * least;
            const bool  found = call.found[row] != 0;
            UNROLL
            for (int net = 0; net < NETS; ++net) {
                call.by_said[row * NETS + net]    = found ? -aim : 0.0f;
                call.curvatures[row * NETS + net] = found ? 1.0f : 0.0f;
            }
        }
    }
}

// The losses of what they say.
KERNEL(kernel_judge, JudgeCall) {
    FOR_EACH_ENV(env, call.rows) {
        FOR_EACH_LANE(k, env) {
            const Index row   = env.index(k);
            const bool  found = call.found[row] != 0;
            float       loss  = 0;
            UNROLL
            for (int net = 0; net < NETS; ++net) {
                const float off = found ? call.said[row * NETS + net] + call.by_said[row * NETS + net] : 0.0f;
                loss += 0.5f * off * off;
            }
            call.sums[VALUE_LOSS * call.rows + row] = loss;
            call.sums[ALIVE * call.rows + row]      = found ? 1.0f : 0.0f;
        }
    }
}

// The derivatives of the actor's loss by its outputs, and that of the temperature's loss by its logarithm, from those of
// critics by actions: of a squashed Gaussian's the one that says least counts, else the first.
KERNEL(kernel_steer, SteerCall) {
    FOR_EACH_ENV(env, call.rows) {
        const float weight = STOCHASTIC ? exp(*call.log_temperature) : 0.0f;
        int         which[LANES];
        FOR_EACH_LANE(k, env) {
            const Index row   = env.index(k);
            const bool  found = call.found[row] != 0;
            which[k]          = 0;
            if constexpr (STOCHASTIC) {
                UNROLL
                for (int net = 1; net < NETS; ++net) {
                    which[k] = call.said[row * NETS + net] < call.said[row * NETS + which[k]] ? net : which[k];
                }
            }
            call.sums[POLICY_LOSS * call.rows + row] = found ? -call.said[row * NETS + which[k]] : 0.0f;
            call.sums[ALIVE * call.rows + row]       = found ? 1.0f : 0.0f;
        }
        for (int d = 0; d < WIDTH; ++d) {
            FOR_EACH_LANE(k, env) {
                const Index row    = env.index(k);
                const bool  found  = call.found[row] != 0;
                const float action = call.inputs[row * INPUTS + FEATURES + d];
                const float by     = -call.by_actions[(row * NETS + which[k]) * WIDTH + d];
                steer(call.by_outputs, call.outputs, call.normal, action, by, weight, row, d);
                if (!found) {
                    call.by_outputs[row * OUTPUTS + d] = 0.0f;
                    if (STOCHASTIC) call.by_outputs[row * OUTPUTS + WIDTH + d] = 0.0f;
                }
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
