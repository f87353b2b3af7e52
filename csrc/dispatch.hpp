// Which kernels this machine runs.
#pragma once

#include <vector>

#include "kernels/kernels.hpp"

namespace octavo {

// The chosen kernels: the best that the machine can run, or what the environment variable OCTAVO_ISA names.
// Throws std::invalid_argument when OCTAVO_ISA is unknown, or names what this machine or build cannot run.
const Kernels& kernels();

// All kernels that are built in and that this machine can run, worst first.
std::vector<const Kernels*> usable_kernels();

}  // namespace octavo
