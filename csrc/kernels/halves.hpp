// The file formats' scalars: 16-bit floats of two kinds, read from bytes that need not be aligned.
#pragma once

#include "kernels/simd.hpp"

namespace octavo::OCTAVO_ISA {

OCTAVO_INLINE float float_of_bits(uint32_t bits) {
  float out;
  __builtin_memcpy(&out, &bits, sizeof out);
  return out;
}

OCTAVO_INLINE uint16_t read_u16(const uint8_t* data) {
  uint16_t out;
  __builtin_memcpy(&out, data, sizeof out);
  return out;
}

// Exact, for every bit pattern: the exponent is moved by a multiplication, which treats subnormals rightly.
OCTAVO_INLINE float float_of_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t body = static_cast<uint32_t>(half & 0x7FFF) << 13;
  const float moved = float_of_bits(body) * 0x1p112f;
  uint32_t bits;
  __builtin_memcpy(&bits, &moved, sizeof bits);
  bits = body >= 0x0F800000u ? (body | 0x7F800000u) : bits;  // infinities and NaN
  return float_of_bits(bits | sign);
}

OCTAVO_INLINE float float_of_brain(uint16_t brain) {
  return float_of_bits(static_cast<uint32_t>(brain) << 16);
}

// Sixteen halves that lie side by side.
OCTAVO_INLINE Lanes load_halves(const uint8_t* source) {
  Lanes out;
#if defined(__AVX512F__)
  out.part[0] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
#elif defined(__AVX2__)
  OCTAVO_EACH_PART out.part[i] =
      _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + 16 * i)));
#else
  float lane[lane_count];
  for (int i = 0; i < lane_count; ++i) lane[i] = float_of_half(read_u16(source + 2 * i));
  out = load(lane);
#endif
  return out;
}

// Sixteen bfloat16 that lie side by side.
OCTAVO_INLINE Lanes load_brains(const uint8_t* source) {
  IntLanes bits;
#if defined(__AVX512F__)
  bits.part[0] =
      (NativeInts)_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
#elif defined(__AVX2__)
  OCTAVO_EACH_PART bits.part[i] = (NativeInts)_mm256_cvtepu16_epi32(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + 16 * i)));
#else
  int32_t lane[lane_count];
  for (int i = 0; i < lane_count; ++i) lane[i] = read_u16(source + 2 * i);
  __builtin_memcpy(&bits, lane, sizeof bits);
#endif
  return floats_of(shift_left(bits, 16));
}

}  // namespace octavo::OCTAVO_ISA
