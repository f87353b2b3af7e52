// Quantising weights anew: 32 floats to a block of Q8_0 or Q4_1, by ggml's arithmetic, to the bit.
#pragma once

#include "kernels/halves.hpp"
#include "kernels/kernels.hpp"

namespace octavo::OCTAVO_ISA {

constexpr uint16_t half_nan = 0x7E00;

OCTAVO_INLINE float clamped(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

OCTAVO_INLINE void write_u16(uint8_t* target, uint16_t value) {
  __builtin_memcpy(target, &value, sizeof value);
}

// d = largest magnitude / 127; codes are x / d to nearest, ties away from zero. A weight that is no number
// gives a scale that is none. `block` has 34 bytes.
OCTAVO_INLINE void encode_q8_0(const float* x, uint8_t* block) {
  uint32_t top = 0;  // as integers, magnitudes compare like floats, with infinities and NaN above all
  for (int i = 0; i < quant_group; ++i) {
    const uint32_t magnitude = bits_of_float(x[i]) & 0x7FFFFFFF;
    top = magnitude > top ? magnitude : top;
  }
  const bool finite = top < 0x7F800000;
  const float d = finite ? float_of_bits(top) / 127.0f : 0.0f;
  const float inverse = d > 0.0f ? 1.0f / d : 0.0f;
  write_u16(block, finite ? half_of_float(d) : half_nan);
  for (int i = 0; i < quant_group; ++i) {
    const float code = finite ? clamped(x[i] * inverse, -127.0f, 127.0f) : 0.0f;
    const float size = code < 0.0f ? -code : code;
    const int32_t whole = static_cast<int32_t>(size);
    const int32_t rounded = whole + (size - static_cast<float>(whole) >= 0.5f ? 1 : 0);
    block[2 + i] = static_cast<uint8_t>(code < 0.0f ? -rounded : rounded);
  }
}

// m = the smallest, d = (largest - m) / 15; codes are (x - m) / d to nearest, ties up. `block` has 20 bytes.
OCTAVO_INLINE void encode_q4_1(const float* x, uint8_t* block) {
  float low = x[0], high = x[0];
  bool finite = true;
  for (int i = 0; i < quant_group; ++i) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
    finite = finite && (bits_of_float(x[i]) & 0x7FFFFFFF) < 0x7F800000;
  }
  const float d = finite ? (high - low) / 15.0f : 0.0f;
  const float inverse = d > 0.0f ? 1.0f / d : 0.0f;
  write_u16(block, finite ? half_of_float(d) : half_nan);
  write_u16(block + 2, finite ? half_of_float(low) : half_nan);
  uint8_t codes[quant_group];
  for (int i = 0; i < quant_group; ++i) {
    const float code = finite ? (x[i] - low) * inverse + 0.5f : 0.0f;
    codes[i] = static_cast<uint8_t>(static_cast<int32_t>(clamped(code, 0.0f, 15.0f)));
  }
  for (int i = 0; i < 16; ++i) block[4 + i] = static_cast<uint8_t>(codes[i] | codes[i + 16] << 4);
}

}  // namespace octavo::OCTAVO_ISA
