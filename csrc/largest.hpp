// Where a row's numbers are largest, found piece by piece.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/kernels.hpp"

namespace octavo {

// The largest of some of a row's numbers, and the lowest index that has it. With index -1 there is none: the
// value is -inf where that is all there was, NaN where something was NaN or +inf.
struct Largest {
  float value = -std::numeric_limits<float>::infinity();
  int32_t index = -1;

  void take_in(const Largest& later) {
    if (!std::isnan(value) && !(later.value <= value)) *this = later;  // also where the later one is NaN
  }
};

inline Largest largest_of(const Kernels& k, const float* x, int64_t count, int64_t first) {
  const int32_t index = k.argmax(x, count);
  if (index >= 0) return {x[index], static_cast<int32_t>(first + index)};
  const auto is_nothing = [](float value) { return value == -std::numeric_limits<float>::infinity(); };
  if (std::all_of(x, x + count, is_nothing)) return {};
  return {std::numeric_limits<float>::quiet_NaN(), -1};
}

}  // namespace octavo
