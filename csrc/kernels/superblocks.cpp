// Q4_K and Q6_K: packed panels of super-blocks, and their product.
//
// A panel holds 16 outputs. For each group of 32 inputs it has 64-byte vectors of one 32-bit word per output:
//
//   Q4_K    vector j of 4: the codes of inputs 8j .. 8j + 3 in the low half of the bytes, the next in the high
//   Q6_K    the same for the lowest four bits of a code; then vector j of 2: of inputs 16j .. 16j + 15 the
//           upper two, those of inputs 16j + 4k .. + 3 in bits 2k and 2k + 1 of the bytes
//
// and behind the vectors of all groups, for each super-block of eight groups (16 of each, one per output):
//
//   Q4_K    halves d | halves -dmin | for each group: bytes scale | bytes minimum
//   Q6_K    halves d | for each group: bytes scale of its first 16 inputs | of the others
//
// which is 148 bytes for 256 weights where the file has 144, and 210 where it has 210.
//
//   Q4_K   sum = sum of q_w q_x                                          int32, exact
//          y   = fma(float(sum) s, d scale, y)                           d scale is exact; s: the activations'
//          y   = fma(-dmin minimum, s sum(q_x), y)                       dmin minimum is exact
//   Q6_K   sum = scale_0 (sum of the first 16) + scale_1 (of the last)   below 2^24, so exact in float32
//          y   = fma(sum s, d, y)
#include "kernels/superblocks.hpp"

#include "kernels/amx_product.hpp"
#include "kernels/blocks.hpp"
#include "kernels/integers.hpp"
#include "kernels/panels.hpp"
#include "kernels/prefetch_cursor.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int groups_per_block = super_group / quant_group;
constexpr int nibble_vectors = 4;

// Bytes of the halves before the scales of a super-block, and of the scales of one group.
constexpr int64_t halves_bytes(Kind kind) { return 2 * panel_width * (kind == Kind::q4_k ? 2 : 1); }
constexpr int64_t group_scale_bytes = 2 * panel_width;
static_assert(halves_bytes(Kind::q4_k) + 8 * group_scale_bytes == 8 * scale_bytes(Kind::q4_k));
static_assert(halves_bytes(Kind::q6_k) + 8 * group_scale_bytes == 8 * scale_bytes(Kind::q6_k));

// Where the upper two bits of code i stand in its group, and how far up the byte.
OCTAVO_INLINE int64_t upper_byte(int64_t lane, int i) { return word(nibble_vectors + i / 16, lane) + i % 4; }
OCTAVO_INLINE int upper_shift(int i) { return i % 16 / 4 * 2; }

OCTAVO_INLINE void pack_group(const uint8_t* block, Kind kind, int64_t g, int64_t lane, uint8_t* group,
                              uint8_t* scales) {
  uint8_t codes[quant_group];
  read_super_codes(block, kind, g, codes);
  write_nibbles(codes, lane, group);
  if (kind == Kind::q4_k) {
    const ScaleAndMinimum both = scale_and_minimum(block, g);
    scales[lane] = both.scale;
    scales[panel_width + lane] = both.minimum;
    return;
  }
  for (int i = 0; i < quant_group; ++i) {
    uint8_t& byte = group[upper_byte(lane, i)];
    byte = static_cast<uint8_t>(byte | codes[i] >> 4 << upper_shift(i));
  }
  for (int half = 0; half < 2; ++half) {
    scales[half * panel_width + lane] = static_cast<uint8_t>(signed_scale(block, g, half));
  }
}

OCTAVO_INLINE void pack_halves(const uint8_t* block, Kind kind, int64_t lane, uint8_t* halves) {
  __builtin_memcpy(halves + 2 * lane, block + (kind == Kind::q4_k ? 0 : q6_k_d), 2);
  if (kind != Kind::q4_k) return;
  const uint16_t minus_dmin = read_u16(block + 2) ^ 0x8000;
  __builtin_memcpy(halves + 2 * (panel_width + lane), &minus_dmin, 2);
}

