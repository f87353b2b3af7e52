// What the sampler needs: log-sum-exp, argmax, and reproducible noise.
#include <nanobind/stl/array.h>

#include <array>

#include "arrays.hpp"
#include "dispatch.hpp"
#include "team.hpp"

namespace octavo {
namespace {

using Counter = std::array<uint32_t, 4>;
using Key = std::array<uint32_t, 2>;

void log_sum_exp(const FloatMatrix& x, const FloatVectorOut& out) {
  const int64_t rows = extent(x, 0), size = extent(x, 1);
  require_size("out", extent(out, 0), rows);
  require(size > 0, "the log-sum-exp of an empty row does not exist");
  const Kernels& k = kernels();
  const float* source = x.data();
  float* target = out.data();
  const nb::gil_scoped_release unlocked;
  parallel(rows, [&](int64_t row) { target[row] = k.log_sum_exp(source + row * size, size); });
}

void argmax(const FloatMatrix& x, const IntVectorOut& out) {
  const int64_t rows = extent(x, 0), size = extent(x, 1);
  require_size("out", extent(out, 0), rows);
  require(size > 0 && size < (int64_t{1} << 31), "a row must have 1 to 2**31 - 1 elements");
  const Kernels& k = kernels();
  const float* source = x.data();
  int32_t* target = out.data();
  const nb::gil_scoped_release unlocked;
  parallel(rows, [&](int64_t row) { target[row] = k.argmax(source + row * size, size); });
}

void gumbel(uint64_t seed, uint32_t choice, uint32_t position, const FloatVectorOut& out) {
  const int64_t count = extent(out, 0);
  require(count <= (int64_t{1} << 32), "the generator has 2**32 tokens of noise per position");
  const Kernels& k = kernels();
  float* target = out.data();
  const nb::gil_scoped_release unlocked;
  constexpr int64_t slice = 1 << 13;
  parallel((count + slice - 1) / slice, [&](int64_t task) {
    const int64_t first = task * slice, size = count - first < slice ? count - first : slice;
    k.gumbel(seed, choice, position, static_cast<uint32_t>(first / 4), size, target + first);
  });
}

Counter philox(const Counter& counter, const Key& key) {
  Counter out{};
  kernels().philox(counter.data(), key.data(), out.data());
  return out;
}

}  // namespace

void bind_vocabulary(nb::module_& m) {
  m.def("log_sum_exp", log_sum_exp, nb::arg("x").noconvert(), nb::arg("out").noconvert());
  m.def("argmax", argmax, nb::arg("x").noconvert(), nb::arg("out").noconvert());
  m.def("gumbel", gumbel, nb::arg("seed"), nb::arg("choice"), nb::arg("position"),
        nb::arg("out").noconvert());
  m.def("philox", philox, nb::arg("counter"), nb::arg("key"));
}

}  // namespace octavo
