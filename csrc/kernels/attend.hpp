// Attention over a block table.
//
// The context is walked in partitions of 256 positions with fixed absolute borders. Inside a partition a
// row's scores are chains over the head's dimensions (16 tokens side by side), its output chains over the
// positions; partitions are merged in ascending order by log-sum-exp. Nothing of that depends on how the
// prompt was cut into chunks, on which blocks hold it, on the other rows, or on the tasks that share the
// walk. Masked positions take part in nothing, so their slots may hold any bits. (With matrix registers a
// chain is of several, and what is masked takes part as zero: amx_attention.hpp.)
//
// K and V are read as they are stored, and what meets them is made alike: bfloat16 meets queries and weights
// that were rounded alike, pair by pair (pairs.hpp) or in matrix registers (amx_attention.hpp), and the total
// is that of the rounded weights; int8 K meets a query that was quantised alike, in exact integer sums, and
// V's scales are folded into the weights, after their total.
// Source: Dao et al. 2022 (the running maximum and sum), Kwon et al. 2023, section 4.3 (block tables).
//
// Each kind of KV has a file of its own, attend_*.cpp: an instruction set compiles those that it changes.
#pragma once

#include "kernels/amx.hpp"
#include "kernels/quantise.hpp"
#include "kernels/softmax.hpp"
#include "kernels/table.hpp"
#include "kernels/tile.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

// attend_cold.cpp compiles these kernels once more, for block tables whose entries may be cold: one function for
// both, and each way to look for such entries in it, made decoding 4% slower where caches hold everything.
#if defined(OCTAVO_COLD)
constexpr bool maybe_cold = true;
#define OCTAVO_ATTEND(kind) attend_cold_##kind
#else
constexpr bool maybe_cold = false;
#define OCTAVO_ATTEND(kind) attend_##kind
#endif

// Rows of a tile at most. Six leave room for four vectors, so that what was widened is used six times and
// what was broadcast four times.
constexpr int rows_max = tile_rows < 6 ? tile_rows : 6;

// How many vectors wide a tile of R rows is: a power of two, which divides partitions and common head sizes.
constexpr int stored_vectors_for(int rows) {
  const int room = vectors_for(rows);
  return room >= 8 ? 8 : room >= 4 ? 4 : room >= 2 ? 2 : 1;
}

template <KvKind kind>
void gather_queries(const Attention& a, Rows& rows) {
  const int64_t size = a.kv.head_size;
  for (int64_t r = 0; r < rows.count; ++r) {
    const auto [token, query_head] = rows.owners[r];
    const float* q = a.q + (token * a.heads + query_head) * size;
    rows.slopes[r] = a.slopes ? a.slopes[query_head] : 0.0f;
    rows.factors[r] = a.scale;
    if constexpr (kind == KvKind::int8) {
      const Quantised quantised = quantise(q, size, rows.codes[r]);
      rows.starts[r] = -128 * quantised.sum;
      rows.factors[r] = quantised.scale * a.scale;
    } else if constexpr (kind == KvKind::bf16) {
      for (int64_t i = 0; i < size; i += lane_count) {
        store_paired(paired(rows.q[r]) + i, load_first(q + i, size - i));
      }
    } else {
      __builtin_memcpy(rows.q[r], q, static_cast<uint64_t>(size) * 4);
    }
  }
}

// The integer sums of codes: K's are shifted by 128, which `starts` takes back.
template <int R, int P>
OCTAVO_INLINE void sum_codes(const Rows& rows, int64_t r, const uint8_t* const* w,
                             const uint8_t* const* upcoming, int64_t stride, int64_t words, Lanes (&out)[R][P]) {
  IntLanes sum[R][P];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) sum[i][p] = broadcast_int(rows.starts[r + i]);
  }
  for (int64_t word = 0; word < words; ++word) {
    IntLanes stored[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) stored[p] = load_words(w[p] + word * stride);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) prefetch(upcoming[p] + word * stride);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Four four = broadcast_four(rows.codes[r + i] + 4 * word);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) accumulate_dots(sum[i][p], stored[p], four);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) out[i][p] = converted(sum[i][p]);
  }
}

