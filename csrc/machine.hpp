// The instruction sets of the processor and the operating system. No kernels here: the build uses it too, to
// choose those that are worth compiling (runnable_isas.cpp).
#pragma once

#include <string>
#include <vector>

namespace octavo {

// The sets of kernels that can run here, worst first.
std::vector<std::string> runnable_isas();

// The instruction sets of interest.
std::vector<std::string> found_instruction_sets();

}  // namespace octavo
