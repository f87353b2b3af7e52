// What happens to a row: norms, rotation, activations. One row's bits depend on that row alone.
#include "kernels/functions.hpp"
#include "kernels/table.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

OCTAVO_INLINE int64_t lanes_left(int64_t count, int64_t i) {
  return count - i < lane_count ? count - i : lane_count;
}

// out[i] = f(x[i]): the last vector is padded with zeros, so a lane's place never matters.
template <class F>
OCTAVO_INLINE void each(const float* x, int64_t count, float* out, F f) {
  for (int64_t i = 0; i < count; i += lane_count) {
    const int64_t left = lanes_left(count, i);
    store_first(out + i, f(load_first(x + i, left)), left);
  }
}

template <class F>
OCTAVO_INLINE void each_pair(const float* x, const float* y, int64_t count, float* out, F f) {
  for (int64_t i = 0; i < count; i += lane_count) {
    const int64_t left = lanes_left(count, i);
    store_first(out + i, f(load_first(x + i, left), load_first(y + i, left)), left);
  }
}

OCTAVO_INLINE Lanes silu(const Lanes& x) { return x / (broadcast(1.0f) + exponential(broadcast(0.0f) - x)); }

OCTAVO_INLINE Lanes gelu_tanh(const Lanes& x) {
  const Lanes cube = x * x * x;
  const Lanes inner = broadcast(0.7978845608028654f) * fma(broadcast(0.044715f), cube, x);
  return broadcast(0.5f) * x * (broadcast(1.0f) + hyperbolic_tangent(inner));
}

// The exact GELU, by the C library's erf in double: rare, and one element at a time is exact enough to be
// repeatable.
OCTAVO_INLINE Lanes gelu(const Lanes& x) {
  float lane[lane_count];
  store(lane, x);
  for (int i = 0; i < lane_count; ++i) {
    const double value = lane[i];
    lane[i] = static_cast<float>(0.5 * value * (1.0 + __builtin_erf(value * 0.7071067811865476)));
  }
  return load(lane);
}

// NaN stays NaN.
OCTAVO_INLINE Lanes relu(const Lanes& x) {
  const Lanes zero = broadcast(0.0f);
  return select(less(x, zero), zero, x);
}

// gpt-oss: how large gate and up may get, and how steep the sigmoid is.
constexpr float clamp_limit = 7.0f, sigmoid_slope = 1.702f;

OCTAVO_INLINE Lanes swiglu_clamped(const Lanes& gate, const Lanes& up) {
  const Lanes one = broadcast(1.0f);
  const Lanes g = smaller(broadcast(clamp_limit), gate), u = clamped(up, -clamp_limit, clamp_limit);
  const Lanes steep = broadcast(sigmoid_slope) * g;
  return g / (one + exponential(broadcast(0.0f) - steep)) * (u + one);
}

// Calls `use` with the function of a vector that `function` names.
template <class Use>
OCTAVO_INLINE void with_function(Map function, Use use) {
  switch (function) {
    case Map::exp: return use([](const Lanes& v) { return exponential(v); });
    case Map::tanh: return use([](const Lanes& v) { return hyperbolic_tangent(v); });
    case Map::silu: return use([](const Lanes& v) { return silu(v); });
    case Map::gelu_tanh: return use([](const Lanes& v) { return gelu_tanh(v); });
    case Map::gelu: return use([](const Lanes& v) { return gelu(v); });
    case Map::relu: return use([](const Lanes& v) { return relu(v); });
    case Map::swiglu_clamped: __builtin_unreachable();  // a function of two: `gated` knows it
  }
}

float mean_of_squares(const float* x, int64_t size) {
  Lanes sum = broadcast(0.0f);
  for (int64_t i = 0; i < size; i += lane_count) {
    const Lanes value = load_first(x + i, lanes_left(size, i));
    sum = fma(value, value, sum);
  }
  return sum_of_lanes(sum) / static_cast<float>(size);
}

float mean_of(const float* x, int64_t size) {
  Lanes sum = broadcast(0.0f);
  for (int64_t i = 0; i < size; i += lane_count) sum = sum + load_first(x + i, lanes_left(size, i));
  return sum_of_lanes(sum) / static_cast<float>(size);
}

}  // namespace

void rms_norm(const float* x, const float* weight, float eps, int64_t size, float* out) {
  const Lanes factor = broadcast(1.0f / __builtin_sqrtf(mean_of_squares(x, size) + eps));
  each_pair(x, weight, size, out, [&](const Lanes& value, const Lanes& w) { return value * factor * w; });
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, int64_t size, float* out) {
  const Lanes mean = broadcast(mean_of(x, size));
  each(x, size, out, [&](const Lanes& value) { return value - mean; });
  const Lanes factor = broadcast(1.0f / __builtin_sqrtf(mean_of_squares(out, size) + eps));
  each_pair(out, weight, size, out, [&](const Lanes& value, const Lanes& w) { return value * factor * w; });
  each_pair(out, bias, size, out, [&](const Lanes& value, const Lanes& b) { return value + b; });
}

void rope(const float* x, const float* cos, const float* sin, int64_t heads, int64_t head_size, int64_t dims,
          float* out) {
  const int64_t half = dims / 2;
  for (int64_t h = 0; h < heads; ++h, x += head_size, out += head_size) {
    for (int64_t i = 0; i < half; i += lane_count) {
      const int64_t left = lanes_left(half, i);
      const Lanes a = load_first(x + i, left), b = load_first(x + i + half, left);
      const Lanes c = load_first(cos + i, left), s = load_first(sin + i, left);
      store_first(out + i, a * c - b * s, left);
      store_first(out + i + half, b * c + a * s, left);
    }
    for (int64_t i = dims; i < head_size; ++i) out[i] = x[i];
  }
}

void map(Map function, const float* x, int64_t count, float* out) {
  with_function(function, [&](auto f) { each(x, count, out, f); });
}

void gated(Map function, const float* gate, const float* up, int64_t count, float* out) {
  if (function == Map::swiglu_clamped) {
    return each_pair(gate, up, count, out, [](const Lanes& g, const Lanes& u) { return swiglu_clamped(g, u); });
  }
  with_function(function, [&](auto f) {
    each_pair(gate, up, count, out, [&](const Lanes& g, const Lanes& u) { return f(g) * u; });
  });
}

void add(const float* x, const float* y, int64_t count, float* out) {
  each_pair(x, y, count, out, [](const Lanes& a, const Lanes& b) { return a + b; });
}

void scale(const float* x, float factor, int64_t count, float* out) {
  const Lanes f = broadcast(factor);
  each(x, count, out, [&](const Lanes& value) { return value * f; });
}

void soft_cap(const float* x, float cap, int64_t count, float* out) {
  const Lanes c = broadcast(cap);
  each(x, count, out, [&](const Lanes& value) { return c * hyperbolic_tangent(value / c); });
}

}  // namespace octavo::OCTAVO_ISA
