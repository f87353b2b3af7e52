// Kernels, team and program without Python, for the sanitizers: `make sanitize`. With --usable: the names of
// the instruction sets that this machine can run.
#include <cstring>

#include "check/check.hpp"
#include "dispatch.hpp"

int main(int count, char** arguments) {
  using namespace octavo::check;
  if (count == 2 && std::strcmp(arguments[1], "--usable") == 0) {
    for (const octavo::Kernels* kernels : octavo::usable_kernels()) std::printf("%s\n", kernels->name);
    return 0;
  }
  check_team();
  check_products();
  check_attention();
  check_cold_reader();
  check_experts();
  check_program();
  std::printf("%s: team, products, attention, cold reads, experts and program are as they should be\n",
              octavo::kernels().name);
}
