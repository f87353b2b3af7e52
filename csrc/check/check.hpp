// What the checks share: failing with a place, random numbers, and arrays of exactly the given size, so that
// a read beyond the end is one that the address sanitizer sees.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);  \
      std::exit(1);                                                                 \
    }                                                                               \
  } while (0)

namespace octavo::check {

// Numerical Recipes' linear generator: the same numbers on every machine.
class Random {
 public:
  explicit Random(uint32_t seed) : state_(seed) {}

  uint32_t bits() { return state_ = state_ * 1664525u + 1013904223u; }
  int64_t below(int64_t end) { return static_cast<int64_t>(bits() >> 8) % end; }
  float value() { return static_cast<float>(bits() >> 8) / 8388608.0f - 1.0f; }  // [-1, 1)

  std::vector<float> values(int64_t count) {
    std::vector<float> out(static_cast<size_t>(count));
    for (float& one : out) one = value();
    return out;
  }

 private:
  uint32_t state_;
};

inline bool close(double x, double y, double tolerance) {
  return std::abs(x - y) <= tolerance * (1.0 + std::abs(y));
}

inline bool same_bits(const std::vector<float>& x, const std::vector<float>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

void check_team();
void check_products();
void check_attention();
void check_cold_reader();
void check_experts();
void check_program();

}  // namespace octavo::check
