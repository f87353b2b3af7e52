// Attention of a whole step: all chunks, shared out over the team. It checks nothing: the code that fills an
// AttentionStep (the bindings, or a program that replays a step) has checked every size and block id.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.hpp"

namespace octavo {

// The sizes of a KV pool. A block holds all layers in one contiguous range of bytes, padded to whole pages;
// kernels/attention.hpp draws the inside of a layer.
struct KvLayout {
  int64_t num_layers, num_kv_heads, head_size, block_size;
  KvKind kind;

  int64_t layer_bytes() const { return kv_layer_bytes(kind, num_kv_heads, head_size, block_size); }
  int64_t bytes_per_block() const;
  KvLayer layer(uint8_t* pool, int64_t index) const;
};

// What run_attention keeps between calls, so that a step allocates nothing once it has seen its largest.
struct AttentionScratch {
  struct Piece {
    int64_t chunk, cost;  // cost: of the whole task
    int64_t low;          // the first position that it sees
    AttentionTask task;
  };
  std::vector<Piece> pieces;  // what is computed, in an order that no result depends on
  std::vector<Piece> sorted;  // the same by owner
  std::vector<Piece> merges;  // the tasks that were cut into pieces
  std::vector<float> parts;   // what the pieces found, partition by partition
};

// Chunk c covers tokens [offsets[c], offsets[c + 1]) and begins at position starts[c]; its blocks are
// tables[c * table_width ...].
struct AttentionStep {
  KvLayer kv;
  const float* q;      // (T, H * D)
  float* out;          // (T, H * D)
  float* log_sum_exp;  // (T, H) or null
  const int32_t* starts;
  const int32_t* offsets;
  const int32_t* tables;
  int64_t table_width, num_chunks, heads;
  float scale;
  int64_t window;       // 0: none
  float soft_cap;       // 0: none
  const float* sinks;   // (H,) or null
  const float* slopes;  // (H,) or null
  // Partitions that one piece of work covers at most; 0: chosen by the load of the team. It changes no bit.
  int64_t piece_partitions;
  int64_t owners;  // that the step's rows have (team.hpp)
  AttentionScratch* scratch;  // null: one that belongs to the calling thread
  // With `kv.cold`, a walk takes several calls, one for each group of partitions: this one covers
  // [first_partition, last_partition). `state`, (T, H) of [part_floats], has the rows' partial results; `out`
  // gets the rows whose last partition is among these.
  int64_t first_partition = 0, last_partition = INT64_MAX;
  float* state = nullptr;  // null: one call walks everything
};

// Fills `out`, and `log_sum_exp` where there is one. Runs parallel regions of the team.
void run_attention(const AttentionStep& step);

}  // namespace octavo
