// A row as 8-bit codes with one scale, and numbers as bfloat16: what the stores write and attention compares.
#pragma once

#include "kernels/halves.hpp"
#include "kernels/integers.hpp"

namespace octavo::OCTAVO_ISA {

struct Quantised {
  float scale;  // largest magnitude / 127; NaN if the row holds an infinity or NaN
  int32_t sum;  // of the codes
};

// codes[i] = round(x[i] / scale), ties to even, for `size` elements (any number). Writes whole vectors: codes
// has room for `size` rounded up to 16, and zeros beyond `size`.
OCTAVO_INLINE Quantised quantise(const float* x, int64_t size, int8_t* codes) {
  const Lanes shifter = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest even integer
  const IntLanes magnitude = broadcast_int(0x7FFFFFFF), shifter_bits = broadcast_int(0x4B400000);
  // 1. The largest magnitude. As integers, magnitudes compare like floats, with infinities and NaN above all.
  IntLanes top_bits = broadcast_int(0);
  for (int64_t i = 0; i < size; i += lane_count) {
    top_bits = larger(top_bits, bits_of(load_first(x + i, size - i)) & magnitude);
  }
  const int32_t top = largest_lane(top_bits);
  const float scale =
      top >= 0x7F800000 ? __builtin_nanf("") : float_of_bits(static_cast<uint32_t>(top)) / 127.0f;
  // 2. The codes, clamped because a subnormal scale may have been rounded far down.
  const Lanes high = broadcast(127.0f), low = broadcast(-127.0f);
  IntLanes sums = broadcast_int(0);
  for (int64_t i = 0; i < size; i += lane_count) {
    Lanes ratio = scale > 0.0f ? load_first(x + i, size - i) / broadcast(scale) : broadcast(0.0f);
    ratio = select(less(high, ratio), high, select(less(ratio, low), low, ratio));
    const IntLanes code = bits_of(ratio + shifter) - shifter_bits;
    store_bytes(codes + i, code);
    sums = sums + code;
  }
  return {scale, sum_of_lanes(sums)};
}

// To the nearest even; what is NaN stays NaN.
OCTAVO_INLINE uint16_t brain_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  return static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? bits >> 16 | 0x40 : rounded);
}

}  // namespace octavo::OCTAVO_ISA
