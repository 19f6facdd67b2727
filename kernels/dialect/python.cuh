// Python's arithmetic where it differs from C++'s, for rules that are written in Python.

namespace python {

// a // b of integers, rounded down; a for b = 0, where Python raises an error. No division for b = -1: the minimum int
// divided by -1 overflows, which ends a CPU's process.
FN int floor_divided(int a, int b) {
    const int divisor = b == 0 || b == -1 ? 1 : b, rest = a % divisor;
    return b == -1 ? int(0u - u32(a)) : a / divisor - (rest != 0 && (rest < 0) != (divisor < 0) ? 1 : 0);
}
FN int modulo(int a, int b) {
    const int divisor = b == 0 || b == -1 ? 1 : b, rest = a % divisor;
    return rest != 0 && (rest < 0) != (divisor < 0) ? rest + divisor : rest;
}

// a << b and a >> b for any b; processors use b modulo 32. A negative b, an error in Python, counts as 32 or more.
FN int shifted_left(int a, int b)  { return u32(b) < 32 ? int(u32(a) << b) : 0; }
FN int shifted_right(int a, int b) { return a >> (u32(b) < 32 ? b : 31); }

// The next number of a range: `at` moved by `by` towards `end`, and not past it, which could overflow.
FN int next(int at, int end, u32 by) {
    return at < end ? int(u32(at) + minimum(by, u32(end) - u32(at))) : int(u32(at) - minimum(by, u32(at) - u32(end)));
}

template <class Real> FN bool finite(Real x)       { return x - x == 0; }
template <class Real> FN bool not_a_number(Real x) { return x != x; }

template <class Real> FN bool by_infinity(Real a, Real b) { return elementary::abs(b) == infinity<Real>() && finite(a); }

// a // b of reals, exact for quotients below 2^24 (float) and 2^53 (double). NaN for b = 0 and for infinite a. For
// infinite b it is 0, or -1 if the signs differ.
template <class Real> FN Real floor_divided(Real a, Real b) {
    const Real rounded = round_down(a / b), rest = fma(-rounded, b, a);
    // (if a / b was rounded up to an integer, the floor is one too large and the remainder has the wrong sign)
    const Real quotient = (b > 0 ? rest < 0 : rest > 0) ? rounded - Real(1) : rounded;
    return by_infinity(a, b) ? (a != 0 && (a < 0) != (b < 0) ? Real(-1) : a / b) : finite(a) ? quotient : a - a;
}

// a % b of reals, exact where a // b is; beyond, zero if rounding left an invalid remainder. NaN for b = 0, infinite a.
template <class Real> FN Real modulo(Real a, Real b) {
    const bool infinite = by_infinity(a, b);
    const Real rest     = infinite ? a : fma(-round_down(a / b), b, a);
    const Real inside   = (b > 0 ? rest < 0 : rest > 0) ? rest + b : rest;
    const bool wrong    = !infinite && (b > 0 ? inside < 0 || inside > b : inside > 0 || inside < b);
    return wrong || inside == 0 ? (b > 0 ? Real(0) : -Real(0)) : inside;
}

// math.fmod: the remainder with a's sign.
template <class Real> FN Real remainder(Real a, Real b) {
    return elementary::with_sign_of(modulo(elementary::abs(a), elementary::abs(b)), a);
}

// The nearest integer, ties to even.
template <class Real> FN Real rounded(Real x) {
    const Real down = round_down(x), fraction = x - down;
    const bool odd  = down - Real(2) * round_down(down * Real(0.5)) != 0;
    return fraction > Real(0.5) || (fraction == Real(0.5) && odd) ? down + Real(1) : down;
}

// Rounds towards zero, clipped to the range of an int, NaN to zero: processors' conversions differ outside that range.
// Numbers between -1 and 1 are not converted, as g++ optimises real(int(x)) to a rounding that keeps the sign of -0.
FN int truncated(float x)  { return x >= 1 || x <= -1 ? int(clip(x, -2147483648.0f, 2147483520.0f)) : 0; }
FN int truncated(double x) { return x >= 1 || x <= -1 ? int(clip(x, -2147483648.0, 2147483647.0)) : 0; }

// x * x * ... with N factors, multiplied from the left.
template <int N, class T> FN T power(T x) {
    T product = x;
    UNROLL
    for (int k = 1; k < N; ++k) product = product * x;
    return product;
}

// x ** 0.5, which differs from square_root: it is 0 at -0 and inf at -inf.
template <class Real> FN Real root(Real x) { return x == -infinity<Real>() ? -x : square_root(x) + Real(0); }

template <class Real> FN Real tangent(Real x) {
    const SinCos<Real> of = sincos(x);
    return of.sin / of.cos;
}

}  // namespace python