// From a sum to a score: capped, biased by distance. Rare, and apart, so that what is not pays nothing.
[[maybe_unused]] __attribute__((noinline)) void cap_and_bias(const Attention& a, const Rows& rows, int64_t r,
                                                             int64_t first, float* scores) {
  const Lanes cap = broadcast(a.soft_cap);
  Lanes score = load(scores);
  if (a.soft_cap > 0.0f) score = cap * hyperbolic_tangent(score / cap);
  if (a.slopes) {
    alignas(64) float ahead_of[lane_count];  // minus the distance: exact below 2^24
    for (int i = 0; i < lane_count; ++i) ahead_of[i] = static_cast<float>(first - (rows.high[r] - 1) + i);
    score = fma(broadcast(rows.slopes[r]), load(ahead_of), score);
  }
  store(scores, score);
}

template <KvKind kind, int R, int P>
OCTAVO_INLINE void score_tile(const Attention& a, Rows& rows, int64_t r, const Partition& part,
                              int64_t vector) {
  const int64_t head = r / rows.per_head;
  const uint8_t *keys[P], *upcoming[P];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
    keys[p] = part.keys[vector + p] + head * part.key_bytes;
    upcoming[p] = part.keys[vector + p + (P > lead ? P : lead)] + head * part.key_bytes;
  }
  Lanes acc[R][P]{};
  if constexpr (kind == KvKind::int8) {
    sum_codes<R, P>(rows, r, keys, upcoming, part.key_stride, a.kv.head_size / 4, acc);
  } else if constexpr (kind == KvKind::bf16) {
    multiply_pairs<every_pair, R, P>(paired(rows.q[r]), query_pitch, keys, upcoming, part.key_stride,
                                     a.kv.head_size / 2, acc);
  } else {
    multiply_stored<kind, 1, R, P>(rows.q[r], head_size_max, keys, upcoming, part.key_stride, a.kv.head_size,
                                   acc);
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    const Lanes factor = broadcast(rows.factors[r + i]);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      Lanes sum = acc[i][p];
      if constexpr (kind == KvKind::int8) {
        const uint8_t* scales = part.key_scales[vector + p] + head * part.scale_bytes;
        sum = sum * load(reinterpret_cast<const float*>(scales));
      }
      store(rows.scores[r + i] + (vector + p) * lane_count, sum * factor);
    }
  }
  if (a.soft_cap > 0.0f || a.slopes) {
    for (int64_t i = 0; i < R * P; ++i) {
      const int64_t at = (vector + i % P) * lane_count;
      cap_and_bias(a, rows, r + i / P, part.base + at, rows.scores[r + i / P] + at);
    }
  }
}

// scores[r ...] of R rows for some vectors of positions.
template <KvKind kind, int R>
void score_rows(const Attention& a, Rows& rows, int64_t r, const Partition& part, Range vectors) {
  constexpr int P = stored_vectors_for(R);
  int64_t vector = vectors.first;
  for (; vector + P <= vectors.last; vector += P) score_tile<kind, R, P>(a, rows, r, part, vector);
  for (; vector < vectors.last; ++vector) score_tile<kind, R, 1>(a, rows, r, part, vector);
}

// Weights times the scales of V of one head, the task's first one or a later one.
[[maybe_unused]] void fold_scales(const Partition& part, int64_t head, float* weights, Range range) {
  for (int64_t i = range.first / lane_count; i * lane_count < range.last; ++i) {
    const uint8_t* scales = part.value_scales[i] + head * part.scale_bytes;
    const Lanes scale = load(reinterpret_cast<const float*>(scales));
    store(weights + i * lane_count, load(weights + i * lane_count) * scale);
  }
}

