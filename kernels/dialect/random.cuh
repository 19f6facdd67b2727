// The generator that rules draw from, and its distributions.

// The random numbers of one replica (and agent) in one reset or step, in order. Seed and episode are read only when a
// number is drawn, as most steps draw none.
struct Random {
    const u64* seed;
    const u32* episode;
    Stream     stream;
    u32        agent, step, draws;
    Words      words;

    FN Random(const u64* seed_, const u32* episode_, Stream stream_, u32 agent_, u32 step_)
        : seed(seed_), episode(episode_), stream(stream_), agent(agent_), step(step_), draws(0), words{} {}

    FN u32 bits() {
        const u32 slot = draws % 4;
        if (slot == 0) words = random_words(*seed, stream, agent, *episode, step, draws / 4);
        ++draws;
        return word_of(words, slot);
    }
    FN real uniform(real low = 0, real high = 1) {
        real unit;
        to_unit(bits(), unit);
        return low + (high - low) * unit;
    }
    // 0 to n-1; the bias is below n / 2^32
    FN int integer(int n) { return int(u64(bits()) * u64(n) >> 32); }
    FN real normal(real mean, real deviation) {
        real u, v;
        to_unit(bits(), u);
        to_unit(bits(), v);
        return mean + deviation * square_root(real(-2) * log(real(1) - u)) * cos(real(2 * PI) * v);
    }
    FN real exponential(real rate) { return -log(real(1) - uniform()) / rate; }
    FN int  poisson(real mean);
    FN int  binomial(int n, real p);
    FN int  rarer(int n, real p);

    // An index, with a probability proportional to its weight; negative weights count as 0. The last index if all are 0.
    template <int N> FN int choice(const real (&weights)[N]) {
        real sum = 0, below = 0;
        for (int i = 0; i < N; ++i) sum += maximum(weights[i], real(0));
        const real threshold = uniform() * sum;  // may round up to the sum
        int index = 0, last = N - 1;
        for (int i = 0; i < N; ++i) {
            below += maximum(weights[i], real(0));
            index += threshold >= below;
            last = weights[i] > 0 ? i : last;
        }
        return minimum(index, last);
    }
    template <class... W> FN int choice(W... weights) {
        const real list[] = {real(weights)...};
        return choice(list);
    }
};

namespace random_numbers {  // rules may define functions with these names

// log k! - (k log k - k), by Stirling's series; its error is 3e-4 at k = 1, where the samplers below hardly ever are.
FN real stirling(real k) {
    const real inverse = 1 / maximum(k, real(1)), square = inverse * inverse;
    const real series  = inverse * (real(1) / 12 - square * (real(1) / 360 - square / 1260));
    return k < 1 ? real(0) : real(0.5) * log(real(2 * PI) * k) + series;
}

// k log(k / m) + m - k, without cancellation (Loader 2000): minus the logarithm of a Poisson probability, with stirling(k).
FN real deviance(real k, real m) {
    constexpr real SERIES[] = {real(1) / 3,  real(1) / 5,  real(1) / 7,  real(1) / 9,
                               real(1) / 11, real(1) / 13, real(1) / 15, real(1) / 17};
    const real difference = k - m, v = difference / (k + m), square = v * v;
    const real near = v * (difference + 2 * k * square * polynomial(square, SERIES));
    return square < real(0.01) ? near : (k > 0 ? k * log(k / m) : real(0)) - difference;
}

// Inverts the cumulative distribution at `unit`. The probability of 0 is `first`, that of k is factor(k) times that of
// k - 1. For means below 10, as it takes k steps.
template <class Factor> FN int inverted(real unit, real first, int largest, const Factor& factor) {
    real probability = first;
    int  k           = 0;
    while (unit > probability && k < largest && probability > 0) {
        unit -= probability;
        ++k;
        probability *= factor(real(k));
    }
    return k;
}

// Transformed rejection (Hoermann 1993) of pairs (u, v): a and b are the width of the hat function, which u turns into k,
// and v below `safe` is accepted without logarithms, except in the tails. `log_ratio(k)` is the logarithm of k's
// probability over the hat's scale. More than half of the pairs are accepted: 64 rejections mean a parameter is NaN.
template <class Ratio>
FN int rejected(Random& random, real a, real b, real centre, real safe, real largest, const Ratio& log_ratio) {
    for (int attempt = 0; attempt < 64; ++attempt) {
        const real u = random.uniform() - real(0.5), v = random.uniform();
        const real edge = real(0.5) - (u < 0 ? -u : u), k = round_down((2 * a / edge + b) * u + centre);
        if (!(k >= 0 && k <= largest)) continue;
        if (edge >= real(0.07) && v <= safe) return int(k);
        if (log(v / (a / (edge * edge) + b)) <= log_ratio(k)) return int(k);
    }
    return 0;
}

}  // namespace random_numbers

// Poisson numbers; for means up to 10,000 the frequencies are exact to float's accuracy.
FN int Random::poisson(real mean) {
    using namespace random_numbers;
    if (!(mean >= 10)) return inverted(uniform(), exp(-maximum(mean, real(0))), 1000, [&](real k) { return mean / k; });
    const real b = real(0.931) + real(2.53) * square_root(mean), a = real(-0.059) + real(0.02483) * b;
    const real scale = log(real(1.1239) + real(1.1328) / (b - real(3.4)));
    return rejected(*this, a, b, mean + real(0.43), real(0.9277) - real(3.6224) / (b - 2), real(1e9), [&](real k) {
        return -stirling(k) - deviance(k, mean) - scale;
    });
}

// The number of successes in n > 0 trials, for 0 < p <= 1/2.
FN int Random::rarer(int n, real p) {
    using namespace random_numbers;
    const real trials = real(n), rest = 1 - p, mean = trials * p;
    if (mean < 10) {
        const real log_rest = log(rest) - (p - (1 - rest)) / rest;  // log(1 - p): corrects the rounding of 1 - p
        return inverted(uniform(), exp(trials * log_rest), n, [&](real k) { return p / rest * ((trials + 1 - k) / k); });
    }
    const real spread = square_root(mean * rest);
    const real b = real(1.15) + real(2.53) * spread, a = real(-0.0873) + real(0.0248) * b + real(0.01) * p;
    const auto log_probability = [&](real k) {
        return -stirling(k) - stirling(trials - k) - deviance(k, mean) - deviance(trials - k, trials * rest);
    };
    const real mode = log_probability(round_down((trials + 1) * p)) + log((real(2.83) + real(5.1) / b) * spread);
    return rejected(*this, a, b, mean + real(0.5), real(0.92) - real(4.2) / b, trials,
                    [&](real k) { return log_probability(k) - mode; });
}

// The number of successes in n trials.
FN int Random::binomial(int n, real p) {
    if (n <= 0 || !(p > 0)) return 0;
    if (p >= 1) return n;
    const bool failures = p > real(0.5);  // count the rarer outcome
    const int  count    = rarer(n, failures ? 1 - p : p);
    return failures ? n - count : count;
}
