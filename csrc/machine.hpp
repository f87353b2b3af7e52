// What the processor and the operating system offer. Knows no kernels: the build asks it too, for those that
// are worth compiling (fastest_isa.cpp).
#pragma once

#include <string>
#include <vector>

namespace octavo {

// The sets of kernels that can run here, worst first.
std::vector<std::string> runnable_isas();

// The instruction sets of interest.
std::vector<std::string> found_instruction_sets();

}  // namespace octavo
