// exp, tanh and log of our own: the same operations for every lane and on every machine, unlike a vector
// library's.
//
// exp: Cody and Waite's reduction x = n ln 2 + r, |r| <= ln 2 / 2, then a polynomial of degree 7 in r; at
// most 2 ulp, also where the result is subnormal. tanh: by exp, and by its series near zero. log (double):
// atanh's series.
#pragma once

#include "kernels/simd.hpp"

namespace octavo::OCTAVO_ISA {

constexpr float infinity = __builtin_inff();

OCTAVO_INLINE Lanes exponential(const Lanes& x) {
  // 1. Clamp, so that n fits: exp(-104) rounds to 0, exp(89) is infinite. NaN passes through.
  const Lanes within = clamped(x, -104.0f, 89.0f);
  // 2. n = x / ln 2 to nearest: adding 1.5 * 2^23 rounds.
  const Lanes shifter = broadcast(12582912.0f);
  const Lanes n = fma(within, broadcast(1.44269504088896341f), shifter) - shifter;
  // 3. r = x - n ln 2, with ln 2 in two pieces of which the first times n is exact.
  Lanes r = fma(n, broadcast(-0.693359375f), within);
  r = fma(n, broadcast(2.12194440e-4f), r);
  // 4. exp(r) by its Taylor polynomial; its error is below 2^-27 here.
  Lanes p = broadcast(1.0f / 5040.0f);
  p = fma(p, r, broadcast(1.0f / 720.0f));
  p = fma(p, r, broadcast(1.0f / 120.0f));
  p = fma(p, r, broadcast(1.0f / 24.0f));
  p = fma(p, r, broadcast(1.0f / 6.0f));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  return times_power_of_two(p, n);
}

// exp(x) for x <= 0, within 5e-6 of itself and exactly 1 at 0: for weights that are rounded to bfloat16 next,
// whose steps are a thousand times wider. NaN passes through, below exp(-104) is 0.
OCTAVO_INLINE Lanes exponential_for_rounding(const Lanes& x) {
  const Lanes within = larger(broadcast(-104.0f), x), per_ln2 = broadcast(1.44269504088896341f);
  const Lanes shifter = broadcast(12582912.0f);
  const Lanes n = fma(within, per_ln2, shifter) - shifter;
  const Lanes f = fma(within, per_ln2, negative(n));  // |f| <= 1/2
  // 2^f by the polynomial of degree 4 whose largest relative error is smallest, given that it is 1 at 0.
  Lanes p = broadcast(0.009582853f);
  p = fma(p, f, broadcast(0.055906426f));
  p = fma(p, f, broadcast(0.24024099f));
  p = fma(p, f, broadcast(0.6931242f));
  p = fma(p, f, broadcast(1.0f));
  return times_power_of_two(p, n);
}

OCTAVO_INLINE Lanes hyperbolic_tangent(const Lanes& x) {
  const IntLanes sign_bit = broadcast_int(static_cast<int32_t>(0x80000000u));
  const IntLanes magnitude_bits = broadcast_int(0x7FFFFFFF);
  const Lanes size = floats_of(bits_of(x) & magnitude_bits);
  // Away from zero: 1 - 2 / (exp(2 |x|) + 1), with the sign put back.
  const Lanes one = broadcast(1.0f), two = broadcast(2.0f);
  const Lanes far = one - two / (exponential(size + size) + one);
  const Lanes signed_far = floats_of(bits_of(far) | (bits_of(x) & sign_bit));
  // Near zero that form cancels: the series, to x^13 (the next term is below 2^-27 of the result).
  const Lanes z = x * x;
  Lanes p = broadcast(21844.0f / 6081075.0f);
  p = fma(p, z, broadcast(-1382.0f / 155925.0f));
  p = fma(p, z, broadcast(62.0f / 2835.0f));
  p = fma(p, z, broadcast(-17.0f / 315.0f));
  p = fma(p, z, broadcast(2.0f / 15.0f));
  p = fma(p, z, broadcast(-1.0f / 3.0f));
  const Lanes near = fma(p * z, x, x);
  return select(less(size, broadcast(0.4f)), near, signed_far);
}

// The natural logarithm of a positive normal double, within about 1e-16 relative, without fused operations:
// plain arithmetic is what compilers vectorise equally for all instruction sets.
OCTAVO_INLINE double logarithm(double x) {
  uint64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  // x = 2^e m, m in [1, 2). The exponent becomes a double by standing in the low bits of 2^52.
  const uint64_t exponent_bits = (bits >> 52) | 0x4330000000000000ull;
  const uint64_t mantissa_bits = (bits & 0x000FFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
  double e, m;
  __builtin_memcpy(&e, &exponent_bits, sizeof e);
  __builtin_memcpy(&m, &mantissa_bits, sizeof m);
  e -= 4503599627370496.0 + 1023.0;
  const bool upper = m > 1.4142135623730951;
  m = upper ? 0.5 * m : m;
  e = upper ? e + 1.0 : e;
  // log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double p = 1.0 / 21;
  p = p * z + 1.0 / 19;
  p = p * z + 1.0 / 17;
  p = p * z + 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  const double tail = 2.0 * s * z * p + e * 1.9082149292705877e-10;  // and the low piece of ln 2
  return e * 0.69314718036912382 + (2.0 * s + tail);
}

}  // namespace octavo::OCTAVO_ISA
