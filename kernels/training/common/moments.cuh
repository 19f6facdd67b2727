// What is kept of the advantages and returns of each row, as long as its agent took part: how many there were, and of
// either the first, the mean and the sum of squared deviations. The mean is that of what lies apart from the first, so
// that a large mean takes no digits from the deviations.
//
// Generated before it: MOMENTS, how many numbers that is.

enum Quantity : int { ADVANTAGE, RETURN, QUANTITIES };
enum Moment : int { COUNT, FIRST, MEAN, SQUARES };

static_assert(MOMENTS == 1 + QUANTITIES * SQUARES);

FN constexpr int place_of(int quantity, Moment moment) { return quantity * SQUARES + moment; }

// As numbers come (Welford 1962).
struct Running { float first[LANES], mean[LANES], squares[LANES]; };

FN void begin(Running& r, int k) { r.first[k] = r.mean[k] = r.squares[k] = 0; }

FN void take_in(Running& r, int k, float x, bool taken, float count) {
    r.first[k]        = taken && count == 1 ? x : r.first[k];
    const float apart = x - r.first[k], step = apart - r.mean[k], mean = r.mean[k] + step * (1.0f / count);
    r.squares[k]      = taken ? r.squares[k] + step * (apart - mean) : r.squares[k];
    r.mean[k]         = taken ? mean : r.mean[k];
}
