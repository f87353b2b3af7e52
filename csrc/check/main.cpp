// Kernels, team and program without Python, for the sanitizers: `make sanitize`.
#include "check/check.hpp"
#include "dispatch.hpp"

int main() {
  using namespace octavo::check;
  check_team();
  check_products();
  check_attention();
  check_program();
  std::printf("%s: team, products, attention and program are as they should be\n", octavo::kernels().name);
}
