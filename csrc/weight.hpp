// A matrix as the steps of a model read it: a view of panels, which its owner keeps.
#pragma once

#include <cstdint>

#include "kernels/kernels.hpp"

namespace octavo {

// What a product takes rows as: floats, numbers rounded to bfloat16, or integer codes.
enum class RowForm { floats, rounded, codes };

// In panels: of floats (F32, F16, BF16) or of integer codes.
struct Weight {
  Kind kind;
  const uint8_t* panels;
  int64_t outputs, inputs;

  bool has_codes() const { return is_grouped(kind); }
  RowForm row_form() const {
    return has_codes() ? RowForm::codes : kind == Kind::bf16 ? RowForm::rounded : RowForm::floats;
  }

  int64_t num_panels() const { return (outputs + panel_width - 1) / panel_width; }
  int64_t panel_bytes() const {
    return has_codes() ? code_panel_bytes(kind, inputs) : bytes_of(kind, panel_width * inputs);
  }
};

}  // namespace octavo
