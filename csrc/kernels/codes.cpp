// Integer codes: the packed form of quantised weights (kinds.hpp draws it), and the quantised form of activations.
//
// Lanes of a panel beyond its last output have scale zero.
#include "kernels/lane_reduce.hpp"
#include "kernels/blocks.hpp"
#include "kernels/encode.hpp"
#include "kernels/integers.hpp"
#include "kernels/panels.hpp"
#include "kernels/quantise.hpp"
#include "kernels/table.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int block_bytes_max = 34;  // of a block that is quantised again

// Block b of a row, of the panels' kind: the file's own, or one quantised again into `made`.
template <Kind kind>
OCTAVO_INLINE const uint8_t* block_of(const CodePacking& a, const uint8_t* row, int64_t b, uint8_t* made) {
  if (a.source == kind) return row + b * row_of(kind).bytes;
  float values[quant_group];
  if constexpr (kind == Kind::q8_0) {
    read_group(row, a.source, b * quant_group, quant_group, values);
    encode_q8_0(values, made);
  } else if constexpr (kind == Kind::q4_1) {
    read_group(row, a.source, b * quant_group, quant_group, values);
    encode_q4_1(values, made);
  } else {
    __builtin_unreachable();  // the bindings let no other kind through
  }
  return made;
}

// A block of one output: its codes, at `codes` for the first group, and behind those of the panel its scales.
template <Kind kind>
OCTAVO_INLINE void pack_block(const uint8_t* block, int64_t lane, uint8_t* codes, uint8_t* halves) {
  const uint16_t d = bits_of_d<kind>(block);
  __builtin_memcpy(halves + 2 * lane, &d, sizeof d);
  if constexpr (has_minima(kind)) {
    const uint16_t m = bits_of_m<kind>(block);
    __builtin_memcpy(halves + 2 * (panel_width + lane), &m, sizeof m);
  }
  for (int64_t g = 0; g < groups_in_block(kind); ++g, codes += code_bytes(kind)) {
    uint8_t own[quant_group];
    FileBlock<kind>::codes(block, g, own);
    write_codes<kind>(own, lane, codes);
    if constexpr (is_super(kind)) {
      uint8_t scales[2], *to = halves + halves_bytes(kind) + g * group_scale_bytes(kind) + lane;
      FileBlock<kind>::scales(block, g, scales);
      for (int i = 0; i < row_of(kind).scale_vectors; ++i) to[i * panel_width] = scales[i];
    }
  }
}

template <Kind kind>
void pack_panels(const CodePacking& a, int64_t first_panel, int64_t last_panel) {
  const int64_t groups = a.inputs / quant_group, stride = code_panel_bytes(kind, a.inputs);
  const int64_t row_bytes = bytes_of(a.source, a.inputs);
  uint8_t made[block_bytes_max];
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    uint8_t* out = a.panels + panel * stride;
    uint8_t* scales = out + groups * code_bytes(kind);
    __builtin_memset(out, 0, static_cast<uint64_t>(stride));
    const int64_t row = panel * panel_width;
    const int64_t lanes = a.outputs - row < panel_width ? a.outputs - row : panel_width;
    // Block by block, so that each line of the panel is filled while it is near.
    for (int64_t g = 0; g < groups; g += groups_in_block(kind)) {
      for (int64_t lane = 0; lane < lanes; ++lane) {
        const uint8_t* from = a.data + (row + lane) * row_bytes;
        const uint8_t* block = block_of<kind>(a, from, g / groups_in_block(kind), made);
        pack_block<kind>(block, lane, out + g * code_bytes(kind), scales + g * scale_bytes(kind));
      }
    }
  }
}

template <Kind kind>
void unpack_row_of_panels(const uint8_t* panels, int64_t inputs, int64_t index, float* out) {
  const int64_t groups = inputs / quant_group, lane = index % panel_width;
  const uint8_t* codes = panels + index / panel_width * code_panel_bytes(kind, inputs);
  const uint8_t* scales = codes + groups * code_bytes(kind);
  for (int64_t i = 0; i < groups; ++i, codes += code_bytes(kind), out += quant_group) {
    const int64_t g = i % groups_in_block(kind);
    const uint8_t* halves = scales + (i - g) * scale_bytes(kind);
    const float d = value_of_d<kind>(read_u16(halves + 2 * lane));
    const float m = has_minima(kind) ? float_of_half(read_u16(halves + 2 * (panel_width + lane))) : 0.0f;
    const uint8_t* from = halves + halves_bytes(kind) + g * group_scale_bytes(kind) + lane;
    uint8_t own[quant_group], of_group[2] = {};
    for (int j = 0; j < row_of(kind).scale_vectors; ++j) of_group[j] = from[j * panel_width];
    read_codes<kind>(codes, lane, own);
    decode<kind>(own, d, m, of_group, out);
  }
}

// A group of a row: its 32 numbers, and where it stands among the activations.
struct GroupOfRow {
  const float* x;
  int64_t at;
};

