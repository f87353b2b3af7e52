#include "attention_step.hpp"

#include <vector>

#include "dispatch.hpp"
#include "team.hpp"

namespace octavo {

void run_attention(const AttentionStep& s) {
  struct Task { int64_t chunk, head, first_row, last_row; };
  std::vector<Task> tasks;
  const int64_t group = s.heads / s.kv.kv_heads, width = s.heads * s.kv.head_size;
  for (int64_t c = 0; c < s.num_chunks; ++c) {
    const int64_t rows = (s.offsets[c + 1] - s.offsets[c]) * group;
    for (int64_t head = 0; head < s.kv.kv_heads; ++head)
      for (int64_t row = 0; row < rows; row += attention_rows)
        tasks.push_back({c, head, row, row + attention_rows < rows ? row + attention_rows : rows});
  }
  const Kernels& k = kernels();
  parallel(static_cast<int64_t>(tasks.size()), [&](int64_t index) {
    const Task& task = tasks[static_cast<size_t>(index)];
    const int64_t first = s.offsets[task.chunk] * width;
    const Attention attention{s.kv, s.q + first, s.out + first, s.tables + task.chunk * s.table_width,
                              s.starts[task.chunk], s.offsets[task.chunk + 1] - s.offsets[task.chunk],
                              s.heads, s.scale, s.window, s.soft_cap};
    k.attend(attention, task.head, task.first_row, task.last_row);
  });
}

}  // namespace octavo