// acc += sum over `count` steps of V, from that of `position` on, of weight * V; all in one vector of
// positions. Of pairs only the halves in `mask` count.
template <KvKind kind, int32_t mask, int R, int P>
OCTAVO_INLINE void weigh_steps(const Rows& rows, int64_t r, const Partition& part, int64_t vector,
                               int64_t position, int64_t count, Lanes (&acc)[R][P]) {
  constexpr int64_t step = positions_per_step(kind),
                    vector_bytes = lane_count * kv_element_bytes(kind) * step;
  constexpr int every = static_cast<int>(64 / vector_bytes);  // one prefetch for each 64 bytes
  const int64_t offset = r / rows.per_head * part.value_bytes +
                         position % lane_count / step * part.value_stride + vector * vector_bytes;
  const uint8_t* const* values = part.values + position / lane_count;
  const uint8_t *column[P], *upcoming[P];
  for (int p = 0; p < P; ++p) column[p] = values[0] + offset + p * vector_bytes;
  for (int p = 0; p < P; ++p) upcoming[p] = values[lead] + offset + p * vector_bytes;
  if constexpr (kind == KvKind::bf16) {
    multiply_pairs<mask, R, P>(paired(rows.scores[r]) + position, weight_pitch, column, upcoming,
                               part.value_stride, count, acc);
  } else {
    multiply_stored<kind, every, R, P>(rows.scores[r] + position, partition_size, column, upcoming,
                                       part.value_stride, count, acc);
  }
}

// part[r ...] += sum over positions [range) of weight * V, R rows and P vectors of head dimensions at a time.
// Where only one half of a pair is seen, the other one is masked: it may be anything.
template <KvKind kind, int R, int P>
OCTAVO_INLINE void weigh_tile(Rows& rows, int64_t r, const Partition& part, Range range, int64_t vector) {
  constexpr int64_t step = positions_per_step(kind);
  Lanes acc[R][P];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) acc[i][p] = load(rows.part[r + i] + (vector + p) * lane_count);
  }
  int64_t position = range.first;
  if (position % step) {
    weigh_steps<kind, second_of_pair, R, P>(rows, r, part, vector, position - 1, 1, acc);
    ++position;
  }
  while (position + step <= range.last) {
    const int64_t left = smaller_of(lane_count - position % lane_count, range.last - position);
    weigh_steps<kind, every_pair, R, P>(rows, r, part, vector, position, left / step, acc);
    position += left / step * step;
  }
  if (position < range.last) weigh_steps<kind, first_of_pair, R, P>(rows, r, part, vector, position, 1, acc);
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) store(rows.part[r + i] + (vector + p) * lane_count, acc[i][p]);
  }
}

template <KvKind kind, int R>
void weigh_range(Rows& rows, int64_t r, const Partition& part, Range range) {
  if (range.first >= range.last) return;
  constexpr int P = stored_vectors_for(R) < 4 ? stored_vectors_for(R) : 4;
  const int64_t vectors = rows.padded_size / lane_count;
  int64_t vector = 0;
  for (; vector + P <= vectors; vector += P) weigh_tile<kind, R, P>(rows, r, part, range, vector);
  for (; vector < vectors; ++vector) weigh_tile<kind, R, 1>(rows, r, part, range, vector);
}

// Of the positions that row r sees in a partition, those within some vectors.
OCTAVO_INLINE Range seen_within(const Rows& rows, int64_t r, const Partition& part, Range vectors) {
  const Range range = seen(rows, r, part.base);
  return {larger_of(range.first, vectors.first * lane_count),
          smaller_of(range.last, vectors.last * lane_count)};
}

