// A recorded layer: the same bits with one thread and with three, and for steps that grow and shrink.
#include "check/check.hpp"
#include "dispatch.hpp"
#include "attention_step.hpp"
#include "program.hpp"
#include "team.hpp"

namespace octavo::check {
namespace {

constexpr int64_t hidden = 64, vocabulary = 50, context = 64, head_size = 32, block_size = 16;

struct Panels {
  std::vector<float> memory;
  Weight weight;
};

// Of floats, or of codes that are made from floats.
Panels panels(Random& random, Kind kind, int64_t outputs, int64_t inputs) {
  const int64_t count = (outputs + panel_width - 1) / panel_width;
  const std::vector<float> w = random.values(outputs * inputs);
  const uint8_t* data = reinterpret_cast<const uint8_t*>(w.data());
  Panels out{std::vector<float>(static_cast<size_t>(count * inputs * panel_width)), {}};
  uint8_t* memory = reinterpret_cast<uint8_t*>(out.memory.data());
  if (kind == Kind::f32) {
    kernels().pack({data, kind, outputs, inputs, out.memory.data()}, 0, count);
  } else {
    kernels().pack_codes({data, kind, outputs, inputs, memory, Kind::f32}, 0, count);
  }
  out.weight = {kind, memory, outputs, inputs};
  return out;
}

// Runs `count` tokens from position 0 on; the last one's row.
std::vector<float> run(Program& program, int32_t count) {
  std::vector<int32_t> tokens, positions;
  for (int32_t i = 0; i < count; ++i) {
    tokens.push_back(i * 7 % static_cast<int32_t>(vocabulary));
    positions.push_back(i);
  }
  const std::vector<int32_t> starts{0}, offsets{0, count}, tables{2, 0, 3, 1}, logit_rows{count - 1};
  const float* rows = program.run({count, 1, 1, 4, tokens.data(), positions.data(), logit_rows.data(),
                                   starts.data(), offsets.data(), tables.data(), nullptr});
  return {rows, rows + hidden};
}

// Three threads keep their own of 64 rows beside codes of four bits, and share products out beside floats.
void check_with(Kind kind) {
  Random random(3);
  const KvLayout layout{1, 1, head_size, block_size, KvKind::f32};
  std::vector<uint8_t> pool(static_cast<size_t>(4 * layout.bytes_per_block()), 0xFF);
  const Panels table = panels(random, kind, vocabulary, hidden), q = panels(random, kind, hidden, hidden),
               k = panels(random, kind, head_size, hidden), v = panels(random, kind, head_size, hidden),
               o = panels(random, kind, hidden, hidden);
  const std::vector<float> norm = random.values(hidden), cos = random.values(context * head_size / 2),
                           sin = random.values(context * head_size / 2);
  Program program({layout.layer(pool.data(), 0)});
  const BufferId x = program.embed(table.weight, Source::tokens);
  const BufferId normed = program.rms_norm(x, norm.data(), hidden, 1e-5f);
  const auto turned = [&](const Panels& w) {
    return program.rope(program.linear(normed, w.weight, nullptr), cos.data(), sin.data(), context,
                        head_size / 2, head_size);
  };
  const BufferId query = turned(q), key = turned(k);
  program.store(0, key, program.linear(normed, v.weight, nullptr));
  Attend attend{};
  attend.q = query;
  attend.scale = 0.2f;
  const BufferId seen = program.take(program.attend(attend));
  program.finish(program.add(program.take(x), program.linear(seen, o.weight, nullptr)));

  for (const int32_t count : {1, 40, 3, 64}) {
    Team::instance().resize(1);
    const std::vector<float> alone = run(program, count);
    for (const float value : alone) CHECK(std::isfinite(value));
    Team::instance().resize(3);
    CHECK(same_bits(alone, run(program, count)));
  }
}

// A head whose outputs are never written finds what is largest in those that are.
void check_argmax(Kind kind) {
  Random random(5);
  constexpr int64_t outputs = 1000, rows = 20;
  const Panels head = panels(random, kind, outputs, hidden);
  const std::vector<float> x = random.values(rows * hidden);
  Program program({});
  program.finish(program.linear(program.given_rows(hidden), head.weight, nullptr));
  StepInput input{};
  input.num_tokens = rows;
  input.x = x.data();
  for (const int threads : {1, 3}) {
    Team::instance().resize(threads);
    std::vector<int32_t> found(rows);
    program.run_argmax(input, found.data());
    const float* logits = program.run(input);
    for (int64_t row = 0; row < rows; ++row) {
      CHECK(found[static_cast<size_t>(row)] == kernels().argmax(logits + row * outputs, outputs));
    }
  }
}

}  // namespace

void check_program() {
  for (const Kind kind : {Kind::f32, Kind::q4_1}) check_with(kind);
  for (const Kind kind : {Kind::f32, Kind::q4_1}) check_argmax(kind);
}

}  // namespace octavo::check