// Sixteen scales, bytes, as floats.
OCTAVO_INLINE Lanes load_scales(const uint8_t* source, bool is_signed) {
  Lanes out;
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
  out.part[0] = _mm512_cvtepi32_ps(is_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
#elif defined(__AVX2__)
  OCTAVO_EACH_PART {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(source + 8 * i));
    out.part[i] = _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
  }
#else
  float lane[lane_count];
  for (int i = 0; i < lane_count; ++i) {
    lane[i] = static_cast<float>(is_signed ? static_cast<int8_t>(source[i]) : source[i]);
  }
  out = load(lane);
#endif
  return out;
}

template <int R>
OCTAVO_INLINE void add_q4_k(const IntegerProduct& a, int64_t at, const uint8_t* codes, const Lanes& scale,
                            const Lanes& minimum, Lanes (&acc)[R]) {
  const IntLanes low_half = broadcast_int(0x0F0F0F0F);
  const int8_t* x = a.x.codes + at * quant_group;
  IntLanes sum[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[r] = broadcast_int(has_short_sums ? 0 : origin_bits);
#pragma GCC unroll 4
  for (int j = 0; j < nibble_vectors; ++j) {
    const IntLanes words = load_words(codes + 64 * j);
    const IntLanes low = words & low_half, high = shift_right(words, 4) & low_half;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) accumulate_small(sum[r], low, x + r * quant_group + 8 * j);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) accumulate_small(sum[r], high, x + r * quant_group + 8 * j + 4);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    if constexpr (has_short_sums) sum[r] = broadcast_int(origin_bits) + short_sums(sum[r]);
    const Lanes own = scaled(sum[r], broadcast(a.x.scales[at + r]), broadcast(a.x.origins[at + r]));
    accumulate(acc[r], own, scale);
    accumulate(acc[r], minimum, broadcast(a.x.shifts[at + r]));
  }
}

// The sums of one half of a group, minus what the codes' zero adds to them.
template <int R>
OCTAVO_INLINE void sum_half(const uint8_t* codes, const int8_t* x, int half, IntLanes (&sum)[R]) {
  const IntLanes low_half = broadcast_int(0x0F0F0F0F), pair = broadcast_int(0x30303030);
  const IntLanes upper = load_words(codes + 64 * (nibble_vectors + half));
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const IntLanes words = load_words(codes + 64 * (2 * half + k / 2));
    const IntLanes low = (k % 2 == 0 ? words : shift_right(words, 4)) & low_half;
    const IntLanes high = k < 2 ? shift_left(upper, 4 - 2 * k) : shift_right(upper, 2 * k - 4);
    const IntLanes code = low | (high & pair);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) accumulate_dots(sum[r], code, x + r * quant_group + 16 * half + 4 * k);
  }
}

template <int R>
OCTAVO_INLINE void add_q6_k(const IntegerProduct& a, int64_t at, const uint8_t* codes, const uint8_t* scales,
                            const Lanes& d, Lanes (&acc)[R]) {
  const int8_t* x = a.x.codes + at * quant_group;
  const Lanes first = load_scales(scales, true), second = load_scales(scales + panel_width, true);
  IntLanes sum[R];
  Lanes both[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[r] = broadcast_int(a.x.starts[at + r]);
  sum_half<R>(codes, x, 0, sum);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) both[r] = converted(sum[r]) * first;
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[r] = bits_of(broadcast(a.x.shifts[at + r]));
  sum_half<R>(codes, x, 1, sum);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    accumulate(both[r], converted(sum[r]), second);
    accumulate(acc[r], both[r] * broadcast(a.x.scales[at + r]), d);
  }
}

