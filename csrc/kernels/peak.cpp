// The machine's peaks, as a reference for the kernels' figures: multiply-adds, pairs of bfloat16 and bytes
// out of registers alone, and reading memory. The values mean nothing; they are returned so that the compiler
// does not drop the work.
#include "kernels/amx.hpp"
#include "kernels/pairs.hpp"
#include "kernels/table.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

// Independent chains: enough to hide the latency of the multiply-add, and all of them in registers. Each
// begins with a value of its own: chains that begin alike would be computed once.
constexpr int chains = native_bytes == 64 ? 12 : native_bytes == 32 ? 6 : 3;

// Runs `rounds` of `step` on each chain. Returns the sum of all chains, so that the work is not dropped.
template <class Step>
OCTAVO_INLINE float run_chains(int64_t rounds, Step&& step) {
  Lanes sum[chains];
  for (int c = 0; c < chains; ++c) sum[c] = broadcast(static_cast<float>(c));
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < chains; ++c) step(sum[c]);
  }
  Lanes total = sum[0];
  for (int c = 1; c < chains; ++c) total = total + sum[c];
  return sum_of_lanes(total);
}

#if defined(OCTAVO_MATRICES)
// `rounds` of four products of full matrix registers, of bytes or of bfloat16: the multiply-adds, times two.
template <bool bytes>
int64_t run_matrices(int64_t rounds, const void* source) {
  MatrixShapes shapes;
  for (int which = 0; which < 8; ++which) shapes.set(which, matrix_rows, 64);
  const MatrixMode mode(shapes);
  alignas(64) uint8_t given[matrix_rows * 64];
  for (uint8_t& byte : given) byte = *static_cast<const uint8_t*>(source);
  load_matrix<4>(given, 64);
  load_matrix<5>(given, 64);
  load_matrix<6>(given, 64);
  load_matrix<7>(given, 64);
  clear_sums();
  for (int64_t i = 0; i < rounds; ++i) {
    if constexpr (bytes) {
      multiply_bytes<0, 4, 6>();
      multiply_bytes<1, 4, 7>();
      multiply_bytes<2, 5, 6>();
      multiply_bytes<3, 5, 7>();
    } else {
      multiply_brains<0, 4, 6>();
      multiply_brains<1, 4, 7>();
      multiply_brains<2, 5, 6>();
      multiply_brains<3, 5, 7>();
    }
  }
  return rounds * 4 * matrix_rows * lane_count * (bytes ? 64 : 32) * 2;
}
#endif

}  // namespace

int64_t peak_multiply_add(int64_t rounds, float* values) {
  const Lanes x = broadcast(values[0]), y = broadcast(values[1]);
  values[0] = run_chains(rounds, [&](Lanes& sum) { accumulate(sum, x, y); });
  return rounds * chains * lane_count * 2;
}

int64_t peak_pairs(int64_t rounds, float* values) {
#if defined(OCTAVO_MATRICES)
  return run_matrices<false>(rounds, values);
#else
  Paired given[lane_count];
  store_paired(given, broadcast(values[0]));
  const Two two = broadcast_two(given);
  const IntLanes words = bits_of(broadcast(values[1]));
  values[0] = run_chains(rounds, [&](Lanes& sum) { accumulate_pairs(sum, words, two); });
  return rounds * chains * lane_count * 2 * 2;
#endif
}

int64_t peak_dots(int64_t rounds, int8_t* values) {
#if defined(OCTAVO_MATRICES)
  return run_matrices<true>(rounds, values);
#else
  const IntLanes w = broadcast_int(values[0]);
  IntLanes sum[chains];
  for (int c = 0; c < chains; ++c) sum[c] = broadcast_int(c);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < chains; ++c) accumulate_dots(sum[c], w, values);
  }
  IntLanes total = sum[0];
  for (int c = 1; c < chains; ++c) total = total | sum[c];
  values[0] = static_cast<int8_t>(sum_of_lanes(total));
  return rounds * chains * lane_count * 4 * 2;
#endif
}

int32_t read_all(const uint8_t* data, int64_t count) {
  // Eight places far apart at a time, as a product reads its panels: one stream alone waits for every new
  // page.
  constexpr int streams = 8;
  const int64_t share = count / streams;
  IntLanes seen[streams]{};
  for (int64_t at = 0; at < share; at += 64) {
#pragma GCC unroll 8
    for (int s = 0; s < streams; ++s) seen[s] = seen[s] | load_words(data + s * share + at);
  }
  for (int s = 1; s < streams; ++s) seen[0] = seen[0] | seen[s];
  return sum_of_lanes(seen[0]);
}

}  // namespace octavo::OCTAVO_ISA
