// What happens to rows and to single elements: norms, rotation, activations, sums.
#include <nanobind/stl/string.h>

#include "arrays.hpp"
#include "dispatch.hpp"
#include "team.hpp"

namespace octavo {
namespace {

constexpr int64_t work_min = 1 << 14;  // elements below which waking a thread costs more than it saves

// Calls body(first, count) for slices of [0, size), shared out over the team.
template <class Body>
void parallel_slices(int64_t size, int64_t work, Body&& body) {
  const int64_t tasks = tasks_for(size, work, work_min, Team::instance().size());
  parallel(tasks, [&](int64_t task) {
    const int64_t first = size * task / tasks;
    body(first, size * (task + 1) / tasks - first);
  });
}

void rms_norm(const FloatMatrix& x, const FloatVector& weight, float eps, const FloatMatrixOut& out) {
  const int64_t rows = extent(x, 0), size = extent(x, 1);
  require_size("weight", extent(weight, 0), size);
  require_size("out, first axis,", extent(out, 0), rows);
  require_size("out, second axis,", extent(out, 1), size);
  const Kernels& k = kernels();
  const nb::gil_scoped_release unlocked;
  parallel_slices(rows, rows * size, [&](int64_t first, int64_t count) {
    for (int64_t row = first; row < first + count; ++row) {
      k.rms_norm(x.data() + row * size, weight.data(), eps, size, out.data() + row * size);
    }
  });
}

void layer_norm(const FloatMatrix& x, const FloatVector& weight, const FloatVector& bias, float eps,
                const FloatMatrixOut& out) {
  const int64_t rows = extent(x, 0), size = extent(x, 1);
  require_size("weight", extent(weight, 0), size);
  require_size("bias", extent(bias, 0), size);
  require_size("out, first axis,", extent(out, 0), rows);
  require_size("out, second axis,", extent(out, 1), size);
  const Kernels& k = kernels();
  const nb::gil_scoped_release unlocked;
  parallel_slices(rows, rows * size, [&](int64_t first, int64_t count) {
    for (int64_t row = first; row < first + count; ++row) {
      k.layer_norm(x.data() + row * size, weight.data(), bias.data(), eps, size, out.data() + row * size);
    }
  });
}

void rope(const FloatMatrix& x, const IntVector& positions, const FloatMatrix& cos, const FloatMatrix& sin,
          int64_t head_size, const FloatMatrixOut& out) {
  const int64_t rows = extent(x, 0), width = extent(x, 1), half = extent(cos, 1);
  require(head_size >= 1 && width % head_size == 0, "x must have a multiple of head_size columns");
  require(2 * half <= head_size, "cos has more columns than half a head");
  require_size("sin, first axis,", extent(sin, 0), extent(cos, 0));
  require_size("sin, second axis,", extent(sin, 1), half);
  require_size("positions", extent(positions, 0), rows);
  require_size("out, first axis,", extent(out, 0), rows);
  require_size("out, second axis,", extent(out, 1), width);
  require_indices("position", positions.data(), rows, extent(cos, 0));
  const Kernels& k = kernels();
  const nb::gil_scoped_release unlocked;
  parallel_slices(rows, rows * width, [&](int64_t first, int64_t count) {
    for (int64_t row = first; row < first + count; ++row) {
      const int64_t at = positions.data()[row] * half;
      k.rope(x.data() + row * width, cos.data() + at, sin.data() + at, width / head_size, head_size, 2 * half,
             out.data() + row * width);
    }
  });
}

void map(const std::string& function_name, const FloatVector& x, const FloatVectorOut& out) {
  const Map function = map_of(function_name);
  require_size("out", extent(out, 0), extent(x, 0));
  const Kernels& k = kernels();
  const nb::gil_scoped_release unlocked;
  parallel_slices(extent(x, 0), 8 * extent(x, 0), [&](int64_t first, int64_t count) {
    k.map(function, x.data() + first, count, out.data() + first);
  });
}

void gated(const std::string& function_name, const FloatVector& gate, const FloatVector& up,
           const FloatVectorOut& out) {
  const Map function = gate_of(function_name);
  require_size("up", extent(up, 0), extent(gate, 0));
  require_size("out", extent(out, 0), extent(gate, 0));
  const Kernels& k = kernels();
  const nb::gil_scoped_release unlocked;
  parallel_slices(extent(gate, 0), 8 * extent(gate, 0), [&](int64_t first, int64_t count) {
    k.gated(function, gate.data() + first, up.data() + first, count, out.data() + first);
  });
}

void add(const FloatVector& x, const FloatVector& y, const FloatVectorOut& out) {
  require_size("y", extent(y, 0), extent(x, 0));
  require_size("out", extent(out, 0), extent(x, 0));
  const Kernels& k = kernels();
  const nb::gil_scoped_release unlocked;
  parallel_slices(extent(x, 0), extent(x, 0), [&](int64_t first, int64_t count) {
    k.add(x.data() + first, y.data() + first, count, out.data() + first);
  });
}

void scale(const FloatVector& x, float factor, const FloatVectorOut& out) {
  require_size("out", extent(out, 0), extent(x, 0));
  const Kernels& k = kernels();
  const nb::gil_scoped_release unlocked;
  parallel_slices(extent(x, 0), extent(x, 0), [&](int64_t first, int64_t count) {
    k.scale(x.data() + first, factor, count, out.data() + first);
  });
}

void soft_cap(const FloatVector& x, float cap, const FloatVectorOut& out) {
  require(cap > 0.0f, "a soft cap must be positive");
  require_size("out", extent(out, 0), extent(x, 0));
  const Kernels& k = kernels();
  const nb::gil_scoped_release unlocked;
  parallel_slices(extent(x, 0), 8 * extent(x, 0), [&](int64_t first, int64_t count) {
    k.soft_cap(x.data() + first, cap, count, out.data() + first);
  });
}

}  // namespace

Map map_of(const std::string& name) {
  if (name == "exp") return Map::exp;
  if (name == "tanh") return Map::tanh;
  if (name == "silu") return Map::silu;
  if (name == "gelu_tanh") return Map::gelu_tanh;
  if (name == "gelu") return Map::gelu;
  if (name == "relu") return Map::relu;
  throw std::invalid_argument("unknown function '" + name +
                              "'; known: exp, tanh, silu, gelu_tanh, gelu, relu, and of two swiglu_clamped");
}

Map gate_of(const std::string& name) { return name == "swiglu_clamped" ? Map::swiglu_clamped : map_of(name); }

void bind_rows(nb::module_& m) {
  m.def("rms_norm", rms_norm, nb::arg("x").noconvert(), nb::arg("weight").noconvert(), nb::arg("eps"),
        nb::arg("out").noconvert());
  m.def("layer_norm", layer_norm, nb::arg("x").noconvert(), nb::arg("weight").noconvert(),
        nb::arg("bias").noconvert(), nb::arg("eps"), nb::arg("out").noconvert());
  m.def("rope", rope, nb::arg("x").noconvert(), nb::arg("positions").noconvert(), nb::arg("cos").noconvert(),
        nb::arg("sin").noconvert(), nb::arg("head_size"), nb::arg("out").noconvert());
  m.def("map", map, nb::arg("function"), nb::arg("x").noconvert(), nb::arg("out").noconvert());
  m.def("gated", gated, nb::arg("function"), nb::arg("gate").noconvert(), nb::arg("up").noconvert(),
        nb::arg("out").noconvert());
  m.def("add", add, nb::arg("x").noconvert(), nb::arg("y").noconvert(), nb::arg("out").noconvert());
  m.def("scale", scale, nb::arg("x").noconvert(), nb::arg("factor"), nb::arg("out").noconvert());
  m.def("soft_cap", soft_cap, nb::arg("x").noconvert(), nb::arg("cap"), nb::arg("out").noconvert());
}

}  // namespace octavo
