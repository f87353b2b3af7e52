// Products of pairs of bfloat16, summed in float32: one instruction for both where the machine has it
// (AVX512_BF16), the same two steps elsewhere.
//
// To a lane's sum comes the product of the pair's second numbers, then that of the first ones, each in one
// fused step, and subnormal numbers count as zero: so the instruction is defined (Intel's manual, VDPBF16PS),
// and so x86's other instruction sets compute while `FlushingMode` lasts. A pair is one 32-bit word, the
// first number in its low half.
#pragma once

#include "kernels/prefetch_cursor.hpp"
#include "kernels/integers.hpp"

namespace octavo::OCTAVO_ISA {

// How a row's numbers wait for the pairs that they meet: rounded to bfloat16, in 16 bits or still as floats.
#if defined(__AVX512BF16__)
typedef uint16_t Paired __attribute__((may_alias));
#else
typedef float Paired __attribute__((may_alias));
#endif

constexpr int64_t paired_per_float = sizeof(float) / sizeof(Paired);

constexpr int32_t every_pair = -1, first_of_pair = 0x0000FFFF, second_of_pair = ~first_of_pair;

// Subnormal numbers are read and written as zero while it lives, on x86.
class FlushingMode {
 public:
#if defined(__x86_64__)
  FlushingMode() : saved_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(saved_ | 0x8040); }
  ~FlushingMode() { __builtin_ia32_ldmxcsr(saved_); }

 private:
  unsigned saved_;
#else
  FlushingMode() {}
  ~FlushingMode() {}
#endif

 public:
  FlushingMode(const FlushingMode&) = delete;
  FlushingMode& operator=(const FlushingMode&) = delete;
};

// Sixteen numbers rounded to the nearest bfloat16, ties to even, as floats; subnormal ones are zero, and what
// is NaN stays NaN.
OCTAVO_INLINE Lanes rounded(const Lanes& x) {
  const IntLanes bits = bits_of(x), one = broadcast_int(1);
  const IntLanes body = bits & broadcast_int(0x7FFFFFFF), sign = bits - body;
  IntLanes nan, subnormal;
  OCTAVO_EACH_PART nan.part[i] = body.part[i] > 0x7F800000;
  OCTAVO_EACH_PART subnormal.part[i] = body.part[i] < 0x00800000;
  const IntLanes within = select(nan, broadcast_int(0), body);
  const IntLanes carried = within + broadcast_int(0x7FFF) + (shift_right(within, 16) & one);
  const IntLanes nearest = select(nan, bits | broadcast_int(0x400000), sign | carried);
  return floats_of(select(subnormal, sign, nearest) & broadcast_int(second_of_pair));
}

// The same for weights: none is negative, and what is NaN was left by arithmetic (so it is quiet already).
OCTAVO_INLINE Lanes rounded_weights(const Lanes& x) {
  const IntLanes bits = bits_of(x), one = broadcast_int(1), none = broadcast_int(0);
  const IntLanes carried = bits + broadcast_int(0x7FFF) + (shift_right(bits, 16) & one);
  IntLanes nan, subnormal;
  OCTAVO_EACH_PART nan.part[i] = x.part[i] != x.part[i];
  OCTAVO_EACH_PART subnormal.part[i] = bits.part[i] < 0x00800000;
  const IntLanes nearest = select(subnormal, none, carried);
  return floats_of(select(nan, bits, nearest) & broadcast_int(second_of_pair));
}

// Writes sixteen numbers, rounded, to where `multiply_pairs` will read them, and returns them.
OCTAVO_INLINE Lanes store_paired(Paired* target, const Lanes& x) {
#if defined(__AVX512BF16__)
  const __m256i brains = (__m256i)_mm512_cvtneps_pbh(x.part[0]);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), brains);
  return {{(NativeFloats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(brains), 16)}};
#else
  const Lanes nearest = rounded(x);
  store(target, nearest);
  return nearest;
#endif
}

