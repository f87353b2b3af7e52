// Integer codes: the packed form of quantised weights, and the quantised form of activations.
//
// A panel holds 16 outputs. For each group of 32 inputs it has 64-byte vectors of one 32-bit word per output:
//
//   Q8_0          vector j of 8: inputs 4j .. 4j + 3, each as code + 128 in a byte
//   Q4_0, Q4_1    vector j of 4: inputs 8j .. 8j + 3 in the low half of the bytes, the next four in the high
//
// and behind the vectors of all groups, for each group 16 scales as halves, and for Q4_1 16 minima. So a
// weight takes as many bits as in the file, and a vector is an operand of `accumulate_dots` after at most a
// shift and a mask. Lanes beyond the last output have scale zero. Super-blocks are drawn in superblocks.cpp.
#include "kernels/lane_reduce.hpp"
#include "kernels/blocks.hpp"
#include "kernels/encode.hpp"
#include "kernels/integers.hpp"
#include "kernels/panels.hpp"
#include "kernels/quantise.hpp"
#include "kernels/superblocks.hpp"
#include "kernels/table.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int block_bytes_max = 34;  // of what is quantised anew

OCTAVO_INLINE void write_codes(const uint8_t* codes, Kind kind, int64_t lane, uint8_t* group) {
  if (kind != Kind::q8_0) return write_nibbles(codes, lane, group);
  for (int i = 0; i < quant_group; ++i) group[word(i / 4, lane) + i % 4] = codes[i];
}

OCTAVO_INLINE int code_at(const uint8_t* group, Kind kind, int64_t lane, int i) {
  return kind == Kind::q8_0 ? group[word(i / 4, lane) + i % 4] : nibble_at(group, lane, i);
}

// Group g of a row as a block of the panels' kind: the file's own, or one quantised anew into `made`.
OCTAVO_INLINE const uint8_t* block_of(const CodePacking& a, const uint8_t* row, int64_t g, uint8_t* made) {
  if (a.source == a.kind) return row + g * bytes_of(a.kind, quant_group);
  float values[quant_group];
  read_group(row, a.source, g * quant_group, quant_group, values);
  if (a.kind == Kind::q8_0) {
    encode_q8_0(values, made);
  } else {
    encode_q4_1(values, made);
  }
  return made;
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
// Where `in_halves`, the factors are those of half a group: starts of the first, shifts (bits) of the other.
template <bool in_halves>
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
    sums[i] = in_halves ? low : low + high;
    if constexpr (in_halves) later_sums[i] = high;
  }
  const Lanes scale = load(scales), origins = broadcast(-origin) * scale;
  const IntLanes sum = lane_reduce(sums, sum_of);
  if constexpr (in_halves) {
    return {scale, origins, sum * zero, floats_of(lane_reduce(later_sums, sum_of) * zero)};
  }
  return {scale, origins, broadcast_int(origin_bits) + sum * zero, scale * converted(sum)};
}

OCTAVO_INLINE void quantise_groups(const GroupOfRow (&groups)[lane_count], int64_t count, Kind kind,
                                   const Activations& out) {
  const GroupFactors all = kind == Kind::q6_k ? store_codes<true>(groups, count, kind, out.codes)
                                              : store_codes<false>(groups, count, kind, out.codes);
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
  if (is_super(a.kind)) return pack_super_codes(a, first_panel, last_panel);
  const int64_t groups = a.inputs / quant_group, stride = code_panel_bytes(a.kind, a.inputs);
  const int64_t row_bytes = bytes_of(a.source, a.inputs);
  uint8_t codes[quant_group], made[block_bytes_max];
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    uint8_t* out = a.panels + panel * stride;
    uint8_t* scales = out + groups * code_bytes(a.kind);
    __builtin_memset(out, 0, static_cast<uint64_t>(stride));
    const int64_t row = panel * panel_width;
    const int64_t lanes = a.outputs - row < panel_width ? a.outputs - row : panel_width;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      for (int64_t g = 0; g < groups; ++g) {
        const uint8_t* block = block_of(a, a.data + (row + lane) * row_bytes, g, made);
        read_codes(block, a.kind, codes);
        write_codes(codes, a.kind, lane, out + g * code_bytes(a.kind));
        uint8_t* scale = scales + g * scale_bytes(a.kind) + 2 * lane;
        __builtin_memcpy(scale, block, 2);
        if (a.kind == Kind::q4_1) __builtin_memcpy(scale + 2 * panel_width, block + 2, 2);
      }
    }
  }
}

void unpack_codes(const uint8_t* panels, Kind kind, int64_t inputs, int64_t index, float* out) {
  if (is_super(kind)) return unpack_super_codes(panels, kind, inputs, index, out);
  const int64_t groups = inputs / quant_group, lane = index % panel_width;
  const uint8_t* codes = panels + index / panel_width * code_panel_bytes(kind, inputs);
  const uint8_t* scales = codes + groups * code_bytes(kind) + 2 * lane;
  for (int64_t g = 0; g < groups; ++g, codes += code_bytes(kind), scales += scale_bytes(kind)) {
    const float d = float_of_half(read_u16(scales));
    for (int i = 0; i < quant_group; ++i) {
      const float code = static_cast<float>(code_at(codes, kind, lane, i) - code_zero(kind));
      out[g * quant_group + i] =
          kind == Kind::q4_1 ? d * code + float_of_half(read_u16(scales + 2 * panel_width)) : d * code;
    }
  }
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
