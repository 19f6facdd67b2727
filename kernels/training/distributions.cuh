// What a policy's outputs mean: the log-probability and the entropy of actions, and their gradients.
//
// Generated before it: WIDTH (elements of an action), PARAMETERS (outputs a row), WINDOW (how many of them a GPU's thread
// has in shared memory at a time), DISCRETE, Element (int or float), and per element d, size_of(d), offset_of(d),
// start_of(d), low_of(d), high_of(d).
//
// Discrete elements are independent of one another, element d with size_of(d) logits from offset_of(d) on. A box is
// WIDTH independent Gaussians: their means, then the logarithms of their standard deviations.

constexpr float HALF_LOG_TWO_PI = 0.918938533f;

// The logit of a choice that a mask forbids: its probability is zero, and its logarithm still a number. Where a mask
// leaves an element nothing, all of its choices are alike.
constexpr float FORBIDDEN = -1e9f;

// --- rows of parameters ---

constexpr bool WHOLE        = !ON_GPU || WINDOW == PARAMETERS;  // a row is in reach from its beginning to its end
constexpr bool STAGED       = !ON_GPU || WINDOW > 0;
constexpr int  ROW_STRIDE   = WINDOW == 0 ? 0 : WINDOW | 1;
constexpr int  STAGED_BYTES = ON_GPU ? 0 : PARAMETERS * LANES * int(sizeof(float));
constexpr int  AT_HAND      = WHOLE || !STAGED ? PARAMETERS : WINDOW;  // parameters that can be looked at together

// The parameters of a tile's rows, whose place is taken by their gradients: a parameter may be read until its gradient
// is set. A GPU's warp copies its rows to shared memory and back in whole lines, of long rows a window at a time; they
// lie an odd number of words apart there, so that the threads' accesses fall in different banks. Long rows of a box stay
// where they are. A CPU transposes its rows, so that loops over lanes vectorise.
struct Rows {
    const float* source;
    float*       target;
    const u8*    mask;     // what is possible; null: everything
    const int*   indices;  // the mask's rows; null: in order
    float*       staged;
    Index        first;
    int          begin = 0, size = PARAMETERS;  // the window
    bool         changed = false;               // and whether it has gradients

    template <class Env>
    FN Rows(const LocalMemory& memory, const float* from, float* to, const Env& env, const u8* allowed = nullptr,
            const int* places = nullptr)
        : source(from), target(to), mask(allowed), indices(places), staged(reinterpret_cast<float*>(memory.at)),
          first(env.index(0)) {
        if constexpr (ON_GPU) {
            staged += thread_rank() * ROW_STRIDE;
            if constexpr (!WHOLE) size = 0;
            else if constexpr (STAGED) exchange<false>(env);
        } else {
            for (int j = 0; j < PARAMETERS; ++j) {
                FOR_EACH_LANE(k, env) staged[j * LANES + k] = from[(first + k) * PARAMETERS + j];
            }
            if (mask == nullptr) return;
            for (int j = 0; j < PARAMETERS; ++j) {
                FOR_EACH_LANE(k, env) staged[j * LANES + k] = possible(first + k, j) ? staged[j * LANES + k] : FORBIDDEN;
            }
        }
    }

    FN bool possible(Index row, int j) const {
        return mask == nullptr || mask[(indices == nullptr ? row : Index(indices[row])) * PARAMETERS + j] != 0;
    }

    // Has these parameters, AT_HAND of them at most, in reach. All of a warp's threads take part.
    template <class Env> FN void bring(int from, int count, const Env& env) {
        if constexpr (!WHOLE && STAGED) {
            if (begin <= from && from + count <= begin + size) return;
            if (changed) exchange<true>(env);
            changed = false;
            begin   = from;
            size    = minimum(WINDOW, PARAMETERS - from);
            exchange<false>(env);
        }
    }

    // Copies a warp's window, from where rows lie or to where gradients belong.
    template <bool BACK, class Env> FN void exchange(const Env& env) const {
        const int    lane = thread_rank() % WARP;
        const Index  top  = first - lane, rows = env.count - top;
        float* const warp = staged - lane * ROW_STRIDE;
        warp_barrier();
        if constexpr (WHOLE) {
            UNROLL
            for (int turn = 0; turn < PARAMETERS; ++turn) {
                const int j = turn * WARP + lane, row = j / PARAMETERS, column = j % PARAMETERS;
                if (j >= rows * PARAMETERS) continue;
                float& here = warp[row * ROW_STRIDE + column];
                if constexpr (BACK) target[top * PARAMETERS + j] = here;
                else here = source[top * PARAMETERS + j];
            }
            for (int turn = 0; !BACK && mask != nullptr && turn < PARAMETERS; ++turn) {
                const int j = turn * WARP + lane, row = j / PARAMETERS, column = j % PARAMETERS;
                if (j < rows * PARAMETERS && !possible(top + row, column)) warp[row * ROW_STRIDE + column] = FORBIDDEN;
            }
        } else {
            constexpr int IN_FLIGHT = 8;
            int           row = lane / size, column = lane % size;
            for (int turn = 0; turn < size; turn += IN_FLIGHT) {
                float values[IN_FLIGHT];
                int   places[IN_FLIGHT];
                UNROLL
                for (int u = 0; u < IN_FLIGHT; ++u) {
                    places[u] = turn + u < size && row < rows ? row * ROW_STRIDE + column : -1;
                    if (places[u] >= 0) {
                        if constexpr (BACK) target[(top + row) * PARAMETERS + begin + column] = warp[places[u]];
                        else values[u] = given(top + row, begin + column);
                    }
                    row += WARP / size;
                    column += WARP % size;
                    if (column >= size) column -= size, ++row;
                }
                UNROLL
                for (int u = 0; u < IN_FLIGHT; ++u) {
                    if (!BACK && places[u] >= 0) warp[places[u]] = values[u];
                }
            }
        }
        warp_barrier();
    }

