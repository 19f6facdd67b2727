// Distributions over actions: log-probability and entropy from a policy's outputs.
//
// Generated before it: WIDTH (elements of an action), PARAMETERS (outputs per row), ROW_STRIDE (floats from row to row
// in shared memory; 0: not staged), SHARES (threads that share a row), DISCRETE, QUICK (use the GPU's approximate exp
// and log), Element (int or float), and for each element d size_of(d), offset_of(d), start_of(d), low_of(d),
// high_of(d).
//
// Discrete elements are independent: element d has size_of(d) logits from column offset_of(d). A box has WIDTH
// independent Gaussians: their means, then the logarithms of their standard deviations.

constexpr float HALF_LOG_TWO_PI = 0.918938533f;

// The logit of a masked choice: its probability is zero, its log-probability finite. If a mask forbids all choices of
// an element, they are equally probable.
constexpr float FORBIDDEN = -1e9f;

// --- elementary functions; on a GPU QUICK ones, where subnormal numbers count as zero ---

#if _for_gpu
FN float approximate_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
FN float approximate_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
FN float approximate_log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
FN float exponential(float x)          { return QUICK ? approximate_exp2(x * 1.44269504f) : exp(x); }
FN float logarithm(float x)            { return QUICK ? approximate_log2(x) * 0.693147181f : log(x); }
FN float quotient_of(float a, float b) { return QUICK ? a * approximate_reciprocal(b) : a / b; }
#else
FN float exponential(float x)          { return exp(x); }
FN float logarithm(float x)            { return log(x); }
FN float quotient_of(float a, float b) { return a / b; }
#endif

constexpr bool BY_WARPS     = ON_GPU && SHARES > 1;
constexpr bool STAGED       = !ON_GPU || BY_WARPS || ROW_STRIDE > 0;
constexpr int  STAGED_BYTES = ON_GPU ? 0 : PARAMETERS * LANES * int(sizeof(float));

// A kernel that calls work(call, memory, env) for each tile of rows.
#define KERNEL_OF_ROWS(name, Call, work)                                                       \
    KERNEL(name, Call) {                                                                       \
        const ScratchMemory memory(STAGED_BYTES);                                              \
        if constexpr (BY_WARPS) {                                                              \
            FOR_EACH_ENV_PER_WARP(env, call.rows) work(call, memory, env);                     \
        } else {                                                                               \
            FOR_EACH_ENV(env, call.rows) work(call, memory, env);                              \
        }                                                                                      \
    }

// The distribution parameters of a tile's rows, overwritten by their gradients. On a GPU a warp copies rows to shared
// memory and back in coalesced lines; with a row per thread the stride is odd, without bank conflicts. Long rows of few
// elements, and very long rows, stay in global memory. A CPU transposes rows, so that loops over lanes vectorise.
struct Rows {
    const float* source;
    float*       target;
    const u8*    mask;     // zero for a forbidden choice; null: all are allowed
    const int*   indices;  // rows of the mask; null: in order
    float*       staged;
    Index        first;

