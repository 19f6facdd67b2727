// Numbers of the distributions that parameters are drawn from.

constexpr int MOST_ATTEMPTS = 4096;  // all of which fail with a chance of at most 0.99^4096, below 1e-17

FN real drawn_uniform(Random& random, real low, real high) { return minimum(random.uniform(low, high), high); }

// `ratio`: the logarithm of high / low.
FN real drawn_loguniform(Random& random, real low, real high, real ratio) {
    return clip(low * exp(ratio * random.uniform(0, 1)), low, high);
}

// Those outside are drawn again.
FN real drawn_normal(Random& random, real mean, real deviation, real low, real high) {
    for (int attempt = 0; attempt < MOST_ATTEMPTS; ++attempt) {
        const real x = random.normal(mean, deviation);
        if (x >= low && x <= high) return x;
    }
    return clip(mean, low, high);
}
