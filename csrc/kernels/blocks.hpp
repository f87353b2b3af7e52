// GGUF's blocks of quantised weights, read element by element: the layout of each format, and its values.
//
//   Q8_0    34 bytes, 32 weights   half d | 32 signed codes                   w = d code
//   Q4_0    18                     half d | 16 x two codes                    w = d (code - 8)
//   Q4_1    20                     half d, m | 16 x two codes                 w = d code + m
//   Q5_0    22                     half d | 4 of fifth bits | 16              w = d (code - 16)
//   Q5_1    24                     half d, m | 4 of fifth bits | 16           w = d code + m
//   IQ4_NL  18                     half d | 16 x two codes                    w = d table[code]
//   MXFP4   17                     exponent d | 16 x two codes                w = d table[code]
//   Q2_K    84 bytes, 256 weights  16 of scales | 64 | half d, dmin           w = d scale code - dmin minimum
//   Q3_K    110                    32 of third bits | 64 | 12 | half d        w = d (scale - 32) (code - 4)
//   Q4_K    144                    half d, dmin | 12 of scales | 128          w = d scale code - dmin minimum
//   Q5_K    176                    half d, dmin | 12 | 32 of fifth bits | 128 w = d scale code - dmin minimum
//   Q6_K    210                    128 low, 64 high | 16 scales | half d      w = d scale (code - 32)
//   IQ4_XS  136                    half d | 2, 4 of scales | 128              w = d (scale - 32) table[code]
//
// Scales and minima are those of 32 weights, in Q2_K, Q3_K and Q6_K of 16; of 4 bits in Q2_K, 8 (signed) in
// Q6_K, 6 elsewhere. Products of d with a scale and a code are exact in float32. Source: ggml's block_q8_0 and so
// on, its tables kvalues_iq4nl and kvalues_mxfp4 (whose values are doubled: so d is half of 2^(exponent - 127)).
#pragma once

#include "kernels/halves.hpp"
#include "kernels/kernels.hpp"

