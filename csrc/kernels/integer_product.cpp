// y = x W^T + bias over integer codes: each group of 32 inputs is an exact integer sum, and each output one
// chain of fused multiply-adds over the groups, in order.
//
//   sum = code_zero-corrected sum of q_w q_x          int32, exact
//   y   = fma(float(sum) s, d, y)                     s: the activations' scale, d: the weights'
//   y   = fma(m, s sum(q_x), y)                       of a kind with minima: m
//
// So bits depend on nothing but the row and the output: neither on tiles, nor threads, nor registers. This file
// has the kinds of blocks of 32 weights, super_product.cpp those of super-blocks.
#include "kernels/prefetch_cursor.hpp"
#include "kernels/amx_product.hpp"
#include "kernels/halves.hpp"
#include "kernels/integers.hpp"
#include "kernels/panels.hpp"
#include "kernels/super_product.hpp"
#include "kernels/table.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

// A tile: R rows times P panels. Its integer and float accumulators, 2 R P vectors, must fit the registers
// together with a few weights (with AVX2 the integer ones: the others stay on the stack during a group).
// P > 1 lets one broadcast of a row's bytes feed P products, R > 1 one unpacking of weights R rows.
#if defined(__AVX512F__)
constexpr int rows_max = code_rows_max;
constexpr int panels_for(int rows) { return code_panels_for(rows); }
#elif defined(__AVX2__)
constexpr int rows_max = 4;
constexpr int panels_for(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
#else
constexpr int rows_max = 1;
constexpr int panels_for(int) { return 1; }
#endif

// sum[r][p] += what four inputs of R rows and a vector of weights of P panels give; in halves where `brief`.
template <bool brief, int R, int P>
OCTAVO_INLINE void sum_vectors(const IntLanes (&words)[P], const int8_t* x, IntLanes (&sum)[R][P]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    if constexpr (brief) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) accumulate_small(sum[r][p], words[p], x + r * quant_group);
    } else {
      const Four four = broadcast_four(x + r * quant_group);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) accumulate_dots(sum[r][p], words[p], four);
    }
  }
}

constexpr int kv_lines = 8;  // of what attention will read, at most, with each group

// With many rows, codes of fewer than eight bits are unpacked once, some groups at a time: the first tile of
// rows reads them packed and leaves them unpacked for the others.
enum class Form { packed, unpacking, unpacked };

// A group unpacked: codes as bytes, then scales and minima as floats.
constexpr int wide_codes = panel_width * quant_group;
constexpr int wide_bytes = wide_codes + 2 * panel_width * 4;
constexpr int64_t wide_groups = 24;  // at a time: two panels of them fit the nearest cache
constexpr int64_t wide_stride = wide_groups * wide_bytes;
constexpr int64_t wide_tiles = 3;  // of rows: for fewer, unpacking costs more than it saves

// The height that so many tiles of nearly equal height have at least.
constexpr int wide_rows_min = static_cast<int>(rows_max * (wide_tiles - 1) / wide_tiles) + 1;

// Unpacked, all that matters of a kind is whether it has minima, and whether its codes are small: one stands
// for all that are alike.
constexpr Kind like_unpacked(Kind kind) {
  if (has_short_sums && !has_small_codes(kind)) return has_minima(kind) ? Kind::q5_1 : Kind::q5_0;
  return has_minima(kind) ? Kind::q4_1 : Kind::q4_0;
}

// What a tile walks: groups [first, last) of P panels.
struct Codes {
  int64_t first, last;
  const uint8_t* packed;  // the first panel
  uint8_t* unpacked;      // these groups alone, wide_stride bytes for each panel
};

// Where a group of P panels is, `stride` bytes apart, and where it is unpacked.
struct GroupCodes {
  const uint8_t *codes, *scales;
  int64_t stride;
  uint8_t* unpacked;
};

