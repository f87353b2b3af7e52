// Attention's two products over KV in bfloat16, with matrix registers.
//
// 16 rows meet 16 positions (scores) or 16 dimensions of as many positions (V) at a time. A score is the sum
// over steps of `query_step` dimensions, an output over steps of 16 positions at fixed absolute borders, each
// step as `multiply_brains` defines it.
//
// Rows of a tile that see different positions of a step share it all the same: a row's weights are zero where
// it sees nothing. V that no row of the head sees is made zero, whatever bits it has; V that only some see
// must be finite, since zero times infinity is no number: if it is not, each row of the head goes alone. Zero
// times finite numbers changes at most the sign of a zero, which `finish_rows` makes positive. So nothing
// depends on the other rows.
#pragma once

#include "kernels/amx.hpp"
#include "kernels/softmax.hpp"

namespace octavo::OCTAVO_ISA {

#if defined(OCTAVO_MATRICES)

// The registers behind the sums.
enum : int { queries = sum_registers, keys, weights, values };

constexpr int64_t step_bytes = 4;  // of a pair
constexpr int64_t score_row_bytes = partition_size * 4, part_row_bytes = head_size_max * 4;
constexpr int64_t values_rows = lane_count / 2;  // of one step: pairs of positions

// Dimensions of a step: the largest even divisor of the head size that fits a register.
OCTAVO_INLINE int64_t query_step(int64_t head_size) {
  int64_t step = 2 * matrix_rows;
  while (head_size % step) step -= 2;
  return step;
}

// The rows of one head are met in so many at a time; the last tile begins earlier where they do not divide.
OCTAVO_INLINE int64_t tile_height(int64_t per_head) {
  const int64_t tiles = (per_head + matrix_rows - 1) / matrix_rows;
  return (per_head + tiles - 1) / tiles;
}

OCTAVO_INLINE MatrixShapes attention_shapes(int64_t per_head, int64_t head_size) {
  const int64_t height = tile_height(per_head), step = query_step(head_size);
  MatrixShapes shapes;
  for (int i = 0; i < sum_registers; ++i) shapes.set(i, height, 64);
  shapes.set(queries, height, step / 2 * step_bytes);
  shapes.set(keys, step / 2, 64);
  shapes.set(weights, height, values_rows * step_bytes);
  shapes.set(values, values_rows, 64);
  return shapes;
}

// Calls body(first row) for all tiles of one head.
template <class Body>
OCTAVO_INLINE void each_matrix(const Rows& rows, int64_t head, Body&& body) {
  const int64_t height = tile_height(rows.per_head), end = (head + 1) * rows.per_head;
  for (int64_t r = head * rows.per_head; r < end; r += height) body(smaller_of(r, end - height));
}

// A right register's rows in memory, and those that are wanted next: of these `lines` rows are fetched.
struct RightRows {
  const uint8_t *source, *upcoming;
};

template <int sums, int left, int right>
OCTAVO_INLINE void multiply_rows(const RightRows& rows, int64_t pitch, int64_t lines) {
  load_matrix<right>(rows.source, pitch);
  for (int64_t line = 0; line < lines; ++line) prefetch(rows.upcoming + line * pitch);
  multiply_brains<sums, left, right>();
}

// Adds the products of one left register with `count` right ones to as many sums.
template <int left, int right, class At>
OCTAVO_INLINE void multiply_each(int64_t count, int64_t pitch, int64_t lines, At&& rows) {
  multiply_rows<0, left, right>(rows(0), pitch, lines);
  if (count > 1) multiply_rows<1, left, right>(rows(1), pitch, lines);
  if (count > 2) multiply_rows<2, left, right>(rows(2), pitch, lines);
  if (count > 3) multiply_rows<3, left, right>(rows(3), pitch, lines);
}

// Stores `count` registers of sums, side by side.
OCTAVO_INLINE void store_sums(int64_t count, float* target, int64_t row_pitch) {
  store_matrix<0>(target, row_pitch);
  if (count > 1) store_matrix<1>(target + lane_count, row_pitch);
  if (count > 2) store_matrix<2>(target + 2 * lane_count, row_pitch);
  if (count > 3) store_matrix<3>(target + 3 * lane_count, row_pitch);
}

// Sums of queries and keys, as they are, to rows.scores.
static void score_in_matrices(Rows& rows, const Partition& part, int64_t head_size) {
  const int64_t step = query_step(head_size), heads = rows.count / rows.per_head;
  for (int64_t v = part.first; v < part.last; v += sum_registers) {
    const int64_t count = smaller_of(part.last - v, sum_registers);
    for (int64_t head = 0; head < heads; ++head) {
      each_matrix(rows, head, [&](int64_t r) {
        const int64_t lines = r % rows.per_head ? 0 : step / 2;  // only with the head's first rows
        clear_sums();
        for (int64_t d = 0; d < head_size; d += step) {
          const int64_t at = head * part.key_bytes + d / 2 * part.key_stride;
          load_matrix<queries>(paired(rows.q[r]) + d, part_row_bytes);
          multiply_each<queries, keys>(count, part.key_stride, lines, [&](int64_t p) {
            return RightRows{part.keys[v + p] + at, part.keys[v + p + sum_registers] + at};
          });
        }
        store_sums(count, rows.scores[r] + v * lane_count, score_row_bytes);
      });
    }
  }
}

// A step's V where some row does not see all of it: zero outside [range), the union of what the rows see.
struct MaskedValues {
  alignas(64) uint16_t step[vectors_per_partition][lane_count * head_size_max];
};

// Ones in the lanes below `count`.
OCTAVO_INLINE IntLanes lanes_below(int64_t count) {
  alignas(64) int32_t lane[lane_count];
  for (int i = 0; i < lane_count; ++i) lane[i] = i < count ? -1 : 0;
  return load_words(reinterpret_cast<const uint8_t*>(lane));
}

// Copies a step of one head, [8][D16][2]; false where a number among those that are seen is not finite.
static bool copy_masked(const uint8_t* source, int64_t head_size, int64_t base, Range range, uint16_t* out) {
  const int64_t padded_size = kv_padded_size(head_size);
  const IntLanes last = lanes_below(head_size - (padded_size - lane_count));
  IntLanes odd = broadcast_int(0);
  for (int64_t pair = 0; pair < values_rows; ++pair) {
    const int64_t first = base + 2 * pair;
    const bool sees_first = first >= range.first && first < range.last;
    const bool sees_second = first + 1 >= range.first && first + 1 < range.last;
    const IntLanes mask =
        broadcast_int((sees_first ? first_of_pair : 0) | (sees_second ? second_of_pair : 0));
    for (int64_t i = 0; i < padded_size; i += lane_count) {
      const int64_t at = (pair * padded_size + i) * 2;
      const IntLanes seen_words = load_words(source + at * 2) & mask;
      const IntLanes words = i + lane_count < padded_size ? seen_words : seen_words & last;
      store_words(reinterpret_cast<uint8_t*>(out + at), words);
      // Adding one to the exponent of what is not finite carries into the sign, which was cleared.
      const IntLanes low = (words & broadcast_int(0x7FFF)) + broadcast_int(0x80);
      const IntLanes high = (shift_right(words, 16) & broadcast_int(0x7FFF)) + broadcast_int(0x80);
      odd = odd | ((low | high) & broadcast_int(0x8000));
    }
  }
  return largest_lane(odd) == 0;
}

// Writes the weights times V of `height` rows from r on, `value[v]` being V of step v. What is wanted next is
// fetched meanwhile where these are the first rows of their head.
OCTAVO_INLINE void weigh_matrix(const Rows& rows, int64_t r, const Partition& part,
                                const uint8_t* const* value, float* out) {
  const int64_t head = r / rows.per_head, lines = r % rows.per_head ? 0 : values_rows;
  const Paired* weight = paired(rows.scores[r]);
  const int64_t vectors = rows.padded_size / lane_count;
  for (int64_t i = 0; i < vectors; i += sum_registers) {
    const int64_t count = smaller_of(vectors - i, sum_registers);
    clear_sums();
    for (int64_t v = part.first; v < part.last; ++v) {
      load_matrix<weights>(weight + v * lane_count, score_row_bytes);
      multiply_each<weights, values>(count, part.value_stride, lines, [&](int64_t p) {
        const int64_t at = (i + p) * 64;
        return RightRows{value[v] + at, part.values[v + lead] + head * part.value_bytes + at};
      });
    }
    store_sums(count, out + i * lane_count, part_row_bytes);
  }
}

// Which positions some row of a head sees, and which all of them do.
struct Views {
  Range some, all;
};

OCTAVO_INLINE Views views_of(const Rows& rows, int64_t head, const Partition& part) {
  Views views{{partition_size, 0}, {0, partition_size}};
  for (int64_t i = 0; i < rows.per_head; ++i) {
    const Range own = seen(rows, head * rows.per_head + i, part.base);
    if (own.first < own.last) {
      views.some = {smaller_of(views.some.first, own.first), larger_of(views.some.last, own.last)};
    }
    views.all = {larger_of(views.all.first, own.first), smaller_of(views.all.last, own.last)};
  }
  return views;
}

// Sets value[v] for all steps of a head: in the pool, or masked where not `all` see all of it. False where
// something among what is seen by some only is not finite.
OCTAVO_INLINE bool find_values(const Partition& part, int64_t head, int64_t head_size, const Views& views,
                               MaskedValues& masked, const uint8_t** value) {
  bool finite = true;
  for (int64_t v = part.first; v < part.last; ++v) {
    value[v] = part.values[v] + head * part.value_bytes;
    const int64_t base = v * lane_count;
    if (base >= views.all.first && base + lane_count <= views.all.last) continue;
    finite = copy_masked(value[v], head_size, base, views.some, masked.step[v]) && finite;
    value[v] = reinterpret_cast<const uint8_t*>(masked.step[v]);
  }
  return finite;
}

// rows.part = the weights in rows.scores times V. From part.first to part.last weights are zero where their
// row sees nothing.
static void weigh_in_matrices(Rows& rows, const Partition& part, int64_t head_size) {
  MaskedValues masked;
  const int64_t heads = rows.count / rows.per_head;
  const uint8_t* value[vectors_per_partition];
  for (int64_t head = 0; head < heads; ++head) {
    const Views views = views_of(rows, head, part);
    if (find_values(part, head, head_size, views, masked, value)) {
      each_matrix(rows, head, [&](int64_t r) { weigh_matrix(rows, r, part, value, rows.part[r]); });
      continue;
    }
    // Zero times infinity is no number: so each row alone meets what it sees.
    alignas(64) float apart[matrix_rows][head_size_max];
    each_matrix(rows, head, [&](int64_t first) {
      for (int64_t r = first; r < first + tile_height(rows.per_head); ++r) {
        const Range own = seen(rows, r, part.base);
        find_values(part, head, head_size, {own, own}, masked, value);
        weigh_matrix(rows, first, part, value, apart[0]);
        __builtin_memcpy(rows.part[r], apart[r - first], static_cast<uint64_t>(rows.padded_size) * 4);
      }
    });
  }
}

#endif

}  // namespace octavo::OCTAVO_ISA
