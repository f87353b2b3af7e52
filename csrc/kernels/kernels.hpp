// What a set of kernels offers to the rest of the module: plain functions over raw pointers, one table per
// instruction set. No Python and no threads here: the caller splits the work, which changes no bit.
//
// Dimensions: T tokens (rows), H query heads, K kv heads, D head size, B block size, V vocabulary.
#pragma once

#include <stdint.h>

#include "kernels/attention.hpp"
#include "kernels/kinds.hpp"

namespace octavo {

// Integer products with AVX-512 take rows in tiles of nearly equal height and a few panels' width: work is
// best cut at multiples of that many panels.
constexpr int code_rows_max = 6;
constexpr int64_t code_tiles(int64_t rows) { return (rows + code_rows_max - 1) / code_rows_max; }
constexpr int code_panels_for(int64_t height) { return height <= 3 ? 4 : height == 4 ? 3 : 2; }
constexpr int code_panels_unit(int64_t rows) {
  return rows == 0 ? 1 : code_panels_for((rows + code_tiles(rows) - 1) / code_tiles(rows));
}

// K and V that are needed soon: of each block `bytes` bytes from `start` on. A product prefetches them during
// its own work, as many as it has time for, and advances the cursor: `left` bytes, from `offset` in the first
// block. Tiles of one or two rows, of super-blocks and of matrix registers do not use it.
struct KvPrefetchCursor {
  const uint8_t* const* block;
  int64_t start, bytes;
  int64_t offset, left;
};

// y = x W^T + bias. W is packed: panels [ceil(outputs / 16)][inputs][16] of floats or halves, zeros beyond the
// last output. Halves are widened exactly, so both give the bits of the same values in float32. Panels of BF16 are
// [ceil(outputs / 16)][inputs / 2][16][2]: pairs of inputs, whose number is even.
struct Product {
  const void* x;  // (rows, inputs): floats; with BF16 weights, rounded by `round_row`
  const void* panels;
  const float* bias;  // (outputs,) or null
  float* y;           // (rows, outputs)
  int64_t rows, inputs, outputs;
  Kind kind = Kind::f32;  // of the panels: f32, f16 or bf16
  KvPrefetchCursor* kv_cursor = nullptr;
};

// A matrix as its file stores it, row after row, to be packed; rounded to nearest even where `stored` is
// narrower.
struct Packing {
  const uint8_t* data;
  Kind kind;
  int64_t outputs, inputs;
  void* panels;
  Kind stored = Kind::f32;  // of the panels: f32, f16 or bf16
};

// Rows from one group of a row to its next one. Not a multiple of 16: a tile walks a few rows group by group, and
// at distances of a power of two all that it reads would fall into the same few sets of the nearest cache.
constexpr int64_t code_padding = 3;  // rows at most
constexpr int64_t code_stride(int64_t rows) { return rows % 16 == 0 ? rows + code_padding : rows; }

// Sums of codes start at the bits of 1.5 * 2^23: read as a float, they are that number plus the integer, so that
// one fused multiply-add both converts and scales them (`scaled` in integers.hpp).
constexpr int32_t origin_bits = 0x4B400000;
constexpr float origin = 12582912.0f;

// Quantised rows, group by group: codes [groups][stride][32], the others [groups][stride].
struct Activations {
  int64_t rows, stride, inputs;
  int8_t* codes;    // round(x / scale), ties to even
  float* scales;    // largest magnitude / 127, of 22 bits; NaN if the group holds what is no number to it
  float* origins;   // minus the origin times the scale: exact
  // Of weights with one scale for the group: origin_bits - zero times the sum of codes; and scale times that sum.
  // With one for each half: origin_bits - zero times the sum of the first half, and the bits of the same of the
  // other (Q6_K: without origin_bits). Q2_K: the bits of scale times the sum of the first half; and of the other.
  int32_t* starts;
  float* shifts;
};

// In one piece of memory.
constexpr int64_t activation_words(int64_t stride, int64_t inputs) {
  return stride * (inputs / 4 + inputs / quant_group * 4);
}
static inline Activations activations_in(void* memory, int64_t rows, int64_t inputs) {
  const int64_t stride = code_stride(rows), groups = stride * (inputs / quant_group);
  float* behind = static_cast<float*>(memory) + stride * inputs / 4;
  return {rows,
          stride,
          inputs,
          static_cast<int8_t*>(memory),
          behind,
          behind + groups,
          reinterpret_cast<int32_t*>(behind + 2 * groups),
          behind + 3 * groups};
}

// y = x W^T + bias, W a matrix of one of the grouped kinds in integer panels.
struct IntegerProduct {
  Activations x;
  const uint8_t* panels;
  Kind kind;
  const float* bias;  // (outputs,) or null
  float* y;           // (rows, outputs)
  int64_t outputs;
  KvPrefetchCursor* kv_cursor = nullptr;
};

// A matrix as its file stores it, to be packed into integer panels of one of the grouped kinds. If that is
// not the file's own kind, groups are quantised again, to Q8_0 or Q4_1.
struct CodePacking {
  const uint8_t* data;
  Kind kind;  // of the panels
  int64_t outputs, inputs;
  uint8_t* panels;
  Kind source;  // of the data
};

// What happens to each element; the last one to pairs of them alone, in `gated`.
enum class Map { exp, tanh, silu, gelu_tanh, gelu, relu, swiglu_clamped };

struct Kernels {
  const char* name;
  int vector_bits;

