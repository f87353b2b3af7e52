// What the sampler needs of a row of logits: its log-sum-exp, its largest, and reproducible noise.
#include "kernels/functions.hpp"
#include "kernels/integers.hpp"
#include "kernels/table.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int batch = 16;  // counters of the generator that run side by side

// Philox 4x32 with 10 rounds on `batch` counters that differ in word 0 only.
// Source: Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
OCTAVO_INLINE void philox_batch(const uint32_t counter[4], const uint32_t key[2],
                                uint32_t (&word)[4][batch]) {
  for (int i = 0; i < batch; ++i) {
    word[0][i] = counter[0] + static_cast<uint32_t>(i);
    word[1][i] = counter[1];
    word[2][i] = counter[2];
    word[3][i] = counter[3];
  }
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < batch; ++i) {
      const uint64_t a = 0xD2511F53ull * word[0][i], b = 0xCD9E8D57ull * word[2][i];
      const uint32_t c1 = word[1][i], c3 = word[3][i];
      word[0][i] = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
      word[1][i] = static_cast<uint32_t>(b);
      word[2][i] = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
      word[3][i] = static_cast<uint32_t>(a);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

// -log(-log u) with u = (24 upper bits + 1/2) / 2^24, strictly between 0 and 1.
OCTAVO_INLINE float gumbel_of(uint32_t bits) {
  const double u = (static_cast<double>(static_cast<int32_t>(bits >> 8)) + 0.5) * 0x1p-24;
  return static_cast<float>(-logarithm(-logarithm(u)));
}

}  // namespace

void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t word[4][batch];
  philox_batch(counter, key, word);
  for (int i = 0; i < 4; ++i) out[i] = word[i][0];
}

void gumbel(uint64_t seed, uint32_t choice, uint32_t position, uint32_t first, int64_t count, float* out) {
  const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int64_t done = 0; done < count; done += 4 * batch) {
    const uint32_t counter[4] = {first + static_cast<uint32_t>(done / 4), position, choice, 0};
    uint32_t word[4][batch];
    philox_batch(counter, key, word);
    float noise[4][batch];
    for (int w = 0; w < 4; ++w) {
      for (int i = 0; i < batch; ++i) noise[w][i] = gumbel_of(word[w][i]);
    }
    const int64_t left = count - done < 4 * batch ? count - done : 4 * batch;
    for (int64_t t = 0; t < left; ++t) out[done + t] = noise[t % 4][t / 4];
  }
}

float log_sum_exp(const float* x, int64_t count) {
  // 1. The largest, so that no exponential overflows.
  Lanes best = broadcast(-infinity);
  const int64_t whole = count / lane_count * lane_count;
  for (int64_t i = 0; i < whole; i += lane_count) best = larger(load(x + i), best);
  float top = largest_lane(best);
  for (int64_t i = whole; i < count; ++i) top = x[i] > top ? x[i] : top;
  const Lanes shift = broadcast(top);
  // 2. Sixteen sums in double, element i in sum i % 16: an order that depends on nothing but i.
  double sums[lane_count] = {};
  float value[lane_count];
  for (int64_t i = 0; i < count; i += lane_count) {
    const int64_t left = count - i < lane_count ? count - i : lane_count;
    store(value, exponential(load_first(x + i, left) - shift));
    if (left == lane_count) {
      for (int lane = 0; lane < lane_count; ++lane) sums[lane] += static_cast<double>(value[lane]);
    } else {
      for (int lane = 0; lane < left; ++lane) sums[lane] += static_cast<double>(value[lane]);
    }
  }
  for (int half = lane_count / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  // 3. The sum is at least 1 (the largest itself), unless there are NaN or infinities: those give NaN.
  if (!(sums[0] >= 1.0 && sums[0] < 1e300)) return __builtin_nanf("");
  return static_cast<float>(static_cast<double>(top) + logarithm(sums[0]));
}

int32_t argmax(const float* x, int64_t count) {
  // Each lane keeps its first largest; the lowest index among the lanes' largest wins. Magnitudes are compared
  // as integers, where NaN is above all: one of them makes the row unsound.
  const IntLanes magnitude_mask = broadcast_int(0x7FFFFFFF);
  constexpr int32_t infinite = 0x7F800000;
  IntLanes magnitude = broadcast_int(0);
  Lanes best = broadcast(-infinity);
  IntLanes best_index = broadcast_int(INT32_MAX), index = broadcast_int(0);
  for (int i = 0; i < lane_count; ++i) index.part[i * parts / lane_count][i % (lane_count / parts)] = i;
  const int64_t whole = count / lane_count * lane_count;
  for (int64_t i = 0; i < whole; i += lane_count, index = index + broadcast_int(lane_count)) {
    const Lanes value = load(x + i);
    magnitude = larger(magnitude, bits_of(value) & magnitude_mask);
    const IntLanes better = less(best, value);
    best = select(better, value, best);
    best_index = select(better, index, best_index);
  }
  float value[lane_count];
  int32_t place[lane_count];
  store(value, best);
  __builtin_memcpy(place, &best_index, sizeof place);
  float top = -infinity;
  int32_t where = INT32_MAX;
  for (int i = 0; i < lane_count; ++i) {
    if (value[i] > top || (value[i] == top && place[i] < where)) {
      top = value[i];
      where = place[i];
    }
  }
  bool has_nan = largest_lane(magnitude) > infinite;
  for (int64_t i = whole; i < count; ++i) {
    has_nan = has_nan || x[i] != x[i];
    if (x[i] > top) {
      top = x[i];
      where = static_cast<int32_t>(i);
    }
  }
  return has_nan || !(top > -infinity && top < infinity) ? -1 : where;
}

}  // namespace octavo::OCTAVO_ISA
