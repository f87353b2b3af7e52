// Sixteen floats that every instruction set computes alike: the only place that knows vector registers.
//
// `Lanes` is one AVX-512 register, two AVX2 registers or four 16-byte ones. Its operations are the IEEE ones,
// lane by lane, with an explicit fused multiply-add, so a kernel written over Lanes has the same bits on
// every machine.
//
// This header is compiled once per instruction set. It defines only names of the namespace OCTAVO_ISA and
// includes no C++ standard header with inline functions: a shared inline function, compiled for AVX-512 in
// one object file, could be chosen by the linker for all of them, and fail on a machine without it.
#pragma once

#include <stdint.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define OCTAVO_INLINE static inline __attribute__((always_inline))

namespace octavo::OCTAVO_ISA {

#if defined(__AVX512F__)
constexpr int native_bytes = 64;
#elif defined(__AVX2__)
constexpr int native_bytes = 32;
#else
constexpr int native_bytes = 16;
#endif

constexpr int lane_count = 16;
constexpr int parts = 64 / native_bytes;

typedef float NativeFloats __attribute__((vector_size(native_bytes)));
typedef float UnalignedFloats __attribute__((vector_size(native_bytes), aligned(4), may_alias));
typedef int32_t NativeInts __attribute__((vector_size(native_bytes)));

struct Lanes {
  NativeFloats part[parts];
};

struct IntLanes {
  NativeInts part[parts];
};

#define OCTAVO_EACH_PART _Pragma("GCC unroll 4") for (int i = 0; i < parts; ++i)

// Part by part, here and in `accumulate`: GCC keeps an array of parts in registers if it is never copied
// whole.
OCTAVO_INLINE Lanes load(const float* source) {
  Lanes out;
  OCTAVO_EACH_PART out.part[i] = *reinterpret_cast<const UnalignedFloats*>(source + i * (native_bytes / 4));
  return out;
}

OCTAVO_INLINE void store(float* target, const Lanes& x) {
  OCTAVO_EACH_PART { *reinterpret_cast<UnalignedFloats*>(target + i * (native_bytes / 4)) = x.part[i]; }
}

// The first `count` (1 to 16) floats, then zeros; nothing beyond them is read.
OCTAVO_INLINE Lanes load_first(const float* source, long count) {
  if (count >= lane_count) return load(source);
  Lanes out{};
  __builtin_memcpy(&out, source, static_cast<unsigned long>(count) * sizeof(float));
  return out;
}

OCTAVO_INLINE void store_first(float* target, const Lanes& x, long count) {
  if (count >= lane_count) return store(target, x);
  __builtin_memcpy(target, &x, static_cast<unsigned long>(count) * sizeof(float));
}

OCTAVO_INLINE Lanes broadcast(float value) {
  Lanes out;
#if defined(__AVX512F__)
  out.part[0] = _mm512_set1_ps(value);
#elif defined(__AVX2__)
  out.part[0] = out.part[1] = _mm256_set1_ps(value);
#else
  OCTAVO_EACH_PART out.part[i] = NativeFloats{value, value, value, value};
#endif
  return out;
}

OCTAVO_INLINE Lanes operator+(const Lanes& x, const Lanes& y) {
  Lanes out;
  OCTAVO_EACH_PART out.part[i] = x.part[i] + y.part[i];
  return out;
}

OCTAVO_INLINE Lanes operator-(const Lanes& x, const Lanes& y) {
  Lanes out;
  OCTAVO_EACH_PART out.part[i] = x.part[i] - y.part[i];
  return out;
}

OCTAVO_INLINE Lanes operator*(const Lanes& x, const Lanes& y) {
  Lanes out;
  OCTAVO_EACH_PART out.part[i] = x.part[i] * y.part[i];
  return out;
}

OCTAVO_INLINE Lanes operator/(const Lanes& x, const Lanes& y) {
  Lanes out;
  OCTAVO_EACH_PART out.part[i] = x.part[i] / y.part[i];
  return out;
}

OCTAVO_INLINE Lanes negative(const Lanes& x) {
  Lanes out;
  OCTAVO_EACH_PART out.part[i] = -x.part[i];
  return out;
}

// x * y + z with one rounding.
OCTAVO_INLINE Lanes fma(const Lanes& x, const Lanes& y, const Lanes& z) {
  Lanes out;
#if defined(__AVX512F__)
  out.part[0] = _mm512_fmadd_ps(x.part[0], y.part[0], z.part[0]);
#elif defined(__AVX2__)
  OCTAVO_EACH_PART out.part[i] = _mm256_fmadd_ps(x.part[i], y.part[i], z.part[i]);
#else
  OCTAVO_EACH_PART for (int lane = 0; lane < native_bytes / 4; ++lane) {
    out.part[i][lane] = __builtin_fmaf(x.part[i][lane], y.part[i][lane], z.part[i][lane]);
  }
#endif
  return out;
}

// sum = x * y + sum, in place.
OCTAVO_INLINE void accumulate(Lanes& sum, const Lanes& x, const Lanes& y) {
  const Lanes out = fma(x, y, sum);
  OCTAVO_EACH_PART sum.part[i] = out.part[i];
}

// All ones in the lanes where x < y; false for NaN.
OCTAVO_INLINE IntLanes less(const Lanes& x, const Lanes& y) {
  IntLanes out;
  OCTAVO_EACH_PART out.part[i] = x.part[i] < y.part[i];
  return out;
}

OCTAVO_INLINE Lanes select(const IntLanes& where, const Lanes& x, const Lanes& y) {
  Lanes out;
  OCTAVO_EACH_PART out.part[i] = where.part[i] ? x.part[i] : y.part[i];
  return out;
}

OCTAVO_INLINE IntLanes select(const IntLanes& where, const IntLanes& x, const IntLanes& y) {
  IntLanes out;
  OCTAVO_EACH_PART out.part[i] = where.part[i] ? x.part[i] : y.part[i];
  return out;
}

// The larger of the two, the smaller of the two; y where either is NaN, or both are equal.
OCTAVO_INLINE Lanes larger(const Lanes& x, const Lanes& y) {
#if defined(__AVX512F__)
  return {{(NativeFloats)_mm512_max_ps(x.part[0], y.part[0])}};
#elif defined(__AVX2__)
  return {{_mm256_max_ps(x.part[0], y.part[0]), _mm256_max_ps(x.part[1], y.part[1])}};
#else
  return select(less(y, x), x, y);
#endif
}

OCTAVO_INLINE Lanes smaller(const Lanes& x, const Lanes& y) {
#if defined(__AVX512F__)
  return {{(NativeFloats)_mm512_min_ps(x.part[0], y.part[0])}};
#elif defined(__AVX2__)
  return {{_mm256_min_ps(x.part[0], y.part[0]), _mm256_min_ps(x.part[1], y.part[1])}};
#else
  return select(less(x, y), x, y);
#endif
}

// x within [low, high]; NaN stays NaN.
OCTAVO_INLINE Lanes clamped(const Lanes& x, float low, float high) {
  return smaller(broadcast(high), larger(broadcast(low), x));
}

OCTAVO_INLINE IntLanes bits_of(const Lanes& x) {
  IntLanes out;
  OCTAVO_EACH_PART out.part[i] = (NativeInts)x.part[i];
  return out;
}

OCTAVO_INLINE Lanes floats_of(const IntLanes& x) {
  Lanes out;
  OCTAVO_EACH_PART out.part[i] = (NativeFloats)x.part[i];
  return out;
}

OCTAVO_INLINE IntLanes broadcast_int(int32_t value) {
  IntLanes out;
  OCTAVO_EACH_PART out.part[i] = NativeInts{} + value;
  return out;
}

OCTAVO_INLINE IntLanes operator+(const IntLanes& x, const IntLanes& y) {
  IntLanes out;
  OCTAVO_EACH_PART out.part[i] = x.part[i] + y.part[i];
  return out;
}

OCTAVO_INLINE IntLanes operator-(const IntLanes& x, const IntLanes& y) {
  IntLanes out;
  OCTAVO_EACH_PART out.part[i] = x.part[i] - y.part[i];
  return out;
}

OCTAVO_INLINE IntLanes operator*(const IntLanes& x, const IntLanes& y) {
  IntLanes out;
  OCTAVO_EACH_PART out.part[i] = x.part[i] * y.part[i];
  return out;
}

OCTAVO_INLINE IntLanes operator&(const IntLanes& x, const IntLanes& y) {
  IntLanes out;
  OCTAVO_EACH_PART out.part[i] = x.part[i] & y.part[i];
  return out;
}

OCTAVO_INLINE IntLanes operator|(const IntLanes& x, const IntLanes& y) {
  IntLanes out;
  OCTAVO_EACH_PART out.part[i] = x.part[i] | y.part[i];
  return out;
}

OCTAVO_INLINE IntLanes shift_left(const IntLanes& x, int bits) {
  IntLanes out;
  OCTAVO_EACH_PART out.part[i] = x.part[i] << bits;
  return out;
}

// Arithmetic: copies of the sign come in from above.
OCTAVO_INLINE IntLanes shift_right(const IntLanes& x, int bits) {
  IntLanes out;
  OCTAVO_EACH_PART out.part[i] = x.part[i] >> bits;
  return out;
}

// x times 2^n with one rounding, for whole n from -150 to 128 and x near 1.
OCTAVO_INLINE Lanes times_power_of_two(const Lanes& x, const Lanes& n) {
#if defined(__AVX512F__)
  return {{(NativeFloats)_mm512_scalef_ps(x.part[0], n.part[0])}};
#else
  // In two steps, of which the first is exact, because n may be below -126. Adding 1.5 * 2^23 leaves n in the
  // low bits.
  const IntLanes whole = bits_of(n + broadcast(12582912.0f)) - broadcast_int(0x4B400000);
  const IntLanes half = shift_right(whole, 1), bias = broadcast_int(127);
  return x * floats_of(shift_left(half + bias, 23)) * floats_of(shift_left(whole - half + bias, 23));
#endif
}

// f over all lanes as a fixed tree: of halves, then quarters, ... so the order never varies.
template <class F>
OCTAVO_INLINE float folded(const Lanes& x, F f) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
  const __m256 eight = f(_mm512_castps512_ps256(x.part[0]), _mm512_extractf32x8_ps(x.part[0], 1));
#else
  const __m256 eight = f(x.part[0], x.part[1]);
#endif
  const __m128 four = f(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = f(four, _mm_movehl_ps(four, four));
  return f(two[0], two[1]);
#else
  float lane[lane_count];
  store(lane, x);
  for (int half = lane_count / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lane[i] = f(lane[i], lane[i + half]);
  }
  return lane[0];
#endif
}

OCTAVO_INLINE float sum_of_lanes(const Lanes& x) {
  return folded(x, [](const auto& a, const auto& b) { return a + b; });
}

OCTAVO_INLINE float largest_lane(const Lanes& x) {
  return folded(x, [](const auto& a, const auto& b) { return b > a ? b : a; });
}

}  // namespace octavo::OCTAVO_ISA
