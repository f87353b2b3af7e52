// The register tile that both the product and attention are made of: R rows times P vectors of 16 outputs.
#pragma once

#include "kernels/prefetch_cursor.hpp"
#include "kernels/halves.hpp"

namespace octavo::OCTAVO_ISA {

// acc[r][p] += sum over i of x[r * x_stride + i] * w[p][i * w_stride ...], i ascending. Weights are F32, or
// F16 that is widened exactly, once for all rows of the tile.
//
// Each output lane is one chain of fused multiply-adds over i, whatever R and P are: so its bits depend
// neither on the rows and outputs that share the tile nor on the width of the machine's registers. `next` is
// fetched meanwhile, and some of what attention will read.
template <int R, int P, class Stored>
OCTAVO_INLINE void multiply(const float* x, int64_t x_stride, const Stored* const* w, int64_t w_stride,
                            int64_t steps, Lanes (&acc)[R][P], PrefetchCursor& next, KvPrefetchCursor* kv_cursor) {
  PrefetchCursor cursor = next;  // in registers
  Piece<1> kv = take_piece<1>(kv_cursor, steps);
  const Stored* column[P];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) column[p] = w[p];
  for (int64_t i = 0; i < steps; ++i) {
    fetch_some(cursor);
    fetch_some(kv);
    Lanes weight[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) weight[p] = load(column[p] + i * w_stride);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Lanes value = broadcast(x[r * x_stride + i]);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) accumulate(acc[r][p], value, weight[p]);
    }
  }
  next = cursor;
  end_when_done(next);
}

// The tallest tile, and how many vectors wide a tile of R rows is so that the accumulators fill the
// registers: enough independent chains to hide the latency of the multiply-add, few enough that none is
// spilled.
#if defined(__AVX512F__)
constexpr int tile_rows = 8;
constexpr int vectors_for(int rows) { return rows <= 2 ? 8 : rows <= 4 ? 6 : rows <= 6 ? 4 : 3; }
#elif defined(__AVX2__)
constexpr int tile_rows = 6;
constexpr int vectors_for(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
#else
constexpr int tile_rows = 4;
constexpr int vectors_for(int rows) { return rows == 1 ? 4 : 1; }
#endif

}  // namespace octavo::OCTAVO_ISA
