// Generalised advantage estimates (Schulman et al. 2016), the steps at which episodes are truncated, and the discounted
// returns that rewards are normalised by. A thread for each row; all arrays are [steps, rows], the values [steps + 1,
// rows].

// Steps that are read before any is worked on: on a GPU, reads that wait for one another take longest.
constexpr int CHUNK = ON_GPU ? 8 : 4;

// Backward over the steps: advantage = delta + gamma lambda (the next step's), delta = reward + gamma (next value) - value.
// Past a termination there is nothing, past a truncation the value of the final observation; neither lets through the
// advantages of the episode after it. Where an agent takes no part its advantage is zero.
KERNEL(kernel_advantages, AdvantageCall) {
    FOR_EACH_ENV(env, call.rows) {
        float   after[LANES], carried[LANES], count[LANES];
        Running running[QUANTITIES];
        FOR_EACH_LANE(k, env) {
            after[k]   = call.values[call.steps * call.rows + env.index(k)];
            carried[k] = count[k] = 0;
            begin(running[ADVANTAGE], k);
            begin(running[RETURN], k);
        }
        const float scale = call.reward_scale == nullptr ? 1.0f : *call.reward_scale;
        for (Index last = call.steps - 1; last >= 0; last -= CHUNK) {
            float reward[CHUNK][LANES], value[CHUNK][LANES], next[CHUNK][LANES];
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
            for (int c = 0; c < CHUNK; ++c) {  // (apart, since which of these are read depends on what was)
                if (last < c) continue;
                FOR_EACH_LANE(k, env) {
                    const Index i = (last - c) * call.bootstrap_stride + env.index(k);
                    next[c][k]    = truncated[c][k] && !terminated[c][k] ? call.bootstrap[i] : 0.0f;
                }
            }
            UNROLL
            for (int c = 0; c < CHUNK; ++c) {
                if (last < c) continue;
                const Index row = (last - c) * call.rows;
                FOR_EACH_LANE(k, env) {
                    const bool  ended = terminated[c][k] || truncated[c][k];
                    const float ahead = ended ? next[c][k] : after[k];
                    const float rest  = ended ? 0.0f : carried[k];
                    const float delta = (reward[c][k] * scale + call.gamma * ahead) - value[c][k];
                    carried[k]        = alive[c][k] ? delta + call.gamma_lambda * rest : 0.0f;
                    after[k]          = value[c][k];
                    const float sum   = alive[c][k] ? carried[k] + value[c][k] : value[c][k];
                    call.advantages[row + env.index(k)] = carried[k];
                    call.returns[row + env.index(k)]    = sum;
                    count[k] += alive[c][k] ? 1.0f : 0.0f;
                    take_in(running[ADVANTAGE], k, carried[k], alive[c][k], count[k]);
                    take_in(running[RETURN], k, sum, alive[c][k], count[k]);
                }
            }
        }
        if (call.moments != nullptr) {
            FOR_EACH_LANE(k, env) call.moments[COUNT * call.rows + env.index(k)] = count[k];
            UNROLL
            for (int q = 0; q < QUANTITIES; ++q) {
                FOR_EACH_LANE(k, env) {
                    call.moments[place_of(q, FIRST) * call.rows + env.index(k)]   = running[q].first[k];
                    call.moments[place_of(q, MEAN) * call.rows + env.index(k)]    = running[q].mean[k];
                    call.moments[place_of(q, SQUARES) * call.rows + env.index(k)] = running[q].squares[k];
                }
            }
        }
    }
}

// The place, step * rows + row, of the last observation of each row's truncated episode; below zero where there is none.
// Rows of a group are truncated together: they have the same step.
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