// Word `word` of panel p's group: four inputs of each output, a byte each.
template <Kind kind, Form form>
OCTAVO_INLINE IntLanes load_codes(const GroupCodes& from, int p, int word) {
  const int64_t at = p * wide_stride + 64 * word;
  if constexpr (form == Form::unpacked) return load_words(from.unpacked + at);
  const IntLanes codes = code_word<kind>(from.codes + p * from.stride, word);
  if constexpr (form == Form::unpacking) store_words(from.unpacked + at, codes);
  return codes;
}

// The integer sums of one group.
template <Kind kind, Form form, bool brief, int R, int P>
OCTAVO_INLINE void sum_words(const GroupCodes& from, const int8_t* x, IntLanes (&sum)[R][P]) {
#pragma GCC unroll 8
  for (int word = 0; word < words_in_group; ++word) {
    IntLanes words[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) words[p] = load_codes<kind, form>(from, p, word);
    sum_vectors<brief, R, P>(words, x + 4 * word, sum);
  }
}

// The same, by the shortest way for what the codes can be.
template <Kind kind, Form form, int R, int P>
OCTAVO_INLINE void sum_group(const GroupCodes& from, const int8_t* x, IntLanes (&sum)[R][P]) {
  if constexpr (has_short_sums && has_small_codes(kind)) {
    IntLanes halves[R][P]{};
    sum_words<kind, form, true, R, P>(from, x, halves);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) sum[r][p] = sum[r][p] + short_sums(halves[r][p]);
    }
  } else {
    sum_words<kind, form, false, R, P>(from, x, sum);
  }
}

// Scales (index 0) or minima (1) of a group of panel p: of 16 bits, or floats in what is unpacked.
template <Kind kind, Form form, int index>
OCTAVO_INLINE Lanes load_factors(const GroupCodes& from, int p) {
  const int64_t at = p * wide_stride + wide_codes + index * panel_width * 4;
  if constexpr (form == Form::unpacked) return load(reinterpret_cast<const float*>(from.unpacked + at));
  const uint8_t* packed = from.scales + p * from.stride + index * 2 * panel_width;
  const Lanes factors = index == 0 ? load_d<kind>(packed) : load_halves(packed);
  if constexpr (form == Form::unpacking) store(reinterpret_cast<float*>(from.unpacked + at), factors);
  return factors;
}

// acc[r][p] += what a group adds, given its sums; `at` is where it stands among the activations.
template <Kind kind, Form form, int R, int P>
OCTAVO_INLINE void add_groups(const Activations& x, int64_t at, const GroupCodes& from,
                              const IntLanes (&sum)[R][P], Lanes (&acc)[R][P]) {
  Lanes d[P], m[P];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
    d[p] = load_factors<kind, form, 0>(from, p);
    if constexpr (has_minima(kind)) m[p] = load_factors<kind, form, 1>(from, p);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Lanes scale = broadcast(x.scales[at + r]), minus_origin = broadcast(x.origins[at + r]);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) accumulate(acc[r][p], scaled(sum[r][p], scale, minus_origin), d[p]);
    if constexpr (has_minima(kind)) {
      const Lanes shift = broadcast(x.shifts[at + r]);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) accumulate(acc[r][p], m[p], shift);
    }
  }
}

