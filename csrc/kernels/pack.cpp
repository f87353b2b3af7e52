// From a file's bytes to float32: GGUF's block formats, and the packed form of a weight matrix.
//
// Panels are made straight from the quantised bytes, 16 rows by 32 columns at a time, so no second full-size
// copy of a matrix ever exists. Source of the formats: ggml's block_q8_0, block_q4_0, block_q4_1.
#include "kernels/halves.hpp"
#include "kernels/table.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

OCTAVO_INLINE void group_q8_0(const uint8_t* block, float* out) {
  const float d = float_of_half(read_u16(block));
  for (int i = 0; i < quant_group; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

OCTAVO_INLINE void group_q4_0(const uint8_t* block, float* out) {
  const float d = float_of_half(read_u16(block));
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((block[2 + i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((block[2 + i] >> 4) - 8);
  }
}

OCTAVO_INLINE void group_q4_1(const uint8_t* block, float* out) {
  const float d = float_of_half(read_u16(block)), m = float_of_half(read_u16(block + 2));
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(block[4 + i] & 15) + m;
    out[i + 16] = d * static_cast<float>(block[4 + i] >> 4) + m;
  }
}

// The 32 elements of one group, or the last `count` < 32 of an unquantised row.
OCTAVO_INLINE void group(const uint8_t* data, Kind kind, int64_t count, float* out) {
  switch (kind) {
    case Kind::f32: __builtin_memcpy(out, data, static_cast<uint64_t>(count) * 4); break;
    case Kind::f16:
      for (int64_t i = 0; i < count; ++i) out[i] = float_of_half(read_u16(data + 2 * i));
      break;
    case Kind::bf16:
      for (int64_t i = 0; i < count; ++i) out[i] = float_of_brain(read_u16(data + 2 * i));
      break;
    case Kind::q8_0: group_q8_0(data, out); break;
    case Kind::q4_0: group_q4_0(data, out); break;
    case Kind::q4_1: group_q4_1(data, out); break;
  }
}

}  // namespace

void dequantise(const uint8_t* data, Kind kind, int64_t count, float* out) {
  const int64_t group_bytes = bytes_of(kind, quant_group);
  for (int64_t i = 0; i < count; i += quant_group) {
    const int64_t size = count - i < quant_group ? count - i : quant_group;
    group(data + i / quant_group * group_bytes, kind, size, out + i);
  }
}

void pack(const Packing& a, int64_t first_panel, int64_t last_panel) {
  const int64_t row_bytes = bytes_of(a.kind, a.inputs), group_bytes = bytes_of(a.kind, quant_group);
  float tile[panel_width][quant_group];
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    const int64_t row = panel * panel_width;
    const int64_t rows = a.outputs - row < panel_width ? a.outputs - row : panel_width;
    float* out = a.panels + row * a.inputs;
    __builtin_memset(tile, 0, sizeof tile);  // lanes beyond the last output stay zero
    for (int64_t i = 0; i < a.inputs; i += quant_group) {
      const int64_t count = a.inputs - i < quant_group ? a.inputs - i : quant_group;
      for (int64_t r = 0; r < rows; ++r) {
        group(a.data + (row + r) * row_bytes + i / quant_group * group_bytes, a.kind, count, tile[r]);
      }
      for (int64_t column = 0; column < count; ++column) {
        for (int r = 0; r < panel_width; ++r) out[(i + column) * panel_width + r] = tile[r][column];
      }
    }
  }
}

void unpack_row(const float* panels, int64_t inputs, int64_t index, float* out) {
  const float* source = panels + index / panel_width * panel_width * inputs + index % panel_width;
  for (int64_t i = 0; i < inputs; ++i) out[i] = source[i * panel_width];
}

}  // namespace octavo::OCTAVO_ISA