    template <class Env>
    FN Rows(const ScratchMemory& memory, const float* from, float* to, const Env& env, const u8* mask_ = nullptr,
            const int* indices_ = nullptr)
        : source(from), target(to), mask(mask_), indices(indices_), staged(reinterpret_cast<float*>(memory.at)),
          first(env.index(0)) {
        [[maybe_unused]] constexpr int AT_A_TIME = 8;  // loads in flight
        if constexpr (BY_WARPS) {
            staged += thread_rank() / WARP * PARAMETERS;
            for (int begin = thread_rank() % WARP; env.has(0) && begin < PARAMETERS; begin += AT_A_TIME * WARP) {
                UNROLL
                for (int j = begin; j < begin + AT_A_TIME * WARP; j += WARP) {
                    if (j < PARAMETERS) staged[j] = masked(first, j);
                }
            }
            warp_barrier();
        } else if constexpr (ON_GPU && STAGED) {
            const int    lane  = thread_rank() % WARP;
            const Index  top   = first - lane, begin = top * PARAMETERS, left = env.count * PARAMETERS - begin;
            float* const warp  = staged + (thread_rank() - lane) * ROW_STRIDE;
            for (int first_step = 0; first_step < PARAMETERS; first_step += AT_A_TIME) {
                UNROLL
                for (int step = first_step; step < first_step + AT_A_TIME; ++step) {
                    const int j = step * WARP + lane;
                    if (step < PARAMETERS && j < left) {
                        warp[j / PARAMETERS * ROW_STRIDE + j % PARAMETERS] = from[begin + j];
                    }
                }
            }
            for (int step = 0; mask != nullptr && step < PARAMETERS; ++step) {
                const int j = step * WARP + lane, row = j / PARAMETERS, column = j % PARAMETERS;
                if (j < left && !allowed(top + row, column)) warp[row * ROW_STRIDE + column] = FORBIDDEN;
            }
            warp_barrier();
            staged = warp + lane * ROW_STRIDE;
        }
        if constexpr (!ON_GPU) {
            for (int j = 0; j < PARAMETERS; ++j) {
                FOR_EACH_LANE(k, env) staged[j * LANES + k] = from[(first + k) * PARAMETERS + j];
            }
            replace_forbidden(FORBIDDEN, env);
        }
    }
    // On a CPU, parameters that are transposed already, `lines` of LANES numbers.
    template <class Env>
    FN Rows(float* lines, const Env& env, const u8* mask_, const int* indices_ = nullptr)
        : source(nullptr), target(nullptr), mask(mask_), indices(indices_), staged(lines), first(env.index(0)) {
        replace_forbidden(FORBIDDEN, env);
    }
    template <class Env> FN void replace_forbidden(float number, const Env& env) const {
        for (int j = 0; mask != nullptr && j < PARAMETERS; ++j) {
            FOR_EACH_LANE(k, env) staged[j * LANES + k] = allowed(first + k, j) ? staged[j * LANES + k] : number;
        }
    }
    FN bool allowed(Index row, int j) const {
        return mask == nullptr || mask[(indices == nullptr ? row : Index(indices[row])) * PARAMETERS + j] != 0;
    }
    FN float masked(Index row, int j) const { return allowed(row, j) ? source[row * PARAMETERS + j] : FORBIDDEN; }
    FN float get(int j, int k) const {
        return !ON_GPU ? staged[j * LANES + k] : STAGED ? staged[j] : masked(first, j);
    }
    FN void set(int j, int k, float gradient) const {
        if (!ON_GPU) staged[j * LANES + k] = gradient;
        else if (STAGED) staged[j] = gradient;
        else target[first * PARAMETERS + j] = allowed(first, j) ? gradient : 0.0f;
    }
    // Adds to a gradient that has been set.
    FN void add(int j, int k, float more) const {
        set(j, k, (!ON_GPU ? staged[j * LANES + k] : STAGED ? staged[j] : target[first * PARAMETERS + j]) + more);
    }
    // Writes the gradients to `target`, zeros for masked choices. The whole warp calls it.
    template <class Env> FN void store(const Env& env) const {
        const int lane = thread_rank() % WARP;
        if constexpr (ON_GPU && STAGED && !BY_WARPS) {
            for (int j = 0; mask != nullptr && env.has(0) && j < PARAMETERS; ++j) {
                if (!allowed(first, j)) staged[j] = 0;
            }
        }
        warp_barrier();
        if constexpr (BY_WARPS) {
            for (int j = lane; env.has(0) && j < PARAMETERS; j += WARP)
                target[first * PARAMETERS + j] = allowed(first, j) ? staged[j] : 0.0f;
        } else if constexpr (ON_GPU && STAGED) {
            const Index  begin = (first - lane) * PARAMETERS, left = env.count * PARAMETERS - begin;
            const float* warp  = staged - lane * ROW_STRIDE;
            UNROLL
            for (int step = 0; step < PARAMETERS; ++step) {
                const int j = step * WARP + lane;
                if (j < left) target[begin + j] = warp[j / PARAMETERS * ROW_STRIDE + j % PARAMETERS];
            }
        }
        if constexpr (!ON_GPU) {
            replace_forbidden(0.0f, env);
            for (int j = 0; j < PARAMETERS; ++j) {
                FOR_EACH_LANE(k, env) target[(first + k) * PARAMETERS + j] = staged[j * LANES + k];
            }
        }
    }
};