// Rows of a tile see nearly the same positions: the common ones are done together, the rest row by row, so
// that each row's chain has exactly its own positions, in order. Where rows differ they part between two
// steps of V, so that no pair is torn.
template <KvKind kind, int R>
void weigh_rows(Rows& rows, int64_t r, const Partition& part, Range vectors) {
  constexpr int64_t step = positions_per_step(kind);
  Range common{0, partition_size}, own[R];
  bool alike = true;
  for (int i = 0; i < R; ++i) {
    own[i] = seen_within(rows, r + i, part, vectors);
    alike = alike && own[i].first == own[0].first && own[i].last == own[0].last;
    common.first = larger_of(common.first, own[i].first);
    common.last = smaller_of(common.last, own[i].last);
  }
  if (!alike) common = {(common.first + step - 1) / step * step, common.last / step * step};
  if (common.last <= common.first) {
    for (int i = 0; i < R; ++i) weigh_range<kind, 1>(rows, r + i, part, own[i]);
    return;
  }
  for (int i = 0; i < R; ++i) weigh_range<kind, 1>(rows, r + i, part, {own[i].first, common.first});
  weigh_range<kind, R>(rows, r, part, common);
  for (int i = 0; i < R; ++i) weigh_range<kind, 1>(rows, r + i, part, {common.last, own[i].last});
}

// Calls for the `count` rows from r on the function made for just that many.
template <KvKind kind, int R = rows_max>
OCTAVO_INLINE void score_tile_of(const Attention& a, Rows& rows, int64_t r, int64_t count,
                                 const Partition& part, Range vectors) {
  if (count == R) return score_rows<kind, R>(a, rows, r, part, vectors);
  if constexpr (R > 1) score_tile_of<kind, R - 1>(a, rows, r, count, part, vectors);
}

template <KvKind kind, int R = rows_max>
OCTAVO_INLINE void weigh_tile_of(Rows& rows, int64_t r, int64_t count, const Partition& part, Range vectors) {
  if (count == R) return weigh_rows<kind, R>(rows, r, part, vectors);
  if constexpr (R > 1) weigh_tile_of<kind, R - 1>(rows, r, count, part, vectors);
}

// Calls body(first row, rows, vectors) for all tiles of rows, of nearly equal height, over all vectors. Heads
// take turns after a few vectors, because in a block one head's bytes end where the next one's begin, and
// longer pieces are read faster.
template <class Body>
OCTAVO_INLINE void each_tile(const Rows& rows, const Partition& part, Body&& body) {
  const int64_t heads = rows.count / rows.per_head, tiles = (rows.per_head + rows_max - 1) / rows_max;
  const int height = static_cast<int>(smaller_of(rows.per_head, rows_max));
  const int64_t turn = heads == 1 ? vectors_per_partition : stored_vectors_for(height);
  for (int64_t vector = part.first; vector < part.last; vector += turn) {
    const Range vectors{vector, smaller_of(vector + turn, part.last)};
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t r = rows.per_head * t / tiles, next = rows.per_head * (t + 1) / tiles;
        body(head * rows.per_head + r, next - r, vectors);
      }
    }
  }
}

// The rows' softmax over one partition and, in rows.part, V under it.
template <KvKind kind>
void take_partition(const Attention& a, Rows& rows, const Partition& part, Found& found) {
  each_tile(rows, part, [&](int64_t r, int64_t count, Range vectors) {
    score_tile_of<kind>(a, rows, r, count, part, vectors);
  });
  // All rows' largest first: no exponential waits for the end of its own row's search.
  for (int64_t r = 0; r < rows.count; ++r) {
    const Range range = seen(rows, r, part.base);
    if (range.first == range.last) continue;  // nothing of this partition, and `first` may lie beyond it
    float* scores = rows.scores[r];
    found.largest[r] = largest_score(scores, range, [&](int64_t i) { return load(scores + i); });
  }
  for (int64_t r = 0; r < rows.count; ++r) {
    const Range range = seen(rows, r, part.base);
    __builtin_memset(rows.part[r], 0, static_cast<uint64_t>(rows.padded_size) * 4);
    if (range.first == range.last) continue;
    note(found, r, {found.largest[r], weigh_scores<kind>(rows.scores[r], range, found.largest[r])});
    if constexpr (kind == KvKind::int8) fold_scales(part, r / rows.per_head, rows.scores[r], range);
  }
  each_tile(rows, part, [&](int64_t r, int64_t count, Range vectors) {
    weigh_tile_of<kind>(rows, r, count, part, vectors);
  });
}

