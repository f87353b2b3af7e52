// Products with super-blocks of 256 weights, whose groups have their own scales as well as the block's
// halves.
//
//   Q4_K, Q5_K, IQ4_XS    for each group:
//     sum = sum of q_w q_x                                          int32, exact
//     y   = fma(float(sum) s, d scale, y)                           d scale is exact; s: the activations'
//     y   = fma(-dmin minimum, s sum(q_x), y)                       not of IQ4_XS; dmin minimum is exact
//   Q2_K, Q3_K            the same for each half of a group; minima: Q2_K
//   Q6_K                  for each group, in one step:
//     sum = scale_0 (sum of the first 16) + scale_1 (of the last)   below 2^24, so exact in float32
//     y   = fma(sum s, d, y)
//
// The halves' way takes four steps for a row where Q6_K's takes six, and no register for what is weighed.
#include "kernels/super_product.hpp"

#include "kernels/amx_product.hpp"
#include "kernels/blocks.hpp"
#include "kernels/integers.hpp"
#include "kernels/panels.hpp"
#include "kernels/prefetch_cursor.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int groups_per_block = super_group / quant_group;

// Sixteen bytes as floats.
OCTAVO_INLINE Lanes load_scales(const uint8_t* source, bool is_signed) {
  Lanes out;
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
  out.part[0] = _mm512_cvtepi32_ps(is_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
#elif defined(__AVX2__)
  OCTAVO_EACH_PART {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(source + 8 * i));
    out.part[i] = _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
  }
#else
  float lane[lane_count];
  for (int i = 0; i < lane_count; ++i) {
    lane[i] = static_cast<float>(is_signed ? static_cast<int8_t>(source[i]) : source[i]);
  }
  out = load(lane);
#endif
  return out;
}

// What sixteen outputs' sums, and the sums of the activations alone, are multiplied with.
struct OutputFactors {
  Lanes scale, minimum;
};

// Of a group, whose scales are at `own`, in a block whose halves are at `halves`, d among them.
template <Kind kind>
OCTAVO_INLINE OutputFactors factors_of_group(const Lanes& d, const uint8_t* halves, const uint8_t* own) {
  if constexpr (!has_minima(kind)) return {d * load_scales(own, true), {}};
  const Lanes minus_dmin = load_halves(halves + 2 * panel_width);
  return {d * load_scales(own, false), minus_dmin * load_scales(own + panel_width, false)};
}

// Of half a group.
template <Kind kind>
OCTAVO_INLINE OutputFactors factors_of_half(const Lanes& d, const uint8_t* halves, const uint8_t* own,
                                            int half) {
  if constexpr (!has_minima(kind)) return {d * load_scales(own + half * panel_width, true), {}};
  const IntLanes both = load_bytes(own + half * panel_width), nibble = broadcast_int(15);
  const Lanes minus_dmin = load_halves(halves + 2 * panel_width);
  return {d * converted(both & nibble), minus_dmin * converted(shift_right(both, 4) & nibble)};
}

// Where AVX2 sums products of small codes up in 16 bits, sums start at zero and `start` comes at the end.
template <Kind kind>
constexpr bool sums_are_short = has_short_sums && has_small_codes(kind);

// sum[r] += the products of `count` words, from `first` on, of a group with row r.
template <Kind kind, int count, int R>
OCTAVO_INLINE void sum_words(const uint8_t* codes, const int8_t* x, int first, IntLanes (&sum)[R]) {
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) {
    const IntLanes code = code_word<kind>(codes, first + i);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const int8_t* four = x + r * quant_group + 4 * (first + i);
      if constexpr (has_small_codes(kind)) {
        accumulate_small(sum[r], code, four);
      } else {
        accumulate_dots(sum[r], code, four);
      }
    }
  }
}

// What a group with one scale adds to R rows.
template <Kind kind, int R>
OCTAVO_INLINE void add_whole(const Activations& x, int64_t at, const uint8_t* codes, const OutputFactors& by,
                             Lanes (&acc)[R]) {
  constexpr bool is_short = sums_are_short<kind>;
  IntLanes sum[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const int32_t start = code_zero(kind) == 0 ? origin_bits : x.starts[at + r];
    sum[r] = broadcast_int(is_short ? 0 : start);
  }
  sum_words<kind, words_in_group, R>(codes, x.codes + at * quant_group, 0, sum);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    if constexpr (is_short) sum[r] = broadcast_int(origin_bits) + short_sums(sum[r]);
    const Lanes own = scaled(sum[r], broadcast(x.scales[at + r]), broadcast(x.origins[at + r]));
    accumulate(acc[r], own, by.scale);
    if constexpr (has_minima(kind)) accumulate(acc[r], by.minimum, broadcast(x.shifts[at + r]));
  }
}

