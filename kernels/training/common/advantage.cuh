// Generalised advantage estimates (Schulman et al. 2016), the last truncation of each row, and the discounted returns
// that normalise rewards. A thread has one row; all arrays are [steps, rows], the values [steps + 1, rows].

constexpr int CHUNK = ON_GPU ? 8 : 2;  // steps that are loaded before any is computed, so that latencies overlap

// Writes advantages, returns and their moments, backward over the steps: delta = reward + gamma next_value - value,
// advantage = delta + gamma lambda next_advantage, return = advantage + value. The next value is zero after a
// termination, the final observation's after a truncation; the next advantage is zero after both. Inactive agents: 0.
KERNEL(kernel_advantages, AdvantageCall) {
    FOR_EACH_ENV(env, call.rows) {
        float   next_value[LANES], advantage[LANES], count[LANES];
        Running running[QUANTITIES];
        FOR_EACH_LANE(k, env) {
            next_value[k] = call.values[call.steps * call.rows + env.index(k)];
            advantage[k]  = count[k] = 0;
            reset(running[ADVANTAGE], k);
            reset(running[RETURN], k);
        }
        const float scale = call.reward_scale == nullptr ? 1.0f : *call.reward_scale;
        for (Index last = call.steps - 1; last >= 0; last -= CHUNK) {
            float reward[CHUNK][LANES], value[CHUNK][LANES], final_value[CHUNK][LANES];
            int   terminated[CHUNK][LANES], truncated[CHUNK][LANES], alive[CHUNK][LANES];
            UNROLL
            for (int c = 0; c < CHUNK; ++c) {
                if (last < c) continue;
                FOR_EACH_LANE(k, env) {
                    const Index i    = (last - c) * call.rows + env.index(k);
                    reward[c][k]     = call.rewards[i];
                    value[c][k]      = call.values[i];
                    terminated[c][k] = call.terminations[i] != 0;
                    truncated[c][k]  = call.truncations[i] != 0;
                    alive[c][k]      = call.alive == nullptr || call.alive[i] != 0;
                }
            }
            UNROLL
            for (int c = 0; c < CHUNK; ++c) {  // a second loop: the flags above decide what it reads
                if (last < c) continue;
                FOR_EACH_LANE(k, env) {
                    const Index i     = (last - c) * call.bootstrap_stride + env.index(k);
                    final_value[c][k] = truncated[c][k] && !terminated[c][k] ? call.bootstrap[i] : 0.0f;
                }
            }
            UNROLL
            for (int c = 0; c < CHUNK; ++c) {
                if (last < c) continue;
                const Index row = (last - c) * call.rows;
                FOR_EACH_LANE(k, env) {
                    const bool  ended          = terminated[c][k] || truncated[c][k];
                    const float bootstrap      = ended ? final_value[c][k] : next_value[k];
                    const float next_advantage = ended ? 0.0f : advantage[k];
                    const float delta          = (reward[c][k] * scale + call.gamma * bootstrap) - value[c][k];
                    advantage[k]               = alive[c][k] ? delta + call.gamma_lambda * next_advantage : 0.0f;
                    next_value[k]              = value[c][k];
                    const float sum            = alive[c][k] ? advantage[k] + value[c][k] : value[c][k];
                    call.advantages[row + env.index(k)] = advantage[k];
                    call.returns[row + env.index(k)]    = sum;
                    count[k] += alive[c][k] ? 1.0f : 0.0f;
                    add_sample(running[ADVANTAGE], k, advantage[k], alive[c][k], count[k]);
                    add_sample(running[RETURN], k, sum, alive[c][k], count[k]);
                }
            }
        }
        if (call.moments != nullptr) {
            FOR_EACH_LANE(k, env) call.moments[COUNT * call.rows + env.index(k)] = count[k];
            UNROLL
            for (int q = 0; q < QUANTITIES; ++q) {
                FOR_EACH_LANE(k, env) {
                    call.moments[moment_index(q, FIRST) * call.rows + env.index(k)]   = running[q].first[k];
                    call.moments[moment_index(q, MEAN) * call.rows + env.index(k)]    = running[q].mean[k];
                    call.moments[moment_index(q, SQUARES) * call.rows + env.index(k)] = running[q].squares[k];
                }
            }
        }
    }
}

// Writes the index step * rows + row of each row's last step that was truncated and not terminated; -1 without any. The
// `each` rows of a group are truncated at the same steps.
KERNEL(kernel_places, PlacesCall) {
    FOR_EACH_ENV(env, call.rows / call.each) {
        int step[LANES];
        FOR_EACH_LANE(k, env) step[k] = -1;
        for (int j = 0; j < call.each; ++j) {
            for (Index first = 0; first < call.steps; first += CHUNK) {
                UNROLL
                for (int c = 0; c < CHUNK; ++c) {
                    if (first + c >= call.steps) continue;
                    FOR_EACH_LANE(k, env) {
                        const Index i  = (first + c) * call.rows + env.index(k) * call.each + j;
                        const bool cut = (call.truncations[i] != 0) & (call.terminations[i] == 0);
                        step[k]        = cut ? maximum(step[k], int(first) + c) : step[k];
                    }
                }
            }
        }
        for (int j = 0; j < call.each; ++j) {
            FOR_EACH_LANE(k, env) {
                const Index row  = env.index(k) * call.each + j;
                call.places[row] = step[k] < 0 ? -1 : step[k] * call.rows + row;
            }
        }
    }
}

// Updates each row's discounted return, forward over the steps: running = gamma running + reward, 0 after an episode.
// Writes the count, the sum and the sum of squares of its values at steps of active agents.
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
                    const float discounted = alive[c][k] ? call.gamma * running[k] + reward[c][k] : 0.0f;
                    total[k] += discounted;
                    squares[k] += discounted * discounted;
                    count[k] += alive[c][k] ? 1.0f : 0.0f;
                    running[k] = ended[c][k] ? 0.0f : discounted;
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
