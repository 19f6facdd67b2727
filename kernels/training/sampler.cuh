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
FN void choose(int (&choice)[LANES], const Categorical& c, const u32 (&bits)[LANES], Rows& rows, int d,
               const Env& env) {
    float reached[LANES], wanted[LANES];
    FOR_EACH_LANE(k, env) {
        float unit;
        to_unit(bits[k], unit);
        choice[k]  = 0;
        reached[k] = 0;
        wanted[k]  = unit * c.sum[k];
    }
    FOR_CHOICES_OF(d, low, high, rows, env) {
        for (int j = low; j < high; ++j) {
            FOR_EACH_LANE(k, env) {
                reached[k] += exp(rows.get(j, k) - c.most[k]);
                choice[k] += reached[k] <= wanted[k];
            }
        }
    }
}

// The likeliest choice; of equals the first.
template <class Env> FN void choose_likeliest(int (&choice)[LANES], Rows& rows, int d, const Env& env) {
    float most[LANES];
    rows.bring(offset_of(d), minimum(AT_HAND, size_of(d)), env);
    FOR_EACH_LANE(k, env) {
        choice[k] = 0;
        most[k]   = rows.get(offset_of(d), k);
    }
    FOR_CHOICES_OF(d, low, high, rows, env) {
        for (int j = low; j < high; ++j) {
            FOR_EACH_LANE(k, env) {
                const float logit  = rows.get(j, k);
                const bool  better = most[k] < logit;
                choice[k]          = better ? j - offset_of(d) : choice[k];
                most[k]            = better ? logit : most[k];
            }
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

FN u32 of_four(u32 a, u32 b, u32 c, u32 d, int which) { return which == 0 ? a : which == 1 ? b : which == 2 ? c : d; }

struct Drawn {
    float log_prob[LANES], entropy[LANES];
};

template <class Env> FN void draw_choices(Drawn& drawn, const SampleCall& call, Rows& rows, const Env& env) {
    u32 bits[4][LANES];
    for (int first = 0; first < WIDTH; first += AT_ONCE) {
        UNROLL
        for (int next = 0; next < AT_ONCE; ++next) {
            const int   d = first + next;
            Categorical c;
            int         choice[LANES];
            if (d >= WIDTH) continue;
            measure(c, rows, d, env);
            if (call.greedy) {
                choose_likeliest(choice, rows, d, env);
            } else {
                if (d % 4 == 0) draw_bits(bits, call, d / 4, env);
                u32 own[LANES];
                FOR_EACH_LANE(k, env) own[k] = of_four(bits[0][k], bits[1][k], bits[2][k], bits[3][k], d % 4);
                choose(choice, c, own, rows, d, env);
            }
            FOR_EACH_LANE(k, env) {
                drawn.log_prob[k] += log_probability(c, rows, offset_of(d) + choice[k], k);
                drawn.entropy[k] += c.entropy[k];
                call.actions[env.index(k) * WIDTH + d] = Element(choice[k] + start_of(d));
            }
        }
    }
}

// The policy acts where a box's bounds are -1 and 1; the environment is given what lies there within its own.
FN float within_bounds(float sample, int d) {
    const float low = low_of(d), high = high_of(d);
    return clip(low + (clip(sample, -1.0f, 1.0f) + 1.0f) * (high - low) / 2.0f, low, high);
}

template <class Env> FN void draw_gaussians(Drawn& drawn, const SampleCall& call, const Rows& rows, const Env& env) {
    float normal[4][LANES];
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
            drawn.log_prob[k] += gaussian_log_probability(gaussian_distance(sample, mean, log_std), log_std);
            drawn.entropy[k] += gaussian_entropy(log_std);
            call.actions[i * WIDTH + d] = Element(sample);
            if (call.acted != nullptr) call.acted[i * WIDTH + d] = within_bounds(sample, d);
        }
    }
}

KERNEL(kernel_sample, SampleCall) {
    const LocalMemory memory(STAGED_BYTES);
    FOR_EACH_ENV(env, call.rows) {
        Rows  rows(memory, call.parameters, nullptr, env, call.action_mask);
        Drawn drawn;
        FOR_EACH_LANE(k, env) drawn.log_prob[k] = drawn.entropy[k] = 0;
        if constexpr (DISCRETE) draw_choices(drawn, call, rows, env);
        else draw_gaussians(drawn, call, rows, env);
        FOR_EACH_LANE(k, env) call.log_probs[env.index(k)] = drawn.log_prob[k];
        if (call.entropies != nullptr) {
            FOR_EACH_LANE(k, env) call.entropies[env.index(k)] = drawn.entropy[k];
        }
    }
}
