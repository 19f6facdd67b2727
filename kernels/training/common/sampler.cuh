// Draws actions from a policy's outputs, a row of them for each agent of each replica.
//
// The random numbers are a function of a key, a turn and the row: counter (row, turn's low half, turn's high half,
// SAMPLER << 24 | draw), where each draw gives four words, for elements 4 draw to 4 draw + 3 of the action. So rows may
// be cut in any way, and a turn is never repeated while its 64 bits last.

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

// The first choice whose cumulated share exceeds `unit` of the whole. The shares are summed as measure() summed them,
// so the last sum is c.sum > unit * c.sum and there is such a choice; where a NaN makes every comparison false it is 0.
template <class Env>
FN void choose(int (&choice)[LANES], const Categorical& c, const u32 (&bits)[4][LANES], const Rows& rows, int d,
               const Env& env) {
    const int begin = offset_of(d), end = begin + size_of(d);
    float     reached[LANES], wanted[LANES];
    FOR_EACH_LANE(k, env) {
        const u32 own = d % 4 == 0 ? bits[0][k] : d % 4 == 1 ? bits[1][k] : d % 4 == 2 ? bits[2][k] : bits[3][k];
        float     unit;
        to_unit(own, unit);
        choice[k]  = 0;
        reached[k] = 0;
        wanted[k]  = unit * c.sum[k];
    }
    for (int j = begin; j < end; ++j) {
        FOR_EACH_LANE(k, env) {
            reached[k] += exponential(rows.get(j, k) - c.most[k]);
            choice[k] += reached[k] <= wanted[k];
        }
    }
}

// The likeliest choice; of equals the first.
template <class Env> FN void choose_likeliest(int (&choice)[LANES], const Rows& rows, int d, const Env& env) {
    const int begin = offset_of(d);
    float     most[LANES];
    FOR_EACH_LANE(k, env) {
        choice[k] = 0;
        most[k]   = rows.get(begin, k);
    }
    for (int j = 1; j < size_of(d); ++j) {
        FOR_EACH_LANE(k, env) {
            const float logit  = rows.get(begin + j, k);
            const bool  better = most[k] < logit;
            choice[k]          = better ? j : choice[k];
            most[k]            = better ? logit : most[k];
        }
    }
}

// Standard normal numbers, two from two (Box & Muller 1958).
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

template <class Env> FN void draw_choices(Total& total, const SampleCall& call, const Rows& rows, const Env& env) {
    u32 bits[4][LANES] = {};
    sum_elements(total, env, [&](Total& sum, int d) {
        Categorical c;
        int         choice[LANES];
        measure(c, rows, d, env);
        if (call.greedy) {
            choose_likeliest(choice, rows, d, env);
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

// The policy acts where a box's bounds are -1 and 1; the environment is given what lies there within its own.
FN float within_bounds(float sample, int d) {
    const float low = low_of(d), high = high_of(d);
    return clip(low + (clip(sample, -1.0f, 1.0f) + 1.0f) * (high - low) / 2.0f, low, high);
}

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
            // (of the sample as it is stored, so that who evaluates it later finds the same)
            total.log_prob[k] += gaussian_log_probability(gaussian_distance(sample, mean, log_std), log_std);
            total.entropy[k] += gaussian_entropy(log_std);
            call.actions[i * WIDTH + d] = Element(sample);
            if (call.acted != nullptr) call.acted[i * WIDTH + d] = within_bounds(sample, d);
        }
    }
}

template <class Env> FN void sample(const SampleCall& call, const LocalMemory& memory, const Env& env) {
    const Rows rows(memory, call.parameters, nullptr, env, call.action_mask);
    Total      total;
    if constexpr (DISCRETE) draw_choices(total, call, rows, env);
    else draw_gaussians(total, call, rows, env);
    FOR_EACH_LANE(k, env) call.log_probs[env.index(k)] = total.log_prob[k];
    if (call.entropies != nullptr) {
        FOR_EACH_LANE(k, env) call.entropies[env.index(k)] = total.entropy[k];
    }
}
