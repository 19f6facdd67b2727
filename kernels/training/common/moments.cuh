// Moments of each row's advantages and returns, over the steps of active agents: the count, and for both quantities the
// first sample, the mean and the sum of squared deviations. The mean is relative to the first sample, because a large
// mean would cost the deviations their digits.
//
// Generated before it: MOMENTS, the number of moments.

enum Quantity : int { ADVANTAGE, RETURN, QUANTITIES };
enum Moment : int { COUNT, FIRST, MEAN, SQUARES };

static_assert(MOMENTS == 1 + QUANTITIES * SQUARES);

FN constexpr int moment_index(int quantity, Moment moment) { return quantity * SQUARES + moment; }

struct Running { float first[LANES], mean[LANES], squares[LANES]; };  // by Welford's method (1962)

FN void reset(Running& r, int k) { r.first[k] = r.mean[k] = r.squares[k] = 0; }

// Adds sample x, the count-th of an active agent, to lane k's moments; does nothing if the agent is inactive.
FN void add_sample(Running& r, int k, float x, bool active, float count) {
    r.first[k]         = active && count == 1 ? x : r.first[k];
    const float offset = x - r.first[k], step = offset - r.mean[k], mean = r.mean[k] + step * (1.0f / count);
    r.squares[k]       = active ? r.squares[k] + step * (offset - mean) : r.squares[k];
    r.mean[k]          = active ? mean : r.mean[k];
}
