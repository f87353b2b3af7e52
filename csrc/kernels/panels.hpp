// The codes of a group in an integer panel (kinds.hpp draws it): written and read for one output, and read as
// vectors for sixteen.
#pragma once

#include "kernels/blocks.hpp"
#include "kernels/integers.hpp"
#include "kernels/kernels.hpp"

namespace octavo::OCTAVO_ISA {

// Where the word of `lane` in vector j of a group stands.
OCTAVO_INLINE int64_t word(int j, int64_t lane) { return 64 * j + 4 * lane; }

// Bits [from, from + width) of the bytes of eight words, as a plane.
template <int width>
OCTAVO_INLINE void write_plane(const uint32_t (&words)[words_in_group], int from, int64_t lane,
                               uint8_t* plane) {
  constexpr int together = 8 / width;
  for (int j = 0; j < width; ++j) {
    uint32_t out = 0;
    for (int k = 0; k < together; ++k) out |= (words[j * together + k] >> from & mask_of(width)) << k * width;
    __builtin_memcpy(plane + word(j, lane), &out, sizeof out);
  }
}

template <int width>
OCTAVO_INLINE void read_plane(const uint8_t* plane, int64_t lane, int to, uint32_t (&words)[words_in_group]) {
  constexpr int together = 8 / width;
  for (int i = 0; i < words_in_group; ++i) {
    uint32_t in;
    __builtin_memcpy(&in, plane + word(i / together, lane), sizeof in);
    words[i] |= (in >> i % together * width & mask_of(width)) << to;
  }
}

template <Kind kind>
OCTAVO_INLINE void write_codes(const uint8_t* codes, int64_t lane, uint8_t* group) {
  constexpr int low = row_of(kind).low_bits, high = row_of(kind).high_bits;
  uint32_t words[words_in_group];
  __builtin_memcpy(words, codes, quant_group);
  write_plane<low>(words, 0, lane, group);
  if constexpr (high > 0) write_plane<high>(words, low, lane, group + 64 * low);
}

template <Kind kind>
OCTAVO_INLINE void read_codes(const uint8_t* group, int64_t lane, uint8_t* codes) {
  constexpr int low = row_of(kind).low_bits, high = row_of(kind).high_bits;
  uint32_t words[words_in_group] = {};
  read_plane<low>(group, lane, 0, words);
  if constexpr (high > 0) read_plane<high>(group + 64 * low, lane, low, words);
  __builtin_memcpy(codes, words, quant_group);
}

// Bits [from, from + width) of every byte, moved to bit `to`.
OCTAVO_INLINE IntLanes moved_bits(const IntLanes& bytes, int width, int from, int to) {
  const IntLanes mask = broadcast_int(static_cast<int32_t>(mask_of(width) << to));
  if (from == to) return bytes & mask;
  return (from > to ? shift_right(bytes, from - to) : shift_left(bytes, to - from)) & mask;
}

// Word j of a group: four inputs of each output, an unsigned byte each; of a kind with a table what it says.
template <Kind kind>
OCTAVO_INLINE IntLanes code_word(const uint8_t* group, int j) {
  constexpr int low = row_of(kind).low_bits, high = row_of(kind).high_bits;
  if constexpr (low == 8) return load_words(group + 64 * j);
  IntLanes code = moved_bits(load_words(group + 64 * (j * low / 8)), low, j * low % 8, 0);
  if constexpr (high > 0) {
    code = code | moved_bits(load_words(group + 64 * (low + j * high / 8)), high, j * high % 8, low);
  }
  if constexpr (has_table(kind)) code = looked_up(table_of<kind>(), code);
  return code;
}

// Whether no code is beyond 15, so that AVX2's own product of bytes is exact.
constexpr bool has_small_codes(Kind kind) {
  return row_of(kind).low_bits + row_of(kind).high_bits <= 4 && !has_table(kind);
}

// d of sixteen outputs.
template <Kind kind>
OCTAVO_INLINE Lanes load_d(const uint8_t* source) {
  if constexpr (kind == Kind::mxfp4) return load(reinterpret_cast<const Brain*>(source));
  return load_halves(source);
}

}  // namespace octavo::OCTAVO_ISA