// Of each group, one to a lane.
struct GroupFactors {
  Lanes scales, origins;
  IntLanes starts;
  Lanes shifts;
};

// Writes the codes of `count` groups, sixteen at most: scales are divided, and lanes summed up, side by side.
template <CodeSums wanted>
OCTAVO_INLINE GroupFactors store_codes(const GroupOfRow (&groups)[lane_count], int64_t count, Kind kind,
                                       int8_t* codes) {
  const IntLanes none = broadcast_int(0), zero = broadcast_int(-code_zero(kind));
  alignas(64) float scales[lane_count], inverses[lane_count];
  IntLanes tops[lane_count], sums[lane_count], later_sums[lane_count];
  for (int64_t i = count; i < lane_count; ++i) tops[i] = sums[i] = later_sums[i] = none;
  for (int64_t i = 0; i < count; ++i) {
    const float* x = groups[i].x;
    tops[i] = larger(magnitude_bits(load(x)), magnitude_bits(load(x + lane_count)));
  }
  store_scales(lane_reduce(tops, larger_of_two), scales, inverses);
  for (int64_t i = 0; i < count; ++i) {
    const auto [x, at] = groups[i];
    const Scale scale{scales[i], inverses[i]};
    const IntLanes low = codes_of(load(x), scale), high = codes_of(load(x + lane_count), scale);
    store_bytes(codes + at * quant_group, low);
    store_bytes(codes + at * quant_group + lane_count, high);
    sums[i] = wanted == CodeSums::whole ? low + high : low;
    if constexpr (wanted != CodeSums::whole) later_sums[i] = high;
  }
  const Lanes scale = load(scales), origins = broadcast(-origin) * scale;
  const IntLanes sum = lane_reduce(sums, sum_of);
  if constexpr (wanted == CodeSums::halves) {
    const IntLanes begin = broadcast_int(kind == Kind::q6_k ? 0 : origin_bits);
    const IntLanes later = lane_reduce(later_sums, sum_of);
    return {scale, origins, begin + sum * zero, floats_of(begin + later * zero)};
  }
  if constexpr (wanted == CodeSums::half_shifts) {
    const IntLanes later = lane_reduce(later_sums, sum_of);
    return {scale, origins, bits_of(scale * converted(sum)), scale * converted(later)};
  }
  return {scale, origins, broadcast_int(origin_bits) + sum * zero, scale * converted(sum)};
}

OCTAVO_INLINE void quantise_groups(const GroupOfRow (&groups)[lane_count], int64_t count, Kind kind,
                                   const Activations& out) {
  GroupFactors all;
  switch (sums_wanted(kind)) {
    case CodeSums::whole: all = store_codes<CodeSums::whole>(groups, count, kind, out.codes); break;
    case CodeSums::halves: all = store_codes<CodeSums::halves>(groups, count, kind, out.codes); break;
    case CodeSums::half_shifts: all = store_codes<CodeSums::half_shifts>(groups, count, kind, out.codes);
  }
  const int64_t first = groups[0].at;
  if (count == lane_count && groups[lane_count - 1].at == first + lane_count - 1) {
    store(out.scales + first, all.scales);
    store(out.origins + first, all.origins);
    store_words(reinterpret_cast<uint8_t*>(out.starts + first), all.starts);
    store(out.shifts + first, all.shifts);
    return;
  }
  alignas(64) float scales[lane_count], origins[lane_count], shifts[lane_count];
  alignas(64) int32_t starts[lane_count];
  store(scales, all.scales);
  store(origins, all.origins);
  store_words(reinterpret_cast<uint8_t*>(starts), all.starts);
  store(shifts, all.shifts);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = groups[i].at;
    out.scales[at] = scales[i];
    out.origins[at] = origins[i];
    out.starts[at] = starts[i];
    out.shifts[at] = shifts[i];
  }
}

}  // namespace

void pack_codes(const CodePacking& a, int64_t first_panel, int64_t last_panel) {
  with_kind(a.kind, [&](auto tag) { pack_panels<decltype(tag)::kind>(a, first_panel, last_panel); });
}

void unpack_codes(const uint8_t* panels, Kind kind, int64_t inputs, int64_t index, float* out) {
  with_kind(kind, [&](auto tag) { unpack_row_of_panels<decltype(tag)::kind>(panels, inputs, index, out); });
}

// All rows of a group, then the next group: what rows have for a group lies side by side, in cache lines that
// other threads' rows may share, and is written at once.
void quantise_rows(const float* x, Kind kind, int64_t first, int64_t rows, const Activations& out) {
  GroupOfRow groups[lane_count];
  int64_t count = 0;
  for (int64_t g = 0; g < out.inputs / quant_group; ++g) {
    for (int64_t r = 0; r < rows; ++r) {
      groups[count++] = {x + r * out.inputs + g * quant_group, g * out.stride + first + r};
      if (count < lane_count) continue;
      quantise_groups(groups, count, kind, out);
      count = 0;
    }
  }
  if (count > 0) quantise_groups(groups, count, kind, out);
}

}  // namespace octavo::OCTAVO_ISA
