// Quantises weights again: 32 floats to a block of Q8_0 or Q4_1, by ggml's arithmetic, to the bit.
#pragma once

#include "kernels/halves.hpp"
#include "kernels/integers.hpp"
#include "kernels/kernels.hpp"

namespace octavo::OCTAVO_ISA {

constexpr uint16_t half_nan = 0x7E00;

// Towards zero; x is far within 32 bits.
OCTAVO_INLINE IntLanes truncated(const Lanes& x) {
  IntLanes out;
  OCTAVO_EACH_PART out.part[i] = __builtin_convertvector(x.part[i], NativeInts);
  return out;
}

// To nearest, ties away from zero.
OCTAVO_INLINE IntLanes rounded(const Lanes& x) {
  const Lanes size = floats_of(bits_of(x) & broadcast_int(0x7FFFFFFF));
  const IntLanes whole = truncated(size);
  const IntLanes is_low = less(size - converted(whole), broadcast(0.5f));  // minus one where true
  const IntLanes up = whole + broadcast_int(1) + is_low;
  return select(less(x, broadcast(0.0f)), broadcast_int(0) - up, up);
}

OCTAVO_INLINE void write_u16(uint8_t* target, uint16_t value) {
  __builtin_memcpy(target, &value, sizeof value);
}

// The bits of the largest magnitude of 32 floats. As integers, magnitudes compare like floats, with infinities
// and NaN above all: from `infinite_bits` on, one of the floats is not finite.
OCTAVO_INLINE uint32_t largest_magnitude(const float* x) {
  const IntLanes mask = broadcast_int(0x7FFFFFFF);
  const IntLanes first = bits_of(load(x)) & mask, second = bits_of(load(x + lane_count)) & mask;
  return static_cast<uint32_t>(largest_lane(larger(first, second)));
}

constexpr uint32_t infinite_bits = 0x7F800000;

// d = largest magnitude / 127; codes are x / d to nearest, ties away from zero. A weight that is no number
// gives a scale that is none. `block` has 34 bytes.
OCTAVO_INLINE void encode_q8_0(const float* x, uint8_t* block) {
  const uint32_t top = largest_magnitude(x);
  if (top >= infinite_bits) {
    __builtin_memset(block, 0, 2 + quant_group);
    return write_u16(block, half_nan);
  }
  const float d = float_of_bits(top) / 127.0f;
  const float inverse = d > 0.0f ? 1.0f / d : 0.0f;
  write_u16(block, half_of_float(d));
  int8_t* codes = reinterpret_cast<int8_t*>(block + 2);
  for (int i = 0; i < quant_group; i += lane_count) {
    store_bytes(codes + i, rounded(clamped(load(x + i) * broadcast(inverse), -127.0f, 127.0f)));
  }
}

// m = the smallest, d = (largest - m) / 15; codes are (x - m) / d to nearest, ties up. `block` has 20 bytes.
OCTAVO_INLINE void encode_q4_1(const float* x, uint8_t* block) {
  if (largest_magnitude(x) >= infinite_bits) {
    __builtin_memset(block, 0, 4 + quant_group / 2);
    write_u16(block, half_nan);
    return write_u16(block + 2, half_nan);
  }
  const Lanes first = load(x), second = load(x + lane_count), zero{};
  const float high = 0.0f + largest_lane(larger(first, second));  // never -0, both
  const float low = 0.0f - largest_lane(larger(zero - first, zero - second));
  const float d = (high - low) / 15.0f;
  const float inverse = d > 0.0f ? 1.0f / d : 0.0f;
  write_u16(block, half_of_float(d));
  write_u16(block + 2, half_of_float(low));
  int8_t codes[quant_group];
  for (int i = 0; i < quant_group; i += lane_count) {
    const Lanes steps = (load(x + i) - broadcast(low)) * broadcast(inverse) + broadcast(0.5f);
    store_bytes(codes + i, truncated(clamped(steps, 0.0f, 15.0f)));
  }
  for (int i = 0; i < 16; ++i) block[4 + i] = static_cast<uint8_t>(codes[i] | codes[i + 16] << 4);
}

}  // namespace octavo::OCTAVO_ISA
