// Prints the sets of kernels that run here, worst first, for CMakeLists.txt: what OCTAVO_ISAS=native stands for.
#include <cstdio>

#include "machine.hpp"

int main() {
  const char* between = "";
  for (const std::string& isa : octavo::runnable_isas()) {
    std::printf("%s%s", between, isa.c_str());
    between = ";";
  }
}
