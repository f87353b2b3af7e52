// Attention of one layer over all chunks of a step, shared out over the team.
#pragma once

#include "kernels/kernels.hpp"

namespace octavo {

struct AttentionStep {
  KvLayer kv;
  const float* q;  // (T, H * D)
  float* out;      // the same shape
  const int32_t *starts, *offsets, *tables;  // (C,), (C + 1,), (C, W)
  int64_t table_width, num_chunks, heads;
  float scale;
  int64_t window;
  float soft_cap;
};

void run_attention(const AttentionStep& step);

}  // namespace octavo
