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

// As integers magnitudes compare like floats, and NaN is above all.
constexpr int32_t infinite_magnitude = 0x7F800000;

// The largest of whole vectors, if none is NaN; `magnitude` accumulates their magnitudes, which reveal NaN.
OCTAVO_INLINE float largest_of(const float* x, int64_t size, IntLanes& magnitude) {
  constexpr int chains = 4;
  const IntLanes mask = broadcast_int(0x7FFFFFFF);
  Lanes best[chains];
  for (Lanes& chain : best) chain = broadcast(-infinity);
  int64_t i = 0;
  for (; i + chains * lane_count <= size; i += chains * lane_count) {
#pragma GCC unroll 4
    for (int c = 0; c < chains; ++c) {
      const Lanes value = load(x + i + c * lane_count);
      magnitude = larger(magnitude, bits_of(value) & mask);
      best[c] = larger(value, best[c]);
    }
  }
  for (; i < size; i += lane_count) {
    const Lanes value = load(x + i);
    magnitude = larger(magnitude, bits_of(value) & mask);
    best[0] = larger(value, best[0]);
  }
  return largest_lane(larger(larger(best[0], best[1]), larger(best[2], best[3])));
}

// The lowest index of what no element of whole vectors is above, and one is equal to.
OCTAVO_INLINE int64_t first_index_of(float top, const float* x, int64_t size) {
  const Lanes tops = broadcast(top);
  const IntLanes none = broadcast_int(INT32_MIN);
  IntLanes first = none, before = broadcast_int(0);  // minus the index, of which the largest is wanted
  for (int i = 0; i < lane_count; ++i) before.part[i * parts / lane_count][i % (lane_count / parts)] = -i;
  for (int64_t i = 0; i < size; i += lane_count, before = before - broadcast_int(lane_count)) {
    first = larger(first, select(less(load(x + i), tops), none, before));
  }
  return -static_cast<int64_t>(largest_lane(first));
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
  constexpr int64_t together = 64 * lane_count;  // still in the nearest cache when the index is looked for
  const int64_t whole = count / lane_count * lane_count;
  IntLanes magnitude = broadcast_int(0);
  float top = -infinity;
  int64_t where = -1;
  for (int64_t first = 0; first < whole; first += together) {
    const int64_t size = whole - first < together ? whole - first : together;
    const float its_top = largest_of(x + first, size, magnitude);
    if (!(its_top > top)) continue;
    top = its_top;
    where = first + first_index_of(top, x + first, size);
  }
  bool has_nan = largest_lane(magnitude) > infinite_magnitude;
  for (int64_t i = whole; i < count; ++i) {
    has_nan = has_nan || x[i] != x[i];
    if (x[i] > top) {
      top = x[i];
      where = i;
    }
  }
  return has_nan || !(top > -infinity && top < infinity) ? -1 : static_cast<int32_t>(where);
}

}  // namespace octavo::OCTAVO_ISA