// The same for weights.
OCTAVO_INLINE Lanes store_paired_weights(Paired* target, const Lanes& x) {
#if defined(__AVX512BF16__)
  return store_paired(target, x);
#else
  const Lanes nearest = rounded_weights(x);
  store(target, nearest);
  return nearest;
#endif
}

// Two numbers that every lane is multiplied with, in the form that the product of pairs takes.
struct Two {
#if defined(__AVX512BF16__)
  __m512i words;
#else
  Lanes first, second;
#endif
};

OCTAVO_INLINE Two broadcast_two(const Paired* x) {
#if defined(__AVX512BF16__)
  int32_t word;
  __builtin_memcpy(&word, x, sizeof word);
  Two two{_mm512_set1_epi32(word)};
  asm("" : "+v"(two.words));  // else it would be loaded again for every use: loads are what is scarce
  return two;
#else
  return {broadcast(x[0]), broadcast(x[1])};
#endif
}

// sum[lane] += the products of the lane's pair and the two numbers.
OCTAVO_INLINE void accumulate_pairs(Lanes& sum, const IntLanes& words, const Two& two) {
#if defined(__AVX512BF16__)
  sum.part[0] =
      (NativeFloats)_mm512_dpbf16_ps((__m512)sum.part[0], (__m512bh)words.part[0], (__m512bh)two.words);
#else
  accumulate(sum, two.second, floats_of(words & broadcast_int(second_of_pair)));
  accumulate(sum, two.first, floats_of(shift_left(words, 16)));
#endif
}

#if !defined(__AVX512BF16__)
// acc[r][p] += x[r]'s number times one half of the pairs w[p], of which only those in `mask` count.
template <bool second, int32_t mask, int R, int P>
OCTAVO_INLINE void multiply_halves(const Paired* x, int64_t x_stride, const uint8_t* const* w, int64_t at,
                                   Lanes (&acc)[R][P]) {
  Lanes number[P];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
    OCTAVO_EACH_PART {
      NativeInts words;
      __builtin_memcpy(&words, w[p] + at + i * native_bytes, sizeof words);
      if constexpr (mask != every_pair) words &= mask;
      number[p].part[i] = (NativeFloats)(second ? words & second_of_pair : words << 16);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Lanes value = broadcast(x[r * x_stride + second]);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) accumulate(acc[r][p], value, number[p]);
  }
}
#endif

// acc[r][p] += x[r]'s pair times the pairs at w[p] + at, of which only the halves in `mask` count.
template <int32_t mask, int R, int P>
OCTAVO_INLINE void multiply_pair(const Paired* x, int64_t x_stride, const uint8_t* const* w, int64_t at,
                                 Lanes (&acc)[R][P]) {
#if defined(__AVX512BF16__)
  IntLanes words[P];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) words[p] = load_words(w[p] + at) & broadcast_int(mask);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Two two = broadcast_two(x + r * x_stride);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) accumulate_pairs(acc[r][p], words[p], two);
  }
#else
  // All second products, then all first ones: half as many widened numbers at a time.
  multiply_halves<true, mask, R, P>(x, x_stride, w, at, acc);
  multiply_halves<false, mask, R, P>(x, x_stride, w, at, acc);
#endif
}

// acc[r][p] += sum over pairs i of x[r]'s pair i times the pairs w[p][i * stride ...], i ascending, of which
// only the halves in `mask` count. Each step also prefetches the same offset from `upcoming`.
template <int32_t mask, int R, int P>
OCTAVO_INLINE void multiply_pairs(const Paired* x, int64_t x_stride, const uint8_t* const* w,
                                  const uint8_t* const* upcoming, int64_t stride, int64_t pairs,
                                  Lanes (&acc)[R][P]) {
  for (int64_t i = 0; i < pairs; ++i) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) prefetch(upcoming[p] + i * stride);
    multiply_pair<mask, R, P>(x + 2 * i, x_stride, w, i * stride, acc);
  }
}

}  // namespace octavo::OCTAVO_ISA