namespace octavo::OCTAVO_ISA {

template <Kind its_kind>
struct KindTag {
  static constexpr Kind kind = its_kind;
};

// Calls `use` with the tag of a quantised kind.
template <class Use>
OCTAVO_INLINE void with_kind(Kind kind, Use use) {
  switch (kind) {
    case Kind::q8_0: return use(KindTag<Kind::q8_0>{});
    case Kind::q4_0: return use(KindTag<Kind::q4_0>{});
    case Kind::q4_1: return use(KindTag<Kind::q4_1>{});
    case Kind::q5_0: return use(KindTag<Kind::q5_0>{});
    case Kind::q5_1: return use(KindTag<Kind::q5_1>{});
    case Kind::iq4_nl: return use(KindTag<Kind::iq4_nl>{});
    case Kind::mxfp4: return use(KindTag<Kind::mxfp4>{});
    case Kind::q2_k: return use(KindTag<Kind::q2_k>{});
    case Kind::q3_k: return use(KindTag<Kind::q3_k>{});
    case Kind::q4_k: return use(KindTag<Kind::q4_k>{});
    case Kind::q5_k: return use(KindTag<Kind::q5_k>{});
    case Kind::q6_k: return use(KindTag<Kind::q6_k>{});
    case Kind::iq4_xs: return use(KindTag<Kind::iq4_xs>{});
    default: __builtin_unreachable();  // the bindings let no other kind through
  }
}

// What a code of a kind with a table stands for, plus the kind's zero: so it is a byte without sign.
alignas(16) constexpr uint8_t iq4_table[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                               129, 141, 153, 166, 181, 197, 217, 241};
alignas(16) constexpr uint8_t mxfp4_table[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

template <Kind kind>
constexpr const uint8_t (&table_of())[16] {
  static_assert(has_table(kind));
  if constexpr (kind == Kind::mxfp4) {
    return mxfp4_table;
  } else {
    return iq4_table;
  }
}

// The weight of a code, before it is scaled.
template <Kind kind>
OCTAVO_INLINE float whole_value(uint8_t code) {
  if constexpr (has_table(kind)) code = table_of<kind>()[code];
  return static_cast<float>(code - code_zero(kind));
}

// Codes are taken apart in words of four: bytes have no shifts of their own in any instruction set.
constexpr int words_in_group = quant_group / 4;

// In each byte of a word of 32 bits.
constexpr uint32_t mask_of(int width) { return 0x01010101u * ((1u << width) - 1); }

// Two codes a byte: the first sixteen in the low halves.
OCTAVO_INLINE void read_pairs(const uint8_t* pairs, uint8_t* codes) {
  constexpr int half = words_in_group / 2;
  uint32_t in[half], out[words_in_group];
  __builtin_memcpy(in, pairs, sizeof in);
  for (int i = 0; i < half; ++i) {
    out[i] = in[i] & mask_of(4);
    out[i + half] = in[i] >> 4 & mask_of(4);
  }
  __builtin_memcpy(codes, out, sizeof out);
}

// Bits [shift, shift + width) of 32 bytes, to be added to codes at bit `to`.
OCTAVO_INLINE void add_bits(const uint8_t* bytes, int64_t shift, int width, int to, uint8_t* codes) {
  uint32_t in[words_in_group], out[words_in_group];
  __builtin_memcpy(in, bytes, sizeof in);
  __builtin_memcpy(out, codes, sizeof out);
  for (int i = 0; i < words_in_group; ++i) out[i] |= (in[i] >> shift & mask_of(width)) << to;
  __builtin_memcpy(codes, out, sizeof out);
}

// The fifth bits of 32 codes, side by side.
OCTAVO_INLINE void add_fifth_bits(const uint8_t* bits, uint8_t* codes) {
  for (int i = 0; i < quant_group; ++i) {
    codes[i] = static_cast<uint8_t>(codes[i] | (bits[i / 8] >> i % 8 & 1) << 4);
  }
}

// Scale and minimum of group g (0 to 7) of Q4_K and Q5_K: six bits each, the upper two of the last four
// groups in the bytes of the first.
OCTAVO_INLINE void read_six_bits(const uint8_t* packed, int64_t g, uint8_t (&out)[2]) {
  if (g < 4) {
    out[0] = packed[g] & 63;
    out[1] = packed[g + 4] & 63;
    return;
  }
  out[0] = static_cast<uint8_t>((packed[g + 4] & 15) | (packed[g - 4] >> 6 << 4));
  out[1] = static_cast<uint8_t>(packed[g + 4] >> 4 | (packed[g] >> 6 << 4));
}

// How a file stores a block of a kind:
//   d_at, m_at   where its halves are
//   codes        the 32 codes of a group, unsigned: Q8_0's plus 128
//   scales       of a group of a super-block, as panels hold them: its scale and its minimum (Q4_K, Q5_K);
//                its signed scale (IQ4_XS); of its first and its last sixteen weights the signed scale (Q3_K,
//                Q6_K), or scale and minimum as low and high half of a byte (Q2_K)
template <Kind kind>
struct FileBlock;

template <>
struct FileBlock<Kind::q8_0> {
  static constexpr int d_at = 0;
  OCTAVO_INLINE void codes(const uint8_t* block, int64_t, uint8_t* out) {
    for (int i = 0; i < quant_group; ++i) out[i] = static_cast<uint8_t>(block[2 + i] ^ 0x80);
  }
};

template <int codes_at>
struct BlockOfPairs {
  static constexpr int d_at = 0, m_at = 2;
  OCTAVO_INLINE void codes(const uint8_t* block, int64_t, uint8_t* out) { read_pairs(block + codes_at, out); }
};
template <> struct FileBlock<Kind::q4_0> : BlockOfPairs<2> {};
template <> struct FileBlock<Kind::q4_1> : BlockOfPairs<4> {};
template <> struct FileBlock<Kind::iq4_nl> : BlockOfPairs<2> {};
template <> struct FileBlock<Kind::mxfp4> : BlockOfPairs<1> {};

template <int bits_at>
struct BlockOfFiveBits {
  static constexpr int d_at = 0, m_at = 2;
  OCTAVO_INLINE void codes(const uint8_t* block, int64_t, uint8_t* out) {
    read_pairs(block + bits_at + 4, out);
    add_fifth_bits(block + bits_at, out);
  }
};
template <> struct FileBlock<Kind::q5_0> : BlockOfFiveBits<2> {};
template <> struct FileBlock<Kind::q5_1> : BlockOfFiveBits<4> {};

template <>
struct FileBlock<Kind::q2_k> {
  static constexpr int d_at = 80, m_at = 82;
  OCTAVO_INLINE void codes(const uint8_t* block, int64_t g, uint8_t* out) {  // four groups share 32 bytes
    __builtin_memset(out, 0, quant_group);
    add_bits(block + 16 + g / 4 * quant_group, g % 4 * 2, 2, 0, out);
  }
  OCTAVO_INLINE void scales(const uint8_t* block, int64_t g, uint8_t (&out)[2]) {
    out[0] = block[2 * g];
    out[1] = block[2 * g + 1];
  }
};

template <>
struct FileBlock<Kind::q3_k> {
  static constexpr int d_at = 108;
  OCTAVO_INLINE void codes(const uint8_t* block, int64_t g, uint8_t* out) {
    __builtin_memset(out, 0, quant_group);
    add_bits(block + 32 + g / 4 * quant_group, g % 4 * 2, 2, 0, out);
    add_bits(block, g, 1, 2, out);
  }
  // Sixteen of six bits: the lower four of the first eight in the low halves of eight bytes, of the last in the
  // high ones; the upper two of every fourth in a byte.
  OCTAVO_INLINE void scales(const uint8_t* block, int64_t g, uint8_t (&out)[2]) {
    const uint8_t* packed = block + 96;
    for (int half = 0; half < 2; ++half) {
      const int64_t i = 2 * g + half;
      const int low = packed[i % 8] >> (i / 8 * 4) & 15, high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
      out[half] = static_cast<uint8_t>((low | high << 4) - 32);
    }
  }
};

template <>
struct FileBlock<Kind::q4_k> {
  static constexpr int d_at = 0, m_at = 2;
  OCTAVO_INLINE void codes(const uint8_t* block, int64_t g, uint8_t* out) {  // two groups share 32 bytes
    __builtin_memset(out, 0, quant_group);
    add_bits(block + 16 + g / 2 * quant_group, g % 2 * 4, 4, 0, out);
  }
  OCTAVO_INLINE void scales(const uint8_t* block, int64_t g, uint8_t (&out)[2]) {
    read_six_bits(block + 4, g, out);
  }
};

template <>
struct FileBlock<Kind::q5_k> {
  static constexpr int d_at = 0, m_at = 2;
  OCTAVO_INLINE void codes(const uint8_t* block, int64_t g, uint8_t* out) {
    __builtin_memset(out, 0, quant_group);
    add_bits(block + 48 + g / 2 * quant_group, g % 2 * 4, 4, 0, out);
    add_bits(block + 16, g, 1, 4, out);
  }
  OCTAVO_INLINE void scales(const uint8_t* block, int64_t g, uint8_t (&out)[2]) {
    read_six_bits(block + 4, g, out);
  }
};

template <>
struct FileBlock<Kind::q6_k> {
  static constexpr int d_at = 208;
  // Four groups share 64 bytes of low halves and 32 of high pairs of bits.
  OCTAVO_INLINE void codes(const uint8_t* block, int64_t g, uint8_t* out) {
    __builtin_memset(out, 0, quant_group);
    add_bits(block + g / 4 * 64 + g % 2 * quant_group, g % 4 / 2 * 4, 4, 0, out);
    add_bits(block + 128 + g / 4 * quant_group, g % 4 * 2, 2, 4, out);
  }
  OCTAVO_INLINE void scales(const uint8_t* block, int64_t g, uint8_t (&out)[2]) {
    out[0] = block[192 + 2 * g];
    out[1] = block[193 + 2 * g];
  }
};

template <>
struct FileBlock<Kind::iq4_xs> {
  static constexpr int d_at = 0;
  OCTAVO_INLINE void codes(const uint8_t* block, int64_t g, uint8_t* out) {
    read_pairs(block + 8 + 16 * g, out);
  }
  OCTAVO_INLINE void scales(const uint8_t* block, int64_t g, uint8_t (&out)[2]) {
    const int low = block[4 + g / 2] >> (g % 2 * 4) & 15, high = read_u16(block + 2) >> (2 * g) & 3;
    out[0] = static_cast<uint8_t>((low | high << 4) - 32);
  }
};

// The 16 bits of d as panels hold them: a half, or of MXFP4 a brain float, as its exponents go beyond a half's.
template <Kind kind>
OCTAVO_INLINE uint16_t bits_of_d(const uint8_t* block) {
  if constexpr (kind != Kind::mxfp4) {
    return read_u16(block + FileBlock<kind>::d_at);
  } else {
    const int exponent = *block;  // plus 128; below 2^-126 floats are subnormal
    return static_cast<uint16_t>(exponent < 2 ? 0x20 << exponent : (exponent - 1) << 7);
  }
}

// And of what is added as it is, or times a group's minimum: m, or -dmin.
template <Kind kind>
OCTAVO_INLINE uint16_t bits_of_m(const uint8_t* block) {
  return read_u16(block + FileBlock<kind>::m_at) ^ (is_super(kind) ? 0x8000 : 0);
}

template <Kind kind>
OCTAVO_INLINE float value_of_d(uint16_t bits) {
  return kind == Kind::mxfp4 ? float_of_brain(bits) : float_of_half(bits);
}

// What sixteen weights are scaled and then shifted by.
struct Factors {
  float scale, shift;
};

// Of the first or last sixteen of a group, given d, m and the group's scales as panels hold them.
template <Kind kind>
OCTAVO_INLINE Factors factors_of(float d, float m, const uint8_t (&scales)[2], int half) {
  constexpr float none = -0.0f;  // which changes nothing, zeros included
  if constexpr (!is_super(kind)) {
    return {d, has_minima(kind) ? m : none};
  } else if constexpr (kind == Kind::q2_k) {
    return {d * (scales[half] & 15), m * (scales[half] >> 4)};
  } else if constexpr (has_minima(kind)) {
    return {d * scales[0], m * scales[1]};
  } else {
    return {d * static_cast<int8_t>(scales[row_of(kind).scales == 2 ? half : 0]), none};
  }
}

// The 32 weights of a group, given its codes.
template <Kind kind>
OCTAVO_INLINE void decode(const uint8_t* codes, float d, float m, const uint8_t (&scales)[2], float* out) {
  for (int half = 0; half < 2; ++half) {
    const Factors by = factors_of<kind>(d, m, scales, half);
    for (int i = 16 * half; i < 16 * half + 16; ++i) {
      out[i] = by.scale * whole_value<kind>(codes[i]) + by.shift;
    }
  }
}

// The 32 elements of a row from `first` on, a multiple of 32.
template <Kind kind>
OCTAVO_INLINE void read_quantised(const uint8_t* row, int64_t first, float* out) {
  const uint8_t* block = row + bytes_of(kind, first);
  const int64_t g = first % row_of(kind).elements / quant_group;
  uint8_t codes[quant_group], scales[2] = {};
  FileBlock<kind>::codes(block, g, codes);
  if constexpr (is_super(kind)) FileBlock<kind>::scales(block, g, scales);
  float m = 0.0f;
  if constexpr (has_minima(kind)) m = float_of_half(bits_of_m<kind>(block));
  decode<kind>(codes, value_of_d<kind>(bits_of_d<kind>(block)), m, scales, out);
}

// Elements [first, first + count) of a row as float32. `first` is a multiple of 32, count 32 or, at the end of
// an unquantised row, less. Defined once, in pack.cpp: it is long.
void read_group(const uint8_t* row, Kind kind, int64_t first, int64_t count, float* out);

}  // namespace octavo::OCTAVO_ISA
