// GGUF's blocks of quantised weights, read element by element: the layout of each format, and its values.
//
//   Q8_0  34 bytes, 32 weights    half d | 32 signed codes                  w = d code
//   Q4_0  18                      half d | 16 x two codes                   w = d (code - 8)
//   Q4_1  20                      half d, m | 16 x two codes                w = d code + m
//   Q4_K  144 bytes, 256 weights  half d, dmin | 12 of scales | 128 codes   w = d scale code - dmin minimum
//   Q6_K  210                     128 low, 64 high | 16 scales | half d     w = d scale (code - 32)
//
// Q4_K has a 6-bit scale and minimum for each 32 weights, Q6_K a signed scale for each 16. Products of d with
// a scale and a code are exact in float32. Source: ggml's block_q8_0, block_q4_0, block_q4_1, block_q4_K,
// block_q6_K.
#pragma once

#include "kernels/halves.hpp"
#include "kernels/kernels.hpp"

namespace octavo::OCTAVO_ISA {

// Where Q4_K and Q6_K keep what in a block.
constexpr int q4_k_scales = 4, q4_k_codes = 16, q6_k_high = 128, q6_k_scales = 192, q6_k_d = 208;

struct ScaleAndMinimum {
  uint8_t scale, minimum;
};

// Of group g (0 to 7) of a Q4_K block: six bits each, the upper two of the last four groups in the bytes of
// the first.
OCTAVO_INLINE ScaleAndMinimum scale_and_minimum(const uint8_t* block, int64_t g) {
  const uint8_t* packed = block + q4_k_scales;
  if (g < 4) return {static_cast<uint8_t>(packed[g] & 63), static_cast<uint8_t>(packed[g + 4] & 63)};
  return {static_cast<uint8_t>((packed[g + 4] & 15) | (packed[g - 4] >> 6 << 4)),
          static_cast<uint8_t>(packed[g + 4] >> 4 | (packed[g] >> 6 << 4))};
}

// Signed scale of the first (half 0) or the last 16 weights of group g of a Q6_K block.
OCTAVO_INLINE int8_t signed_scale(const uint8_t* block, int64_t g, int half) {
  return static_cast<int8_t>(block[q6_k_scales + 2 * g + half]);
}

// The 32 codes of group g of a super-block, unsigned.
OCTAVO_INLINE void read_super_codes(const uint8_t* block, Kind kind, int64_t g, uint8_t* codes) {
  if (kind == Kind::q4_k) {  // two groups share 32 bytes
    const uint8_t* pairs = block + q4_k_codes + g / 2 * quant_group;
    for (int i = 0; i < quant_group; ++i) codes[i] = pairs[i] >> (g % 2 * 4) & 15;
    return;
  }
  // Four groups share 64 bytes of low halves and 32 of high pairs of bits.
  const uint8_t* low = block + g / 4 * 64 + g % 2 * quant_group;
  const uint8_t* high = block + q6_k_high + g / 4 * quant_group;
  for (int i = 0; i < quant_group; ++i) {
    codes[i] = static_cast<uint8_t>((low[i] >> (g % 4 / 2 * 4) & 15) | (high[i] >> (g % 4 * 2) & 3) << 4);
  }
}

// The 32 codes of a block of one group, unsigned: Q8_0's plus 128.
OCTAVO_INLINE void read_codes(const uint8_t* block, Kind kind, uint8_t* codes) {
  if (kind == Kind::q8_0) {
    for (int i = 0; i < quant_group; ++i) codes[i] = static_cast<uint8_t>(block[2 + i] ^ 0x80);
    return;
  }
  const uint8_t* pairs = block + (kind == Kind::q4_1 ? 4 : 2);
  for (int i = 0; i < 16; ++i) {
    codes[i] = pairs[i] & 15;
    codes[i + 16] = pairs[i] >> 4;
  }
}

// out[i] = scale * (codes[i] - zero) + shift, for 16 codes.
OCTAVO_INLINE void decode(const uint8_t* codes, float scale, int zero, float shift, float* out) {
  for (int i = 0; i < 16; ++i) out[i] = scale * static_cast<float>(codes[i] - zero) + shift;
}

OCTAVO_INLINE void read_super_group(const uint8_t* block, Kind kind, int64_t g, float* out) {
  uint8_t codes[quant_group];
  read_super_codes(block, kind, g, codes);
  for (int half = 0; half < 2; ++half) {
    float scale, shift = -0.0f;  // which changes nothing, zeros included
    if (kind == Kind::q4_k) {
      const ScaleAndMinimum both = scale_and_minimum(block, g);
      scale = float_of_half(read_u16(block)) * both.scale;
      shift = -(float_of_half(read_u16(block + 2)) * both.minimum);
    } else {
      scale = float_of_half(read_u16(block + q6_k_d)) * signed_scale(block, g, half);
    }
    decode(codes + 16 * half, scale, code_zero(kind), shift, out + 16 * half);
  }
}

// Elements [first, first + count) of a row as float32. `first` is a multiple of 32, count 32 or, at the end of
// an unquantised row, less.
OCTAVO_INLINE void read_group(const uint8_t* row, Kind kind, int64_t first, int64_t count, float* out) {
  if (is_super(kind)) {
    const uint8_t* block = row + bytes_of(kind, first / super_group * super_group);
    return read_super_group(block, kind, first % super_group / quant_group, out);
  }
  const uint8_t* data = row + bytes_of(kind, first);
  switch (kind) {
    case Kind::f32: __builtin_memcpy(out, data, static_cast<uint64_t>(count) * 4); break;
    case Kind::f16:
      for (int64_t i = 0; i < count; ++i) out[i] = float_of_half(read_u16(data + 2 * i));
      break;
    case Kind::bf16:
      for (int64_t i = 0; i < count; ++i) out[i] = float_of_brain(read_u16(data + 2 * i));
      break;
    default: {
      uint8_t codes[quant_group];
      read_codes(data, kind, codes);
      const float d = float_of_half(read_u16(data));
      const float m = kind == Kind::q4_1 ? float_of_half(read_u16(data + 2)) : -0.0f;
      decode(codes, d, code_zero(kind), m, out);
      decode(codes + 16, d, code_zero(kind), m, out + 16);
    }
  }
}

}  // namespace octavo::OCTAVO_ISA
