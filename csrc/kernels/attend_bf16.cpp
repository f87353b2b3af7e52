// Attention over KV in bfloat16: pair by pair or, where the machine has them, in matrix registers.
#include "kernels/amx_attention.hpp"
#include "kernels/attend.hpp"

namespace octavo::OCTAVO_ISA {
#if defined(OCTAVO_MATRICES)
namespace {

// `take_partition` with matrix registers.
template <>
void take_partition<KvKind::bf16>(const Attention& a, Rows& rows, const Partition& part, Found& found) {
  score_in_matrices(rows, part, a.kv.head_size);
  const int64_t first = part.first * lane_count, last = part.last * lane_count;
  for (int64_t r = 0; r < rows.count; ++r) {
    float* scores = rows.scores[r];
    const Range range = seen(rows, r, part.base);
    Range whole{last, last};  // the vectors that hold it
    if (range.first < range.last) {
      whole = {range.first / lane_count * lane_count,
               (range.last + lane_count - 1) / lane_count * lane_count};
      const Lanes factor = broadcast(rows.factors[r]);
      const bool finishing = a.soft_cap > 0.0f || a.slopes;
      const float largest = largest_score(scores, range, [&](int64_t i) {
        Lanes score = load(scores + i) * factor;
        store(scores + i, score);
        if (finishing) {
          cap_and_bias(a, rows, r, part.base + i, scores + i);
          score = load(scores + i);
        }
        return score;
      });
      note(found, r, {largest, weigh_scores<KvKind::bf16>(scores, range, largest)});
    }
    __builtin_memset(paired(scores) + first, 0, static_cast<uint64_t>(whole.first - first) * sizeof(Paired));
    __builtin_memset(paired(scores) + whole.last, 0,
                     static_cast<uint64_t>(last - whole.last) * sizeof(Paired));
  }
  weigh_in_matrices(rows, part, a.kv.head_size);
}

}  // namespace
#endif

void OCTAVO_ATTEND(bf16)(const Attention& a, const AttentionTask& task) {
  const FlushingMode flushing;
#if defined(OCTAVO_MATRICES)
  const MatrixMode matrices(attention_shapes(task.last_row - task.first_row, a.kv.head_size));
#endif
  attend_as<KvKind::bf16>(a, task);
}

}  // namespace octavo::OCTAVO_ISA
