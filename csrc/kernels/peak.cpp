// What the machine can do at best, to set the kernels' figures beside: multiply-adds, pairs of bfloat16 and
// bytes out of registers alone, and reading memory. The values mean nothing; that somebody could look at them
// keeps the compiler from dropping the work.
#include "kernels/pairs.hpp"
#include "kernels/table.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

// Independent chains: enough to hide the latency of the multiply-add, and all of them in registers. Each
// begins with a value of its own: chains that begin alike would be computed once.
constexpr int chains = native_bytes == 64 ? 12 : native_bytes == 32 ? 6 : 3;

}  // namespace

int64_t peak_multiply_add(int64_t rounds, float* values) {
  const Lanes x = broadcast(values[0]), y = broadcast(values[1]);
  Lanes sum[chains];
  for (int c = 0; c < chains; ++c) sum[c] = broadcast(static_cast<float>(c));
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < chains; ++c) accumulate(sum[c], x, y);
  }
  Lanes total = sum[0];
  for (int c = 1; c < chains; ++c) total = total + sum[c];
  values[0] = sum_of_lanes(total);
  return rounds * chains * lane_count * 2;
}

int64_t peak_pairs(int64_t rounds, float* values) {
  Paired given[lane_count];
  store_paired(given, broadcast(values[0]));
  const Two x = broadcast_two(given);
  const IntLanes w = bits_of(broadcast(values[1]));
  Lanes sum[chains];
  for (int c = 0; c < chains; ++c) sum[c] = broadcast(static_cast<float>(c));
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < chains; ++c) accumulate_pairs(sum[c], w, x);
  }
  Lanes total = sum[0];
  for (int c = 1; c < chains; ++c) total = total + sum[c];
  values[0] = sum_of_lanes(total);
  return rounds * chains * lane_count * 2 * 2;
}

int64_t peak_dots(int64_t rounds, int8_t* values) {
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
