// What the sixteen lanes of a vector sum up to, or the largest of them, for sixteen vectors side by side:
// half the work of one vector after the other.
#pragma once

#include "kernels/integers.hpp"

namespace octavo::OCTAVO_ISA {

constexpr auto sum_of = [](auto x, auto y) { return x + y; };
constexpr auto larger_of_two = [](auto x, auto y) { return x > y ? x : y; };

#if defined(__AVX512F__)
// Lane i of the result is all lanes of x[i], reduced by `op`. Two vectors become one whose halves, quarters
// and so on belong to either, until each lane is a vector's.
template <class Op>
OCTAVO_INLINE IntLanes lane_reduce(const IntLanes (&x)[lane_count], Op op) {
  NativeInts pair[8], four[4], eight[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512i a = (__m512i)x[2 * i].part[0], b = (__m512i)x[2 * i + 1].part[0];
    pair[i] = op((NativeInts)_mm512_unpacklo_epi32(a, b), (NativeInts)_mm512_unpackhi_epi32(a, b));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = (__m512i)pair[2 * i], b = (__m512i)pair[2 * i + 1];
    four[i] = op((NativeInts)_mm512_unpacklo_epi64(a, b), (NativeInts)_mm512_unpackhi_epi64(a, b));
  }
  const auto quarters = [&](const NativeInts& first, const NativeInts& second) {
    const __m512i a = (__m512i)first, b = (__m512i)second;
    return op((NativeInts)_mm512_shuffle_i32x4(a, b, 0x88), (NativeInts)_mm512_shuffle_i32x4(a, b, 0xDD));
  };
  for (int i = 0; i < 2; ++i) eight[i] = quarters(four[2 * i], four[2 * i + 1]);
  return {{quarters(eight[0], eight[1])}};
}
#elif defined(__AVX2__)
template <class Op>
OCTAVO_INLINE IntLanes lane_reduce(const IntLanes (&x)[lane_count], Op op) {
  IntLanes out;
  OCTAVO_EACH_PART {
    NativeInts one[8], pair[4], four[2];
    for (int j = 0; j < 8; ++j) one[j] = op(x[8 * i + j].part[0], x[8 * i + j].part[1]);
    for (int j = 0; j < 4; ++j) {
      const __m256i a = (__m256i)one[2 * j], b = (__m256i)one[2 * j + 1];
      pair[j] = op((NativeInts)_mm256_unpacklo_epi32(a, b), (NativeInts)_mm256_unpackhi_epi32(a, b));
    }
    for (int j = 0; j < 2; ++j) {
      const __m256i a = (__m256i)pair[2 * j], b = (__m256i)pair[2 * j + 1];
      four[j] = op((NativeInts)_mm256_unpacklo_epi64(a, b), (NativeInts)_mm256_unpackhi_epi64(a, b));
    }
    const __m256i a = (__m256i)four[0], b = (__m256i)four[1];
    out.part[i] = op((NativeInts)_mm256_permute2x128_si256(a, b, 0x20),
                     (NativeInts)_mm256_permute2x128_si256(a, b, 0x31));
  }
  return out;
}
#else
template <class Op>
OCTAVO_INLINE IntLanes lane_reduce(const IntLanes (&x)[lane_count], Op op) {
  int32_t lane[lane_count];
  for (int i = 0; i < lane_count; ++i) {
    const NativeInts all = op(op(x[i].part[0], x[i].part[1]), op(x[i].part[2], x[i].part[3]));
    lane[i] = op(op(all[0], all[1]), op(all[2], all[3]));
  }
  IntLanes out;
  __builtin_memcpy(&out, lane, sizeof out);
  return out;
}
#endif

}  // namespace octavo::OCTAVO_ISA
