// The Python module `octavo._native`. Only the bindings know Python; each checks its arguments with the
// interpreter's lock held, then releases it and calls kernels over raw pointers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "dispatch.hpp"
#include "machine.hpp"
#include "team.hpp"

namespace octavo {
namespace {

constexpr int threads_max = 256;

nb::dict simd_probe() {
  nb::dict out;
  std::vector<std::string> usable;
  for (const Kernels* candidate : usable_kernels()) usable.emplace_back(candidate->name);
  out["found"] = nb::cast(found_instruction_sets());
  out["usable"] = nb::cast(usable);
  out["chosen"] = nb::str(kernels().name);
  out["vector_bits"] = nb::int_(kernels().vector_bits);
  out["cores"] = nb::int_(available_cores());
  return out;
}

void set_num_threads(int64_t count) {
  require(count >= 1 && count <= threads_max,
          "num_threads is " + std::to_string(count) + "; allowed: 1 to " + std::to_string(threads_max));
  const nb::gil_scoped_release unlocked;
  Team::instance().resize(static_cast<int>(count));
}

}  // namespace
}  // namespace octavo

NB_MODULE(_native, module) {
  using namespace octavo;
  module.doc() = "Octavo's kernels: exact types, checked shapes, bits that do not depend on the batch.";
  module.def("simd_probe", simd_probe, "Instruction sets found, usable and chosen; bits of a vector; cores.");
  module.def("set_num_threads", set_num_threads, nb::arg("count"),
             "Threads that share an operation, 1 to 256.");
  module.def("num_threads", [] { return Team::instance().size(); });
  bind_experts(module);
  bind_files(module);
  bind_integers(module);
  bind_peaks(module);
  bind_program(module);
  bind_rows(module);
  bind_step(module);
  bind_vocabulary(module);
}