constexpr int AT_ONCE = WIDTH <= 8 ? WIDTH : 1;  // elements per iteration: to unroll many takes compilers minutes
constexpr int SHARE = (WIDTH + SHARES - 1) / SHARES;  // consecutive elements of each thread of a warp

// Log-probability and entropy summed over all elements: first within each share, then over shares, in a fixed order.
struct Total { float log_prob[LANES], entropy[LANES]; };

template <class Env> FN void clear(Total& total, const Env& env) {
    FOR_EACH_LANE(k, env) total.log_prob[k] = total.entropy[k] = 0;
}

// Calls `each(d)` for every element; if a warp shares a row, for the elements of this thread's share.
template <class Each> FN void for_elements(Each each) {
    const int share = BY_WARPS ? thread_rank() % WARP : 0, end = BY_WARPS ? minimum(WIDTH, (share + 1) * SHARE) : WIDTH;
    for (int first = share * SHARE; first < end; first += AT_ONCE) {
        UNROLL
        for (int next = 0; next < AT_ONCE; ++next) each(first + next);
    }
}

// Sums log-probability and entropy over the elements of each row's action: each(total, d) adds element d.
template <class Env, class Each> FN void sum_elements(Total& total, const Env& env, Each each) {
    clear(total, env);
    if constexpr (ON_GPU || SHARES == 1) {
        for_elements([&](int d) { each(total, d); });
        for (int distance = SHARES / 2; distance > 0; distance /= 2) {
            total.log_prob[0] += shuffle_xor(total.log_prob[0], distance);
            total.entropy[0] += shuffle_xor(total.entropy[0], distance);
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

// One element's distribution: the probability of choice j is exp(logit - max_logit) / sum.
struct Categorical { float max_logit[LANES], sum[LANES], log_sum[LANES], entropy[LANES]; };

// Sets `c` to the maximum logit, the normalisation and the entropy of element d; its logits may be -inf.
template <class Env> FN void compute_categorical(Categorical& c, const Rows& rows, int d, const Env& env) {
    const int begin = offset_of(d), end = begin + size_of(d);
    float     weighted[LANES];
    FOR_EACH_LANE(k, env) {
        c.max_logit[k] = rows.get(begin, k);
        c.sum[k]       = 0;
        weighted[k]    = 0;
    }
    for (int j = begin + 1; j < end; ++j) {
        FOR_EACH_LANE(k, env) c.max_logit[k] = maximum(c.max_logit[k], rows.get(j, k));
    }
    for (int j = begin; j < end; ++j) {
        FOR_EACH_LANE(k, env) {
            const float below  = rows.get(j, k) - c.max_logit[k];
            const float weight = exponential(below);
            c.sum[k] += weight;
            weighted[k] += weight > 0 ? weight * below : 0.0f;  // a logit may be -inf, and 0 * -inf is NaN
        }
    }
    FOR_EACH_LANE(k, env) {
        c.log_sum[k] = logarithm(c.sum[k]);
        c.entropy[k] = c.log_sum[k] - quotient_of(weighted[k], c.sum[k]);
    }
}

FN float log_probability(const Categorical& c, const Rows& rows, int j, int k) {
    return (rows.get(j, k) - c.max_logit[k]) - c.log_sum[k];
}

// Log-probability of a sample, from its distance to the mean in standard deviations.
FN float gaussian_log_probability(float distance, float log_std) {
    return -0.5f * (distance * distance) - log_std - HALF_LOG_TWO_PI;
}

FN float gaussian_entropy(float log_std) { return log_std + (0.5f + HALF_LOG_TWO_PI); }

FN float gaussian_distance(float sample, float mean, float log_std) { return (sample - mean) * exponential(-log_std); }
