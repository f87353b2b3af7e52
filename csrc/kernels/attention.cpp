// Attention over a block table, and the stores that fill it.
//
// The context is walked in partitions of 256 positions with fixed absolute borders. Inside a partition a
// row's scores are chains over the head's dimensions (16 tokens side by side), its output chains over the
// positions; partitions are merged in ascending order by log-sum-exp. Nothing of that depends on how the
// prompt was cut into chunks, on which blocks hold it, or on the rows beside. Masked positions take part in
// nothing, so their slots may hold any bits. Source: Dao et al. 2022 (the running maximum and sum), Kwon et
// al. 2023, section 4.3 (block tables).
#include "kernels/functions.hpp"
#include "kernels/table.hpp"
#include "kernels/tile.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int vectors_per_partition = partition_size / lane_count;
constexpr int score_vectors = 2;  // vectors beside a full tile of rows in both products
constexpr int head_vectors_max = head_size_max / lane_count;

OCTAVO_INLINE int64_t smaller_of(int64_t x, int64_t y) { return x < y ? x : y; }
OCTAVO_INLINE int64_t larger_of(int64_t x, int64_t y) { return x > y ? x : y; }

// What a task knows of its rows. A row is a (token, query head of the group) pair; it sees positions [low,
// high).
struct Rows {
  int64_t count, padded_size;  // padded_size: D rounded up to 16
  int64_t low[attention_rows], high[attention_rows];
  float largest[attention_rows], total[attention_rows];
  alignas(64) float q[attention_rows][head_size_max];
  alignas(64) float scores[attention_rows][partition_size];
  alignas(64) float part[attention_rows][head_size_max];  // the partition's output
  alignas(64) float out[attention_rows][head_size_max];   // the merged output, not yet divided by `total`
};

struct Range {
  int64_t first, last;  // positions inside the partition
};

OCTAVO_INLINE Range seen(const Rows& rows, int64_t r, int64_t base) {
  const int64_t first = larger_of(rows.low[r] - base, 0);
  return {first, larger_of(first, smaller_of(rows.high[r] - base, partition_size))};
}

OCTAVO_INLINE const float* keys(const Attention& a, int64_t block, int64_t head) {
  return a.kv.pool + block * a.kv.block_floats + a.kv.layer_floats + head * a.kv.head_size * a.kv.block_size;
}

OCTAVO_INLINE const float* values(const Attention& a, int64_t block, int64_t head, int64_t padded_size) {
  return a.kv.pool + block * a.kv.block_floats + a.kv.layer_floats +
         a.kv.kv_heads * a.kv.head_size * a.kv.block_size + head * padded_size * a.kv.block_size;
}

void gather_rows(const Attention& a, int64_t head, int64_t first_row, int64_t last_row, Rows& rows) {
  const int64_t group = a.heads / a.kv.kv_heads, size = a.kv.head_size;
  rows.count = last_row - first_row;
  rows.padded_size = (size + lane_count - 1) / lane_count * lane_count;
  for (int64_t r = 0; r < rows.count; ++r) {
    const int64_t token = (first_row + r) / group, query_head = head * group + (first_row + r) % group;
    const int64_t position = a.start + token;
    rows.low[r] = a.window ? larger_of(0, position - a.window + 1) : 0;
    rows.high[r] = position + 1;
    rows.largest[r] = -infinity;
    rows.total[r] = 0.0f;
    __builtin_memcpy(rows.q[r], a.q + (token * a.heads + query_head) * size, static_cast<uint64_t>(size) * 4);
    __builtin_memset(rows.out[r], 0, static_cast<uint64_t>(rows.padded_size) * 4);
  }
}

template <int R, int P>
OCTAVO_INLINE void score_tile(const Attention& a, Rows& rows, int64_t r, const float* const* k,
                              int64_t vector) {
  Lanes acc[R][P]{};
  multiply<R, P>(rows.q[r], head_size_max, k, a.kv.block_size, a.kv.head_size, acc);
  const Lanes scale = broadcast(a.scale), cap = broadcast(a.soft_cap);
  for (int i = 0; i < R; ++i) {
    for (int p = 0; p < P; ++p) {
      Lanes score = acc[i][p] * scale;
      if (a.soft_cap > 0.0f) score = cap * hyperbolic_tangent(score / cap);
      store(rows.scores[r + i] + (vector + p) * lane_count, score);
    }
  }
}

template <int R>
void score_rows(const Attention& a, Rows& rows, int64_t r, const float* const* k, int64_t first,
                int64_t last) {
  // As in the product: few rows take more vectors, so that there are chains enough to hide the latency.
  constexpr int P = R <= 2 ? 4 * score_vectors : score_vectors;
  int64_t vector = first;
  for (; vector + P <= last; vector += P) score_tile<R, P>(a, rows, r, k + vector, vector);
  for (; vector < last; ++vector) score_tile<R, 1>(a, rows, r, k + vector, vector);
}

