// What a policy's outputs mean: the log-probability and the entropy of actions, and their gradients.
//
// Generated before it: WIDTH (elements of an action), PARAMETERS (outputs a row), ROW_STRIDE, SHARES, DISCRETE, QUICK (as
// precise as a GPU's own approximations is enough), Element (int or float), and per element d, size_of(d), offset_of(d),
// start_of(d), low_of(d), high_of(d).
//
// Discrete elements are independent of one another, element d with size_of(d) logits from offset_of(d) on. A box is
// WIDTH independent Gaussians: their means, then the logarithms of their standard deviations.

constexpr float HALF_LOG_TWO_PI = 0.918938533f;

// The logit of a choice that a mask forbids: its probability is zero, and its logarithm still a number. Where a mask
// leaves an element nothing, all of its choices are alike.
constexpr float FORBIDDEN = -1e9f;

// --- elementary functions ---

#if _for_gpu
FN float exp_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
FN float inverse_of(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
FN float log_of_two(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
FN float exponential(float x)          { return QUICK ? exp_of_two(x * 1.44269504f) : exp(x); }
FN float logarithm(float x)            { return QUICK ? log_of_two(x) * 0.693147181f : log(x); }
FN float quotient_of(float a, float b) { return QUICK ? a * inverse_of(b) : a / b; }
#else
FN float exponential(float x)          { return exp(x); }
FN float logarithm(float x)            { return log(x); }
FN float quotient_of(float a, float b) { return a / b; }
#endif

// --- rows of parameters ---

constexpr bool BY_WARPS     = ON_GPU && SHARES > 1;
constexpr bool STAGED       = !ON_GPU || BY_WARPS || ROW_STRIDE > 0;
constexpr int  STAGED_BYTES = ON_GPU ? 0 : PARAMETERS * LANES * int(sizeof(float));

// A kernel that calls work(call, memory, env) for all rows.
#define KERNEL_OF_ROWS(name, Call, work)                                      \
    KERNEL(name, Call) {                                                      \
        const LocalMemory memory(STAGED_BYTES);                               \
        if constexpr (BY_WARPS) {                                             \
            FOR_EACH_ENV_OF_A_WARP(env, call.rows) work(call, memory, env);   \
        } else {                                                              \
            FOR_EACH_ENV(env, call.rows) work(call, memory, env);             \
        }                                                                     \
    }

// The parameters of a tile's rows, whose place is taken by their gradients: a parameter may be read until its gradient
// is set. A GPU's warp copies its rows to shared memory and back in whole lines. Where each thread has a row, they lie
// an odd number of words apart there, so that the threads' accesses fall in different banks. Long rows of few elements,
// and very long ones, stay where they are. A CPU transposes its rows, so that loops over lanes vectorise.
struct Rows {
    const float* source;
    float*       target;
    const u8*    mask;     // what is possible; null: everything
    const int*   indices;  // the mask's rows; null: in order
    float*       staged;
    Index        first;

    template <class Env>
    FN Rows(const LocalMemory& memory, const float* from, float* to, const Env& env, const u8* allowed = nullptr,
            const int* places = nullptr)
        : source(from), target(to), mask(allowed), indices(places), staged(reinterpret_cast<float*>(memory.at)),
          first(env.index(0)) {
        [[maybe_unused]] constexpr int AT_A_TIME = 8;  // loads under way
        if constexpr (BY_WARPS) {
            staged += thread_rank() / WARP * PARAMETERS;
            for (int begin = thread_rank() % WARP; env.has(0) && begin < PARAMETERS; begin += AT_A_TIME * WARP) {
                UNROLL
                for (int j = begin; j < begin + AT_A_TIME * WARP; j += WARP) {
                    if (j < PARAMETERS) staged[j] = given(first, j);
                }
            }
            warp_barrier();
        } else if constexpr (ON_GPU && STAGED) {
            const int    lane  = thread_rank() % WARP;
            const Index  top   = first - lane, begin = top * PARAMETERS, left = env.count * PARAMETERS - begin;
            float* const warp  = staged + (thread_rank() - lane) * ROW_STRIDE;
            for (int first_turn = 0; first_turn < PARAMETERS; first_turn += AT_A_TIME) {
                UNROLL
                for (int turn = first_turn; turn < first_turn + AT_A_TIME; ++turn) {
                    const int j = turn * WARP + lane;
                    if (turn < PARAMETERS && j < left) warp[j / PARAMETERS * ROW_STRIDE + j % PARAMETERS] = from[begin + j];
                }
            }
            for (int turn = 0; mask != nullptr && turn < PARAMETERS; ++turn) {
                const int j = turn * WARP + lane, row = j / PARAMETERS, column = j % PARAMETERS;
                if (j < left && !possible(top + row, column)) warp[row * ROW_STRIDE + column] = FORBIDDEN;
            }
            warp_barrier();
            staged = warp + lane * ROW_STRIDE;
        }
        if constexpr (!ON_GPU) {
            for (int j = 0; j < PARAMETERS; ++j) {
                FOR_EACH_LANE(k, env) staged[j * LANES + k] = from[(first + k) * PARAMETERS + j];
            }
            for (int j = 0; mask != nullptr && j < PARAMETERS; ++j) {
                FOR_EACH_LANE(k, env) staged[j * LANES + k] = possible(first + k, j) ? staged[j * LANES + k] : FORBIDDEN;
            }
        }
    }
    FN bool possible(Index row, int j) const {
        return mask == nullptr || mask[(indices == nullptr ? row : Index(indices[row])) * PARAMETERS + j] != 0;
    }
    FN float given(Index row, int j) const { return possible(row, j) ? source[row * PARAMETERS + j] : FORBIDDEN; }
    FN float get(int j, int k) const {
        return !ON_GPU ? staged[j * LANES + k] : STAGED ? staged[j] : given(first, j);
    }
    FN void set(int j, int k, float gradient) const {
        if (!ON_GPU) staged[j * LANES + k] = gradient;
        else if (STAGED) staged[j] = gradient;
        else target[first * PARAMETERS + j] = possible(first, j) ? gradient : 0.0f;
    }
    // To a gradient that has been set.
    FN void add(int j, int k, float more) const {
        set(j, k, (!ON_GPU ? staged[j * LANES + k] : STAGED ? staged[j] : target[first * PARAMETERS + j]) + more);
    }
    // Writes the gradients where they belong: zero of what is forbidden. All of a warp's threads take part.
    template <class Env> FN void store(const Env& env) const {
        const int lane = thread_rank() % WARP;
        if constexpr (ON_GPU && STAGED && !BY_WARPS) {
            for (int j = 0; mask != nullptr && env.has(0) && j < PARAMETERS; ++j) {
                if (!possible(first, j)) staged[j] = 0;
            }
        }
        warp_barrier();
        if constexpr (BY_WARPS) {
            for (int j = lane; env.has(0) && j < PARAMETERS; j += WARP)
                target[first * PARAMETERS + j] = possible(first, j) ? staged[j] : 0.0f;
        } else if constexpr (ON_GPU && STAGED) {
            const Index  begin = (first - lane) * PARAMETERS, left = env.count * PARAMETERS - begin;
            const float* warp  = staged - lane * ROW_STRIDE;
            UNROLL
            for (int turn = 0; turn < PARAMETERS; ++turn) {
                const int j = turn * WARP + lane;
                if (j < left) target[begin + j] = warp[j / PARAMETERS * ROW_STRIDE + j % PARAMETERS];
            }
        }
        if constexpr (!ON_GPU) {
            for (int j = 0; mask != nullptr && j < PARAMETERS; ++j) {
                FOR_EACH_LANE(k, env) staged[j * LANES + k] = possible(first + k, j) ? staged[j * LANES + k] : 0.0f;
            }
            for (int j = 0; j < PARAMETERS; ++j) {
                FOR_EACH_LANE(k, env) target[(first + k) * PARAMETERS + j] = staged[j * LANES + k];
            }
        }
    }
};

// --- discrete ---

// Heads of few elements are written out one after the other; of many, compilers would take minutes for that.
constexpr int AT_ONCE = WIDTH <= 8 ? WIDTH : 1;

// Elements are cut into SHARES shares, one after another. A warp's thread has one of them.
constexpr int SHARE = (WIDTH + SHARES - 1) / SHARES;

// The log-probability and the entropy of all elements: sums over shares, then over those, always in this order.
struct Total {
    float log_prob[LANES], entropy[LANES];
};

template <class Env> FN void clear(Total& total, const Env& env) {
    FOR_EACH_LANE(k, env) total.log_prob[k] = total.entropy[k] = 0;
}

// Calls `each` with every element, or on a warp's thread with those of its share.
template <class Each> FN void for_elements(Each each) {
    const int share = BY_WARPS ? thread_rank() % WARP : 0, end = BY_WARPS ? minimum(WIDTH, (share + 1) * SHARE) : WIDTH;
    for (int first = share * SHARE; first < end; first += AT_ONCE) {
        UNROLL
        for (int next = 0; next < AT_ONCE; ++next) each(first + next);
    }
}

// The same for a sum: `each` is given what to add to.
template <class Env, class Each> FN void sum_elements(Total& total, const Env& env, Each each) {
    clear(total, env);
    if constexpr (ON_GPU || SHARES == 1) {
        for_elements([&](int d) { each(total, d); });
        for (int distance = SHARES / 2; distance > 0; distance /= 2) {
            total.log_prob[0] += from_lane_across(total.log_prob[0], distance);
            total.entropy[0] += from_lane_across(total.entropy[0], distance);
        }
    } else {
        Total shares[SHARES];
        for (int s = 0; s < SHARES; ++s) {
            clear(shares[s], env);
            for (int d = s * SHARE; d < minimum(WIDTH, (s + 1) * SHARE); ++d) each(shares[s], d);
        }
        for (int half = SHARES / 2; half > 0; half /= 2) {
            for (int s = 0; s < half; ++s) {
                FOR_EACH_LANE(k, env) shares[s].log_prob[k] += shares[s + half].log_prob[k];
                FOR_EACH_LANE(k, env) shares[s].entropy[k] += shares[s + half].entropy[k];
            }
        }
        total = shares[0];
    }
}

// One element's distribution: the probability of choice j is exp(logit - most) / sum.
struct Categorical {
    float most[LANES];
    float sum[LANES];
    float log_sum[LANES];
    float entropy[LANES];
};

template <class Env> FN void measure(Categorical& c, const Rows& rows, int d, const Env& env) {
    const int begin = offset_of(d), end = begin + size_of(d);
    float     weighted[LANES];
    FOR_EACH_LANE(k, env) {
        c.most[k]   = rows.get(begin, k);
        c.sum[k]    = 0;
        weighted[k] = 0;
    }
    for (int j = begin + 1; j < end; ++j) {
        FOR_EACH_LANE(k, env) c.most[k] = maximum(c.most[k], rows.get(j, k));
    }
    for (int j = begin; j < end; ++j) {
        FOR_EACH_LANE(k, env) {
            const float below = rows.get(j, k) - c.most[k];
            const float share = exponential(below);
            c.sum[k] += share;
            weighted[k] += share > 0 ? share * below : 0.0f;  // a choice that is never taken may be at -inf
        }
    }
    FOR_EACH_LANE(k, env) {
        c.log_sum[k] = logarithm(c.sum[k]);
        c.entropy[k] = c.log_sum[k] - quotient_of(weighted[k], c.sum[k]);
    }
}

FN float log_probability(const Categorical& c, const Rows& rows, int j, int k) {
    return (rows.get(j, k) - c.most[k]) - c.log_sum[k];
}

// --- Gaussian ---

// Of a sample, given its distance from the mean in standard deviations.
FN float gaussian_log_probability(float distance, float log_std) {
    return -0.5f * (distance * distance) - log_std - HALF_LOG_TWO_PI;
}

FN float gaussian_entropy(float log_std) { return log_std + (0.5f + HALF_LOG_TWO_PI); }

FN float gaussian_distance(float sample, float mean, float log_std) { return (sample - mean) * exponential(-log_std); }
