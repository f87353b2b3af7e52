// Prints the fastest set of kernels that runs here: what OCTAVO_ISAS=native compiles.
#include <cstdio>

#include "machine.hpp"

int main() { std::printf("%s", octavo::runnable_isas().back().c_str()); }
