// Integer linears: packing a file's own codes, reading rows back, and the product.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>

#include "arrays.hpp"
#include "dispatch.hpp"
#include "team.hpp"

namespace octavo {
namespace {

constexpr int64_t quantise_work_min = 1 << 14;  // elements below which sharing costs more than it saves
constexpr int64_t product_work_min = 1 << 18;   // multiply-adds, likewise

Kind grouped_kind_of(const std::string& name) {
  const Kind kind = kind_of(name);
  require(is_grouped(kind), "a tensor of kind " + name + " has no integer codes; known: " + kind_names(true));
  return kind;
}

template <class P>
void require_panels(const P& panels, Kind kind, int64_t outputs, int64_t inputs) {
  require(inputs > 0 && inputs % block_size_of(kind) == 0 && inputs <= (int64_t{1} << 24),
          "integer panels have " + std::to_string(inputs) + " inputs; it must be a multiple of " +
              std::to_string(block_size_of(kind)));
  require_size("panels, first axis,", extent(panels, 0), (outputs + panel_width - 1) / panel_width);
  require_size("panels, second axis,", extent(panels, 1), code_panel_bytes(kind, inputs));
}

int64_t code_panel_size(const std::string& kind_name, int64_t inputs) {
  return code_panel_bytes(grouped_kind_of(kind_name), inputs);
}

void pack_codes(const ByteVector& data, const std::string& kind_name, int64_t outputs, int64_t inputs,
                const std::string& stored_name, const CodePanelsOut& panels) {
  const Kind source = kind_of(kind_name), kind = grouped_kind_of(stored_name);
  require(kind == source || kind == Kind::q8_0 || kind == Kind::q4_1,
          kind_name + " cannot be quantised again as " + stored_name + "; allowed: Q8_0, Q4_1");
  require_matrix(data, source, outputs, inputs);
  require_panels(panels, kind, outputs, inputs);
  const CodePacking packing{data.data(), kind, outputs, inputs, panels.data(), source};
  const int64_t count = extent(panels, 0);
  const Kernels& k = kernels();
  const nb::gil_scoped_release unlocked;
  const int64_t tasks = tasks_for(count, outputs * inputs, 1 << 15, Team::instance().size());
  parallel(tasks,
           [&](int64_t task) { k.pack_codes(packing, count * task / tasks, count * (task + 1) / tasks); });
}

void embed_codes(const CodePanels& panels, const std::string& kind_name, int64_t outputs,
                 const IntVector& rows, const FloatMatrixOut& out) {
  const Kind kind = grouped_kind_of(kind_name);
  const int64_t count = extent(rows, 0), inputs = extent(out, 1);
  require_panels(panels, kind, outputs, inputs);
  require_size("out, first axis,", extent(out, 0), count);
  require_indices("row", rows.data(), count, outputs);
  const Kernels& k = kernels();
  const nb::gil_scoped_release unlocked;
  const int64_t tasks = tasks_for(count, count * inputs, 1 << 14, Team::instance().size());
  parallel(tasks, [&](int64_t task) {
    for (int64_t i = count * task / tasks; i < count * (task + 1) / tasks; ++i) {
      k.unpack_codes(panels.data(), kind, inputs, rows.data()[i], out.data() + i * inputs);
    }
  });
}

// The memory behind one call's `Activations`.
struct ActivationMemory {
  std::unique_ptr<int32_t[]> words;
  Activations view;

  ActivationMemory(int64_t rows, int64_t inputs) {
    const int64_t count = activation_words(code_stride(rows), inputs);
    words = std::make_unique_for_overwrite<int32_t[]>(static_cast<size_t>(count));
    view = activations_in(words.get(), rows, inputs);
  }
};

void linear_codes(const FloatMatrix& x, const CodePanels& panels, const std::string& kind_name,
                  const std::optional<FloatVector>& bias, const FloatMatrixOut& out) {
  const Kind kind = grouped_kind_of(kind_name);
  const int64_t rows = extent(x, 0), inputs = extent(x, 1), outputs = extent(out, 1);
  require_size("out, first axis,", extent(out, 0), rows);
  require_panels(panels, kind, outputs, inputs);
  if (bias) require_size("bias", extent(*bias, 0), outputs);
  const Kernels& k = kernels();
  const nb::gil_scoped_release unlocked;
  const ActivationMemory activations(rows, inputs);
  const int threads = Team::instance().size();
  // 1. The rows' codes, once for all outputs.
  const int64_t quantise_tasks = tasks_for(rows, rows * inputs, quantise_work_min, threads);
  parallel(quantise_tasks, [&](int64_t task) {
    const int64_t first = rows * task / quantise_tasks, last = rows * (task + 1) / quantise_tasks;
    k.quantise_rows(x.data() + first * inputs, kind, first, last - first, activations.view);
  });
  // 2. The product, shared out by panels.
  const IntegerProduct product{activations.view, panels.data(), kind, bias ? bias->data() : nullptr,
                               out.data(),       outputs};
  const int64_t count = extent(panels, 0);
  const int64_t tasks = tasks_for(count, rows * inputs * outputs, product_work_min, threads);
  parallel(tasks, [&](int64_t task) {
    k.integer_product(product, count * task / tasks, count * (task + 1) / tasks);
  });
}

}  // namespace

void bind_integers(nb::module_& m) {
  m.def("code_panel_bytes", code_panel_size, nb::arg("kind"), nb::arg("inputs"));
  m.def("pack_codes", pack_codes, nb::arg("data").noconvert(), nb::arg("kind"), nb::arg("outputs"),
        nb::arg("inputs"), nb::arg("stored"), nb::arg("panels").noconvert());
  m.def("embed_codes", embed_codes, nb::arg("panels").noconvert(), nb::arg("kind"), nb::arg("outputs"),
        nb::arg("rows").noconvert(), nb::arg("out").noconvert());
  m.def("linear_codes", linear_codes, nb::arg("x").noconvert(), nb::arg("panels").noconvert(),
        nb::arg("kind"), nb::arg("bias").noconvert().none(), nb::arg("out").noconvert());
}

}  // namespace octavo