// What is known of the sum of half a row's group: its start or, for a kind with minima, the bits of its shift.
OCTAVO_INLINE IntLanes sum_of_half(const Activations& x, int64_t at, int half) {
  return half == 0 ? broadcast_int(x.starts[at]) : bits_of(broadcast(x.shifts[at]));
}

// What half a group with two scales adds to R rows.
template <Kind kind, int R>
OCTAVO_INLINE void add_half(const Activations& x, int64_t at, const uint8_t* codes, int half,
                            const OutputFactors& by, Lanes (&acc)[R]) {
  constexpr bool is_short = sums_are_short<kind>;
  const auto start = [&](int r) {
    return has_minima(kind) ? broadcast_int(origin_bits) : sum_of_half(x, at + r, half);
  };
  IntLanes sum[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[r] = is_short ? broadcast_int(0) : start(r);
  sum_words<kind, words_in_group / 2, R>(codes, x.codes + at * quant_group, half * words_in_group / 2, sum);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    if constexpr (is_short) sum[r] = start(r) + short_sums(sum[r]);
    const Lanes own = scaled(sum[r], broadcast(x.scales[at + r]), broadcast(x.origins[at + r]));
    accumulate(acc[r], own, by.scale);
    if constexpr (has_minima(kind)) accumulate(acc[r], by.minimum, floats_of(sum_of_half(x, at + r, half)));
  }
}

// What a group of Q6_K adds to R rows.
template <int R>
OCTAVO_INLINE void add_q6_k(const Activations& x, int64_t at, const uint8_t* codes, const uint8_t* scales,
                            const Lanes& d, Lanes (&acc)[R]) {
  constexpr int count = words_in_group / 2;
  const int8_t* own = x.codes + at * quant_group;
  const Lanes first = load_scales(scales, true), second = load_scales(scales + panel_width, true);
  IntLanes sum[R];
  Lanes both[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[r] = sum_of_half(x, at + r, 0);
  sum_words<Kind::q6_k, count, R>(codes, own, 0, sum);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) both[r] = converted(sum[r]) * first;
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[r] = sum_of_half(x, at + r, 1);
  sum_words<Kind::q6_k, count, R>(codes, own, count, sum);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    accumulate(both[r], converted(sum[r]), second);
    accumulate(acc[r], both[r] * broadcast(x.scales[at + r]), d);
  }
}

template <Kind kind, int R>
void tile(const IntegerProduct& a, int64_t row, int64_t panel, PrefetchCursor& next) {
  PrefetchCursor cursor = next;  // in registers
  const int64_t groups = a.x.inputs / quant_group;
  const uint8_t* codes = a.panels + panel * code_panel_bytes(kind, a.x.inputs);
  const uint8_t* scales = codes + groups * code_bytes(kind);
  Lanes acc[R]{};
  for (int64_t block = 0; block < groups / groups_per_block; ++block) {
    const uint8_t* halves = scales + block * groups_per_block * scale_bytes(kind);
    const Lanes d = load_halves(halves);
    for (int64_t g = 0; g < groups_per_block; ++g, codes += code_bytes(kind)) {
      const int64_t at = (block * groups_per_block + g) * a.x.stride + row;
      fetch_some(cursor);
      const uint8_t* own = halves + halves_bytes(kind) + g * group_scale_bytes(kind);
      if constexpr (kind == Kind::q6_k) {
        add_q6_k<R>(a.x, at, codes, own, d, acc);
      } else if constexpr (row_of(kind).scales == 1) {
        add_whole<kind, R>(a.x, at, codes, factors_of_group<kind>(d, halves, own), acc);
      } else {
        add_half<kind, R>(a.x, at, codes, 0, factors_of_half<kind>(d, halves, own, 0), acc);
        add_half<kind, R>(a.x, at, codes, 1, factors_of_half<kind>(d, halves, own, 1), acc);
      }
    }
  }
  next = cursor;
  end_when_done(next);
  const int64_t output = panel * panel_width;
  const int64_t count = a.outputs - output < panel_width ? a.outputs - output : panel_width;
  for (int r = 0; r < R; ++r) {
    const Lanes y = a.bias ? acc[r] + load_first(a.bias + output, count) : acc[r];
    store_first(a.y + (row + r) * a.outputs + output, y, count);
  }
}

