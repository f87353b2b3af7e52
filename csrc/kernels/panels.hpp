// Integer panels at the scale of one code: where it stands among the words of its group.
#pragma once

#include "kernels/kernels.hpp"
#include "kernels/simd.hpp"

namespace octavo::OCTAVO_ISA {

// Where the word of `lane` in vector j of a group stands.
OCTAVO_INLINE int64_t word(int j, int64_t lane) { return 64 * j + 4 * lane; }

// Codes of 4 bits: vector j of 4 has inputs 8j .. 8j + 3 in the low half of its bytes, the next four in the
// high. Bits of `codes` beyond the lowest four are dropped.
OCTAVO_INLINE void write_nibbles(const uint8_t* codes, int64_t lane, uint8_t* group) {
  for (int i = 0; i < quant_group; ++i) {
    uint8_t& byte = group[word(i / 8, lane) + i % 4];
    byte = static_cast<uint8_t>(i % 8 < 4 ? codes[i] & 15 : byte | codes[i] << 4);
  }
}

OCTAVO_INLINE int nibble_at(const uint8_t* group, int64_t lane, int i) {
  return group[word(i / 8, lane) + i % 4] >> (i % 8 < 4 ? 0 : 4) & 15;
}

}  // namespace octavo::OCTAVO_ISA
