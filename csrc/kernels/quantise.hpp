// A row as 8-bit codes with one scale, and numbers as bfloat16: what the stores write and attention compares.
#pragma once

#include "kernels/halves.hpp"
#include "kernels/integers.hpp"

namespace octavo::OCTAVO_ISA {

// What numbers of a largest magnitude become: codes = round(x * inverse), and x is about scale * code. The
// scale is NaN, and codes 0, where an infinity or NaN is among them, or what is 2^104 or more: well before
// its scale times the origin of sums would leave float32; what is below 2^-100 counts as zero, so that no
// factor leaves float32 on the other side. A scale has 22 bits, so that the same product is exact.
struct Scale {
  float scale, inverse;
};

constexpr int32_t endless_magnitude = 0x73800000, least_magnitude = 0x0D800000;
constexpr int32_t scale_bits_kept = ~3;

// `top`: the bits of the largest magnitude. As integers, magnitudes compare like floats, with infinities and
// NaN above all.
OCTAVO_INLINE Scale scale_of(int32_t top) {
  if (top >= endless_magnitude) return {__builtin_nanf(""), 0.0f};
  if (top < least_magnitude) return {0.0f, 0.0f};
  const float largest = float_of_bits(static_cast<uint32_t>(top));
  int32_t scale;
  const float exact = largest / 127.0f;
  __builtin_memcpy(&scale, &exact, sizeof scale);
  return {float_of_bits(static_cast<uint32_t>(scale & scale_bits_kept)), 127.0f / largest};
}

// The same for 16 numbers' bits side by side.
OCTAVO_INLINE void store_scales(const IntLanes& tops, float* scales, float* inverses) {
  const Lanes largest = floats_of(tops), top_code = broadcast(127.0f);
  const IntLanes none = broadcast_int(0), nan = broadcast_int(0x7FC00000);
  IntLanes scale = bits_of(largest / top_code) & broadcast_int(scale_bits_kept),
           inverse = bits_of(top_code / largest);
  IntLanes is_endless, is_tiny;
  OCTAVO_EACH_PART is_endless.part[i] = tops.part[i] >= endless_magnitude;
  OCTAVO_EACH_PART is_tiny.part[i] = tops.part[i] < least_magnitude;
  scale = select(is_endless, nan, select(is_tiny, none, scale));
  inverse = select(is_endless, none, select(is_tiny, none, inverse));
  store(scales, floats_of(scale));
  store(inverses, floats_of(inverse));
}

// To the nearest integer, ties to even; adding 1.5 * 2^23 does that. Zeros where the scale has no inverse,
// whatever x is.
OCTAVO_INLINE IntLanes codes_of(const Lanes& x, const Scale& scale) {
  if (scale.inverse == 0.0f) return broadcast_int(0);
  return bits_of(fma(x, broadcast(scale.inverse), broadcast(12582912.0f))) - broadcast_int(0x4B400000);
}

OCTAVO_INLINE IntLanes magnitude_bits(const Lanes& x) { return bits_of(x) & broadcast_int(0x7FFFFFFF); }

struct Quantised {
  float scale;
  int32_t sum;  // of the codes
};

// Codes of `size` elements (any number) with one scale. Writes whole vectors: codes has room for `size`
// rounded up to 16, and zeros beyond `size`.
OCTAVO_INLINE Quantised quantise(const float* x, int64_t size, int8_t* codes) {
  IntLanes top = broadcast_int(0);
  for (int64_t i = 0; i < size; i += lane_count) {
    top = larger(top, magnitude_bits(load_first(x + i, size - i)));
  }
  const Scale scale = scale_of(largest_lane(top));
  IntLanes sums = broadcast_int(0);
  for (int64_t i = 0; i < size; i += lane_count) {
    const IntLanes code = codes_of(load_first(x + i, size - i), scale);
    store_bytes(codes + i, code);
    sums = sums + code;
  }
  return {scale.scale, sum_of_lanes(sums)};
}

// Sixteen numbers as bfloat16, in the low half of each lane: to the nearest, ties to even; NaN stays NaN.
OCTAVO_INLINE IntLanes brains_of(const Lanes& x) {
  const IntLanes bits = bits_of(x), upper = shift_right(bits, 16);
  IntLanes nan;
  OCTAVO_EACH_PART nan.part[i] = (bits.part[i] & 0x7FFFFFFF) > 0x7F800000;
  // The sign stays out of the sum, and so do the bits of NaN, which would overflow.
  const IntLanes body = bits & broadcast_int(0x7FFFFFFF), sign = bits - body;
  const IntLanes within = select(nan, broadcast_int(0), body);
  const IntLanes carried = within + broadcast_int(0x7FFF) + (upper & broadcast_int(1));
  const IntLanes nearest = select(nan, upper | broadcast_int(0x40), shift_right(carried | sign, 16));
  return nearest & broadcast_int(0xFFFF);
}

}  // namespace octavo::OCTAVO_ISA
