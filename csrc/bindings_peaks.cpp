// The machine's own limits, for the benchmarks: operations per call are returned, time is taken by the caller.
#include <atomic>
#include <cstring>

#include "arrays.hpp"
#include "dispatch.hpp"
#include "team.hpp"

namespace octavo {
namespace {

constexpr int64_t slice_unit = 512;  // bytes that `read_all` takes at a time
constexpr int64_t rounds_max = int64_t{1} << 40;

void require_rounds(int64_t rounds) {
  require(rounds >= 1 && rounds <= rounds_max, "rounds must be at least 1, and at most 2**40");
}

// `rounds` of a loop over registers on every thread of the team; operations done in all.
template <class Loop>
int64_t on_all_threads(Loop&& loop) {
  std::atomic<int64_t> operations{0};
  parallel(Team::instance().size(), [&](int64_t) { operations += loop(); });
  return operations.load();
}

int64_t peak_multiply_add(int64_t rounds) {
  require_rounds(rounds);
  const Kernels& k = kernels();
  const nb::gil_scoped_release unlocked;
  return on_all_threads([&] {
    float values[2] = {1e-20f, 1e-10f};
    return k.peak_multiply_add(rounds, values);
  });
}

int64_t peak_pairs(int64_t rounds) {
  require_rounds(rounds);
  const Kernels& k = kernels();
  const nb::gil_scoped_release unlocked;
  return on_all_threads([&] {
    float values[2] = {1e-10f, 1e-10f};
    return k.peak_pairs(rounds, values);
  });
}

int64_t peak_dots(int64_t rounds) {
  require_rounds(rounds);
  const Kernels& k = kernels();
  const nb::gil_scoped_release unlocked;
  return on_all_threads([&] {
    int8_t values[4] = {0, 0, 0, 0};  // zeros: a sum of anything else would overflow in the end
    return k.peak_dots(rounds, values);
  });
}

// Calls body(first, last) for slices of [0, bytes), a few for each thread; bytes is a multiple of slice_unit.
template <class Body>
void in_slices(int64_t bytes, Body&& body) {
  const int64_t units = bytes / slice_unit, tasks = tasks_for(units, bytes, 1 << 16, Team::instance().size());
  parallel(tasks, [&](int64_t task) {
    body(units * task / tasks * slice_unit, units * (task + 1) / tasks * slice_unit);
  });
}

int32_t read_bytes(const ByteVector& data) {
  const int64_t bytes = extent(data, 0);
  require(bytes > 0 && bytes % slice_unit == 0, "data must be a multiple of 512 bytes");
  const Kernels& k = kernels();
  const nb::gil_scoped_release unlocked;
  std::atomic<int32_t> seen{0};
  in_slices(bytes, [&](int64_t first, int64_t last) { seen |= k.read_all(data.data() + first, last - first); });
  return seen.load();
}

void copy_bytes(const ByteVector& source, const ByteVectorOut& target) {
  const int64_t bytes = extent(source, 0);
  require(bytes > 0 && bytes % slice_unit == 0, "source must be a multiple of 512 bytes");
  require_size("target", extent(target, 0), bytes);
  require(source.data() + bytes <= target.data() || target.data() + bytes <= source.data(),
          "source and target overlap");
  const nb::gil_scoped_release unlocked;
  in_slices(bytes, [&](int64_t first, int64_t last) {
    std::memcpy(target.data() + first, source.data() + first, static_cast<size_t>(last - first));
  });
}

}  // namespace

void bind_peaks(nb::module_& m) {
  m.def("peak_multiply_add", peak_multiply_add, nb::arg("rounds"));
  m.def("peak_pairs", peak_pairs, nb::arg("rounds"));
  m.def("peak_dots", peak_dots, nb::arg("rounds"));
  m.def("read_bytes", read_bytes, nb::arg("data").noconvert());
  m.def("copy_bytes", copy_bytes, nb::arg("source").noconvert(), nb::arg("target").noconvert());
}

}  // namespace octavo