    FN float given(Index row, int j) const { return possible(row, j) ? source[row * PARAMETERS + j] : FORBIDDEN; }

    FN float get(int j, int k) const {
        return !ON_GPU ? staged[j * LANES + k] : STAGED ? staged[WHOLE ? j : j - begin] : source[first * PARAMETERS + j];
    }
    // The same of any parameter.
    FN float find(int j, int k) const {
        if (WHOLE || !STAGED || (begin <= j && j < begin + size)) return get(j, k);
        return given(first, j);
    }
    FN void set(int j, int k, float gradient) const {
        if (!ON_GPU) staged[j * LANES + k] = gradient;
        else if (STAGED) staged[WHOLE ? j : j - begin] = gradient;
        else target[first * PARAMETERS + j] = gradient;
    }
    // Writes the gradients that are still here where they belong. All of a warp's threads take part.
    template <class Env> FN void store(const Env& env) const {
        if constexpr (!ON_GPU) {
            for (int j = 0; j < PARAMETERS; ++j) {
                FOR_EACH_LANE(k, env) target[(first + k) * PARAMETERS + j] = staged[j * LANES + k];
            }
        } else if constexpr (STAGED) {
            exchange<true>(env);
        }
    }
};

// --- discrete ---

// Heads of few elements are written out one after the other; of many, compilers would take minutes for that.
constexpr int AT_ONCE = WIDTH <= 8 ? WIDTH : 1;

// One element's distribution: the probability of choice j is exp(logit - most) / sum.
struct Categorical {
    float most[LANES];
    float sum[LANES];
    float log_sum[LANES];
    float entropy[LANES];
};

// Goes through an element's choices from `low` to below `high`, as many at a time as can be looked at together.
#define FOR_CHOICES_OF(d, low, high, rows, env)                                                                  \
    for (int low = offset_of(d), high; low < offset_of(d) + size_of(d); low = high)                              \
        if (high = minimum(low + AT_HAND, offset_of(d) + size_of(d)), rows.bring(low, high - low, env); true)

template <class Env> FN void measure(Categorical& c, Rows& rows, int d, const Env& env) {
    float weighted[LANES];
    rows.bring(offset_of(d), minimum(AT_HAND, size_of(d)), env);
    FOR_EACH_LANE(k, env) {
        c.most[k]   = rows.get(offset_of(d), k);
        c.sum[k]    = 0;
        weighted[k] = 0;
    }
    FOR_CHOICES_OF(d, low, high, rows, env) {
        for (int j = low; j < high; ++j) {
            FOR_EACH_LANE(k, env) c.most[k] = maximum(c.most[k], rows.get(j, k));
        }
    }
    FOR_CHOICES_OF(d, low, high, rows, env) {
        for (int j = low; j < high; ++j) {
            FOR_EACH_LANE(k, env) {
                const float below = rows.get(j, k) - c.most[k];
                const float share = exp(below);
                c.sum[k] += share;
                weighted[k] += share > 0 ? share * below : 0.0f;  // a choice that is never taken may be at -inf
            }
        }
    }
    FOR_EACH_LANE(k, env) {
        c.log_sum[k] = log(c.sum[k]);
        c.entropy[k] = c.log_sum[k] - weighted[k] / c.sum[k];
    }
}

FN float log_probability(const Categorical& c, const Rows& rows, int j, int k) {
    return (rows.find(j, k) - c.most[k]) - c.log_sum[k];
}

// --- Gaussian ---

// Of a sample, given its distance from the mean in standard deviations.
FN float gaussian_log_probability(float distance, float log_std) {
    return -0.5f * (distance * distance) - log_std - HALF_LOG_TWO_PI;
}

FN float gaussian_entropy(float log_std) { return log_std + (0.5f + HALF_LOG_TWO_PI); }

FN float gaussian_distance(float sample, float mean, float log_std) { return (sample - mean) * exp(-log_std); }
