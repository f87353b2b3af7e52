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

// Rows beside each other: R integer and R float accumulators and a few weights must fit the registers, and
// unpacking a vector of weights is shared by R rows.
#if defined(__AVX512F__)
constexpr int rows_max = 12;
#elif defined(__AVX2__)
constexpr int rows_max = 2;
#else
constexpr int rows_max = 1;
#endif

// The integer sums of one group: R rows, all vectors of 16 outputs.
template <Kind kind, int R>
OCTAVO_INLINE void sum_group(const uint8_t* codes, const int8_t* x, IntLanes (&sum)[R]) {
  const IntLanes low_half = broadcast_int(0x0F0F0F0F);
#pragma GCC unroll 8
  for (int j = 0; j < code_bytes(kind) / 64; ++j) {
    const IntLanes words = load_words(codes + 64 * j);
    if constexpr (kind == Kind::q8_0) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) accumulate_dots(sum[r], words, x + r * quant_group + 4 * j);
    } else {
      const IntLanes low = words & low_half, high = shift_right(words, 4) & low_half;
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) accumulate_dots(sum[r], low, x + r * quant_group + 8 * j);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) accumulate_dots(sum[r], high, x + r * quant_group + 8 * j + 4);
    }
  }
}

template <Kind kind, int R>
void tile(const IntegerProduct& a, int64_t row, int64_t panel) {
  const int64_t groups = a.x.inputs / quant_group;
  const uint8_t* codes = a.panels + panel * code_panel_bytes(kind, a.x.inputs);
  const uint8_t* scales = codes + groups * code_bytes(kind);
  Lanes acc[R]{};
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t at = g * a.x.rows + row;
    IntLanes sum[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r] = broadcast_int(kind == Kind::q4_1 ? 0 : a.x.starts[at + r]);
    sum_group<kind, R>(codes + g * code_bytes(kind), a.x.codes + at * quant_group, sum);
    const Lanes d = load_halves(scales + g * scale_bytes(kind));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) accumulate(acc[r], converted(sum[r]), d * broadcast(a.x.scales[at + r]));
    if constexpr (kind == Kind::q4_1) {
      const Lanes m = load_halves(scales + g * scale_bytes(kind) + 2 * panel_width);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) accumulate(acc[r], m, broadcast(a.x.shifts[at + r]));
    }
  }
  const int64_t output = panel * panel_width;
  const int64_t count = a.outputs - output < panel_width ? a.outputs - output : panel_width;
  for (int r = 0; r < R; ++r) {
    const Lanes y = a.bias ? acc[r] + load_first(a.bias + output, count) : acc[r];
    store_first(a.y + (row + r) * a.outputs + output, y, count);
  }
}

template <Kind kind, int R = rows_max>
OCTAVO_INLINE void tile_of(const IntegerProduct& a, int64_t row, int64_t rows, int64_t panel) {
  if (rows == R) return tile<kind, R>(a, row, panel);
  if constexpr (R > 1) tile_of<kind, R - 1>(a, row, rows, panel);
}

// A panel stays in the nearest cache while all rows pass over it, in tiles of nearly equal height.
template <Kind kind>
void panels_of(const IntegerProduct& a, int64_t first_panel, int64_t last_panel) {
  const int64_t tiles = (a.x.rows + rows_max - 1) / rows_max;
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t row = a.x.rows * t / tiles, next = a.x.rows * (t + 1) / tiles;
      tile_of<kind>(a, row, next - row, panel);
    }
  }
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
