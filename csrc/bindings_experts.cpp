// Mixtures of experts from Python: described once, expert after expert, then run as often as wanted.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "arrays.hpp"
#include "experts.hpp"

namespace octavo {
namespace {

constexpr int64_t experts_max = 1024;

Scoring scoring_of(const std::string& name) {
  if (name == "softmax") return Scoring::softmax;
  if (name == "softmax_of_chosen") return Scoring::softmax_of_chosen;
  if (name == "sigmoid") return Scoring::sigmoid;
  throw std::invalid_argument("unknown scoring '" + name + "'; known: softmax, softmax_of_chosen, sigmoid");
}

void make_mixture(Mixture* memory, int64_t top_k, const std::string& scoring, bool normalised,
                  bool weighs_input, const std::string& activation) {
  require(top_k >= 1 && top_k <= experts_max,
          "top_k is " + std::to_string(top_k) + "; allowed: 1 to " + std::to_string(experts_max));
  new (memory) Mixture{{top_k, scoring_of(scoring), normalised, weighs_input}, gate_of(activation), {}};
}

Projection projection_of(const char* name, const Weight& weight, const std::optional<FloatVector>& bias,
                         int64_t outputs, int64_t inputs) {
  require_size((std::string(name) + ", outputs,").c_str(), weight.outputs, outputs);
  require_size((std::string(name) + ", inputs,").c_str(), weight.inputs, inputs);
  if (bias) require_size((std::string(name) + ", bias,").c_str(), extent(*bias, 0), outputs);
  return {weight, bias ? bias->data() : nullptr};
}

void add_expert(Mixture& mixture, const Weight& gate, const std::optional<FloatVector>& gate_bias,
                const Weight& up, const std::optional<FloatVector>& up_bias, const Weight& down,
                const std::optional<FloatVector>& down_bias) {
  require(mixture.experts.size() < experts_max,
          "the mixture has " + std::to_string(experts_max) + " experts already");
  const Weight& first = mixture.experts.empty() ? gate : mixture.experts[0].gate.weight;
  const int64_t hidden = first.inputs, inner = first.outputs;
  mixture.experts.push_back({projection_of("gate", gate, gate_bias, inner, hidden),
                             projection_of("up", up, up_bias, inner, hidden),
                             projection_of("down", down, down_bias, hidden, inner)});
}

void experts(const FloatMatrix& x, const FloatMatrix& logits, const Mixture& mixture,
             const FloatMatrixOut& out) {
  require_complete(mixture);
  const int64_t rows = extent(x, 0);
  require_size("x, second axis,", extent(x, 1), mixture.hidden_size());
  require_size("logits, first axis,", extent(logits, 0), rows);
  require_size("logits, second axis,", extent(logits, 1), static_cast<int64_t>(mixture.experts.size()));
  require_size("out, first axis,", extent(out, 0), rows);
  require_size("out, second axis,", extent(out, 1), mixture.hidden_size());
  const nb::gil_scoped_release unlocked;
  run_experts({mixture, x.data(), logits.data(), out.data(), rows});
}

}  // namespace

void require_complete(const Mixture& mixture) {
  const auto count = static_cast<int64_t>(mixture.experts.size());
  require(count >= mixture.routing.top_k,
          "a mixture of " + std::to_string(count) + " experts, of which each row chooses " +
              std::to_string(mixture.routing.top_k));
}

void bind_experts(nb::module_& m) {
  nb::class_<Mixture>(m, "Mixture")
      .def("__init__", make_mixture, nb::arg("top_k"), nb::arg("scoring"), nb::arg("normalised"),
           nb::arg("weighs_input"), nb::arg("activation"))
      .def("add_expert", add_expert, nb::arg("gate"), nb::arg("gate_bias").noconvert().none(), nb::arg("up"),
           nb::arg("up_bias").noconvert().none(), nb::arg("down"), nb::arg("down_bias").noconvert().none());
  m.def("experts", experts, nb::arg("x").noconvert(), nb::arg("logits").noconvert(), nb::arg("mixture"),
        nb::arg("out").noconvert());
}

}  // namespace octavo
