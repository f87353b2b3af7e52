// The kinds of weights, a row for each: what a block of one takes in a file, and how integer panels hold it.
//
// A code of a quantised kind has up to eight bits, and in a panel they lie in at most two planes: the lowest
// `low_bits` of all codes of a group, then the `high_bits` above them. A plane of n bits is n vectors of 64
// bytes, one 32-bit word per output. Word j of a group is inputs 4j .. 4j + 3, a byte each; where n bits leave
// room for several words in a vector, word j is in vector j n / 8, at bit j n modulo 8 of the bytes:
//
//   8 bits   vector j of 8: word j
//   4        vector j of 4: words 2j and 2j + 1, in the low and the high half of the bytes
//   2        vector j of 2: words 4j .. 4j + 3, in bits 0 and 1, 2 and 3, and so on
//   1        one vector: word j in bit j
//
// Behind the planes of all groups come the scales: for each block the halves d, and m of a kind with minima,
// sixteen of each, one per output; and in super-blocks, for each of the eight groups, `scale_vectors` times
// sixteen bytes (blocks.hpp says of what). So a weight takes the bits that it has in the file, save where
// scales of 4 or 6 bits become bytes, and a vector is an operand of a product of bytes after a shift, a mask
// and, for a kind with a table, one more step.
#pragma once

#include <stdint.h>

namespace octavo {

constexpr int panel_width = 16;   // outputs side by side in a packed weight matrix
constexpr int quant_group = 32;   // elements whose codes are summed at a time, in weights and activations
constexpr int super_group = 256;  // elements of a super-block: eight such groups

enum class Kind {
  f32, f16, bf16,
  q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl, mxfp4,
  q2_k, q3_k, q4_k, q5_k, q6_k, iq4_xs
};

// `zero` is the code that stands for zero, or what the kind's table makes of that code.
struct KindRow {
  const char* name;         // in files
  int64_t elements, bytes;  // of a block in a file
  int low_bits, high_bits;
  int32_t zero;
  int halves;         // 2: d and m, 1: d
  int scale_vectors;  // of a group of a super-block
  int scales;         // of a group: 2 where each sixteen weights have their own
};

constexpr KindRow kind_rows[] = {
    {"F32", 1, 4, 0, 0, 0, 0, 0, 0},
    {"F16", 1, 2, 0, 0, 0, 0, 0, 0},
    {"BF16", 1, 2, 0, 0, 0, 0, 0, 0},
    {"Q8_0", 32, 34, 8, 0, 128, 1, 0, 1},
    {"Q4_0", 32, 18, 4, 0, 8, 1, 0, 1},
    {"Q4_1", 32, 20, 4, 0, 0, 2, 0, 1},
    {"Q5_0", 32, 22, 4, 1, 16, 1, 0, 1},
    {"Q5_1", 32, 24, 4, 1, 0, 2, 0, 1},
    {"IQ4_NL", 32, 18, 4, 0, 128, 1, 0, 1},
    {"MXFP4", 32, 17, 4, 0, 12, 1, 0, 1},
    {"Q2_K", 256, 84, 2, 0, 0, 2, 2, 2},
    {"Q3_K", 256, 110, 2, 1, 4, 1, 2, 2},
    {"Q4_K", 256, 144, 4, 0, 0, 2, 2, 1},
    {"Q5_K", 256, 176, 4, 1, 0, 2, 2, 1},
    {"Q6_K", 256, 210, 4, 2, 32, 1, 2, 2},
    {"IQ4_XS", 256, 136, 4, 0, 128, 1, 1, 1},
};
static_assert(sizeof kind_rows / sizeof *kind_rows == static_cast<int>(Kind::iq4_xs) + 1);

// Static, like the functions after it: files compiled for different instruction sets share none of them.
static constexpr const KindRow& row_of(Kind kind) { return kind_rows[static_cast<int>(kind)]; }

static constexpr bool is_grouped(Kind kind) { return row_of(kind).elements > 1; }
static constexpr bool is_super(Kind kind) { return row_of(kind).elements == super_group; }
static constexpr bool has_minima(Kind kind) { return row_of(kind).halves == 2; }
static constexpr bool has_table(Kind kind) {
  return kind == Kind::iq4_nl || kind == Kind::iq4_xs || kind == Kind::mxfp4;
}
static constexpr int32_t code_zero(Kind kind) { return row_of(kind).zero; }

// Bytes of `count` elements, whole blocks.
static constexpr int64_t bytes_of(Kind kind, int64_t count) {
  return count / row_of(kind).elements * row_of(kind).bytes;
}

// Of a quantised kind.
static constexpr int64_t groups_in_block(Kind kind) { return row_of(kind).elements / quant_group; }

// Of integer panels: bytes of the codes of a group of 16 outputs x 32 inputs, of its scales (of a super-block's,
// an eighth of all), and of a whole panel, which begins at a multiple of 64 bytes.
static constexpr int64_t code_bytes(Kind kind) {
  return 2 * quant_group * (row_of(kind).low_bits + row_of(kind).high_bits);
}
static constexpr int64_t group_scale_bytes(Kind kind) { return panel_width * row_of(kind).scale_vectors; }
static constexpr int64_t halves_bytes(Kind kind) { return 2 * panel_width * row_of(kind).halves; }
static constexpr int64_t scale_bytes(Kind kind) {
  return halves_bytes(kind) / groups_in_block(kind) + group_scale_bytes(kind);
}
static constexpr int64_t code_panel_bytes(Kind kind, int64_t inputs) {
  return (inputs / quant_group * (code_bytes(kind) + scale_bytes(kind)) + 63) / 64 * 64;
}

// The sums that a product needs of a group of quantised activations, in addition to its codes
// (`Activations`).
enum class CodeSums {
  whole,   // of weights that have one scale for the group
  halves,  // of weights that have one for each sixteen
  half_shifts,  // the same with minima: of Q2_K
};
static constexpr CodeSums sums_wanted(Kind kind) {
  if (row_of(kind).scales != 2) return CodeSums::whole;
  return has_minima(kind) ? CodeSums::half_shifts : CodeSums::halves;
}

}  // namespace octavo
