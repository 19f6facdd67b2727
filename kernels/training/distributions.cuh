// What a policy's outputs mean: the log-probability and the entropy of actions, and their gradients.
//
// Generated before it: WIDTH (elements of an action), PARAMETERS (outputs a row), DISCRETE, Element (int or float),
// ROW_STRIDE, and per element d, size_of(d), offset_of(d), start_of(d), low_of(d), high_of(d).
//
// Discrete elements are independent of one another, element d with size_of(d) logits from offset_of(d) on. A box is
// WIDTH independent Gaussians: their means, then the logarithms of their standard deviations.

constexpr float HALF_LOG_TWO_PI = 0.918938533f;

// --- rows of parameters ---

constexpr bool STAGED       = !ON_GPU || ROW_STRIDE > 0;
constexpr int  STAGED_BYTES = ON_GPU ? 0 : PARAMETERS * LANES * int(sizeof(float));

// The parameters of a tile's rows, whose place is taken by their gradients: a parameter may be read until its gradient
// is set. A GPU's warp copies its rows to shared memory and back in whole lines; they lie an odd number of words apart
// there, so that the threads' accesses fall in different banks. Rows too wide for that stay where they are. A CPU
// transposes them, so that loops over lanes vectorise.
struct Rows {
    const float* source;
    float*       target;
    float*       staged;
    Index        first;

    template <class Env>
    FN Rows(const LocalMemory& memory, const float* from, float* to, const Env& env)
        : source(from), target(to), staged(reinterpret_cast<float*>(memory.at)), first(env.index(0)) {
        if constexpr (ON_GPU && STAGED) {
            const int    lane  = thread_rank() % WARP;
            const Index  begin = (first - lane) * PARAMETERS, left = env.count * PARAMETERS - begin;
            float* const warp  = staged + (thread_rank() - lane) * ROW_STRIDE;
            UNROLL
            for (int turn = 0; turn < PARAMETERS; ++turn) {
                const int j = turn * WARP + lane;
                if (j < left) warp[j / PARAMETERS * ROW_STRIDE + j % PARAMETERS] = from[begin + j];
            }
            warp_barrier();
            staged = warp + lane * ROW_STRIDE;
        }
        if constexpr (!ON_GPU) {
            for (int j = 0; j < PARAMETERS; ++j) {
                FOR_EACH_LANE(k, env) staged[j * LANES + k] = from[(first + k) * PARAMETERS + j];
            }
        }
    }
    FN float get(int j, int k) const {
        return !ON_GPU ? staged[j * LANES + k] : STAGED ? staged[j] : source[first * PARAMETERS + j];
    }
    FN void set(int j, int k, float gradient) const {
        if (!ON_GPU) staged[j * LANES + k] = gradient;
        else if (STAGED) staged[j] = gradient;
        else target[first * PARAMETERS + j] = gradient;
    }
    // Writes the gradients where they belong. All of a warp's threads take part.
    template <class Env> FN void store(const Env& env) const {
        if constexpr (ON_GPU && STAGED) {
            const int    lane  = thread_rank() % WARP;
            const Index  begin = (first - lane) * PARAMETERS, left = env.count * PARAMETERS - begin;
            const float* warp  = staged - lane * ROW_STRIDE;
            warp_barrier();
            UNROLL
            for (int turn = 0; turn < PARAMETERS; ++turn) {
                const int j = turn * WARP + lane;
                if (j < left) target[begin + j] = warp[j / PARAMETERS * ROW_STRIDE + j % PARAMETERS];
            }
        }
        if constexpr (!ON_GPU) {
            for (int j = 0; j < PARAMETERS; ++j) {
                FOR_EACH_LANE(k, env) target[(first + k) * PARAMETERS + j] = staged[j * LANES + k];
            }
        }
    }
};

// --- discrete ---

// Heads of few elements are written out one after the other. Of many, four are, in a loop: compilers take minutes for
// more, and their registers run out.
constexpr int AT_ONCE = WIDTH <= 8 ? WIDTH : 4;

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
            const float share = exp(below);
            c.sum[k] += share;
            weighted[k] += share > 0 ? share * below : 0.0f;  // a choice that is never taken may be at -inf
        }
    }
    FOR_EACH_LANE(k, env) {
        c.log_sum[k] = log(c.sum[k]);
        c.entropy[k] = c.log_sum[k] - weighted[k] / c.sum[k];
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

FN float gaussian_distance(float sample, float mean, float log_std) { return (sample - mean) * exp(-log_std); }
