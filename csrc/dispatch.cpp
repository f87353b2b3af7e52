#include "dispatch.hpp"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "machine.hpp"

namespace octavo {

namespace portable {
const Kernels& kernels();
}
namespace avx2 {
const Kernels& kernels();
}
namespace avx2_vnni {
const Kernels& kernels();
}
namespace avx512 {
const Kernels& kernels();
}
namespace avx512_bf16 {
const Kernels& kernels();
}
namespace avx512_amx {
const Kernels& kernels();
}

namespace {

struct Built {
  const char* isa;
  const Kernels& (*kernels)();
};

// The instruction sets that the build compiled.
constexpr Built built[] = {
#if defined(OCTAVO_HAS_portable)
    {"portable", portable::kernels},
#endif
#if defined(OCTAVO_HAS_avx2)
    {"avx2", avx2::kernels},
#endif
#if defined(OCTAVO_HAS_avx2_vnni)
    {"avx2_vnni", avx2_vnni::kernels},
#endif
#if defined(OCTAVO_HAS_avx512)
    {"avx512", avx512::kernels},
#endif
#if defined(OCTAVO_HAS_avx512_bf16)
    {"avx512_bf16", avx512_bf16::kernels},
#endif
#if defined(OCTAVO_HAS_avx512_amx)
    {"avx512_amx", avx512_amx::kernels},
#endif
};

// "avx2, avx512"
template <class Names>
std::string listed(const Names& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

const Kernels& choose() {
  const std::vector<const Kernels*> usable = usable_kernels();
  std::vector<std::string> names;
  for (const Kernels* kernels : usable) names.emplace_back(kernels->name);
  if (usable.empty()) {
    std::vector<std::string> all;
    for (const Built& one : built) all.emplace_back(one.isa);
    throw std::invalid_argument("this build has kernels for " + listed(all) + " alone, and this machine can run: " +
                                listed(runnable_isas()) +
                                "; build Octavo again on this machine (in a clone: make clean, then make serve), "
                                "or for every machine with OCTAVO_ISAS=all");
  }
  const char* wanted = std::getenv("OCTAVO_ISA");
  if (wanted == nullptr || *wanted == '\0') return *usable.back();
  for (const Kernels* candidate : usable) {
    if (std::string(candidate->name) == wanted) return *candidate;
  }
  const bool has_all = usable.size() == runnable_isas().size();
  throw std::invalid_argument("OCTAVO_ISA is '" + std::string(wanted) + "'; this machine can run: " +
                              listed(names) + " (leave it unset to take the last)" +
                              (has_all ? "" : "; others are built with OCTAVO_ISAS=all"));
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();  // a throw leaves it unset, so the next call says the same again
  return chosen;
}

std::vector<const Kernels*> usable_kernels() {
  std::vector<const Kernels*> usable;
  for (const std::string& isa : runnable_isas()) {
    for (const Built& one : built) {
      if (isa == one.isa) usable.push_back(&one.kernels());
    }
  }
  return usable;
}

}  // namespace octavo
