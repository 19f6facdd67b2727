// Python's arithmetic, where it differs from C++'s: rules that were written in Python call these.

namespace python {

// a // b and a % b of whole numbers, rounded down. Where Python raises an error, for b = 0, they are a and 0. A division
// by -1 is none: the least int has no opposite, and processors stop there.
FN int floor_divided(int a, int b) {
    const int divisor = b == 0 || b == -1 ? 1 : b, left = a % divisor;
    return b == -1 ? int(0u - u32(a)) : a / divisor - (left != 0 && (left < 0) != (divisor < 0) ? 1 : 0);
}
FN int modulo(int a, int b) {
    const int divisor = b == 0 || b == -1 ? 1 : b, left = a % divisor;
    return left != 0 && (left < 0) != (divisor < 0) ? left + divisor : left;
}

// The same of reals, exact while the quotient is below 2^24 (float) and 2^53 (double); beyond, a % b is zero where what
// rounding left is no remainder. NaN for b = 0.
template <class Real> FN Real floor_divided(Real a, Real b) {
    const Real whole = round_down(a / b), left = fma(-whole, b, a);
    return (b > 0 ? left < 0 : left > 0) ? whole - Real(1) : whole;  // the quotient may have been rounded up to it
}
template <class Real> FN Real modulo(Real a, Real b) {
    const Real left   = fma(-round_down(a / b), b, a);
    const Real inside = (b > 0 ? left < 0 : left > 0) ? left + b : left;
    const bool wrong  = b > 0 ? inside < 0 || inside > b : inside > 0 || inside < b;
    return wrong || inside == 0 ? (b > 0 ? Real(0) : -Real(0)) : inside;
}

template <class T> FN T absolute(T x) { return x <= 0 ? T(0) - x : x; }

template <class Real> FN Real with_sign_of(Real size, Real sign) {
    const auto mask = (decltype(bits_of(size))(1) << Constants<Real>::sign_bit);
    return from_bits((bits_of(size) & ~mask) | (bits_of(sign) & mask));
}

// math.fmod: what is left of a, with a's sign.
template <class Real> FN Real remainder(Real a, Real b) { return with_sign_of(modulo(absolute(a), absolute(b)), a); }

// The nearest whole number, of two equally near ones the even one.
template <class Real> FN Real rounded(Real x) {
    const Real down = round_down(x), left = x - down;
    const bool odd  = down - Real(2) * round_down(down * Real(0.5)) != 0;
    return left > Real(0.5) || (left == Real(0.5) && odd) ? down + Real(1) : down;
}

// Towards zero. What no int holds becomes the nearest that is one, NaN zero: the machines' own conversions differ there.
FN int truncated(float x)  { return x == x ? int(clip(x, -2147483648.0f, 2147483520.0f)) : 0; }
FN int truncated(double x) { return x == x ? int(clip(x, -2147483648.0, 2147483647.0)) : 0; }

// x * x * ..., N factors, from the left.
template <int N, class T> FN T power(T x) {
    T product = x;
    UNROLL
    for (int k = 1; k < N; ++k) product = product * x;
    return product;
}

template <class Real> FN Real tangent(Real x) {
    const SinCos<Real> of = sincos(x);
    return of.sin / of.cos;
}

template <class Real> FN bool finite(Real x) { return x - x == 0; }

}  // namespace python
