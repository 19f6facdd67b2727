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

// a << b and a >> b for any b, where processors take b modulo 32. A negative b, for which Python raises an error, counts
// as 32 or more.
FN int shifted_left(int a, int b)  { return u32(b) < 32 ? int(u32(a) << b) : 0; }
FN int shifted_right(int a, int b) { return a >> (u32(b) < 32 ? b : 31); }

// What follows `at` in a range, `by` further towards its end: at most the end, as an int beyond it may not exist.
FN int next(int at, int end, u32 by) {
    return at < end ? int(u32(at) + minimum(by, u32(end) - u32(at))) : int(u32(at) - minimum(by, u32(at) - u32(end)));
}

template <class Real> FN bool finite(Real x)       { return x - x == 0; }
template <class Real> FN bool not_a_number(Real x) { return x != x; }

// The same of reals, exact while the quotient is below 2^24 (float) and 2^53 (double); beyond, a % b is zero where what
// rounding left is no remainder. NaN for b = 0 and an infinite a. Into an infinite b a number goes not at all, or once
// from the other side.
template <class Real> FN bool goes_beyond(Real a, Real b) { return elementary::abs(b) == infinity<Real>() && finite(a); }
template <class Real> FN Real floor_divided(Real a, Real b) {
    const Real whole = round_down(a / b), left = fma(-whole, b, a);
    // (the quotient may have been rounded up to a whole number)
    const Real made  = (b > 0 ? left < 0 : left > 0) ? whole - Real(1) : whole;
    return goes_beyond(a, b) ? (a != 0 && (a < 0) != (b < 0) ? Real(-1) : a / b) : finite(a) ? made : a - a;
}
template <class Real> FN Real modulo(Real a, Real b) {
    const bool beyond = goes_beyond(a, b);
    const Real left   = beyond ? a : fma(-round_down(a / b), b, a);
    const Real inside = (b > 0 ? left < 0 : left > 0) ? left + b : left;
    const bool wrong  = !beyond && (b > 0 ? inside < 0 || inside > b : inside > 0 || inside < b);
    return wrong || inside == 0 ? (b > 0 ? Real(0) : -Real(0)) : inside;
}

// math.fmod: what is left of a, with a's sign.
template <class Real> FN Real remainder(Real a, Real b) { return elementary::with_sign_of(modulo(elementary::abs(a), elementary::abs(b)), a); }

// The nearest whole number, of two equally near ones the even one.
template <class Real> FN Real rounded(Real x) {
    const Real down = round_down(x), left = x - down;
    const bool odd  = down - Real(2) * round_down(down * Real(0.5)) != 0;
    return left > Real(0.5) || (left == Real(0.5) && odd) ? down + Real(1) : down;
}

// Towards zero. What no int holds becomes the nearest that is one, NaN zero: the machines' own conversions differ there.
// What is nearer to zero than 1 is not converted: g++ makes real(int(x)) of it with x's sign, though an int 0 has none.
FN int truncated(float x)  { return x >= 1 || x <= -1 ? int(clip(x, -2147483648.0f, 2147483520.0f)) : 0; }
FN int truncated(double x) { return x >= 1 || x <= -1 ? int(clip(x, -2147483648.0, 2147483647.0)) : 0; }

// x * x * ..., N factors, from the left.
template <int N, class T> FN T power(T x) {
    T product = x;
    UNROLL
    for (int k = 1; k < N; ++k) product = product * x;
    return product;
}

// x ** 0.5, which is 0 at -0 and inf at -inf, where square_root is not.
template <class Real> FN Real root(Real x) { return x == -infinity<Real>() ? -x : square_root(x) + Real(0); }

template <class Real> FN Real tangent(Real x) {
    const SinCos<Real> of = sincos(x);
    return of.sin / of.cos;
}

}  // namespace python
