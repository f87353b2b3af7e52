// The rows of an attention task and their softmax: over one partition, and over all of them.
#pragma once

#include "kernels/functions.hpp"
#include "kernels/pairs.hpp"
#include "kernels/stored.hpp"

namespace octavo::OCTAVO_ISA {

constexpr int64_t rows_padded = (attention_rows + lane_count - 1) / lane_count * lane_count;

// Whose a row is: a token of the chunk, and one of its query heads.
struct Owner {
  int64_t token, query_head;
};

// A task's rows. A row is a (token, query head of the group) pair; it sees positions [low,
// high).
struct Rows {
  int64_t count, per_head;  // all of them, head after head
  int64_t padded_size;      // D rounded up to 16
  Owner owners[attention_rows];
  int64_t low[attention_rows], high[attention_rows];
  alignas(64) float largest[rows_padded];
  float total[attention_rows];
  float slopes[attention_rows];                              // ALiBi's
  float factors[attention_rows];                             // what a sum is multiplied with to be a score
  int32_t starts[attention_rows];                            // int8: minus 128 times the sum of the codes
  alignas(64) int8_t codes[attention_rows][head_size_max];   // int8: the query
  alignas(64) float q[attention_rows][head_size_max];        // else; bf16: `Paired` at the row's beginning
  alignas(64) float scores[attention_rows][partition_size];  // then the weights; bf16: likewise
  alignas(64) float part[attention_rows][head_size_max];     // the partition's output
  alignas(64) float out[attention_rows][head_size_max];      // the merged output, not yet divided by `total`
};

struct Range {
  int64_t first, last;  // positions inside the partition
};

// A row of floats whose beginning holds numbers that meet pairs, and how far the next such row is.
OCTAVO_INLINE Paired* paired(float* row) { return reinterpret_cast<Paired*>(row); }
OCTAVO_INLINE const Paired* paired(const float* row) { return reinterpret_cast<const Paired*>(row); }
constexpr int64_t query_pitch = head_size_max * paired_per_float;
constexpr int64_t weight_pitch = partition_size * paired_per_float;

OCTAVO_INLINE Range seen(const Rows& rows, int64_t r, int64_t base) {
  const int64_t first = larger_of(rows.low[r] - base, 0);
  return {first, larger_of(first, smaller_of(rows.high[r] - base, partition_size))};
}

// Counted: four divisions for each row of each task are a twentieth of short attention.
OCTAVO_INLINE void find_owners(const Attention& a, const AttentionTask& task, Owner* owners) {
  const int64_t group = a.heads / a.kv.kv_heads;
  const Owner first{task.first_row / group, task.first_row % group};
  for (int64_t head = task.first_head; head < task.last_head; ++head) {
    Owner next{first.token, head * group + first.query_head};
    for (int64_t row = task.first_row; row < task.last_row; ++row) {
      *owners++ = next;
      if (++next.query_head == (head + 1) * group) next = {next.token + 1, head * group};
    }
  }
}

static void begin_rows(const Attention& a, const AttentionTask& task, Rows& rows) {
  rows.count = rows_in(task);
  rows.per_head = task.last_row - task.first_row;
  rows.padded_size = kv_padded_size(a.kv.head_size);
  find_owners(a, task, rows.owners);
  for (float& largest : rows.largest) largest = -infinity;
  for (int64_t r = 0; r < rows.count; ++r) {
    const int64_t position = a.start + rows.owners[r].token;
    rows.low[r] = a.window ? larger_of(0, position - a.window + 1) : 0;
    rows.high[r] = position + 1;
    rows.total[r] = 0.0f;
    __builtin_memset(rows.out[r], 0, static_cast<uint64_t>(rows.padded_size) * 4);
  }
}

struct Softmax {
  float largest, total;
};

// What one partition has for each row that sees something of it.
struct Found {
  alignas(64) float largest[rows_padded]{};
  float total[attention_rows];
  bool any[attention_rows]{};
};

// The largest score of [first, last); elsewhere in the vectors that this range touches scores become -inf.
// finished(i) gives the 16 scores at i; where they are not yet what lies there, it has written them back.
template <class Finished>
OCTAVO_INLINE float largest_score(float* scores, Range range, Finished&& finished) {
  const int64_t begin = range.first / lane_count * lane_count;
  Lanes best = broadcast(-infinity);
  for (int64_t i = begin; i < range.last; i += lane_count) {
    Lanes score = finished(i);
    if (i < range.first || i + lane_count > range.last) {
      store(scores + i, score);
      for (int64_t at = i; at < range.first; ++at) scores[at] = -infinity;
      for (int64_t at = range.last; at < i + lane_count; ++at) scores[at] = -infinity;
      score = load(scores + i);
    }
    best = larger(score, best);
  }
  return largest_lane(best);
}

// Replaces scores by exp(score - largest), outside the range by 0, and returns their total.
template <KvKind kind>
OCTAVO_INLINE float weigh_scores(float* scores, Range range, float largest) {
  Lanes total = broadcast(0.0f);
  for (int64_t i = range.first / lane_count * lane_count; i < range.last; i += lane_count) {
    const Lanes relative = load(scores + i) - broadcast(largest);
    if constexpr (kind == KvKind::bf16) {
      // Written over scores that were read already.
      total = total + store_paired_weights(paired(scores) + i, exponential_for_rounding(relative));
    } else {
      const Lanes weight = exponential(relative);
      store(scores + i, weight);
      total = total + weight;
    }
  }
  return sum_of_lanes(total);
}

OCTAVO_INLINE void note(Found& found, int64_t r, Softmax softmax) {
  found.largest[r] = softmax.largest;
  found.total[r] = softmax.total;
  found.any[r] = true;
}

// out, total and largest of all rows take in what a partition had; its outputs begin `pitch` floats apart.
// A row that sees nothing of it is left as it is, to the bit.
static void merge(Rows& rows, const Found& found, const float* parts, int64_t pitch) {
  alignas(64) float largest[rows_padded], kept[rows_padded], added[rows_padded];
  for (int64_t r = 0; r < rows.count; r += lane_count) {
    const Lanes before = load(rows.largest + r), its = load(found.largest + r), most = larger(its, before);
    store(largest + r, most);
    store(kept + r, exponential(before - most));
    store(added + r, exponential(its - most));
  }
  for (int64_t r = 0; r < rows.count; ++r) {
    if (!found.any[r]) continue;
    const Lanes old_factor = broadcast(kept[r]), new_factor = broadcast(added[r]);
    for (int64_t i = 0; i < rows.padded_size; i += lane_count) {
      const Lanes part = load(parts + r * pitch + i);
      store(rows.out[r] + i, fma(part, new_factor, load(rows.out[r] + i) * old_factor));
    }
    rows.total[r] = __builtin_fmaf(found.total[r], added[r], rows.total[r] * kept[r]);
    rows.largest[r] = largest[r];
  }
}

}  // namespace octavo::OCTAVO_ISA