OCTAVO_INLINE float* state_of(const Attention& a, const Owner& owner) {
  return a.state + (owner.token * a.heads + owner.query_head) * part_floats(a.kv.head_size);
}

[[maybe_unused]] void finish_rows(const Attention& a, Rows& rows) {
  const int64_t size = a.kv.head_size;
  if (a.sinks) {  // one more partition, of one score whose value is zero
    Found sinks;
    for (int64_t r = 0; r < rows.count; ++r) note(sinks, r, {a.sinks[rows.owners[r].query_head], 1.0f});
    const float nothing[head_size_max]{};
    merge(rows, sinks, nothing, 0);
  }
  for (int64_t r = 0; r < rows.count; ++r) {
    const auto [token, query_head] = rows.owners[r];
    float* out = a.out + (token * a.heads + query_head) * size;
    const Lanes total = broadcast(rows.total[r]);
    for (int64_t i = 0; i < size; i += lane_count) {
      Lanes sum = load(rows.out[r] + i);
      if (has_matrices && a.kv.kind == KvKind::bf16) sum = sum + broadcast(0.0f);  // no zero is negative
      store_first(out + i, sum / total, smaller_of(size - i, lane_count));
    }
    if (a.log_sum_exp) {
      const double sum = static_cast<double>(rows.total[r]);
      a.log_sum_exp[token * a.heads + query_head] =
          sum > 0.0 ? static_cast<float>(static_cast<double>(rows.largest[r]) + logarithm(sum))
                    : __builtin_nanf("");
    }
  }
}

// Of a walk in several calls: rows that began in an earlier one go on from what they had.
[[maybe_unused]] __attribute__((noinline)) void resume_rows(const Attention& a, Rows& rows) {
  for (int64_t r = 0; r < rows.count; ++r) {
    const float* state = state_of(a, rows.owners[r]);
    rows.largest[r] = state[0];
    rows.total[r] = state[1];
    __builtin_memcpy(rows.out[r], state + kv_lanes, static_cast<uint64_t>(rows.padded_size) * 4);
  }
}

// And keep what they have for a later one.
[[maybe_unused]] __attribute__((noinline)) void keep_rows(const Attention& a, const Rows& rows) {
  for (int64_t r = 0; r < rows.count; ++r) {
    float* state = state_of(a, rows.owners[r]);
    state[0] = rows.largest[r];
    state[1] = rows.total[r];
    __builtin_memcpy(state + kv_lanes, rows.out[r], static_cast<uint64_t>(rows.padded_size) * 4);
  }
}

// Modes are set around it, which is not inlined: no operation moves out of them.
template <KvKind kind>
__attribute__((noinline)) void attend_as(const Attention& a, const AttentionTask& task) {
  Rows rows;
  begin_rows(a, task, rows);
  gather_queries<kind>(a, rows);
  const int64_t low = rows.low[0], high = rows.high[rows.count - 1];  // both ascend with the token
  float* parts = task.parts;
  if (maybe_cold && !task.begins && !parts) resume_rows(a, rows);
  for (int64_t index = task.first_partition; index < task.last_partition; ++index) {
    Partition part;
    Found found;
    find_partition<kind, maybe_cold>(a, task, index * partition_size, low, high, part);
    take_partition<kind>(a, rows, part, found);
    if (!parts) {
      merge(rows, found, rows.part[0], head_size_max);
      continue;
    }
    for (int64_t r = 0; r < rows.count; ++r, parts += part_floats(a.kv.head_size)) {
      if (!found.any[r]) continue;
      parts[0] = found.largest[r];
      parts[1] = found.total[r];
      __builtin_memcpy(parts + kv_lanes, rows.part[r], static_cast<uint64_t>(rows.padded_size) * 4);
    }
  }
  if (task.parts) return;
  if (maybe_cold && !task.ends) return keep_rows(a, rows);
  finish_rows(a, rows);
}

}  // namespace

}  // namespace octavo::OCTAVO_ISA