// scores[r][...] for the vectors [first, last) of the partition.
void score(const Attention& a, Rows& rows, const float* const* k, int64_t first, int64_t last) {
  int64_t r = 0;
  for (; r + 8 <= rows.count; r += 8) score_rows<8>(a, rows, r, k, first, last);
  for (; r + 4 <= rows.count; r += 4) score_rows<4>(a, rows, r, k, first, last);
  for (; r + 3 <= rows.count; r += 3) score_rows<3>(a, rows, r, k, first, last);
  for (; r < rows.count; ++r) score_rows<1>(a, rows, r, k, first, last);
}

struct Softmax {
  float largest, total;
};

// Scores become exp(score - largest) on [first, last) and 0 elsewhere in the vectors that this range touches.
Softmax soften(float* scores, Range range) {
  const int64_t begin = range.first / lane_count * lane_count;
  const int64_t end = (range.last + lane_count - 1) / lane_count * lane_count;
  for (int64_t i = begin; i < range.first; ++i) scores[i] = -infinity;
  for (int64_t i = range.last; i < end; ++i) scores[i] = -infinity;
  Lanes best = broadcast(-infinity);
  for (int64_t i = begin; i < end; i += lane_count) best = larger(load(scores + i), best);
  const float largest = largest_lane(best);
  Lanes total = broadcast(0.0f);
  for (int64_t i = begin; i < end; i += lane_count) {
    const Lanes weight = exponential(load(scores + i) - broadcast(largest));
    store(scores + i, weight);
    total = total + weight;
  }
  return {largest, sum_of_lanes(total)};
}

// part[r ...] += sum over positions [range) of weight * V, R rows and P vectors of head dimensions at a time.
template <int R, int P>
OCTAVO_INLINE void weigh_tile(const Attention& a, Rows& rows, int64_t r, const float* const* v, Range range,
                              int64_t vector) {
  Lanes acc[R][P];
  for (int i = 0; i < R; ++i) {
    for (int p = 0; p < P; ++p) acc[i][p] = load(rows.part[r + i] + (vector + p) * lane_count);
  }
  for (int64_t position = range.first; position < range.last;) {
    const int64_t slot = position % a.kv.block_size;
    const int64_t count = smaller_of(a.kv.block_size - slot, range.last - position);
    const float* base = v[position / a.kv.block_size] + slot * rows.padded_size + vector * lane_count;
    const float* column[P];
    for (int p = 0; p < P; ++p) column[p] = base + p * lane_count;
    multiply<R, P>(rows.scores[r] + position, partition_size, column, rows.padded_size, count, acc);
    position += count;
  }
  for (int i = 0; i < R; ++i) {
    for (int p = 0; p < P; ++p) store(rows.part[r + i] + (vector + p) * lane_count, acc[i][p]);
  }
}

template <int R>
void weigh_rows(const Attention& a, Rows& rows, int64_t r, const float* const* v, Range range) {
  constexpr int P = R <= 4 ? 2 * score_vectors : score_vectors;
  const int64_t vectors = rows.padded_size / lane_count;
  int64_t vector = 0;
  for (; vector + P <= vectors; vector += P) weigh_tile<R, P>(a, rows, r, v, range, vector);
  for (; vector < vectors; ++vector) weigh_tile<R, 1>(a, rows, r, v, range, vector);
}

// Rows of a tile see nearly the same positions: the common ones are done together, the rest row by row, so
// that each row's chain has exactly its own positions, in order.
template <int R>
void weigh_tile_rows(const Attention& a, Rows& rows, int64_t r, const float* const* v, int64_t base) {
  Range common{0, partition_size};
  for (int i = 0; i < R; ++i) {
    const Range range = seen(rows, r + i, base);
    common.first = larger_of(common.first, range.first);
    common.last = smaller_of(common.last, range.last);
  }
  if (common.last <= common.first) {
    for (int i = 0; i < R; ++i) weigh_rows<1>(a, rows, r + i, v, seen(rows, r + i, base));
    return;
  }
  for (int i = 0; i < R; ++i) weigh_rows<1>(a, rows, r + i, v, {seen(rows, r + i, base).first, common.first});
  weigh_rows<R>(a, rows, r, v, common);
  for (int i = 0; i < R; ++i) weigh_rows<1>(a, rows, r + i, v, {common.last, seen(rows, r + i, base).last});
}

