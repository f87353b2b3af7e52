// K and V as a block holds them: where a partition's bytes are, and products with them while the next ones
// are on their way.
//
// Decoding is bound by memory: each byte of K and V is used for one token's rows only. Blocks are scattered,
// so the processor foresees little beyond each piece; products therefore prefetch the next piece themselves.
#pragma once

#include "kernels/prefetch_cursor.hpp"
#include "kernels/attention.hpp"
#include "kernels/integers.hpp"

namespace octavo::OCTAVO_ISA {

constexpr int vectors_per_partition = partition_size / lane_count;
constexpr int vectors_max = 8;  // of positions or dimensions, in a tile of one row
constexpr int lead = 4;         // vectors of positions, at least, from what is computed to what is prefetched

OCTAVO_INLINE int64_t smaller_of(int64_t x, int64_t y) { return x < y ? x : y; }
OCTAVO_INLINE int64_t larger_of(int64_t x, int64_t y) { return x > y ? x : y; }

constexpr int64_t key_lane_bytes = 4;  // a float, two dimensions of bfloat16 or four codes

// How many positions one row of V holds, dimension by dimension.
constexpr int64_t positions_per_step(KvKind kind) { return kind == KvKind::bf16 ? 2 : 1; }

// Where the bytes of 16 positions begin: their lanes of K's first step, the first one's row of V.
struct Place {
  const uint8_t *key, *value, *key_scale, *value_scale;
};

// `position` is a multiple of 16. Blocks hold a power of two of tokens: no division for each vector.
template <KvKind kind, bool maybe_cold>
OCTAVO_INLINE Place place_of(const KvLayer& kv, const int32_t* table, int64_t head, int64_t position) {
  const int64_t slot = position & (kv.block_size - 1);
  const int64_t block = table[position >> __builtin_ctzll(static_cast<uint64_t>(kv.block_size))];
  const int64_t key_bytes = kv_key_bytes(kind, kv.head_size, kv.block_size);
  const int64_t value_bytes = kv_value_bytes(kind, kv.head_size, kv.block_size);
  const uint8_t* keys = maybe_cold && block >= cold_first
                            ? kv.cold[block - cold_first]
                            : kv.pool + block * kv.block_bytes + kv.layer_start;
  const uint8_t* values = keys + kv.kv_heads * key_bytes;
  const uint8_t* scales = values + kv.kv_heads * value_bytes;
  return {keys + head * key_bytes + slot * key_lane_bytes,
          values + head * value_bytes + slot * kv_padded_size(kv.head_size) * kv_element_bytes(kind),
          scales + (head * kv.block_size + slot) * 4,
          scales + ((kv.kv_heads + head) * kv.block_size + slot) * 4};
}

// One partition's bytes, by vector of 16 positions, of one kv head; the next head's are so many bytes further
// on. Beyond `last` stands what will be read next, to be prefetched: behind K this partition's V, behind V
// the next partition's K, or the next task's.
struct Partition {
  int64_t base;
  int64_t key_bytes, value_bytes, scale_bytes;  // of a head in a block
  int64_t first, last;                          // vectors that some row sees
  int64_t key_stride;    // bytes from one step of K (a dimension; two in bf16, four in int8) to the next
  int64_t value_stride;  // from one step of V (a position; two in bf16) to the next
  const uint8_t* keys[vectors_per_partition + vectors_max];
  const uint8_t* values[vectors_per_partition + vectors_max];
  const uint8_t* key_scales[vectors_per_partition];
  const uint8_t* value_scales[vectors_per_partition];
};

// Positions [low, high) are what the rows see; blocks beyond them are not even looked up.
template <KvKind kind, bool maybe_cold>
OCTAVO_INLINE void find_partition(const Attention& a, const AttentionTask& task, int64_t base, int64_t low,
                                  int64_t high, Partition& part) {
  const int64_t head = task.first_head;
  part.base = base;
  part.key_bytes = kv_key_bytes(kind, a.kv.head_size, a.kv.block_size);
  part.value_bytes = kv_value_bytes(kind, a.kv.head_size, a.kv.block_size);
  part.scale_bytes = kv_scale_bytes(kind, a.kv.block_size);
  part.first = larger_of(low - base, 0) / lane_count;
  part.last = (smaller_of(high - base, partition_size) + lane_count - 1) / lane_count;
  part.key_stride = key_lane_bytes * a.kv.block_size;
  part.value_stride = kv_padded_size(a.kv.head_size) * kv_element_bytes(kind) * positions_per_step(kind);
  for (int64_t i = part.first; i < part.last; ++i) {
    const Place place = place_of<kind, maybe_cold>(a.kv, a.table, head, base + i * lane_count);
    part.keys[i] = place.key;
    part.values[i] = place.value;
    part.key_scales[i] = place.key_scale;
    part.value_scales[i] = place.value_scale;
  }
  const bool is_last = base + partition_size >= high;
  const NextKeys next = is_last ? task.next : NextKeys{a.table, head, base + partition_size, high};
  for (int64_t i = 0; i < vectors_max; ++i) {
    const int64_t position = next.first + i * lane_count, last = part.last - 1;
    const bool known = next.table && position < next.last;
    part.keys[part.last + i] = part.values[smaller_of(part.first + i, last)];
    part.values[part.last + i] =
        known ? place_of<kind, maybe_cold>(a.kv, next.table, next.head, position).key : part.values[last];
  }
}

// A vector of float or int8 K or V as floats.
template <KvKind kind>
OCTAVO_INLINE Lanes widened(const uint8_t* source) {
  if constexpr (kind == KvKind::f32) return load(reinterpret_cast<const float*>(source));
  if constexpr (kind == KvKind::int8) return converted(load_bytes(source));
}

// acc[r][p] += sum over i of x[r][i] * w[p][i], i ascending, as `multiply` (tile.hpp) does it.
// Each step also prefetches the same offset from `upcoming`, for every `every`-th vector.
template <KvKind kind, int every, int R, int P>
OCTAVO_INLINE void multiply_stored(const float* x, int64_t x_stride, const uint8_t* const* w,
                                   const uint8_t* const* upcoming, int64_t stride, int64_t steps,
                                   Lanes (&acc)[R][P]) {
  for (int64_t i = 0; i < steps; ++i) {
    Lanes stored[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) stored[p] = widened<kind>(w[p] + i * stride);
#pragma GCC unroll 8
    for (int p = 0; p < P; p += every) prefetch(upcoming[p] + i * stride);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Lanes value = broadcast(x[r * x_stride + i]);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) accumulate(acc[r][p], value, stored[p]);
    }
  }
}

}  // namespace octavo::OCTAVO_ISA
