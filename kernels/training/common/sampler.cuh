// Draws actions from a policy's outputs; each agent of each replica has a row.
//
// Random numbers are a function of a key, a 64-bit counter `turn`, and the row: Philox counter (row, turn's low half,
// turn's high half, SAMPLER << 24 | draw). They do not depend on how rows are split among launches and processes.

// Draws four random words per row, for elements 4 draw to 4 draw + 3 of its action.
template <class Env> FN void draw_bits(u32 (&bits)[4][LANES], const SampleCall& call, int draw, const Env& env) {
    const u64 key = call.stream[0], turn = call.stream[1] + call.turn;
    FOR_EACH_LANE(k, env) {
        const Words words = philox(key, {u32(call.first_row + env.index(k)), u32(turn), u32(turn >> 32),
                                         u32(SAMPLER) << 24 | u32(draw)});
        bits[0][k] = words.x;
        bits[1][k] = words.y;
        bits[2][k] = words.z;
        bits[3][k] = words.w;
    }
}

// Draws element d's choice by inverse transform sampling: the first whose cumulative weight exceeds a random part of
// c.sum. Weights are added in the order of compute_categorical(), so that the last sum is c.sum. NaN logits give 0.
template <class Env>
FN void choose(int (&choice)[LANES], const Categorical& c, const u32 (&bits)[4][LANES], const Rows& rows, int d,
               const Env& env) {
    const int begin = offset_of(d), end = begin + size_of(d);
    float     cumulative[LANES], threshold[LANES];
    FOR_EACH_LANE(k, env) {
        const u32 word = d % 4 == 0 ? bits[0][k] : d % 4 == 1 ? bits[1][k] : d % 4 == 2 ? bits[2][k] : bits[3][k];
        float     unit;
        to_unit(word, unit);
        choice[k]     = 0;
        cumulative[k] = 0;
        threshold[k]  = unit * c.sum[k];
    }
    for (int j = begin; j < end; ++j) {
        FOR_EACH_LANE(k, env) {
            cumulative[k] += exponential(rows.get(j, k) - c.max_logit[k]);
            choice[k] += cumulative[k] <= threshold[k];
        }
    }
}

// The most likely choice of the action's element d, for each lane; the first of equals.
template <class Env> FN void choose_most_likely(int (&choice)[LANES], const Rows& rows, int d, const Env& env) {
    const int begin = offset_of(d);
    float     max_logit[LANES];
    FOR_EACH_LANE(k, env) {
        choice[k]    = 0;
        max_logit[k] = rows.get(begin, k);
    }
    for (int j = 1; j < size_of(d); ++j) {
        FOR_EACH_LANE(k, env) {
            const float logit  = rows.get(begin + j, k);
            const bool  better = max_logit[k] < logit;
            choice[k]          = better ? j : choice[k];
            max_logit[k]       = better ? logit : max_logit[k];
        }
    }
}

// Turns each two random words into two standard normal numbers (Box & Muller 1958), in each lane.
template <class Env> FN void to_normal(float (&normal)[4][LANES], const u32 (&bits)[4][LANES], const Env& env) {
    UNROLL
    for (int pair = 0; pair < 4; pair += 2) {
        FOR_EACH_LANE(k, env) {
            float u, v;
            to_unit(bits[pair][k], u);
            to_unit(bits[pair + 1][k], v);
            const float  radius    = square_root(-2.0f * log(1.0f - u));
            const auto   direction = sincos(float(2 * PI) * v);
            normal[pair][k]        = radius * direction.cos;
            normal[pair + 1][k]    = radius * direction.sin;
        }
    }
}

// Draws, or if greedy takes the most likely, choices of all elements; writes them, and sums their log-probabilities.
template <class Env> FN void draw_choices(Total& total, const SampleCall& call, const Rows& rows, const Env& env) {
    u32 bits[4][LANES] = {};
    sum_elements(total, env, [&](Total& sum, int d) {
        Categorical c;
        int         choice[LANES];
        compute_categorical(c, rows, d, env);
        if (call.greedy) {
            choose_most_likely(choice, rows, d, env);
        } else {
            if (d % 4 == 0 || d % SHARE == 0) draw_bits(bits, call, d / 4, env);
            choose(choice, c, bits, rows, d, env);
        }
        FOR_EACH_LANE(k, env) {
            sum.log_prob[k] += log_probability(c, rows, offset_of(d) + choice[k], k);
            sum.entropy[k] += c.entropy[k];
            call.actions[env.index(k) * WIDTH + d] = Element(choice[k] + start_of(d));
        }
    });
}

// Maps a policy's action, in units where the box's bounds are -1 and 1, to the environment's bounds, and clips it.
FN float within_bounds(float sample, int d) {
    const float low = low_of(d), high = high_of(d);
    return clip(low + (clip(sample, -1.0f, 1.0f) + 1.0f) * (high - low) / 2.0f, low, high);
}

// Draws, or if greedy takes the mean of, all elements; writes them, also scaled to the bounds; sums log-probabilities.
template <class Env> FN void draw_gaussians(Total& total, const SampleCall& call, const Rows& rows, const Env& env) {
    float normal[4][LANES];
    clear(total, env);
    UNROLL
    for (int d = 0; d < WIDTH; ++d) {
        if (d % 4 == 0) {
            if (call.greedy) {
                UNROLL
                for (int j = 0; j < 4; ++j) FOR_EACH_LANE(k, env) normal[j][k] = 0;
            } else {
                u32 bits[4][LANES];
                draw_bits(bits, call, d / 4, env);
                to_normal(normal, bits, env);
            }
        }
        FOR_EACH_LANE(k, env) {
            const Index i       = env.index(k);
            const float mean    = rows.get(d, k), log_std = rows.get(WIDTH + d, k);
            const float sample  = call.greedy ? mean : mean + exp(log_std) * normal[d % 4][k];
            // from the stored sample, as the loss does, so that both are the same
            total.log_prob[k] += gaussian_log_probability(gaussian_distance(sample, mean, log_std), log_std);
            total.entropy[k] += gaussian_entropy(log_std);
            call.actions[i * WIDTH + d] = Element(sample);
            if (call.acted != nullptr) call.acted[i * WIDTH + d] = within_bounds(sample, d);
        }
    }
}

// Draws the actions of a tile's rows, and writes actions, log-probabilities and, if asked for, entropies.
template <class Call, class Env> FN void sample(const Call& call, const ScratchMemory& memory, const Env& env) {
    const Rows rows(memory, call.parameters, nullptr, env, call.action_mask);
    Total      total;
    if constexpr (DISCRETE) draw_choices(total, call, rows, env);
    else draw_gaussians(total, call, rows, env);
    FOR_EACH_LANE(k, env) call.log_probs[env.index(k)] = total.log_prob[k];
    if (call.entropies != nullptr) FOR_EACH_LANE(k, env) call.entropies[env.index(k)] = total.entropy[k];
}