void weigh(const Attention& a, Rows& rows, const float* const* v, int64_t base) {
  int64_t r = 0;
  for (; r + 8 <= rows.count; r += 8) weigh_tile_rows<8>(a, rows, r, v, base);
  for (; r + 4 <= rows.count; r += 4) weigh_tile_rows<4>(a, rows, r, v, base);
  for (; r + 3 <= rows.count; r += 3) weigh_tile_rows<3>(a, rows, r, v, base);
  for (; r < rows.count; ++r) weigh_tile_rows<1>(a, rows, r, v, base);
}

// out, total and largest of row r take in the partition's.
void merge(Rows& rows, int64_t r, Softmax softmax) {
  const float largest = softmax.largest > rows.largest[r] ? softmax.largest : rows.largest[r];
  alignas(64) float shifts[lane_count] = {rows.largest[r] - largest, softmax.largest - largest};
  store(shifts, exponential(load(shifts)));
  const Lanes old_factor = broadcast(shifts[0]), new_factor = broadcast(shifts[1]);
  for (int64_t i = 0; i < rows.padded_size; i += lane_count) {
    const Lanes kept = load(rows.out[r] + i) * old_factor;
    store(rows.out[r] + i, fma(load(rows.part[r] + i), new_factor, kept));
  }
  rows.total[r] = __builtin_fmaf(softmax.total, shifts[1], rows.total[r] * shifts[0]);
  rows.largest[r] = largest;
}

// Positions [base, base + 256) that any row sees.
void take_partition(const Attention& a, int64_t head, int64_t base, int64_t low, int64_t high, Rows& rows) {
  const int64_t block_size = a.kv.block_size, vectors_per_block = block_size / lane_count;
  const int64_t first = larger_of(low - base, 0) / block_size;
  const int64_t last = (smaller_of(high - base, partition_size) + block_size - 1) / block_size;
  // 1. Where the partition's blocks are; blocks that no row sees are not even looked up.
  const float* k[vectors_per_partition];
  const float* v[vectors_per_partition];
  for (int64_t i = first; i < last; ++i) {
    const int64_t block = a.table[base / block_size + i];
    v[i] = values(a, block, head, rows.padded_size);
    for (int64_t j = 0; j < vectors_per_block; ++j) {
      k[i * vectors_per_block + j] = keys(a, block, head) + j * lane_count;
    }
  }
  // 2. Scores, weights, weighted values.
  score(a, rows, k, first * vectors_per_block, last * vectors_per_block);
  Softmax softmax[attention_rows];
  for (int64_t r = 0; r < rows.count; ++r) {
    const Range range = seen(rows, r, base);
    if (range.first < range.last) softmax[r] = soften(rows.scores[r], range);
    __builtin_memset(rows.part[r], 0, static_cast<uint64_t>(rows.padded_size) * 4);
  }
  weigh(a, rows, v, base);
  // 3. A row that sees nothing here is left as it is, to the bit.
  for (int64_t r = 0; r < rows.count; ++r) {
    const Range range = seen(rows, r, base);
    if (range.first < range.last) merge(rows, r, softmax[r]);
  }
}

}  // namespace

void attend(const Attention& a, int64_t head, int64_t first_row, int64_t last_row) {
  Rows rows;
  gather_rows(a, head, first_row, last_row, rows);
  const int64_t low = rows.low[0], high = rows.high[rows.count - 1];  // both ascend with the token
  for (int64_t base = low / partition_size * partition_size; base < high; base += partition_size) {
    take_partition(a, head, base, low, high, rows);
  }
  const int64_t group = a.heads / a.kv.kv_heads, size = a.kv.head_size;
  for (int64_t r = 0; r < rows.count; ++r) {
    const int64_t token = (first_row + r) / group, query_head = head * group + (first_row + r) % group;
    float* out = a.out + (token * a.heads + query_head) * size;
    const Lanes total = broadcast(rows.total[r]);
    for (int64_t i = 0; i < size; i += lane_count) {
      store_first(out + i, load(rows.out[r] + i) / total, smaller_of(size - i, lane_count));
    }
  }
}

void store_kv(const KvLayer& kv, int64_t block, int64_t slot, const float* k, const float* v) {
  const int64_t padded_size = (kv.head_size + lane_count - 1) / lane_count * lane_count;
  float* base = kv.pool + block * kv.block_floats + kv.layer_floats;
  float* key = base + slot;
  for (int64_t i = 0; i < kv.kv_heads * kv.head_size; ++i) key[i * kv.block_size] = k[i];
  float* value = base + kv.kv_heads * kv.head_size * kv.block_size + slot * padded_size;
  for (int64_t h = 0; h < kv.kv_heads; ++h) {
    __builtin_memcpy(value + h * kv.block_size * padded_size, v + h * kv.head_size,
                     static_cast<uint64_t>(kv.head_size) * sizeof(float));
  }
}

}  // namespace octavo::OCTAVO_ISA
