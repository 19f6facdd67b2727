// SAC, TD3 and DDPG, one thread per row of a batch: what lies between the networks' forward and backward passes.

// Writes the critics' inputs, observations followed by the policy's actions, and SAC's log-probabilities.
KERNEL(kernel_actions, ActionsCall) {
    FOR_EACH_ENV(env, call.rows) {
        FOR_EACH_LANE_ALONE(k, env) {
            const Index row = env.index(k);
            for (int i = 0; i < FEATURES; ++i) call.inputs[row * INPUTS + i] = call.observations[row * FEATURES + i];
        }
        float log_prob[LANES];
        FOR_EACH_LANE(k, env) log_prob[k] = 0;
        for (int d = 0; d < WIDTH; ++d) {
            FOR_EACH_LANE(k, env) {
                const Index row = env.index(k);
                call.inputs[row * INPUTS + FEATURES + d] =
                    action_element(call.outputs, call.normal, row, d, call.noise, call.noise_limit, log_prob[k]);
            }
        }
        if constexpr (STOCHASTIC) FOR_EACH_LANE(k, env) call.log_probs[env.index(k)] = log_prob[k];
    }
}

// Writes TD targets as the loss's gradient with respect to Q, `curvatures` * Q + `grad_q`; zero without a transition.
KERNEL(kernel_td_targets, TdTargetsCall) {
    FOR_EACH_ENV(env, call.rows) {
        const float temperature = temperature_of(call.log_temperature);
        FOR_EACH_LANE(k, env) {
            const Index  row      = env.index(k);
            const float* next_q   = call.next_q + row * NETS;
            const float  log_prob = STOCHASTIC ? call.log_probs[row] : 0.0f, discount = call.discounts[row];
            const float  target   = td_target(next_q, 1, temperature, log_prob, call.returns[row], discount);
            const bool   valid    = call.valid[row] != 0;
            FOR_EACH_NET(net, NETS) {
                call.grad_q[row * NETS + net]     = valid ? -target : 0.0f;
                call.curvatures[row * NETS + net] = valid ? 1.0f : 0.0f;
            }
        }
    }
}

// Writes each row's critic loss, half the squared TD errors, and whether it has a transition.
KERNEL(kernel_critic_losses, CriticLossesCall) {
    FOR_EACH_ENV(env, call.rows) {
        FOR_EACH_LANE(k, env) {
            const Index row   = env.index(k);
            const bool  valid = call.valid[row] != 0;
            float       loss  = 0;
            FOR_EACH_NET(net, NETS) {
                const float error = valid ? call.q_values[row * NETS + net] + call.grad_q[row * NETS + net] : 0.0f;
                loss += 0.5f * error * error;
            }
            call.sums[VALUE_LOSS * call.rows + row] = loss;
            call.sums[ALIVE * call.rows + row]      = valid ? 1.0f : 0.0f;
        }
    }
}

// Writes each row's actor loss, its gradients with respect to the actor's outputs, from the Q-values' gradients with
// respect to the actions, and SAC's gradient of the temperature's loss with respect to its logarithm.
KERNEL(kernel_actor_losses, ActorLossesCall) {
    FOR_EACH_ENV(env, call.rows) {
        const float temperature = temperature_of(call.log_temperature);
        int         critic[LANES];
        FOR_EACH_LANE(k, env) {
            const Index  row   = env.index(k);
            const bool   valid = call.valid[row] != 0;
            const float* q     = call.q_values + row * NETS;
            critic[k]          = actors_critic(q, 1);
            call.sums[POLICY_LOSS * call.rows + row] = valid ? -q[critic[k]] : 0.0f;
            call.sums[ALIVE * call.rows + row]       = valid ? 1.0f : 0.0f;
        }
        for (int d = 0; d < WIDTH; ++d) {
            FOR_EACH_LANE(k, env) {
                const Index row    = env.index(k);
                const bool  valid  = call.valid[row] != 0;
                const float action = call.inputs[row * INPUTS + FEATURES + d];
                const float grad   = -call.grad_actions[(row * NETS + critic[k]) * WIDTH + d];
                actor_gradient(call.grad_outputs, call.outputs, call.normal, action, grad, temperature, row, d);
                if (!valid) {
                    call.grad_outputs[row * OUTPUTS + d] = 0.0f;
                    if (STOCHASTIC) call.grad_outputs[row * OUTPUTS + LOG_STD + d] = 0.0f;
                }
            }
        }
        if constexpr (STOCHASTIC) {
            FOR_EACH_LANE(k, env) {
                const Index row      = env.index(k);
                const bool  valid    = call.valid[row] != 0;
                const float log_prob = call.log_probs[row];
                call.sums[POLICY_LOSS * call.rows + row] += valid ? temperature * log_prob : 0.0f;
                call.sums[ENTROPY * call.rows + row]     = valid ? -log_prob : 0.0f;
                call.grad_temperature[row]               = valid ? -(log_prob + call.target_entropy) : 0.0f;
            }
        }
    }
}
