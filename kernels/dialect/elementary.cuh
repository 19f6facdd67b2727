// Further elementary functions for rules, with the same bits on every device. Results that are normal numbers have an
// error of at most 2 ulp (tests/kernels/test_elementary.py measures it); denormals count as zero.
//
// The namespace allows rules to define functions with the same names: see codegen/header.py.

namespace elementary {

// Minimax fits (Remez exchange), with the relative error of the whole function.
template <class Real> struct Coefficients;

template <> struct Coefficients<float> {
    // arctangent 2^-28.5 on [0, 1]; tangent (of tanh) 2^-29.5 on [0, 9/16]; exp_minus_one 2^-32 on
    // [-ln2/2, ln2/2]; logarithm (two_thirds, tail) 2^-36.8 on [1/sqrt2, sqrt2]
    static constexpr float arctangent[] = {-3.33333e-01f,   1.9998549e-01f, -1.4264242e-01f, 1.0952186e-01f, -8.403451e-02f,
                                           5.7957605e-02f, -3.1177856e-02f, 1.0914612e-02f, -1.793623e-03f};
    static constexpr float tangent[] = {-3.3333313e-01f, 1.3332452e-01f, -5.383743e-02f, 2.1007463e-02f, -6.179816e-03f};
    static constexpr float exp_minus_one[] = {0.5f, 1.6666666e-01f, 4.1666362e-02f, 8.33339e-03f, 1.3940628e-03f, 1.9845879e-04f};
    static constexpr float two_thirds[] = {0.666666687f, -1.98682151e-8f};
    static constexpr float tail[]       = {4.0000153e-01f, 2.854713e-01f, 2.34187e-01f};
    static constexpr float inverse_ln2[]  = {1.44269502f, 1.92596303e-8f};  // their sum: 48 bits
    static constexpr float inverse_ln10[] = {0.434294492f, -1.010305e-8f};
    static constexpr float exp_min      = -87.3365402f, expm1_min = -18.0f;  // log of 2^-126; below: expm1 is -1
};

template <> struct Coefficients<double> {
    // 2^-57.3, 2^-64.9, 2^-61.7, 2^-73.5, on the same intervals
    static constexpr double arctangent[] = {
        -0.3333333333333302, 0.19999999999944268, -0.14285714282181675, 0.11111110995908832, -0.09090906812665642,
        0.07692277677819165, -0.06666386806559987, 0.058804272191223445, -0.052530783065543436, 0.047208494315127504,
        -0.04215367849911121, 0.03656514353516968, -0.02978335206593911, 0.021838074673802617, -0.013763346705652345,
        0.007099985521128468, -0.0028355190990207095, 0.000813964717957847, -0.00014841831625624026,
        1.2851805242397334e-05};
    static constexpr double tangent[] = {
        -0.3333333333333333, 0.1333333333333291, -0.05396825396793568, 0.02186948852410046, -0.008863235261806957,
        0.0035921242303570615, -0.0014557982176542066, 0.0005897916056481758, -0.00023806607586569924,
        9.363293618539005e-05, -3.253345435638407e-05, 7.204616981467458e-06};
    static constexpr double exp_minus_one[] = {
        0.5, 0.16666666666666677, 0.04166666666666651, 0.008333333333321691, 0.001388888888896237,
        0.00019841269885966252, 2.4801587172539877e-05, 2.7557244373864475e-06, 2.7557402641425837e-07,
        2.5108978994063702e-08, 2.087533042538717e-09};
    static constexpr double two_thirds[] = {0.6666666666666666, 3.700743415417188e-17};
    static constexpr double tail[] = {0.3999999999999998, 0.2857142857144511, 0.22222222217536464, 0.18181818870314545,
                                      0.1538455687100929, 0.1333631741887082, 0.11674818500081471, 0.11989013326254735};
    static constexpr double inverse_ln2[]  = {1.4426950408889634, 2.0355273740931033e-17};
    static constexpr double inverse_ln10[] = {0.4342944819032518, 1.098319650216765e-17};
    static constexpr double exp_min = -708.3964185322641, expm1_min = -40.0;
};

template <class T> FN T abs(T x) { return x <= 0 ? T(0) - x : x; }

template <class Real> FN Real with_sign_of(Real size, Real sign) {
    const auto mask = (decltype(bits_of(size))(1) << Constants<Real>::sign_bit);
    return from_bits((bits_of(size) & ~mask) | (bits_of(sign) & mask));
}

// Range reduction for exp(x) = 2^k exp(r): returns r = x - k ln2, and sets k, also as an integer in the bits of n.
template <class Real> FN Real reduced(Real x, Real& k, typename Constants<Real>::Bits& n) {
    using C = Constants<Real>;
    const Real shifted = fma(x, C::inverse_ln2, C::rounding);
    k = shifted - C::rounding;
    n = bits_of(shifted) - bits_of(C::rounding);
    return fma(-k, C::ln2[1], fma(-k, C::ln2[0], x));
}

template <class Real> FN Real expm1(Real x) {
    using C = Constants<Real>;
    using B = typename C::Bits;
    Real k;
    B    n;
    const Real r     = reduced(clip(x, Coefficients<Real>::expm1_min, C::exp_max), k, n);
    const Real y     = fma(r * r, polynomial(r, Coefficients<Real>::exp_minus_one), r);
    const Real half  = from_bits((n + B(C::exponent_bias - 1)) << C::mantissa_bits);  // 2^(k-1), as 2^k may overflow
    const Real value = k == 0 ? y : Real(2) * fma(y, half, half - Real(0.5));
    return x == 0 ? x : x > C::exp_max ? infinity<Real>() : x == x ? value : x;
}

template <class Real> FN Real log1p(Real x) {
    const Real sum = Real(1) + x, rest = x < 1 ? x - (sum - Real(1)) : Real(1) - (sum - x);
    const Real value = log(sum);
    return x == 0 ? x : sum > 0 && sum < infinity<Real>() ? value + rest / sum : value;
}

template <class Real> FN Real tanh(Real x) {
    const Real size = abs(x), square = size * size;
    const Real near = fma(size * square, polynomial(square, Coefficients<Real>::tangent), size);
    const Real far  = Real(1) - Real(2) / (exp(Real(2) * size) + Real(1));
    return with_sign_of(size < Real(0.5625) ? near : far, x);
}

// high + low - x for x <= high, with a single rounding error.
template <class Real> FN Real subtracted(Real high, Real low, Real x) {
    const Real difference = high - x;
    return difference + (((high - difference) - x) + low);
}

template <class Real> FN Real atan2(Real y, Real x) {
    using C = Constants<Real>;
    const Real height = abs(y), width = abs(x);
    const bool steep  = height > width;
    const Real small  = steep ? width : height, large = steep ? height : width;
    const Real q      = large == 0 ? Real(0) : small == large ? Real(1) : small / large, square = q * q;
    const Real octant = fma(q * square, polynomial(square, Coefficients<Real>::arctangent), q);
    const bool left   = (bits_of(x) >> C::sign_bit) != 0;
    const Real upper  = steep ? subtracted(C::half_pi[0], C::half_pi[1], octant) : octant;
    const Real angle  = left ? subtracted(Real(2) * C::half_pi[0], Real(2) * C::half_pi[1], upper) : upper;
    return height == height && width == width ? with_sign_of(angle, y) : height + width;
}
template <class Real> FN Real atan(Real x) { return atan2(x, Real(1)); }

template <class Real> struct DoubleLength { Real high, low; };

// The natural logarithm of a positive number in about twice the precision, as high + low.
template <class Real> FN DoubleLength<Real> precise_log(Real x) {
    using C = Constants<Real>;
    using B = typename C::Bits;
    // x = 2^k m with m in [1/sqrt2, sqrt2), as in log
    constexpr B one    = B(C::exponent_bias) << C::mantissa_bits;
    const B     offset = one - bits_of(Real(0.70710678118654752440));
    const B     raised = bits_of(x) + offset;
    const Real  k      = Real(int(raised >> C::mantissa_bits)) - Real(C::exponent_bias);
    const Real  m      = from_bits((raised & ((B(1) << C::mantissa_bits) - 1)) + one - offset);
    // log m = 2 atanh s with s = (m-1)/(m+1); each x_low is the rounding error of x
    const Real f = m - Real(1), d = m + Real(1), part = d - m, d_low = (m - (d - part)) + (Real(1) - part);
    const Real s = f / d, s_low = (fma(-s, d, f) - s * d_low) / d;
    const Real square = s * s, square_low = fma(s, s, -square) + Real(2) * s * s_low;
    const Real cube = s * square, cube_low = fma(s, square, -cube) + (s * square_low + s_low * square);
    const Real more = square * polynomial(square, Coefficients<Real>::tail), t = Coefficients<Real>::two_thirds[0] + more;
    const Real t_low = (Coefficients<Real>::two_thirds[0] - t) + more + Coefficients<Real>::two_thirds[1];
    const Real tail = cube * t, tail_low = fma(cube, t, -tail) + (cube * t_low + cube_low * t);
    const Real turns = k * C::ln2[0], turns_low = fma(k, C::ln2[0], -turns) + k * C::ln2[1];
    const Real lead = turns + Real(2) * s, lead_low = Real(2) * s - (lead - turns);
    const Real sum = lead + tail, sum_low = tail - (sum - lead);
    const Real low = ((lead_low + sum_low) + (turns_low + Real(2) * s_low)) + tail_low, high = sum + low;
    return {high, low - (high - sum)};
}

// The logarithm of x to a base; `inverse` is 1 / ln(base), as a sum of two. Exact for powers of the base.
template <class Real> FN Real log_to_base(Real x, const Real (&inverse)[2]) {
    const DoubleLength<Real> log = precise_log(x);
    const Real high = log.high * inverse[0], low = fma(log.high, inverse[0], -high);
    return logarithm(x, high + (low + (log.high * inverse[1] + log.low * inverse[0])));
}
template <class Real> FN Real log2(Real x) { return log_to_base(x, Coefficients<Real>::inverse_ln2); }
template <class Real> FN Real log10(Real x) { return log_to_base(x, Coefficients<Real>::inverse_ln10); }

// Scales the sides by a power of two, so that their squares cannot overflow or underflow, and rounding is the same.
template <class Real, class... Sides> FN Real hypot(Real first, Sides... others) {
    using C = Constants<Real>;
    using B = typename C::Bits;
    Real longest = maximum(Real(0), abs(first));  // ignores sides that are NaN
    ((longest = maximum(longest, abs(others))), ...);
    const B    exponent = clip(bits_of(longest) >> C::mantissa_bits, B(1), B(2 * C::exponent_bias - 1));
    const Real down = from_bits((B(2 * C::exponent_bias) - exponent) << C::mantissa_bits);
    const Real up = from_bits(exponent << C::mantissa_bits), scaled = first * down;
    Real sum = scaled * scaled;
    ((sum = sum + (others * down) * (others * down)), ...);
    return longest == infinity<Real>() ? longest : square_root(sum) * up;
}

// x to the power of y; NaN if x is negative and y is not an integer.
template <class Real> FN Real power(Real x, Real y) {
    using C = Constants<Real>;
    using B = typename C::Bits;
    const Real size = abs(x), infinite = infinity<Real>();
    const DoubleLength<Real> log = precise_log(size);
    const Real log_high = size < smallest_normal<Real>() ? -infinite : size < infinite ? log.high : size;
    const Real high = y * log_high, low = fma(y, log_high, -high) + y * log.low;  // y log|x|
    Real k;
    B    n;
    const Real r     = reduced(clip(high, Coefficients<Real>::exp_min, C::exp_max), k, n) + low;
    const Real value = fma(r * r, polynomial(r, Coefficients<Real>::exp_minus_one), r) + Real(1);
    // 2^k in two factors, since k may be one past the largest exponent
    const B    biased = n + B(2 * C::exponent_bias), half = biased >> 1;
    const Real scaled = value * from_bits(half << C::mantissa_bits) * from_bits((biased - half) << C::mantissa_bits);
    const bool underflow = high < Coefficients<Real>::exp_min;
    const Real positive  = underflow ? Real(0) : high > C::exp_max ? infinite : high == high ? scaled : high;
    const bool integer  = round_down(y) == y, odd = integer && round_down(y * Real(0.5)) * Real(2) != y;
    const bool negative = (bits_of(x) >> C::sign_bit) != 0;
    const Real result   = negative && odd ? -positive : positive;
    const bool invalid  = negative && !integer && size > 0 && size < infinite;
    return y == 0 || x == 1 || (size == 1 && abs(y) == infinite) ? Real(1) : invalid ? from_bits(~B(0) >> 1) : result;
}

}  // namespace elementary