// Rows of a tile: what each row keeps (a sum and an output, in Q6_K a weighted sum too) must fit the
// registers.
#if defined(__AVX512F__)
constexpr int rows_max(Kind kind) { return kind == Kind::q6_k ? 8 : 12; }
#elif defined(__AVX2__)
constexpr int rows_max(Kind kind) { return kind == Kind::q6_k ? 2 : 4; }
#else
constexpr int rows_max(Kind) { return 1; }
#endif

template <Kind kind, int R = rows_max(kind)>
OCTAVO_INLINE void tile_of(const IntegerProduct& a, int64_t row, int64_t rows, int64_t panel,
                           PrefetchCursor& next) {
  if (rows == R) return tile<kind, R>(a, row, panel, next);
  if constexpr (R > 1) tile_of<kind, R - 1>(a, row, rows, panel, next);
}

#if defined(OCTAVO_MATRICES)
// The weights as matrix registers take them, of the kinds with one scale for a group.
template <Kind its_kind>
struct SuperFormat {
  static constexpr Kind kind = its_kind;
  using Factors = OutputFactors;

  OCTAVO_INLINE Factors factors(const uint8_t* scales, int64_t g) {
    const uint8_t* halves = scales + g / groups_per_block * groups_per_block * scale_bytes(kind);
    const uint8_t* own = halves + halves_bytes(kind) + g % groups_per_block * group_scale_bytes(kind);
    return factors_of_group<kind>(load_halves(halves), halves, own);
  }

  OCTAVO_INLINE void add(Lanes& acc, const int32_t* sums, const Factors& factors, const Activations& x,
                         int64_t at) {
    const IntLanes sum = load_words(reinterpret_cast<const uint8_t*>(sums));
    accumulate(acc, converted(sum) * broadcast(x.scales[at]), factors.scale);
    if constexpr (has_minima(kind)) accumulate(acc, factors.minimum, broadcast(x.shifts[at]));
  }
};
#endif

// A panel stays in the nearest cache while all rows pass over it, in tiles of nearly equal height.
template <Kind kind>
void multiply_panels(const IntegerProduct& a, int64_t first_panel, int64_t last_panel) {
  if (a.x.rows == 0) return;  // a chunk in the middle of its prompt needs no logits
  const int64_t tiles = (a.x.rows + rows_max(kind) - 1) / rows_max(kind);
  const int64_t stride = code_panel_bytes(kind, a.x.inputs), groups = a.x.inputs / quant_group;
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    PrefetchCursor next = fetched_within(a.panels + (panel + 1) * stride, stride, tiles * groups);
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t row = a.x.rows * t / tiles, last = a.x.rows * (t + 1) / tiles;
      tile_of<kind>(a, row, last - row, panel, next);
    }
  }
}

}  // namespace

template <Kind kind>
void super_product(const IntegerProduct& a, int64_t first_panel, int64_t last_panel) {
#if defined(OCTAVO_MATRICES)
  if constexpr (row_of(kind).scales == 1) {
    const IntegerProduct rest = rest_of<SuperFormat<kind>>(a, first_panel, last_panel);
    return multiply_panels<kind>(rest, first_panel, last_panel);
  }
#endif
  multiply_panels<kind>(a, first_panel, last_panel);
}

template void super_product<Kind::q2_k>(const IntegerProduct&, int64_t, int64_t);
template void super_product<Kind::q3_k>(const IntegerProduct&, int64_t, int64_t);
template void super_product<Kind::q4_k>(const IntegerProduct&, int64_t, int64_t);
template void super_product<Kind::q5_k>(const IntegerProduct&, int64_t, int64_t);
template void super_product<Kind::q6_k>(const IntegerProduct&, int64_t, int64_t);
template void super_product<Kind::iq4_xs>(const IntegerProduct&, int64_t, int64_t);

}  // namespace octavo::OCTAVO_ISA
