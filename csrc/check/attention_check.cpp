// Paged attention over scattered blocks whose unused slots hold NaN: against a plain softmax in double, and
// bit for bit the same however the work is shared out.
#include "attention_step.hpp"
#include "check/check.hpp"
#include "dispatch.hpp"
#include "team.hpp"

namespace octavo::check {
namespace {

struct Case {
  KvKind kind;
  int64_t kv_heads, group, head_size, block_size, window;
};

// Two chunks: a prompt's middle, and one token far on.
constexpr int64_t starts_of[] = {37, 700};
constexpr int64_t lengths[] = {21, 1};

struct Sequences {
  KvLayout layout;
  std::vector<uint8_t> pool;
  std::vector<int32_t> starts, offsets, tables;
  std::vector<std::vector<float>> keys, values;  // of each chunk's sequence, all positions
  int64_t table_width;
};

Sequences stored(Random& random, const Case& c) {
  Sequences s{{1, c.kv_heads, c.head_size, c.block_size, c.kind}, {}, {}, {0}, {}, {}, {}, 0};
  s.table_width = (starts_of[1] + 1) / c.block_size + 1;
  const int64_t num_blocks = 2 * s.table_width, width = c.kv_heads * c.head_size;
  s.pool.assign(static_cast<size_t>(num_blocks * s.layout.bytes_per_block()), 0xFF);  // NaN everywhere
  for (int64_t i = 0; i < num_blocks; ++i) s.tables.push_back(static_cast<int32_t>((i * 7 + 3) % num_blocks));
  const KvLayer kv = s.layout.layer(s.pool.data(), 0);
  for (int64_t chunk = 0; chunk < 2; ++chunk) {
    const int64_t stop = starts_of[chunk] + lengths[chunk];
    s.starts.push_back(static_cast<int32_t>(starts_of[chunk]));
    s.offsets.push_back(s.offsets.back() + static_cast<int32_t>(lengths[chunk]));
    s.keys.push_back(random.values(stop * width));
    s.values.push_back(random.values(stop * width));
    for (int64_t p = 0; p < stop; ++p) {
      const int32_t block = s.tables[static_cast<size_t>(chunk * s.table_width + p / c.block_size)];
      kernels().store_kv(kv, block, p % c.block_size, s.keys.back().data() + p * width,
                         s.values.back().data() + p * width);
    }
  }
  return s;
}

AttentionStep step_of(Sequences& s, const Case& c, const std::vector<float>& q, std::vector<float>& out,
                      int64_t piece) {
  AttentionStep step{};
  step.kv = s.layout.layer(s.pool.data(), 0);
  step.q = q.data();
  step.out = out.data();
  step.starts = s.starts.data();
  step.offsets = s.offsets.data();
  step.tables = s.tables.data();
  step.table_width = s.table_width;
  step.num_chunks = 2;
  step.heads = c.kv_heads * c.group;
  step.scale = 0.3f;
  step.window = c.window;
  step.piece_partitions = piece;
  return step;
}

std::vector<float> attended(Sequences& s, const Case& c, const std::vector<float>& q, int64_t piece) {
  std::vector<float> out(q.size());
  run_attention(step_of(s, c, q, out, piece));
  return out;
}

// The same in calls of `group` partitions each, with two of three blocks in memory of their own outside the
// pool. What rows have in between begins as NaN.
std::vector<float> attended_cold(Sequences& s, const Case& c, const std::vector<float>& q, int64_t piece,
                                 int64_t group) {
  std::vector<float> out(q.size());
  AttentionStep step = step_of(s, c, q, out, piece);
  const std::vector<int32_t> hot = s.tables;
  std::vector<std::unique_ptr<uint8_t[]>> slots;
  std::vector<const uint8_t*> cold;
  const int64_t bytes = s.layout.layer_bytes(), block_bytes = s.layout.bytes_per_block();
  for (size_t i = 0; i < hot.size(); ++i) {
    slots.push_back(std::make_unique<uint8_t[]>(static_cast<size_t>(bytes)));
    std::memcpy(slots[i].get(), s.pool.data() + hot[i] * block_bytes, static_cast<size_t>(bytes));
    cold.push_back(slots[i].get());
    if (i % 3) s.tables[i] = cold_first + static_cast<int32_t>(i);
  }
  step.kv.cold = cold.data();
  const int64_t rows = (lengths[0] + lengths[1]) * step.heads;
  std::vector<float> state(static_cast<size_t>(rows * part_floats(c.head_size)), std::nanf(""));
  step.state = state.data();
  for (int64_t first = 0; first * partition_size <= starts_of[1]; first += group) {
    step.first_partition = first;
    step.last_partition = first + group;
    run_attention(step);
  }
  s.tables = hot;
  return out;
}

// What one query sees, by the definition.
void check_row(const Sequences& s, const Case& c, const float* q, const float* out, int64_t chunk,
               int64_t position, int64_t kv_head) {
  const int64_t width = c.kv_heads * c.head_size;
  std::vector<double> result(static_cast<size_t>(c.head_size), 0.0);
  double total = 0;
  const int64_t first = c.window ? std::max<int64_t>(0, position - c.window + 1) : 0;
  for (int64_t p = first; p <= position; ++p) {
    const float* k = s.keys[static_cast<size_t>(chunk)].data() + p * width + kv_head * c.head_size;
    const float* v = s.values[static_cast<size_t>(chunk)].data() + p * width + kv_head * c.head_size;
    double score = 0;
    for (int64_t d = 0; d < c.head_size; ++d) score += static_cast<double>(q[d]) * k[d];
    const double weight = std::exp(0.3 * score);
    total += weight;
    for (int64_t d = 0; d < c.head_size; ++d) result[static_cast<size_t>(d)] += weight * v[d];
  }
  const double tolerance = c.kind == KvKind::f32 ? 1e-4 : 0.05;
  for (int64_t d = 0; d < c.head_size; ++d) {
    CHECK(close(out[d], result[static_cast<size_t>(d)] / total, tolerance));
  }
}

void check_case(Random& random, const Case& c) {
  Sequences s = stored(random, c);
  const int64_t heads = c.kv_heads * c.group, tokens = lengths[0] + lengths[1];
  const std::vector<float> q = random.values(tokens * heads * c.head_size);
  Team::instance().resize(1);
  const std::vector<float> alone = attended(s, c, q, 0);
  CHECK(same_bits(alone, attended(s, c, q, 1)));
  CHECK(same_bits(alone, attended_cold(s, c, q, 0, 1)));
  Team::instance().resize(3);
  for (const int64_t group : {1, 2, 3}) {
    for (const int64_t piece : {0, 1}) CHECK(same_bits(alone, attended_cold(s, c, q, piece, group)));
  }
  CHECK(same_bits(alone, attended(s, c, q, 0)));
  CHECK(same_bits(alone, attended(s, c, q, 1)));
  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t chunk = token < lengths[0] ? 0 : 1;
    const int64_t position = starts_of[chunk] + token - (chunk ? lengths[0] : 0);
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t at = (token * heads + head) * c.head_size;
      check_row(s, c, q.data() + at, alone.data() + at, chunk, position, head / c.group);
    }
  }
}

}  // namespace

void check_attention() {
  Random random(2);
  for (const KvKind kind : {KvKind::f32, KvKind::bf16, KvKind::int8}) {
    check_case(random, {kind, 2, 3, 64, 16, 0});
    check_case(random, {kind, 1, 1, 8, 16, 0});
    check_case(random, {kind, 1, 5, 80, 32, 100});
    check_case(random, {kind, 1, 8, 24, 64, 7});
    check_case(random, {kind, 5, 2, 64, 16, 0});  // heads that share tasks, and a last one with fewer
    check_case(random, {kind, 4, 3, 80, 16, 100});
  }
}

}  // namespace octavo::check