template <Kind kind, int R>
void tile(const IntegerProduct& a, int64_t row, int64_t panel, PrefetchCursor& next) {
  PrefetchCursor cursor = next;  // in registers
  const int64_t groups = a.x.inputs / quant_group;
  const uint8_t* codes = a.panels + panel * code_panel_bytes(kind, a.x.inputs);
  const uint8_t* scales = codes + groups * code_bytes(kind);
  Lanes acc[R]{};
  for (int64_t block = 0; block < groups / groups_per_block; ++block) {
    const uint8_t* halves = scales + block * groups_per_block * scale_bytes(kind);
    const Lanes d = load_halves(halves);
    for (int64_t g = 0; g < groups_per_block; ++g, codes += code_bytes(kind)) {
      const int64_t at = (block * groups_per_block + g) * a.x.stride + row;
      fetch_some(cursor);
      const uint8_t* own = halves + halves_bytes(kind) + g * group_scale_bytes;
      if constexpr (kind == Kind::q4_k) {
        const Lanes minus_dmin = load_halves(halves + 2 * panel_width);
        const Lanes scale = d * load_scales(own, false);
        add_q4_k<R>(a, at, codes, scale, minus_dmin * load_scales(own + panel_width, false), acc);
      } else {
        add_q6_k<R>(a, at, codes, own, d, acc);
      }
    }
  }
  next = cursor;
  end_when_done(next);
  const int64_t output = panel * panel_width;
  const int64_t count = a.outputs - output < panel_width ? a.outputs - output : panel_width;
  for (int r = 0; r < R; ++r) {
    const Lanes y = a.bias ? acc[r] + load_first(a.bias + output, count) : acc[r];
    store_first(a.y + (row + r) * a.outputs + output, y, count);
  }
}

// Rows beside each other: what a row keeps (Q4_K: a sum and an output, Q6_K: a weighted sum too) must fit the
// registers.
#if defined(__AVX512F__)
constexpr int rows_max(Kind kind) { return kind == Kind::q4_k ? 12 : 8; }
#elif defined(__AVX2__)
constexpr int rows_max(Kind kind) { return kind == Kind::q4_k ? 4 : 2; }
#else
constexpr int rows_max(Kind) { return 1; }
#endif

template <Kind kind, int R = rows_max(kind)>
OCTAVO_INLINE void tile_of(const IntegerProduct& a, int64_t row, int64_t rows, int64_t panel,
                           PrefetchCursor& next) {
  if (rows == R) return tile<kind, R>(a, row, panel, next);
  if constexpr (R > 1) tile_of<kind, R - 1>(a, row, rows, panel, next);
}

#if defined(OCTAVO_MATRICES)
// The weights as matrix registers take them.
struct Q4KFormat {
  static constexpr Kind kind = Kind::q4_k;

  OCTAVO_INLINE void unpack(const uint8_t* codes, uint8_t* out) {
    const IntLanes low_half = broadcast_int(0x0F0F0F0F);
    for (int j = 0; j < nibble_vectors; ++j) {
      const IntLanes words = load_words(codes + 64 * j);
      store_words(out + 128 * j, words & low_half);
      store_words(out + 128 * j + 64, shift_right(words, 4) & low_half);
    }
  }

  struct Factors {
    Lanes scale, minimum;
  };

  OCTAVO_INLINE Factors factors(const uint8_t* scales, int64_t g) {
    const uint8_t* halves = scales + g / groups_per_block * groups_per_block * scale_bytes(kind);
    const uint8_t* own = halves + halves_bytes(kind) + g % groups_per_block * group_scale_bytes;
    return {load_halves(halves) * load_scales(own, false),
            load_halves(halves + 2 * panel_width) * load_scales(own + panel_width, false)};
  }

  OCTAVO_INLINE void add(Lanes& acc, const int32_t* sums, const Factors& factors, const Activations& x,
                         int64_t at) {
    const IntLanes sum = load_words(reinterpret_cast<const uint8_t*>(sums));
    accumulate(acc, converted(sum) * broadcast(x.scales[at]), factors.scale);
    accumulate(acc, factors.minimum, broadcast(x.shifts[at]));
  }
};
#endif