  void (*product)(const Product&, int64_t first_panel, int64_t last_panel);
  // Rounds `count` numbers to bfloat16, as a product with BF16 reads them: `rounded_bytes` for each.
  void (*round_row)(const float* x, int64_t count, void* out);
  int64_t rounded_bytes;
  void (*pack)(const Packing&, int64_t first_panel, int64_t last_panel);
  void (*dequantise)(const uint8_t* data, Kind, int64_t count, float* out);
  // Row `index` of a packed matrix, written to out (inputs,).
  void (*unpack_row)(const void* panels, Kind, int64_t inputs, int64_t index, float* out);

  void (*integer_product)(const IntegerProduct&, int64_t first_panel, int64_t last_panel);
  void (*pack_codes)(const CodePacking&, int64_t first_panel, int64_t last_panel);
  // Row `index` of integer panels, as `dequantise` would give it.
  void (*unpack_codes)(const uint8_t* panels, Kind, int64_t inputs, int64_t index, float* out);
  // Rows [first, first + rows) of the activations of a product with weights of this kind, from x (rows, inputs).
  void (*quantise_rows)(const float* x, Kind, int64_t first, int64_t rows, const Activations&);

  void (*attend[3])(const Attention&, const AttentionTask&);  // by KvKind
  void (*attend_cold[3])(const Attention&, const AttentionTask&);  // where there is `kv.cold`
  // Writes the `out` of a task that was walked in pieces; task.parts holds those of all its partitions.
  void (*merge_parts)(const Attention&, const AttentionTask&);
  // K and V (K * D each) of one token into slot `slot` of block `block`.
  void (*store_kv)(const KvLayer&, int64_t block, int64_t slot, const float* k, const float* v);

  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t size, float* out);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, int64_t size,
                     float* out);
  void (*rope)(const float* x, const float* cos, const float* sin, int64_t heads, int64_t head_size,
               int64_t dims, float* out);
  void (*map)(Map, const float* x, int64_t count, float* out);
  void (*gated)(Map, const float* gate, const float* up, int64_t count, float* out);
  void (*add)(const float* x, const float* y, int64_t count, float* out);
  void (*scale)(const float* x, float factor, int64_t count, float* out);
  void (*soft_cap)(const float* x, float cap, int64_t count, float* out);

  float (*log_sum_exp)(const float* x, int64_t count);
  // The lowest index of the largest; -1 where there is NaN or +inf, or nothing but -inf.
  int32_t (*argmax)(const float* x, int64_t count);
  // Tokens [4 * first, 4 * first + count) of the noise.
  void (*gumbel)(uint64_t seed, uint32_t choice, uint32_t position, uint32_t first, int64_t count,
                 float* out);
  void (*philox)(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

  // The machine's limits: operations done by `rounds` of a loop over registers, and every byte read once.
  int64_t (*peak_multiply_add)(int64_t rounds, float* values);  // two values
  int64_t (*peak_pairs)(int64_t rounds, float* values);         // two values
  int64_t (*peak_dots)(int64_t rounds, int8_t* values);         // four values
  int32_t (*read_all)(const uint8_t* data, int64_t count);      // a multiple of 512 bytes
};

}  // namespace octavo
