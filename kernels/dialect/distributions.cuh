// Samples from the distributions of randomised parameters.

// A uniform sample in [low, high], drawn from halves only if high - low overflows: halves of tiny numbers are zero.
FN real drawn_uniform(Random& random, real low, real high) {
    const bool halve  = !(high - low <= largest<real>());
    const real factor = halve ? real(0.5) : real(1);
    const real sample = random.uniform(factor * low, factor * high);
    return minimum(halve ? 2 * sample : sample, high);
}

// A log-uniform sample in [low, high]; `ratio`: log(high / low). If high / low overflows, its square root does not.
FN real drawn_loguniform(Random& random, real low, real high, real ratio) {
    const bool root   = ratio > Constants<real>::exp_max;
    const real factor = exp((root ? ratio / 2 : ratio) * random.uniform(0, 1));
    return clip(root ? low * factor * factor : low * factor, low, high);
}

// The standard normal quantile of `tail` in [1e-12, 0.5], with a relative error below 2e-6. It is (2 tail - 1) y, with
// y a minimax polynomial in w = -log(4 tail (1 - tail)) or, for w >= 5, in sqrt(w).
FN real normal_quantile(real tail) {
    constexpr real NEAR[] = {real(2.12330962), real(0.348803764), real(-0.00590606721), real(-0.00177432966),
                             real(0.000307360079), real(-5.78970423e-06), real(-4.50558347e-06), real(4.46359384e-07)};
    constexpr real FAR_OUT[] = {real(5.02089284), real(1.42626773), real(0.00322055382), real(-0.00194976912),
                                real(0.000560993639), real(-0.000409186809), real(0.000511825259), real(-0.000189713083)};
    const real w = -log(4 * tail * (1 - tail));
    const real y = w < 5 ? polynomial(w - real(2.49998967), NEAR)
                         : polynomial(square_root(w) - real(3.71312484), FAR_OUT);
    return (2 * tail - 1) * y;
}

// A normal sample truncated to [low, high]; `below` and `above` are the probabilities outside.
FN real drawn_normal(Random& random, real mean, real deviation, real low, real high, real below, real above) {
    constexpr real HALF_A_STEP = sizeof(real) == 4 ? real(2.98023223876953125e-08) : real(1.16415321826934814453125e-10);
    const real unit  = random.uniform(0, 1), within = 1 - below - above;
    const real left  = below + within * (unit + HALF_A_STEP);  // the probabilities below and above the sample;
    const real right = above + within * (1 - unit - HALF_A_STEP);  // the smaller one has the smaller rounding error
    const real x     = normal_quantile(minimum(left, right));
    return clip(mean + deviation * (left < right ? x : -x), low, high);
}
