// y = x W^T + bias in float32, each output one chain of fused multiply-adds over the inputs, in order.
//
// F32 and F16 are multiplied by floats, with the same bits for the same values. BF16 is multiplied by rows that
// are rounded to bfloat16, and of each pair of inputs the second comes first (pairs.hpp).
#include "kernels/pairs.hpp"
#include "kernels/table.hpp"
#include "kernels/tile.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

// A number of a row, as the product with a kind of weights reads it.
template <bool pairs>
struct RowNumber {
  typedef float Type;
};
template <>
struct RowNumber<true> {
  typedef Paired Type;
};

// `multiply` of tile.hpp for pairs.
template <int R, int P>
OCTAVO_INLINE void multiply(const Paired* x, int64_t x_stride, const Brain* const* w, int64_t inputs,
                            Lanes (&acc)[R][P], PrefetchCursor& next, KvPrefetchCursor* kv_cursor) {
  PrefetchCursor cursor = next;  // in registers
  Piece<1> kv = take_piece<1>(kv_cursor, inputs / 2);
  const uint8_t* column[P];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) column[p] = reinterpret_cast<const uint8_t*>(w[p]);
  for (int64_t i = 0; i < inputs; i += 2) {
    fetch_some(cursor);
    fetch_some(kv);
    multiply_pair<every_pair, R, P>(x + i, x_stride, column, i * panel_width * 2, acc);
  }
  next = cursor;
  end_when_done(next);
}

template <int R, int P, class Stored>
OCTAVO_INLINE void multiply(const float* x, int64_t x_stride, const Stored* const* w, int64_t inputs,
                            Lanes (&acc)[R][P], PrefetchCursor& next, KvPrefetchCursor* kv_cursor) {
  multiply<R, P>(x, x_stride, w, panel_width, inputs, acc, next, kv_cursor);
}

template <class Stored, int R, int P>
void tile(const Product& a, int64_t row, int64_t panel, PrefetchCursor& next) {
  const Stored* w[P];
  for (int p = 0; p < P; ++p) w[p] = static_cast<const Stored*>(a.panels) + (panel + p) * a.inputs * panel_width;
  for (int r = 0; r < R; ++r) {
    const float* y = a.y + (row + r) * a.outputs + panel * panel_width;
    for (int p = 0; p < P; ++p) __builtin_prefetch(y + p * panel_width, 1, 3);  // written at the end
  }
  Lanes acc[R][P]{};
  const auto* x = static_cast<const typename RowNumber<in_pairs<Stored>>::Type*>(a.x) + row * a.inputs;
  multiply<R, P>(x, a.inputs, w, a.inputs, acc, next, a.kv_cursor);
  for (int p = 0; p < P; ++p) {
    const int64_t output = (panel + p) * panel_width;
    const int64_t count = a.outputs - output < panel_width ? a.outputs - output : panel_width;
    for (int r = 0; r < R; ++r) {
      const Lanes sum = a.bias ? acc[r][p] + load_first(a.bias + output, count) : acc[r][p];
      store_first(a.y + (row + r) * a.outputs + output, sum, count);
    }
  }
}

template <class Stored, int R, int P>
void strip(const Product& a, int64_t row, int64_t panel, int64_t last_panel, PrefetchCursor& next) {
  for (; panel + P <= last_panel; panel += P) tile<Stored, R, P>(a, row, panel, next);
  if constexpr (P > 1) {
    if (panel < last_panel) strip<Stored, R, P / 2>(a, row, panel, last_panel, next);
  }
}

// `rows` (1 to tile_rows) rows from `row` on, P vectors at a time.
template <class Stored, int P, int R = tile_rows>
void rows_strip(const Product& a, int64_t row, int64_t rows, int64_t panel, int64_t last_panel,
                PrefetchCursor& next) {
  if (rows == R) return strip<Stored, R, P>(a, row, panel, last_panel, next);
  if constexpr (R > 1) rows_strip<Stored, P, R - 1>(a, row, rows, panel, last_panel, next);
}

// Few rows: one tile that holds them all, with as many vectors as fit.
template <class Stored, int R = tile_rows>
void few_rows(const Product& a, int64_t panel, int64_t last_panel) {
  PrefetchCursor nothing{};  // one tile reads all in order, which the processor foresees
  if (a.rows == R) return strip<Stored, R, vectors_for(R)>(a, 0, panel, last_panel, nothing);
  if constexpr (R > 1) few_rows<Stored, R - 1>(a, panel, last_panel);
}

template <class Stored>
void panels_of(const Product& a, int64_t first_panel, int64_t last_panel) {
  if (a.rows <= tile_rows) return few_rows<Stored>(a, first_panel, last_panel);
  // Many rows: a group of panels stays in the cache while all rows pass over it, in tiles of nearly equal
  // height (nine rows are five and four, because a tile of one row would leave most registers idle).
  constexpr int vectors = vectors_for(tile_rows);
  const int64_t tiles = (a.rows + tile_rows - 1) / tile_rows;
  for (int64_t panel = first_panel; panel < last_panel; panel += vectors) {
    const int64_t stop = panel + vectors < last_panel ? panel + vectors : last_panel;
    const int64_t panel_bytes = a.inputs * panel_width * static_cast<int64_t>(sizeof(Stored));
    const uint8_t* panels = static_cast<const uint8_t*>(a.panels);
    PrefetchCursor next = fetched_within(panels + stop * panel_bytes, vectors * panel_bytes,
                                         tiles * a.inputs / (in_pairs<Stored> ? 2 : 1));
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t row = a.rows * t / tiles, last = a.rows * (t + 1) / tiles;
      rows_strip<Stored, vectors>(a, row, last - row, panel, stop, next);
    }
  }
}

}  // namespace

void round_row(const float* x, int64_t count, void* out) {
  auto* target = static_cast<Paired*>(out);
  int64_t i = 0;
  for (; i + lane_count <= count; i += lane_count) store_paired(target + i, load(x + i));
  if (i == count) return;
  Paired last[lane_count];
  store_paired(last, load_first(x + i, count - i));
  __builtin_memcpy(target + i, last, static_cast<uint64_t>(count - i) * sizeof(Paired));
}

void product(const Product& a, int64_t first_panel, int64_t last_panel) {
  switch (a.kind) {
    case Kind::f32: return panels_of<float>(a, first_panel, last_panel);
    case Kind::f16: return panels_of<Half>(a, first_panel, last_panel);
    case Kind::bf16: {
      const FlushingMode flushing;
      return panels_of<Brain>(a, first_panel, last_panel);
    }
    default: __builtin_unreachable();  // the bindings let no other kind through
  }
}

}  // namespace octavo::OCTAVO_ISA
