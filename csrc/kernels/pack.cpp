// From a file's bytes to float32, and to the packed form of a weight matrix in 32 or 16 bits.
//
// Panels are made straight from the file's bytes, 16 rows by 32 columns at a time, so no second full-size
// copy of a matrix ever exists.
#include "kernels/blocks.hpp"
#include "kernels/table.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

// Where input i of a panel's output r is.
template <class Stored>
OCTAVO_INLINE int64_t place_in(int64_t i, int64_t r) {
  return in_pairs<Stored> ? i / 2 * 2 * panel_width + 2 * r + i % 2 : i * panel_width + r;
}

template <class Stored>
void pack_as(const Packing& a, int64_t first_panel, int64_t last_panel) {
  const int64_t row_bytes = bytes_of(a.kind, a.inputs);
  float tile[panel_width][quant_group];
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    const int64_t row = panel * panel_width;
    const int64_t rows = a.outputs - row < panel_width ? a.outputs - row : panel_width;
    Stored* out = static_cast<Stored*>(a.panels) + row * a.inputs;
    __builtin_memset(tile, 0, sizeof tile);  // lanes beyond the last output stay zero
    for (int64_t i = 0; i < a.inputs; i += quant_group) {
      const int64_t count = a.inputs - i < quant_group ? a.inputs - i : quant_group;
      for (int64_t r = 0; r < rows; ++r) {
        read_group(a.data + (row + r) * row_bytes, a.kind, i, count, tile[r]);
      }
      for (int64_t column = 0; column < count; ++column) {
        for (int r = 0; r < panel_width; ++r) assign(out[place_in<Stored>(i + column, r)], tile[r][column]);
      }
    }
  }
}

// Sixteen bits that stay as they are: only their places change.
template <class Stored>
void move_halves(const Packing& a, int64_t first_panel, int64_t last_panel) {
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    const int64_t row = panel * panel_width;
    const int64_t rows = a.outputs - row < panel_width ? a.outputs - row : panel_width;
    const uint8_t* in = a.data + 2 * row * a.inputs;
    uint16_t* out = static_cast<uint16_t*>(a.panels) + row * a.inputs;
    for (int64_t i = 0; i < a.inputs; ++i) {
      for (int64_t r = 0; r < rows; ++r) out[place_in<Stored>(i, r)] = read_u16(in + 2 * (r * a.inputs + i));
      for (int64_t r = rows; r < panel_width; ++r) out[place_in<Stored>(i, r)] = 0;
    }
  }
}

template <class Stored>
void unpack_as(const void* panels, int64_t inputs, int64_t index, float* out) {
  const Stored* panel = static_cast<const Stored*>(panels) + index / panel_width * panel_width * inputs;
  for (int64_t i = 0; i < inputs; ++i) out[i] = value_of(panel[place_in<Stored>(i, index % panel_width)]);
}

}  // namespace

void read_group(const uint8_t* row, Kind kind, int64_t first, int64_t count, float* out) {
  switch (kind) {
    case Kind::f32: __builtin_memcpy(out, row + 4 * first, static_cast<uint64_t>(count) * 4); break;
    case Kind::f16:
      for (int64_t i = 0; i < count; ++i) out[i] = float_of_half(read_u16(row + 2 * (first + i)));
      break;
    case Kind::bf16:
      for (int64_t i = 0; i < count; ++i) out[i] = float_of_brain(read_u16(row + 2 * (first + i)));
      break;
    default:
      with_kind(kind, [&](auto tag) { read_quantised<decltype(tag)::kind>(row, first, out); });
  }
}

void dequantise(const uint8_t* data, Kind kind, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += quant_group) {
    const int64_t size = count - i < quant_group ? count - i : quant_group;
    read_group(data, kind, i, size, out + i);
  }
}

void pack(const Packing& a, int64_t first_panel, int64_t last_panel) {
  if (a.kind == a.stored && a.kind == Kind::f16) return move_halves<Half>(a, first_panel, last_panel);
  if (a.kind == a.stored && a.kind == Kind::bf16) return move_halves<Brain>(a, first_panel, last_panel);
  switch (a.stored) {
    case Kind::f32: return pack_as<float>(a, first_panel, last_panel);
    case Kind::f16: return pack_as<Half>(a, first_panel, last_panel);
    case Kind::bf16: return pack_as<Brain>(a, first_panel, last_panel);
    default: __builtin_unreachable();  // the bindings let no other kind through
  }
}

void unpack_row(const void* panels, Kind kind, int64_t inputs, int64_t index, float* out) {
  switch (kind) {
    case Kind::f32: return unpack_as<float>(panels, inputs, index, out);
    case Kind::f16: return unpack_as<Half>(panels, inputs, index, out);
    case Kind::bf16: return unpack_as<Brain>(panels, inputs, index, out);
    default: __builtin_unreachable();
  }
}

}  // namespace octavo::OCTAVO_ISA
