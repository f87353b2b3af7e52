// A mixture of experts: close to the sum spelled out in double, and a row's bits as if it were alone.
#include <algorithm>
#include <numeric>

#include "check/check.hpp"
#include "dispatch.hpp"
#include "experts.hpp"
#include "team.hpp"

namespace octavo::check {
namespace {

struct Matrix {
  std::vector<float> values;  // (outputs, inputs)
  std::vector<float> memory;
  Weight weight;
};

Matrix matrix(Random& random, Kind kind, int64_t outputs, int64_t inputs) {
  const int64_t count = (outputs + panel_width - 1) / panel_width;
  Matrix out{random.values(outputs * inputs), {}, {}};
  out.memory.resize(static_cast<size_t>(count * inputs * panel_width));
  const uint8_t* data = reinterpret_cast<const uint8_t*>(out.values.data());
  uint8_t* memory = reinterpret_cast<uint8_t*>(out.memory.data());
  if (kind == Kind::f32 || kind == Kind::bf16) {
    kernels().pack({data, Kind::f32, outputs, inputs, memory, kind}, 0, count);
  } else {
    kernels().pack_codes({data, kind, outputs, inputs, memory, Kind::f32}, 0, count);
  }
  out.weight = {kind, memory, outputs, inputs};
  return out;
}

double dot(const Matrix& w, int64_t output, const double* x) {
  double sum = 0;
  for (int64_t i = 0; i < w.weight.inputs; ++i) {
    sum += static_cast<double>(w.values[static_cast<size_t>(output * w.weight.inputs + i)]) * x[i];
  }
  return sum;
}

// One row through one expert, relu for an activation.
std::vector<double> passed(const Matrix* parts, const std::vector<double>& x) {
  std::vector<double> inner, out;
  for (int64_t i = 0; i < parts[0].weight.outputs; ++i) {
    inner.push_back(std::max(0.0, dot(parts[0], i, x.data())) * dot(parts[1], i, x.data()));
  }
  for (int64_t i = 0; i < parts[2].weight.outputs; ++i) out.push_back(dot(parts[2], i, inner.data()));
  return out;
}

void check_with(Kind kind, bool weighs_input, int64_t rows) {
  constexpr int64_t hidden = 64, inner = 160, count = 5, top_k = 2;
  Random random(11);
  std::vector<Matrix> parts;
  Mixture mixture{{top_k, Scoring::sigmoid, false, weighs_input}, Map::relu, {}};
  parts.reserve(3 * count);
  for (int64_t e = 0; e < count; ++e) {
    parts.push_back(matrix(random, kind, inner, hidden));
    parts.push_back(matrix(random, kind, inner, hidden));
    parts.push_back(matrix(random, kind == Kind::q8_0 ? Kind::q4_1 : kind, hidden, inner));
    const Matrix* own = &parts[static_cast<size_t>(3 * e)];
    mixture.experts.push_back({{own[0].weight, nullptr}, {own[1].weight, nullptr}, {own[2].weight, nullptr}});
  }
  const std::vector<float> x = random.values(rows * hidden), logits = random.values(rows * count);
  const auto run = [&](int64_t first, int64_t its_rows) {
    std::vector<float> out(static_cast<size_t>(its_rows * hidden));
    run_experts({mixture, x.data() + first * hidden, logits.data() + first * count, out.data(), its_rows});
    return out;
  };
  Team::instance().resize(1);
  std::vector<float> alone;
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<float> out = run(row, 1);
    alone.insert(alone.end(), out.begin(), out.end());
  }
  for (const int threads : {1, 3}) {
    Team::instance().resize(threads);
    CHECK(same_bits(run(0, rows), alone));
  }
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<int64_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    const float* its = logits.data() + row * count;
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return its[a] > its[b]; });
    std::vector<double> expected(hidden);
    for (int64_t i = 0; i < top_k; ++i) {
      const double weight = 1.0 / (1.0 + std::exp(-static_cast<double>(its[order[static_cast<size_t>(i)]])));
      std::vector<double> given(x.begin() + row * hidden, x.begin() + (row + 1) * hidden);
      if (weighs_input) for (double& value : given) value *= weight;
      const auto expert = static_cast<size_t>(order[static_cast<size_t>(i)]);
      const std::vector<double> made = passed(&parts[3 * expert], given);
      for (size_t j = 0; j < made.size(); ++j) expected[j] += weighs_input ? made[j] : weight * made[j];
    }
    double largest = 0;
    for (const double value : expected) largest = std::max(largest, std::abs(value));
    const double tolerance = largest * (kind == Kind::f32 ? 1e-4 : 0.3);  // four bits are coarse
    for (int64_t i = 0; i < hidden; ++i) {
      const double got = static_cast<double>(alone[static_cast<size_t>(row * hidden + i)]);
      CHECK(std::abs(got - expected[static_cast<size_t>(i)]) < tolerance);
    }
  }
}

}  // namespace

void check_experts() {
  for (const Kind kind : {Kind::f32, Kind::bf16, Kind::q8_0}) {
    for (const bool weighs_input : {false, true}) {
      for (const int64_t rows : {1, 3, 70, 250}) check_with(kind, weighs_input, rows);
    }
  }
}

}  // namespace octavo::check
