// Elementary functions with the same bits on every device, from sums, products, fma and integer operations only.
//
// Polynomials are minimax fits (Remez exchange) of the reduced function, with their errors in comments;
// tests/kernels/test_elementary.py measures the results in ulp. No function has branches, so that loops vectorise.

template <class Real> struct Constants;

template <> struct Constants<float> {
    using Bits = u32;
    static constexpr int   sign_bit = 31, mantissa_bits = 23, exponent_bias = 127;
    static constexpr float rounding      = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, in the low bits
    static constexpr float two_over_pi   = 0.636619772f;
    static constexpr float half_pi[3]    = {1.57079637f, -4.37113883e-8f, -1.71512451e-15f};  // their sum: 72 bits
    static constexpr float inverse_ln2   = 1.44269504f;
    static constexpr float ln2[2]        = {0.693147182f, -1.90465421e-9f};
    static constexpr float exp_min     = -87.3f, exp_max = 88.72283f;  // below: zero (denormals are flushed); above: inf
    static constexpr int   sin_terms = 3, cos_terms = 3, exp_terms = 5, log_terms = 4;
    // 2^-27.8, 2^-32.7 relative on [-pi/4, pi/4]; 2^-28.2 on [-ln2/2, ln2/2]; 2^-37.5 on [1/sqrt2, sqrt2]
    static constexpr float sine[]        = {-0.166666535f, 0.00833208326f, -0.000195043173f};
    static constexpr float cosine[]      = {0.041666643f, -0.00138871847f, 0.0000244181283f};
    static constexpr float exponential[] = {0.499999931f, 0.166665148f, 0.0416684568f, 0.00836941883f, 0.00138131446f};
    static constexpr float logarithm[]   = {0.666666656f, 0.400003563f, 0.285358826f, 0.236106651f};
};

template <> struct Constants<double> {
    using Bits = u64;
    static constexpr int    sign_bit = 63, mantissa_bits = 52, exponent_bias = 1023;
    static constexpr double rounding      = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr double two_over_pi   = 0.63661977236758134308;
    static constexpr double half_pi[3]    = {1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33};
    static constexpr double inverse_ln2   = 1.4426950408889634074;
    static constexpr double ln2[2]        = {0.6931471805599453, 2.3190468138462996e-17};
    static constexpr double exp_min     = -708.3, exp_max = 709.782712893384;
    static constexpr int    sin_terms = 7, cos_terms = 7, exp_terms = 11, log_terms = 8;
    // 2^-68, 2^-74, 2^-64, 2^-66 relative, on the same intervals
    static constexpr double sine[] = {-0.16666666666666666633, 0.0083333333333333200143, -0.00019841269841251921758,
                                      2.7557319212555100336e-6, -2.5052104485318486022e-8, 1.6058312344185716987e-10,
                                      -7.5760107086563437122e-13};
    static constexpr double cosine[] = {0.04166666666666666659, -0.0013888888888888868663, 0.000024801587301566833815,
                                        -2.7557319213438578219e-7, 2.0876753942771514008e-9,
                                        -1.1470246530260615075e-11, 4.7360541925063178509e-14};
    static constexpr double exponential[] = {0.50000000000000000494, 0.16666666666666685146, 0.041666666666666035101,
                                             0.0083333333333157035921, 0.0013888888889134192458,
                                             0.00019841269899727107878, 0.000024801586903841270091,
                                             2.7557231481860043498e-6, 2.7557592380274310231e-7,
                                             2.5113226437948993017e-8, 2.0825634731576373422e-9};
    static constexpr double logarithm[] = {0.6666666666666665998, 0.40000000000007194194, 0.28571428568783739336,
                                           0.22222222692116901647, 0.18181772054701947017, 0.15387247939285162523,
                                           0.13246589880739011335, 0.13283266177728786432};
};

constexpr double PI = 3.14159265358979323846;

template <class T> FN constexpr T minimum(T a, T b)        { return b < a ? b : a; }
template <class T> FN constexpr T maximum(T a, T b)        { return a < b ? b : a; }
// (With the maximum taken last, NVRTC 13.0 miscompiles integers that are clipped to 0: it returns `high`.)
template <class T> FN constexpr T clip(T x, T low, T high) { return minimum(maximum(x, low), high); }

// a / b, correctly rounded, by one Newton step from `inverse` = 1 / b (Markstein 1990). No result may be denormal.
template <class Real> FN Real quotient(Real a, Real b, Real inverse) {
    const Real near = a * inverse;
    return fma(fma(-near, b, a), inverse, near);
}

// c[0] + x (c[1] + x (c[2] + ...)), by Horner's scheme
template <int N, class Real> FN Real polynomial(Real x, const Real (&c)[N]) {
    Real sum = c[N - 1];
    UNROLL
    for (int j = N - 2; j >= 0; --j) sum = fma(sum, x, c[j]);
    return sum;
}

template <class Real> FN Real infinity() {
    using C = Constants<Real>;
    return from_bits(typename C::Bits(2 * C::exponent_bias + 1) << C::mantissa_bits);
}

