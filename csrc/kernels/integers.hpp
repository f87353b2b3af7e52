// Sixteen integer sums side by side, and the products of bytes that feed them: exact on every machine.
#pragma once

#include "kernels/kernels.hpp"
#include "kernels/simd.hpp"

namespace octavo::OCTAVO_ISA {

typedef int32_t UnalignedInts __attribute__((vector_size(native_bytes), aligned(1), may_alias));

// 64 bytes: one 32-bit word for each lane, whatever the word is made of. Part by part: GCC copies a whole
// through memory, in pieces that are narrower than what is then read.
OCTAVO_INLINE IntLanes load_words(const uint8_t* source) {
  IntLanes out;
  OCTAVO_EACH_PART out.part[i] = *reinterpret_cast<const UnalignedInts*>(source + i * native_bytes);
  return out;
}

OCTAVO_INLINE void store_words(uint8_t* target, const IntLanes& words) {
  OCTAVO_EACH_PART { *reinterpret_cast<UnalignedInts*>(target + i * native_bytes) = words.part[i]; }
}

// Which instruction multiplies bytes: one for four products (VNNI), of 64 or 32 bytes, or AVX2's.
#if defined(__AVX512VNNI__)
#define OCTAVO_BYTES_512
#elif defined(__AVXVNNI__)
#define OCTAVO_BYTES_256
#elif defined(__AVX2__)
#define OCTAVO_BYTES_WIDENED
#endif

// Four signed bytes that every lane is multiplied with, in the form that the product of bytes takes.
struct Four {
#if defined(OCTAVO_BYTES_512)
  __m512i bytes;
#elif defined(OCTAVO_BYTES_256)
  __m256i bytes;
#elif defined(OCTAVO_BYTES_WIDENED)
  __m256i even, odd;  // widened to 16 bits
#else
  int32_t byte[4];
#endif
};

OCTAVO_INLINE Four broadcast_four(const int8_t* x) {
#if defined(OCTAVO_BYTES_512)
  int32_t word;
  __builtin_memcpy(&word, x, sizeof word);
  Four four{_mm512_set1_epi32(word)};
  asm("" : "+v"(four.bytes));  // else it would be loaded again for every use: loads are what is scarce
  return four;
#elif defined(OCTAVO_BYTES_256)
  int32_t word;
  __builtin_memcpy(&word, x, sizeof word);
  return {_mm256_set1_epi32(word)};
#elif defined(OCTAVO_BYTES_WIDENED)
  int32_t word;
  __builtin_memcpy(&word, x, sizeof word);
  const __m256i given = _mm256_set1_epi32(word);
  return {_mm256_srai_epi16(_mm256_slli_epi16(given, 8), 8), _mm256_srai_epi16(given, 8)};
#else
  return {{x[0], x[1], x[2], x[3]}};
#endif
}

// sum[lane] += the products of the lane's four unsigned bytes in w and the four signed bytes of x.
// No partial product saturates: AVX2 widens to 16 bits first, because its own product of bytes does.
OCTAVO_INLINE void accumulate_dots(IntLanes& sum, const IntLanes& w, const Four& x) {
#if defined(OCTAVO_BYTES_512)
  sum.part[0] = (NativeInts)_mm512_dpbusd_epi32((__m512i)sum.part[0], (__m512i)w.part[0], x.bytes);
#elif defined(OCTAVO_BYTES_256)
  OCTAVO_EACH_PART {
    sum.part[i] = (NativeInts)_mm256_dpbusd_avx_epi32((__m256i)sum.part[i], (__m256i)w.part[i], x.bytes);
  }
#elif defined(OCTAVO_BYTES_WIDENED)
  OCTAVO_EACH_PART {
    const __m256i weight = (__m256i)w.part[i];
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(weight, _mm256_set1_epi16(255)), x.even);
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(weight, 8), x.odd);
    sum.part[i] += (NativeInts)_mm256_add_epi32(even, odd);
    asm("" : "+x"(sum.part[i]));  // else GCC puts sums off, and keeps what is to be summed on the stack
  }
#else
  OCTAVO_EACH_PART {
    sum.part[i] += (w.part[i] & 255) * x.byte[0] + ((w.part[i] >> 8) & 255) * x.byte[1] +
                   ((w.part[i] >> 16) & 255) * x.byte[2] + ((w.part[i] >> 24) & 255) * x.byte[3];
  }
#endif
}

OCTAVO_INLINE void accumulate_dots(IntLanes& sum, const IntLanes& w, const int8_t* x) {
  accumulate_dots(sum, w, broadcast_four(x));
}

// Where the unsigned bytes are below 16, AVX2's own product of bytes is exact and half the work: sixteen
// products of 15 and 128 at most fit the 16 bits in which it sums, so eight words do.
#if defined(OCTAVO_BYTES_WIDENED)
constexpr bool has_short_sums = true;