// A panel stays in the nearest cache while all rows pass over it, in tiles of nearly equal height.
template <Kind kind>
void panels_of(const IntegerProduct& a, int64_t first_panel, int64_t last_panel) {
  if (a.x.rows == 0) return;  // a chunk in the middle of its prompt wants no logits
  const int64_t tiles = (a.x.rows + rows_max(kind) - 1) / rows_max(kind);
  const int64_t stride = code_panel_bytes(kind, a.x.inputs), groups = a.x.inputs / quant_group;
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    PrefetchCursor next = fetched_within(a.panels + (panel + 1) * stride, stride, tiles * groups);
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t row = a.x.rows * t / tiles, last = a.x.rows * (t + 1) / tiles;
      tile_of<kind>(a, row, last - row, panel, next);
    }
  }
}

}  // namespace

void pack_super_codes(const CodePacking& a, int64_t first_panel, int64_t last_panel) {
  const int64_t blocks = a.inputs / super_group, block_bytes = bytes_of(a.kind, super_group);
  const int64_t stride = code_panel_bytes(a.kind, a.inputs);
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    uint8_t* codes = a.panels + panel * stride;
    uint8_t* scales = codes + blocks * groups_per_block * code_bytes(a.kind);
    __builtin_memset(codes, 0, static_cast<uint64_t>(stride));
    const int64_t row = panel * panel_width;
    const int64_t lanes = a.outputs - row < panel_width ? a.outputs - row : panel_width;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const uint8_t* block = a.data + (row + lane) * blocks * block_bytes;
      for (int64_t b = 0; b < blocks; ++b, block += block_bytes) {
        uint8_t* halves = scales + b * groups_per_block * scale_bytes(a.kind);
        pack_halves(block, a.kind, lane, halves);
        for (int64_t g = 0; g < groups_per_block; ++g) {
          pack_group(block, a.kind, g, lane, codes + (b * groups_per_block + g) * code_bytes(a.kind),
                     halves + halves_bytes(a.kind) + g * group_scale_bytes);
        }
      }
    }
  }
}

void unpack_super_codes(const uint8_t* panels, Kind kind, int64_t inputs, int64_t index, float* out) {
  const int64_t groups = inputs / quant_group, lane = index % panel_width;
  const uint8_t* codes = panels + index / panel_width * code_panel_bytes(kind, inputs);
  const uint8_t* scales = codes + groups * code_bytes(kind);
  for (int64_t g = 0; g < groups; ++g, codes += code_bytes(kind), out += quant_group) {
    const uint8_t* halves = scales + g / groups_per_block * groups_per_block * scale_bytes(kind);
    const uint8_t* own = halves + halves_bytes(kind) + g % groups_per_block * group_scale_bytes + lane;
    const float d = float_of_half(read_u16(halves + 2 * lane));
    if (kind == Kind::q4_k) {
      const float minus_dmin = float_of_half(read_u16(halves + 2 * (panel_width + lane)));
      const float scale = d * own[0], minimum = minus_dmin * own[panel_width];
      for (int i = 0; i < quant_group; ++i) {
        out[i] = scale * static_cast<float>(nibble_at(codes, lane, i)) + minimum;
      }
      continue;
    }
    for (int i = 0; i < quant_group; ++i) {
      const int upper = codes[upper_byte(lane, i)] >> upper_shift(i) & 3;
      const int code = nibble_at(codes, lane, i) | upper << 4;
      const float scale = d * static_cast<int8_t>(own[i / 16 * panel_width]);
      out[i] = scale * static_cast<float>(code - code_zero(kind));
    }
  }
}

void super_product(const IntegerProduct& a, int64_t first_panel, int64_t last_panel) {
  if (a.kind == Kind::q6_k) return panels_of<Kind::q6_k>(a, first_panel, last_panel);
#if defined(OCTAVO_MATRICES)
  panels_of<Kind::q4_k>(rest_of<Q4KFormat>(a, first_panel, last_panel), first_panel, last_panel);
#else
  panels_of<Kind::q4_k>(a, first_panel, last_panel);
#endif
}

}  // namespace octavo::OCTAVO_ISA
