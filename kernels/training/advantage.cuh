// Generalised advantage estimates (Schulman et al. 2016), and the discounted returns that rewards are normalised by.
// A thread for each row; all arrays are [steps, rows], the values [steps + 1, rows].

constexpr int CHUNK = 8;  // steps that are read before any is worked on: reads that wait for one another take longest

// Backward over the steps: advantage = delta + gamma lambda (the next step's), delta = reward + gamma (next value) - value.
// Past a termination there is nothing, past a truncation the value of the final observation; neither lets through the
// advantages of the episode after it. Where an agent takes no part its advantage is zero.
KERNEL(kernel_advantages, AdvantageCall) {
    FOR_EACH_ENV(env, call.rows) {
        float after[LANES], carried[LANES];
        FOR_EACH_LANE(k, env) {
            after[k]   = call.values[call.steps * call.rows + env.index(k)];
            carried[k] = 0;
        }
        const float scale = call.reward_scale == nullptr ? 1.0f : *call.reward_scale;
        for (Index last = call.steps - 1; last >= 0; last -= CHUNK) {
            float reward[CHUNK][LANES], value[CHUNK][LANES], next[CHUNK][LANES];
            int   ended[CHUNK][LANES], alive[CHUNK][LANES];
            UNROLL
            for (int c = 0; c < CHUNK; ++c) {
                if (last < c) continue;
                const Index row = (last - c) * call.rows, slot = (last - c) * call.bootstrap_stride;
                FOR_EACH_LANE(k, env) {
                    const Index i  = env.index(k);
                    const bool terminated = call.terminations[row + i] != 0, truncated = call.truncations[row + i] != 0;
                    reward[c][k] = call.rewards[row + i];
                    value[c][k]  = call.values[row + i];
                    ended[c][k]  = terminated || truncated;
                    alive[c][k]  = call.alive == nullptr || call.alive[row + i] != 0;
                    next[c][k]   = truncated && !terminated ? call.bootstrap[slot + i] : 0.0f;
                }
            }
            UNROLL
            for (int c = 0; c < CHUNK; ++c) {
                if (last < c) continue;
                const Index row = (last - c) * call.rows;
                FOR_EACH_LANE(k, env) {
                    const float ahead = ended[c][k] ? next[c][k] : after[k];
                    const float rest  = ended[c][k] ? 0.0f : carried[k];
                    const float delta = (reward[c][k] * scale + call.gamma * ahead) - value[c][k];
                    carried[k]        = alive[c][k] ? delta + call.gamma_lambda * rest : 0.0f;
                    after[k]          = value[c][k];
                    call.advantages[row + env.index(k)] = carried[k];
                    call.returns[row + env.index(k)]    = alive[c][k] ? carried[k] + value[c][k] : value[c][k];
                }
            }
        }
    }
}

// Forward over the steps: running = gamma running + reward, begun anew after an end; and the number, the sum and the
// sum of squares of what it was while the agent took part.
KERNEL(kernel_discounted, DiscountedCall) {
    FOR_EACH_ENV(env, call.rows) {
        float running[LANES], total[LANES], squares[LANES], count[LANES];
        FOR_EACH_LANE(k, env) {
            running[k] = call.running[env.index(k)];
            total[k] = squares[k] = count[k] = 0;
        }
        for (Index first = 0; first < call.steps; first += CHUNK) {
            float reward[CHUNK][LANES];
            int   ended[CHUNK][LANES], alive[CHUNK][LANES];
            UNROLL
            for (int c = 0; c < CHUNK; ++c) {
                if (first + c >= call.steps) continue;
                FOR_EACH_LANE(k, env) {
                    const Index i = (first + c) * call.rows + env.index(k);
                    reward[c][k]  = call.rewards[i];
                    ended[c][k]   = call.terminations[i] != 0 || call.truncations[i] != 0;
                    alive[c][k]   = call.alive == nullptr || call.alive[i] != 0;
                }
            }
            UNROLL
            for (int c = 0; c < CHUNK; ++c) {
                if (first + c >= call.steps) continue;
                FOR_EACH_LANE(k, env) {
                    const float reached = alive[c][k] ? call.gamma * running[k] + reward[c][k] : 0.0f;
                    total[k] += reached;
                    squares[k] += reached * reached;
                    count[k] += alive[c][k] ? 1.0f : 0.0f;
                    running[k] = ended[c][k] ? 0.0f : reached;
                }
            }
        }
        FOR_EACH_LANE(k, env) {
            const Index i   = env.index(k);
            call.running[i] = running[k];
            call.total[i]   = total[k];
            call.squares[i] = squares[k];
            call.count[i]   = count[k];
        }
    }
}
