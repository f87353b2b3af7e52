// Integer products of many rows with matrix registers: 16 rows times a panel, group by group.
//
// A group's sums are the same integers as elsewhere, and what they are multiplied with and added to is in the
// same order: so bits are those of the tiles of few rows (integer_product.cpp, super_product.cpp). A panel's
// codes are unpacked once for a block of rows, as signed bytes; sums pass through memory on their way to the
// vector registers, some groups at a time.
#pragma once

#include "kernels/prefetch_cursor.hpp"
#include "kernels/amx.hpp"
#include "kernels/integers.hpp"
#include "kernels/kernels.hpp"
#include "kernels/panels.hpp"

namespace octavo::OCTAVO_ISA {

#if defined(OCTAVO_MATRICES)

constexpr int64_t unpacked_bytes = panel_width * quant_group;  // of a group: [8][16][4]
constexpr int64_t panels_together = 2;   // pass over the same rows, whose codes stay in the nearest cache
constexpr int64_t groups_at_once = 24;   // unpacked: of two panels, half of the nearest cache
constexpr int64_t groups_together = 12;  // whose sums leave the registers before they are read
constexpr int64_t rows_at_once = 256;    // whose codes, up to 4,096 inputs, stay in the second nearest cache
constexpr int64_t group_sums = matrix_rows * panel_width;

// A `Format` describes a kind of weights to these products:
//   kind
//   Factors    of a group and 16 outputs, by factors(scales of the panel, group)
//   add        to a row's outputs what a group adds, given its sums

// Byte by byte.
OCTAVO_INLINE IntLanes minus_bytes(const IntLanes& x, int8_t zero) {
  IntLanes out;
  out.part[0] = (NativeInts)_mm512_sub_epi8((__m512i)x.part[0], _mm512_set1_epi8(zero));
  return out;
}

// Writes a group's codes as signed bytes.
template <Kind kind>
OCTAVO_INLINE void unpack_signed(const uint8_t* codes, uint8_t* out) {
  for (int j = 0; j < words_in_group; ++j) {
    const auto zero = static_cast<int8_t>(code_zero(kind));
    store_words(out + 64 * j, minus_bytes(code_word<kind>(codes, j), zero));
  }
}

// Writes the integer sums of 16 rows, [16][16]. Neighbours use different registers.
template <int which>
OCTAVO_INLINE void sum_group(const int8_t* x, const uint8_t* codes, int32_t* sums) {
  clear_matrix<which>();
  load_matrix<2 + which>(x, quant_group);
  load_matrix<4 + which>(codes, 64);
  multiply_bytes<which, 2 + which, 4 + which>();
  store_matrix<which>(sums, 64);
}

OCTAVO_INLINE MatrixShapes product_shapes() {
  MatrixShapes shapes;
  for (int which = 0; which < 2; ++which) {
    shapes.set(which, matrix_rows, 64);
    shapes.set(2 + which, matrix_rows, quant_group);
    shapes.set(4 + which, quant_group / 4, 64);
  }
  return shapes;
}

// y of 16 rows and a panel: what groups [first, last) add to it, whose unpacked codes begin at `codes`.
template <class Format>
void matrix_tile(const IntegerProduct& a, const uint8_t* codes, const uint8_t* scales, int64_t first,
                 int64_t last, int64_t row, int64_t panel, PrefetchCursor& next) {
  alignas(64) int32_t sums[groups_together * group_sums];
  PrefetchCursor cursor = next;
  const int64_t output = panel * panel_width;
  const int64_t count = a.outputs - output < panel_width ? a.outputs - output : panel_width;
  float* y = a.y + row * a.outputs + output;
  for (int r = 0; r < matrix_rows; ++r) __builtin_prefetch(y + r * a.outputs, 1, 3);  // to be written
  Lanes acc[matrix_rows];
#pragma GCC unroll 16
  for (int r = 0; r < matrix_rows; ++r) acc[r] = broadcast(0.0f);
  if (first > 0) {
#pragma GCC unroll 16
    for (int r = 0; r < matrix_rows; ++r) acc[r] = load_first(y + r * a.outputs, count);
  }
  const int64_t pitch = a.x.stride * quant_group;
  for (int64_t begin = first; begin < last; begin += groups_together) {
    const int64_t together = last - begin < groups_together ? last - begin : groups_together;
    const int8_t* x = a.x.codes + begin * pitch + row * quant_group;
    const uint8_t* own = codes + (begin - first) * unpacked_bytes;
    for (int64_t i = 0; i < together; i += 2) {
      sum_group<0>(x + i * pitch, own + i * unpacked_bytes, sums + i * group_sums);
      if (i + 1 == together) break;
      sum_group<1>(x + (i + 1) * pitch, own + (i + 1) * unpacked_bytes, sums + (i + 1) * group_sums);
    }
    for (int64_t i = 0; i < together; ++i) {
      fetch_some(cursor);
      const auto factors = Format::factors(scales, begin + i);
      const int64_t at = (begin + i) * a.x.stride + row;
      const int32_t* sum = sums + i * group_sums;
#pragma GCC unroll 16
      for (int r = 0; r < matrix_rows; ++r) Format::add(acc[r], sum + r * panel_width, factors, a.x, at + r);
    }
  }
  next = cursor;
  end_when_done(next);
  const bool with_bias = a.bias && last == a.x.inputs / quant_group;
#pragma GCC unroll 16
  for (int r = 0; r < matrix_rows; ++r) {
    Lanes sum = acc[r];  // a copy has an address, which what is summed must not have: it would lie in memory
    if (with_bias) sum = sum + load_first(a.bias + output, count);
    store_first(y + r * a.outputs, sum, count);
  }
}

// The product for the first `rows` rows, a multiple of 16.
template <class Format>
void product_in_matrices(const IntegerProduct& a, int64_t rows, int64_t first_panel, int64_t last_panel) {
  const MatrixMode mode(product_shapes());
  constexpr int64_t panel_unpacked = groups_at_once * unpacked_bytes;
  alignas(64) uint8_t unpacked[panels_together * panel_unpacked];
  const int64_t groups = a.x.inputs / quant_group, stride = code_panel_bytes(Format::kind, a.x.inputs);
  for (int64_t block = 0; block < rows; block += rows_at_once) {
    const int64_t end = rows - block < rows_at_once ? rows : block + rows_at_once;
    for (int64_t panel = first_panel; panel < last_panel; panel += panels_together) {
      const int64_t panels = last_panel - panel < panels_together ? last_panel - panel : panels_together;
      const uint8_t* codes = a.panels + panel * stride;
      const uint8_t* scales = codes + groups * code_bytes(Format::kind);
      PrefetchCursor next = fetched_within(codes + panels * stride, panels * stride,
                                  (end - block) / matrix_rows * panels * groups);
      for (int64_t first = 0; first < groups; first += groups_at_once) {
        const int64_t last = groups - first < groups_at_once ? groups : first + groups_at_once;
        for (int64_t p = 0; p < panels; ++p) {
          for (int64_t g = first; g < last; ++g) {
            unpack_signed<Format::kind>(codes + p * stride + g * code_bytes(Format::kind),
                                        unpacked + p * panel_unpacked + (g - first) * unpacked_bytes);
          }
        }
        for (int64_t row = block; row < end; row += matrix_rows) {
          for (int64_t p = 0; p < panels; ++p) {
            matrix_tile<Format>(a, unpacked + p * panel_unpacked, scales + p * stride, first, last, row,
                                panel + p, next);
          }
        }
      }
    }
  }
}

// Computes the rows that fill registers, and returns the product of the others.
template <class Format>
IntegerProduct rest_of(const IntegerProduct& a, int64_t first_panel, int64_t last_panel) {
  const int64_t rows = a.x.rows / matrix_rows * matrix_rows;
  if (rows == 0) return a;
  product_in_matrices<Format>(a, rows, first_panel, last_panel);
  IntegerProduct rest = a;
  rest.x.rows -= rows;
  rest.x.codes += rows * quant_group;
  rest.x.scales += rows;
  rest.x.origins += rows;
  rest.x.starts += rows;
  rest.x.shifts += rows;
  rest.y += rows * a.outputs;
  return rest;
}

#endif

}  // namespace octavo::OCTAVO_ISA
