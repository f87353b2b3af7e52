// The end of attention that was walked in pieces: what the partitions had is merged, in ascending order.
#include "kernels/attend.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

__attribute__((noinline)) void merge_kept(const Attention& a, const AttentionTask& task) {
  Rows rows;
  begin_rows(a, task, rows);
  if (!task.begins) resume_rows(a, rows);
  const int64_t pitch = part_floats(a.kv.head_size);
  const float* parts = task.parts;
  for (int64_t index = task.first_partition; index < task.last_partition; ++index) {
    Found found;
    for (int64_t r = 0; r < rows.count; ++r) {
      const Range range = seen(rows, r, index * partition_size);
      if (range.first < range.last) note(found, r, {parts[r * pitch], parts[r * pitch + 1]});
    }
    merge(rows, found, parts + kv_lanes, pitch);
    parts += rows.count * pitch;
  }
  if (!task.ends) return keep_rows(a, rows);
  finish_rows(a, rows);
}

}  // namespace

void merge_parts(const Attention& a, const AttentionTask& task) {
  if (a.kv.kind != KvKind::bf16) return merge_kept(a, task);
  const FlushingMode flushing;
  merge_kept(a, task);
}

}  // namespace octavo::OCTAVO_ISA
