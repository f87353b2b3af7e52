// y = x W^T + bias over integer codes: each group of 32 inputs is an exact integer sum, and each output one
// chain of fused multiply-adds over the groups, in order.
//
//   sum = code_zero-corrected sum of q_w q_x          int32, exact
//   y   = fma(float(sum), d s, y)                     d: the weights' scale, s: the activations'
//   y   = fma(m, s sum(q_x), y)                       Q4_1 only: its minimum m
//
// So bits depend on nothing but the row and the output: neither on tiles, nor threads, nor registers.
#include "kernels/halves.hpp"
#include "kernels/integers.hpp"
#include "kernels/superblocks.hpp"
#include "kernels/table.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

// A tile: R rows beside P panels. Its integer and float accumulators, 2 R P vectors, must fit the registers
// beside a few weights; P > 1 lets one broadcast of a row's bytes feed P products, R > 1 one unpacking of
// weights R rows.
#if defined(__AVX512F__)
constexpr int rows_max = 6;
constexpr int panels_for(int rows) { return rows <= 3 ? 4 : rows == 4 ? 3 : 2; }
#elif defined(__AVX2__)
constexpr int rows_max = 2;
constexpr int panels_for(int) { return 1; }
#else
constexpr int rows_max = 1;
constexpr int panels_for(int) { return 1; }
#endif

// sum[r][p] += what four inputs of R rows and a vector of weights of P panels give.
template <int R, int P>
OCTAVO_INLINE void sum_vectors(const IntLanes (&words)[P], const int8_t* x, IntLanes (&sum)[R][P]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Four four = broadcast_four(x + r * quant_group);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) accumulate_dots(sum[r][p], words[p], four);
  }
}

// The integer sums of one group. Codes of the P panels lie `stride` bytes apart.
template <Kind kind, int R, int P>
OCTAVO_INLINE void sum_group(const uint8_t* codes, int64_t stride, const int8_t* x, IntLanes (&sum)[R][P]) {
  const IntLanes low_half = broadcast_int(0x0F0F0F0F);
  constexpr int vectors = code_bytes(kind) / 64;
#pragma GCC unroll 8
  for (int j = 0; j < vectors; ++j) {
    IntLanes words[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      words[p] = load_words(codes + p * stride + 64 * j);
      if constexpr (kind != Kind::q8_0) words[p] = words[p] & low_half;
    }
    sum_vectors<R, P>(words, x + quant_group / vectors * j, sum);
    if constexpr (kind != Kind::q8_0) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        words[p] = shift_right(load_words(codes + p * stride + 64 * j), 4) & low_half;
      }
      sum_vectors<R, P>(words, x + quant_group / vectors * j + 4, sum);
    }
  }
}

template <Kind kind, int R, int P>
void tile(const IntegerProduct& a, int64_t row, int64_t panel) {
  const int64_t groups = a.x.inputs / quant_group, stride = code_panel_bytes(kind, a.x.inputs);
  const uint8_t* codes = a.panels + panel * stride;
  const uint8_t* scales = codes + groups * code_bytes(kind);
  Lanes acc[R][P]{};
  for (int64_t g = 0; g < groups; ++g, codes += code_bytes(kind), scales += scale_bytes(kind)) {
    const int64_t at = g * a.x.rows + row;
    IntLanes sum[R][P];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const IntLanes start = broadcast_int(kind == Kind::q4_1 ? 0 : a.x.starts[at + r]);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) sum[r][p] = start;
    }
    sum_group<kind, R, P>(codes, stride, a.x.codes + at * quant_group, sum);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const Lanes d = load_halves(scales + p * stride);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        accumulate(acc[r][p], converted(sum[r][p]), d * broadcast(a.x.scales[at + r]));
      }
      if constexpr (kind == Kind::q4_1) {
        const Lanes m = load_halves(scales + p * stride + 2 * panel_width);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) accumulate(acc[r][p], m, broadcast(a.x.shifts[at + r]));
      }
    }
  }
  for (int p = 0; p < P; ++p) {
    const int64_t output = (panel + p) * panel_width;
    const int64_t count = a.outputs - output < panel_width ? a.outputs - output : panel_width;
    for (int r = 0; r < R; ++r) {
      const Lanes y = a.bias ? acc[r][p] + load_first(a.bias + output, count) : acc[r][p];
      store_first(a.y + (row + r) * a.outputs + output, y, count);
    }
  }
}

// A few panels stay in the nearest cache while all rows pass over them, in tiles of R or R - 1 rows.
template <Kind kind, int R>
void rows_of(const IntegerProduct& a, int64_t tiles, int64_t first_panel, int64_t last_panel) {
  constexpr int P = panels_for(R);
  for (int64_t panel = first_panel; panel < last_panel;) {
    const int64_t width = panel + P <= last_panel ? P : 1;
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t row = a.x.rows * t / tiles, rows = a.x.rows * (t + 1) / tiles - row;
      if (width == P && rows == R) {
        tile<kind, R, P>(a, row, panel);
      } else if (width == P) {
        tile<kind, (R > 1 ? R - 1 : 1), P>(a, row, panel);
      } else if (rows == R) {
        tile<kind, R, 1>(a, row, panel);
      } else {
        tile<kind, (R > 1 ? R - 1 : 1), 1>(a, row, panel);
      }
    }
    panel += width;
  }
}

// Tiles of nearly equal height: the taller ones have `height` rows, the others one less.
template <Kind kind, int R = rows_max>
OCTAVO_INLINE void tiles_of(const IntegerProduct& a, int64_t height, int64_t tiles, int64_t first_panel,
                            int64_t last_panel) {
  if (height == R) return rows_of<kind, R>(a, tiles, first_panel, last_panel);
  if constexpr (R > 1) tiles_of<kind, R - 1>(a, height, tiles, first_panel, last_panel);
}

template <Kind kind>
void panels_of(const IntegerProduct& a, int64_t first_panel, int64_t last_panel) {
  if (a.x.rows == 0) return;  // a chunk in the middle of its prompt wants no logits
  const int64_t tiles = (a.x.rows + rows_max - 1) / rows_max;
  tiles_of<kind>(a, (a.x.rows + tiles - 1) / tiles, tiles, first_panel, last_panel);
}

}  // namespace

void integer_product(const IntegerProduct& a, int64_t first_panel, int64_t last_panel) {
  switch (a.kind) {
    case Kind::q8_0: return panels_of<Kind::q8_0>(a, first_panel, last_panel);
    case Kind::q4_0: return panels_of<Kind::q4_0>(a, first_panel, last_panel);
    case Kind::q4_1: return panels_of<Kind::q4_1>(a, first_panel, last_panel);
    case Kind::q4_k:
    case Kind::q6_k: return super_product(a, first_panel, last_panel);
    default: __builtin_unreachable();  // the bindings let no other kind through
  }
}

}  // namespace octavo::OCTAVO_ISA
