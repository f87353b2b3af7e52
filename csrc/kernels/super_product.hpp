// Products with super-blocks: what integer_product.cpp leaves to super_product.cpp.
#pragma once

#include "kernels/kernels.hpp"

namespace octavo::OCTAVO_ISA {

// Made for each kind of super-blocks.
template <Kind kind>
void super_product(const IntegerProduct&, int64_t first_panel, int64_t last_panel);

}  // namespace octavo::OCTAVO_ISA