// The largest finite number.
template <class Real> FN Real largest() {
    using C = Constants<Real>;
    return from_bits(bits_of(infinity<Real>()) - typename C::Bits(1));
}

template <class Real> FN Real smallest_normal() {
    using C = Constants<Real>;
    return from_bits(typename C::Bits(1) << C::mantissa_bits);
}

template <class Real> struct SinCos { Real sin, cos; };

// Sine and cosine, with an error of at most 2 ulp for |x| below 1e5 (float) and 1e9 (double). For larger |x|, accuracy
// decreases, but results stay in [-1, 1]. NaN for inf and NaN.
template <class Real> FN SinCos<Real> sincos(Real x) {
    using C = Constants<Real>;
    using B = typename C::Bits;
    const Real shifted  = fma(x, C::two_over_pi, C::rounding);
    const Real turns    = shifted - C::rounding;  // quarter turns, rounded to an integer
    const B    quadrant = bits_of(shifted);
    Real       r        = fma(-turns, C::half_pi[0], x);
    r                   = fma(-turns, C::half_pi[1], r);
    // (the reduction fails for huge angles: clip to the polynomials' range)
    r                   = clip(fma(-turns, C::half_pi[2], r), Real(-1), Real(1));
    const Real r2       = r * r;
    const Real s        = fma(r2 * r, polynomial(r2, C::sine), r);
    const Real c        = fma(r2 * r2, polynomial(r2, C::cosine), fma(r2, Real(-0.5), Real(1)));
    // The quadrant's two low bits select sine or cosine and the signs, by bit operations in place of branches.
    const B s_bits = bits_of(s), c_bits = bits_of(c);
    const B swap   = (s_bits ^ c_bits) & (B(0) - (quadrant & 1));
    return {from_bits((s_bits ^ swap) ^ (quadrant & 2) << (C::sign_bit - 1)),
            from_bits((c_bits ^ swap) ^ ((quadrant + 1) & 2) << (C::sign_bit - 1))};
}

template <class Real> FN Real sin(Real x) { return sincos(x).sin; }
template <class Real> FN Real cos(Real x) { return sincos(x).cos; }

// e^x, with an error of at most 1.01 ulp; zero if it is denormal or up to 4 % above the smallest normal number.
template <class Real> FN Real exp(Real x) {
    using C = Constants<Real>;
    using B = typename C::Bits;
    const Real inside  = clip(x, C::exp_min, C::exp_max);
    const Real shifted = fma(inside, C::inverse_ln2, C::rounding);
    const Real k       = shifted - C::rounding;
    Real       r       = fma(-k, C::ln2[0], inside);
    r                  = fma(-k, C::ln2[1], r);
    const Real y       = fma(r * r, polynomial(r, C::exponential), r) + Real(1);
    // 2^k in two factors, since k may be one past the largest exponent
    const B n      = bits_of(shifted) - bits_of(C::rounding) + B(2 * C::exponent_bias);
    const B half   = n >> 1;
    const Real two = from_bits(half << C::mantissa_bits), rest = from_bits((n - half) << C::mantissa_bits);
    const Real value = y * two * rest;
    return x < C::exp_min ? Real(0) : x > C::exp_max ? infinity<Real>() : x == x ? value : x;
}

// Adds special cases to a logarithm of x: `value` for positive normal x, -inf for zero and denormals, NaN for x < 0.
template <class Real> FN Real logarithm(Real x, Real value) {
    using B = typename Constants<Real>::Bits;
    const Real normal = smallest_normal<Real>();
    return x < normal ? (x <= -normal ? from_bits(~B(0) >> 1) : -infinity<Real>()) : x < infinity<Real>() ? value : x;
}

// Natural logarithm with an error of at most 1 ulp.
template <class Real> FN Real log(Real x) {
    using C = Constants<Real>;
    using B = typename C::Bits;
    constexpr B one = B(C::exponent_bias) << C::mantissa_bits;
    // x = 2^k m with m in [1/sqrt2, sqrt2): shift the exponent's boundary from 1 down to 1/sqrt2
    const B    offset = one - bits_of(Real(0.70710678118654752440));
    const B    raised = bits_of(x) + offset;
    const B    biased = raised >> C::mantissa_bits;
    const Real k      = Real(int(biased)) - Real(C::exponent_bias);
    const Real m      = from_bits((raised & ((B(1) << C::mantissa_bits) - 1)) + one - offset);
    // log m = 2 atanh s with s = (m-1)/(m+1)
    const Real f     = m - Real(1);
    const Real s     = f / (m + Real(1));
    const Real s2    = s * s;
    const Real tail  = s * s2 * polynomial(s2, C::logarithm);
    const Real lead  = Real(2) * s;
    // without rounding 2s = f - s f; so the difference is the error of the rounded division
    const Real error = fma(-s, f, f - lead);
    return logarithm(x, fma(k, C::ln2[0], lead + (tail + (error + k * C::ln2[1]))));
}