// sum's 16-bit halves += the products of two bytes each.
OCTAVO_INLINE void accumulate_small(IntLanes& sum, const IntLanes& w, const int8_t* x) {
  int32_t word;
  __builtin_memcpy(&word, x, sizeof word);
  const __m256i given = _mm256_set1_epi32(word);
  OCTAVO_EACH_PART {
    const __m256i products = _mm256_maddubs_epi16((__m256i)w.part[i], given);
    sum.part[i] = (NativeInts)_mm256_add_epi16((__m256i)sum.part[i], products);
    asm("" : "+x"(sum.part[i]));
  }
}

// What a lane's two halves sum up to.
OCTAVO_INLINE IntLanes short_sums(const IntLanes& halves) {
  IntLanes out;
  OCTAVO_EACH_PART {
    out.part[i] = (NativeInts)_mm256_madd_epi16((__m256i)halves.part[i], _mm256_set1_epi16(1));
  }
  return out;
}
#else
constexpr bool has_short_sums = false;
OCTAVO_INLINE void accumulate_small(IntLanes& sum, const IntLanes& w, const int8_t* x) {
  accumulate_dots(sum, w, x);
}
OCTAVO_INLINE IntLanes short_sums(const IntLanes& sum) { return sum; }
#endif

// Each byte, which is below 16, as the table has it.
OCTAVO_INLINE IntLanes looked_up(const uint8_t (&table)[16], const IntLanes& codes) {
  IntLanes out;
#if defined(__AVX512F__)
  const __m128i values = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  out.part[0] =
      (NativeInts)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), (__m512i)codes.part[0]);
#elif defined(__AVX2__)
  const __m128i values = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  OCTAVO_EACH_PART {
    out.part[i] =
        (NativeInts)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), (__m256i)codes.part[i]);
  }
#else
  uint8_t bytes[4 * lane_count];
  __builtin_memcpy(bytes, &codes, sizeof bytes);
  for (uint8_t& byte : bytes) byte = table[byte];
  __builtin_memcpy(&out, bytes, sizeof bytes);
#endif
  return out;
}

// As floats: exact below 2^24.
OCTAVO_INLINE Lanes converted(const IntLanes& x) {
  Lanes out;
  OCTAVO_EACH_PART out.part[i] = __builtin_convertvector(x.part[i], NativeFloats);
  return out;
}

// The integers in `sums`, which started at origin_bits, times `scale`, rounded once; `minus_origin` is minus
// the origin times the scale, exactly.
OCTAVO_INLINE Lanes scaled(const IntLanes& sums, const Lanes& scale,
                           [[maybe_unused]] const Lanes& minus_origin) {
#if defined(__AVX2__)
  return fma(floats_of(sums), scale, minus_origin);
#else
  return converted(sums - broadcast_int(origin_bits)) * scale;  // here a fused step is a call
#endif
}

OCTAVO_INLINE IntLanes larger(const IntLanes& x, const IntLanes& y) {
  IntLanes out;
  OCTAVO_EACH_PART out.part[i] = x.part[i] > y.part[i] ? x.part[i] : y.part[i];
  return out;
}

OCTAVO_INLINE int32_t largest_lane(const IntLanes& x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_epi32((__m512i)x.part[0]);
#else
  int32_t lane[lane_count];
  __builtin_memcpy(lane, &x, sizeof lane);
  int32_t best = lane[0];
  for (int i = 1; i < lane_count; ++i) best = lane[i] > best ? lane[i] : best;
  return best;
#endif
}

OCTAVO_INLINE int32_t sum_of_lanes(const IntLanes& x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32((__m512i)x.part[0]);
#else
  int32_t lane[lane_count], sum = 0;
  __builtin_memcpy(lane, &x, sizeof lane);
  for (int i = 0; i < lane_count; ++i) sum += lane[i];
  return sum;
#endif
}

// Sixteen signed bytes that lie side by side, one to a lane.
OCTAVO_INLINE IntLanes load_bytes(const uint8_t* source) {
  IntLanes out;
#if defined(__AVX512F__)
  out.part[0] = (NativeInts)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
#elif defined(__AVX2__)
  OCTAVO_EACH_PART out.part[i] =
      (NativeInts)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(source + 8 * i)));
#else
  int32_t lane[lane_count];
  for (int i = 0; i < lane_count; ++i) lane[i] = static_cast<int8_t>(source[i]);
  __builtin_memcpy(&out, lane, sizeof out);
#endif
  return out;
}

// The lowest byte of each lane.
OCTAVO_INLINE void store_bytes(int8_t* target, const IntLanes& x) {
#if defined(__AVX512F__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(target), _mm512_cvtepi32_epi8((__m512i)x.part[0]));
#else
  int32_t lane[lane_count];
  __builtin_memcpy(lane, &x, sizeof lane);
  for (int i = 0; i < lane_count; ++i) target[i] = static_cast<int8_t>(lane[i]);
#endif
}

}  // namespace octavo::OCTAVO_ISA
