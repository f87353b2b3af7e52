// Q4_K and Q6_K in integer panels: what codes.cpp and integer_product.cpp leave to superblocks.cpp.
#pragma once

#include "kernels/kernels.hpp"

namespace octavo::OCTAVO_ISA {

void pack_super_codes(const CodePacking&, int64_t first_panel, int64_t last_panel);
void unpack_super_codes(const uint8_t* panels, Kind kind, int64_t inputs, int64_t index, float* out);
void super_product(const IntegerProduct&, int64_t first_panel, int64_t last_panel);

}  // namespace octavo::OCTAVO_ISA