// y of R rows and P panels: what the groups of `given` add to it.
template <Kind kind, Form form, int R, int P>
void tile(const IntegerProduct& a, const Codes& given, int64_t row, int64_t panel, PrefetchCursor& next) {
  const int64_t groups = a.x.inputs / quant_group;
  GroupCodes from{given.packed + given.first * code_bytes(kind),
                  given.packed + groups * code_bytes(kind) + given.first * scale_bytes(kind),
                  code_panel_bytes(kind, a.x.inputs), given.unpacked};
  PrefetchCursor cursor = next;  // in registers
  Piece<kv_lines> kv = take_piece<kv_lines>(a.kv_cursor, given.last - given.first);
  Lanes acc[R][P];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const int64_t output = (panel + p) * panel_width;
      // Prefetched before they are written: stores wait for their lines one after the other. Not in an inline
      // function: with a call, inlined or not, GCC 12 keeps half of the sums on the stack.
      __builtin_prefetch(a.y + (row + r) * a.outputs + output, 1, 3);
      acc[r][p] = broadcast(0.0f);
      if (form != Form::packed && given.first > 0) {
        acc[r][p] = load_first(a.y + (row + r) * a.outputs + output, a.outputs - output);
      }
    }
  }
  for (int64_t g = given.first; g < given.last; ++g) {
    const int64_t at = g * a.x.stride + row;
    fetch_some(cursor), fetch_some(kv);
    IntLanes sum[R][P];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const IntLanes start = broadcast_int(code_zero(kind) == 0 ? origin_bits : a.x.starts[at + r]);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) sum[r][p] = start;
    }
    sum_group<kind, form, R, P>(from, a.x.codes + at * quant_group, sum);
    add_groups<kind, form, R, P>(a.x, at, from, sum, acc);
    if constexpr (form != Form::unpacked) from.codes += code_bytes(kind), from.scales += scale_bytes(kind);
    if constexpr (form != Form::packed) from.unpacked += wide_bytes;
  }
  next = cursor;
  end_when_done(next);
  const bool with_bias = a.bias && given.last == groups;
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
    const int64_t output = (panel + p) * panel_width;
    const int64_t count = a.outputs - output < panel_width ? a.outputs - output : panel_width;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      if (with_bias) acc[r][p] = acc[r][p] + load_first(a.bias + output, count);
      store_first(a.y + (row + r) * a.outputs + output, acc[r][p], count);
    }
  }
}

// Tiles [first, last) of all rows times P panels, each of R or R - 1 rows.
template <Kind kind, Form form, int R, int P>
void multiply_tiles(const IntegerProduct& a, const Codes& codes, int64_t first, int64_t last, int64_t tiles,
                  int64_t panel, PrefetchCursor& next) {
  for (int64_t t = first; t < last; ++t) {
    const int64_t row = a.x.rows * t / tiles, rows = a.x.rows * (t + 1) / tiles - row;
    if (rows == R) {
      tile<kind, form, R, P>(a, codes, row, panel, next);
    } else {
      tile<kind, form, (R > 1 ? R - 1 : 1), P>(a, codes, row, panel, next);
    }
  }
}

template <Kind kind, int R, int P>
void multiply_tiles_unpacked(const IntegerProduct& a, const uint8_t* packed, int64_t tiles, int64_t panel,
                           PrefetchCursor& next) {
  alignas(64) uint8_t unpacked[P * wide_stride];
  const int64_t groups = a.x.inputs / quant_group;
  for (int64_t first = 0; first < groups; first += wide_groups) {
    const int64_t last = first + wide_groups < groups ? first + wide_groups : groups;
    const Codes codes{first, last, packed, unpacked};
    multiply_tiles<kind, Form::unpacking, R, P>(a, codes, 0, 1, tiles, panel, next);
    multiply_tiles<like_unpacked(kind), Form::unpacked, R, P>(a, codes, 1, tiles, tiles, panel, next);
  }
}

// A few panels stay in the nearest cache while all rows pass over them.
template <Kind kind, int R, int P>
OCTAVO_INLINE void rows_beside(const IntegerProduct& a, int64_t tiles, int64_t panel) {
  const int64_t stride = code_panel_bytes(kind, a.x.inputs), groups = a.x.inputs / quant_group;
  const uint8_t* codes = a.panels + panel * stride;
  PrefetchCursor next = fetched_within(codes + P * stride, P * stride, tiles * groups);
  // Not for a panel that is left over: it is rare, and this is long to compile.
  if constexpr (kind != Kind::q8_0 && R > 1 && R >= wide_rows_min && P == panels_for(R)) {
    if (tiles >= wide_tiles) return multiply_tiles_unpacked<kind, R, P>(a, codes, tiles, panel, next);
  }
  multiply_tiles<kind, Form::packed, R, P>(a, {0, groups, codes, nullptr}, 0, tiles, tiles, panel, next);
}

