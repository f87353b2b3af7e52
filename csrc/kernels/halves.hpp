// 16-bit floats of two kinds: half (10 bits behind the point) and brain (7), from and to float32.
#pragma once

#include "kernels/simd.hpp"

namespace octavo::OCTAVO_ISA {

struct Half {
  uint16_t bits;
};

struct Brain {
  uint16_t bits;
};

// Whether two inputs of an output lie side by side in a panel.
template <class Stored>
constexpr bool in_pairs = false;
template <>
constexpr bool in_pairs<Brain> = true;

OCTAVO_INLINE uint32_t bits_of_float(float value) {
  uint32_t out;
  __builtin_memcpy(&out, &value, sizeof out);
  return out;
}

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
  const uint32_t bits = body >= 0x0F800000u ? (body | 0x7F800000u) : bits_of_float(moved);  // infinities, NaN
  return float_of_bits(bits | sign);
}

OCTAVO_INLINE float float_of_brain(uint16_t brain) {
  return float_of_bits(static_cast<uint32_t>(brain) << 16);
}

// To nearest, ties to even; what is too large becomes infinite, a NaN stays one.
OCTAVO_INLINE uint16_t half_of_float(float value) {
  const uint32_t bits = bits_of_float(value), body = bits & 0x7FFFFFFF, sign = bits >> 16 & 0x8000;
  uint32_t half;
  if (body > 0x7F800000) {
    half = 0x7E00;
  } else if (body >= 0x47800000) {  // 2^16
    half = 0x7C00;
  } else if (body >= 0x38800000) {  // 2^-14, the smallest normal half; a carry goes on into the exponent
    half = (body - (112u << 23) + 0xFFF + (body >> 13 & 1)) >> 13;
  } else {  // adding 1/2 rounds to a multiple of 2^-24, the spacing of subnormal halves
    half = bits_of_float(float_of_bits(body) + 0.5f) - bits_of_float(0.5f);
  }
  return static_cast<uint16_t>(sign | half);
}

// Likewise.
OCTAVO_INLINE uint16_t brain_of_float(float value) {
  const uint32_t bits = bits_of_float(value);
  const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  return static_cast<uint16_t>((nan ? bits | 0x400000 : bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
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

OCTAVO_INLINE Lanes load(const Half* source) {
  return load_halves(reinterpret_cast<const uint8_t*>(source));
}

OCTAVO_INLINE Lanes load(const Brain* source) {
  Lanes out;
#if defined(__AVX512F__)
  const __m256i brains = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
  out.part[0] = (NativeFloats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(brains), 16);
#elif defined(__AVX2__)
  OCTAVO_EACH_PART {
    const __m128i brains = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + 8 * i));
    out.part[i] = (NativeFloats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(brains), 16);
  }
#else
  float lane[lane_count];
  for (int i = 0; i < lane_count; ++i) lane[i] = float_of_brain(source[i].bits);
  out = load(lane);
#endif
  return out;
}

OCTAVO_INLINE float value_of(float stored) { return stored; }
OCTAVO_INLINE float value_of(Half stored) { return float_of_half(stored.bits); }
OCTAVO_INLINE float value_of(Brain stored) { return float_of_brain(stored.bits); }

OCTAVO_INLINE void assign(float& stored, float value) { stored = value; }
OCTAVO_INLINE void assign(Half& stored, float value) { stored.bits = half_of_float(value); }
OCTAVO_INLINE void assign(Brain& stored, float value) { stored.bits = brain_of_float(value); }

}  // namespace octavo::OCTAVO_ISA
