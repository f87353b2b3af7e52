// KV memory and attention for the kernels: the layout of a block, and the arguments of a task.
//
// One layer of one block, for K kv heads, B slots, D head size and D16 = D rounded up to 16:
//
//     f32         | K [K][D][B]      | V [K][B][D16]      |
//     bf16        | K [K][D/2][B][2] | V [K][B/2][D16][2] |
//     int8        | K [K][D/4][B][4] | V [K][B][D16]      | scales of K [K][B] | scales of V [K][B] |
//
// Tokens lie along the lanes in K, so that scores need no horizontal sums, and head dimensions in V. In bf16
// two numbers that are summed one after the other share a 32-bit word (pairs.hpp): two dimensions of a token
// in K, two tokens of a dimension in V. In int8
// a token's 4 dimensions are one 32-bit word of K, each as code + 128, an operand of `accumulate_dots`; V's
// codes are signed; a scale (float32) is the largest magnitude of its token and head / 127. Layers follow
// each other, each of a multiple of 64 bytes; a block ends in padding to 4 KiB. Slots that were never
// written, and V beyond D, may hold any bits.
#pragma once

#include <stdint.h>

namespace octavo {

constexpr int partition_size = 256;  // positions that attention reduces at a time, at fixed absolute borders
constexpr int attention_rows = 36;   // (token, query head) pairs that one attention task handles at most
constexpr int head_size_max = 256;
constexpr int64_t kv_lanes = 16;

// Entries of a block table from here on name slots of a second memory (cold_reader.hpp): entry - cold_first.
// `COLD_FIRST` in contract.py.
constexpr int32_t cold_first = 1 << 30;

enum class KvKind { f32, bf16, int8 };

// One layer inside the pool.
struct KvLayer {
  uint8_t* pool;        // byte 0 of block 0
  int64_t block_bytes;  // from one block to the next
  int64_t layer_start;  // bytes from the block's start to this layer's K
  int64_t kv_heads, head_size, block_size;
  KvKind kind;
  // By slot of the second memory: this layer's bytes of that block, as in the pool. Null: no entry is cold.
  const uint8_t* const* cold = nullptr;
};

static constexpr int64_t kv_element_bytes(KvKind kind) {
  return kind == KvKind::f32 ? 4 : kind == KvKind::bf16 ? 2 : 1;
}

// D16: the row length of V.
static constexpr int64_t kv_padded_size(int64_t head_size) {
  return (head_size + kv_lanes - 1) / kv_lanes * kv_lanes;
}

// Bytes of one kv head's K in a block, of its V, of its scales of K (or of V), and of a whole layer.
static constexpr int64_t kv_key_bytes(KvKind kind, int64_t head_size, int64_t block_size) {
  return head_size * block_size * kv_element_bytes(kind);
}

static constexpr int64_t kv_value_bytes(KvKind kind, int64_t head_size, int64_t block_size) {
  return kv_padded_size(head_size) * block_size * kv_element_bytes(kind);
}

static constexpr int64_t kv_scale_bytes(KvKind kind, int64_t block_size) {
  return kind == KvKind::int8 ? 4 * block_size : 0;
}

static constexpr int64_t kv_layer_bytes(KvKind kind, int64_t kv_heads, int64_t head_size,
                                        int64_t block_size) {
  return kv_heads * (kv_key_bytes(kind, head_size, block_size) + kv_value_bytes(kind, head_size, block_size) +
                     2 * kv_scale_bytes(kind, block_size));
}

// One chunk: `length` tokens from position `start` on, each with H query heads, against its block table.
struct Attention {
  KvLayer kv;
  const float* q;        // (length, H * D)
  float* out;            // the same shape
  float* log_sum_exp;    // (length, H), or null: natural logarithm of the softmax's denominator
  const int32_t* table;  // block ids
  int64_t start, length, heads;
  float scale;
  int64_t window;       // positions that a token sees, itself included; 0: everything before
  float soft_cap;       // 0: none
  const float* sinks;   // (H,) logits that join the denominator only, or null
  const float* slopes;  // (H,) ALiBi: score -= slope * distance, or null
  // Each row's partial result in a walk of several calls, or null: (length, H) of [part_floats], as `parts`.
  // Only with `kv.cold`.
  float* state = nullptr;
};

// What the same thread reads next: K of positions [first, last), from kv head `head` on. It is fetched while the
// end of a task is computed; no result depends on it.
struct NextKeys {
  const int32_t* table;  // null: not known
  int64_t head, first, last;
};

// Of kv heads [first_head, last_head) rows [first_row, last_row) each, of the length * H / K rows of a chunk
// that read a kv head: at most `attention_rows` in all, head after head. And the partitions that the task
// walks: with `parts` null these are all that a row sees, and the task writes `out`; else it writes what it
// found, for `merge_parts` to read.
struct AttentionTask {
  int64_t first_head, last_head, first_row, last_row;
  int64_t first_partition, last_partition;
  float* parts;  // [partitions][rows][part_floats]: largest score, total, 14 unused, output [D16]; or null
  NextKeys next;
  // Of a walk in several calls: whether the rows' first partition is among these, and their last one.
  bool begins = true, ends = true;
};

static constexpr int64_t rows_in(const AttentionTask& task) {
  return (task.last_head - task.first_head) * (task.last_row - task.first_row);
}

static constexpr int64_t part_floats(int64_t head_size) { return kv_lanes + kv_padded_size(head_size); }

}  // namespace octavo