template <Kind kind, int R>
void rows_of(const IntegerProduct& a, int64_t tiles, int64_t first_panel, int64_t last_panel) {
  constexpr int P = panels_for(R);
  int64_t panel = first_panel;
  for (; panel + P <= last_panel; panel += P) rows_beside<kind, R, P>(a, tiles, panel);
  for (; panel < last_panel; ++panel) rows_beside<kind, R, 1>(a, tiles, panel);
}

// Tiles of nearly equal height: the taller ones have `height` rows, the others one less.
template <Kind kind, int R = rows_max>
OCTAVO_INLINE void tiles_of(const IntegerProduct& a, int64_t height, int64_t tiles, int64_t first_panel,
                            int64_t last_panel) {
  if (height == R) return rows_of<kind, R>(a, tiles, first_panel, last_panel);
  if constexpr (R > 1) tiles_of<kind, R - 1>(a, height, tiles, first_panel, last_panel);
}

#if defined(OCTAVO_MATRICES)
// The weights as matrix registers take them.
template <Kind its_kind>
struct GroupFormat {
  static constexpr Kind kind = its_kind;

  struct Factors {
    Lanes d, m;
  };

  OCTAVO_INLINE Factors factors(const uint8_t* scales, int64_t g) {
    const uint8_t* own = scales + g * scale_bytes(kind);
    if constexpr (has_minima(kind)) return {load_d<kind>(own), load_halves(own + 2 * panel_width)};
    return {load_d<kind>(own), {}};
  }

  OCTAVO_INLINE void add(Lanes& acc, const int32_t* sums, const Factors& factors, const Activations& x,
                         int64_t at) {
    const IntLanes sum = load_words(reinterpret_cast<const uint8_t*>(sums));
    accumulate(acc, converted(sum) * broadcast(x.scales[at]), factors.d);
    if constexpr (has_minima(kind)) accumulate(acc, factors.m, broadcast(x.shifts[at]));
  }
};
#endif

template <Kind kind>
void panels_of(const IntegerProduct& all, int64_t first_panel, int64_t last_panel) {
#if defined(OCTAVO_MATRICES)
  const IntegerProduct a = rest_of<GroupFormat<kind>>(all, first_panel, last_panel);
#else
  const IntegerProduct& a = all;
#endif
  if (a.x.rows == 0) return;  // a chunk in the middle of its prompt needs no logits
  const int64_t tiles = (a.x.rows + rows_max - 1) / rows_max;
  tiles_of<kind>(a, (a.x.rows + tiles - 1) / tiles, tiles, first_panel, last_panel);
}

// Bytes of codes that stay in the second nearest cache while panels pass over them, and of how many rows they
// are: whole tiles of every kind's height.
constexpr int64_t near_codes = 384 << 10;
constexpr int64_t row_unit = 24;

int64_t rows_together(const Activations& x) {
#if defined(OCTAVO_MATRICES)
  return x.rows;  // which has blocks of its own (amx_product.hpp)
#else
  const int64_t near = near_codes / x.inputs / row_unit * row_unit;
  return near > row_unit ? near : row_unit;
#endif
}

// The product of rows [first, first + count) alone.
IntegerProduct rows_between(const IntegerProduct& a, int64_t first, int64_t count) {
  IntegerProduct part = a;
  part.x.rows = count;
  part.x.codes += first * quant_group;
  part.x.scales += first, part.x.origins += first, part.x.starts += first, part.x.shifts += first;
  part.y += first * a.outputs;
  return part;
}

}  // namespace

void integer_product(const IntegerProduct& a, int64_t first_panel, int64_t last_panel) {
  const int64_t together = rows_together(a.x), blocks = a.x.rows ? (a.x.rows + together - 1) / together : 0;
  with_kind(a.kind, [&](auto tag) {
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t first = a.x.rows * block / blocks, last = a.x.rows * (block + 1) / blocks;
      const IntegerProduct part = rows_between(a, first, last - first);
      if constexpr (is_super(tag.kind)) {
        super_product<tag.kind>(part, first_panel, last_panel);
      } else {
        panels_of<tag.kind>(part, first_panel, last_panel);
      }
    }
  });
}

}  // namespace octavo::OCTAVO_ISA
