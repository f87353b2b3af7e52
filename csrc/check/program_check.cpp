// A recorded layer: the same bits with one thread and with three, and for steps that grow and shrink.
#include "attention_step.hpp"
#include "check/check.hpp"
#include "cold_step.hpp"
#include "dispatch.hpp"
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
  if (kind == Kind::f32 || kind == Kind::bf16) {
    kernels().pack({data, Kind::f32, outputs, inputs, memory, kind}, 0, count);
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

// With 64 rows, three threads keep their own rows for codes of four bits, and share products out for floats.
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

// Runs `after` more tokens of two sequences that have come to positions 20 and 40; all rows.
std::vector<float> run_on(Program& program, int32_t after) {
  const std::vector<int32_t> starts{20, 40}, offsets{0, after, 2 * after}, tables{2, 0, 3, 1, 5, 4, 7, 6};
  std::vector<int32_t> tokens, positions, logit_rows;
  for (int32_t i = 0; i < 2 * after; ++i) {
    tokens.push_back(i * 5 % static_cast<int32_t>(vocabulary));
    positions.push_back(starts[static_cast<size_t>(i / after)] + i % after);
    logit_rows.push_back(i);
  }
  const float* rows = program.run({2 * after, 2 * after, 2, 4, tokens.data(), positions.data(), logit_rows.data(),
                                   starts.data(), offsets.data(), tables.data(), nullptr});
  return {rows, rows + 2 * after * hidden};
}

// Two layers, of which the second sees 24 positions.
void record_two_layers(Program& program, const Weight& table, const Weight& w, const Weight& narrow) {
  BufferId x = program.embed(table, Source::tokens);
  for (const int64_t layer : {0, 1}) {
    const BufferId key = program.linear(x, narrow, nullptr);
    program.store(layer, key, program.linear(x, narrow, nullptr));
    Attend attend{};
    attend.q = program.linear(x, w, nullptr);
    attend.layer = layer;
    attend.scale = 0.2f;
    attend.window = layer == 0 ? 0 : 24;
    x = program.linear(program.attend(attend), w, nullptr);
  }
  program.finish(program.take(x));
}

// What tasks of such a program fetch is all that attention will read, once and in order; no bit depends on it.
void check_kv_prefetch(Kind kind) {
  Random random(7);
  const KvLayout layout{2, 1, head_size, block_size, KvKind::bf16};
  std::vector<uint8_t> pool(static_cast<size_t>(8 * layout.bytes_per_block()));
  const Panels w = panels(random, kind, hidden, hidden), narrow = panels(random, kind, head_size, hidden);
  const Panels table = panels(random, kind, vocabulary, hidden);
  Program program({layout.layer(pool.data(), 0), layout.layer(pool.data(), 1)});
  record_two_layers(program, table.weight, w.weight, narrow.weight);

  // The second sequence shares a block with the first, the third has no rows, the second owner no context.
  const std::vector<int32_t> starts{20, 40, 60, 0, 50}, offsets{0, 10, 20, 20, 40, 60},
      tables{2, 0, 3, 1, 2, 4, 7, 6, 99, 99, 99, 99, 0, 0, 0, 0, 1, 2, 3, 4};
  const StepInput input{60,      0, 5, 4, nullptr, nullptr, nullptr, starts.data(), offsets.data(), tables.data(),
                        nullptr};
  const std::vector<std::vector<int32_t>> expected[2] = {{{2, 0, 4, 7}, {}, {1, 2, 3, 4}},
                                                         {{2, 0, 4, 7}, {}, {2, 3, 4}}};
  KvPrefetch prefetch;
  prefetch.list_blocks(program, input, Owners{60, 3});
  for (int64_t owner = 0; owner < 3; ++owner) {
    std::vector<int64_t> place[2];  // in pieces of 64 bytes of the pool, by layer
    for (const Phase& phase : program.phases()) {
      for (const Linear& op : phase.products) {
        const int64_t last = op.weight.outputs / panel_width;
        for (int64_t panel = 0; panel < last; ++panel) {
          KvPrefetchCursor part = prefetch.part_of(program, op, owner, panel, panel + 1);
          CHECK((op.next_layer < 0 || owner == 1) == (part.left == 0));
          for (; part.left > 0; part.left -= 64) {
            place[op.next_layer].push_back(*part.block + part.start + part.offset - pool.data());
            part.offset += 64;
            if (part.offset == part.bytes) part.offset = 0, ++part.block;
          }
        }
      }
    }
    for (const int64_t layer : {0, 1}) {
      std::vector<int64_t> all;
      for (const int32_t block : expected[layer][static_cast<size_t>(owner)]) {
        for (int64_t at = 0; at < layout.layer_bytes(); at += 64) {
          all.push_back(block * layout.bytes_per_block() + layer * layout.layer_bytes() + at);
        }
      }
      CHECK(place[layer] == all);
    }
  }

  for (const int32_t after : {2, 24}) {
    for (const int threads : {1, 3}) {
      Team::instance().resize(threads);
      program.prefetch_kv(false);
      const std::vector<float> without = run_on(program, after);
      program.prefetch_kv(true);
      CHECK(same_bits(without, run_on(program, after)));
    }
  }
}

// Runs one step layer by layer, another program's steps in between; all rows.
std::vector<float> run_cold(Program& program, const StepInput& input, ColdReader& memory, Program& other) {
  program.begin_step(input, 8, memory);
  const float* rows = nullptr;
  while (!(rows = program.advance(input.tables, 1, [](const ColdStep&) {}))) run_on(other, 2);
  return {rows, rows + input.num_logit_rows * hidden};
}

// One token behind each of two sequences, whose first blocks lie in host memory and in a file.
void check_cold_step() {
  Random random(13);
  const KvLayout layout{2, 1, head_size, block_size, KvKind::f32};
  const int64_t block_bytes = layout.bytes_per_block(), layer_bytes = layout.layer_bytes();
  std::vector<float> pool = random.values(8 * block_bytes / 4), other_pool = pool;
  const auto* bytes = reinterpret_cast<const uint8_t*>(pool.data());
  const Panels w = panels(random, Kind::f32, hidden, hidden);
  const Panels narrow = panels(random, Kind::f32, head_size, hidden);
  const Panels table = panels(random, Kind::f32, vocabulary, hidden);
  const auto program_over = [&](std::vector<float>& memory) {
    auto* start = reinterpret_cast<uint8_t*>(memory.data());
    auto program = std::make_unique<Program>(std::vector{layout.layer(start, 0), layout.layer(start, 1)});
    record_two_layers(*program, table.weight, w.weight, narrow.weight);
    return program;
  };
  const std::unique_ptr<Program> program = program_over(pool), other = program_over(other_pool);

  // Block 2 in slot 0 of host memory, blocks 5 and 4 in slots 1 and 2 of a file.
  const std::vector<uint8_t> host(bytes + 2 * block_bytes, bytes + 3 * block_bytes);
  std::FILE* file = std::tmpfile();
  SecondMemory memory{host.data(), block_bytes, 1, fileno(file), 2, 2, 3, 2 * 16 * layer_bytes, 2};
  for (const int64_t layer : {0, 1}) {
    for (const int64_t slot : {1, 2}) {
      CHECK(std::fwrite(bytes + (slot == 1 ? 5 : 4) * block_bytes + layer * layer_bytes, 1,
                        static_cast<size_t>(layer_bytes), file) == static_cast<size_t>(layer_bytes));
    }
  }
  std::fflush(file);
  ColdReader reader(memory);
  const std::vector<int32_t> tokens{7, 9}, positions{20, 40}, starts{20, 40}, offsets{0, 1, 2}, rows{0, 1},
      hot{2, 0, 3, 1, 5, 4, 7, 6}, cold{cold_first, 0, 3, 1, cold_first + 1, cold_first + 2, 7, 6};
  StepInput input{2, 2, 2, 4, tokens.data(), positions.data(), rows.data(), starts.data(), offsets.data(),
                  nullptr, nullptr};
  for (const int threads : {1, 3}) {
    Team::instance().resize(threads);
    input.tables = hot.data();
    const float* result = program->run(input);
    const std::vector<float> expected(result, result + 2 * hidden);
    CHECK(same_bits(expected, run_cold(*program, input, reader, *other)));
    input.tables = cold.data();
    CHECK(same_bits(expected, run_cold(*program, input, reader, *other)));
    program->begin_step(input, 8, reader);
    program->abandon();
    // And a step that turns cold while it is suspended.
    program->begin_step(input, 8, reader);
    CHECK(!program->advance(hot.data(), 1, [](const ColdStep&) {}));
    result = program->advance(cold.data(), 1, [](const ColdStep&) {});
    CHECK(same_bits(expected, {result, result + 2 * hidden}));
  }
  CHECK(program->failed_slots().empty() && program->cold_stats().bytes_read > 0);
  std::fclose(file);
}

// Three runs tell which way is faster, also where each takes longer than the one before. Another size, or a run of
// something else in between, makes no comparison, and one that another process disturbed changes little.
void check_trial() {
  for (const bool pays : {true, false}) {
    Trial trial;
    int64_t number = 0;
    const auto run = [&](int64_t rows, double slowdown = 1.0) {
      const bool does_it = trial.begin(++number, rows, rows);
      trial.end((does_it == pays ? 1.0 : 1.02) * std::pow(1.03, number) * slowdown);
      return does_it;
    };
    for (int64_t rows = 3; rows < 20; ++rows) CHECK(run(rows));
    for (int i = 0; i < 9; ++i) {
      CHECK(run(20));
      ++number;
    }
    CHECK(trial.comparisons() == 0);
    while (trial.comparisons() < 12) run(20);
    CHECK(close(trial.ratio(), pays ? 1.02 : 1 / 1.02, 1e-9));
    for (int i = 0; i < 64; ++i) CHECK(run(20) == pays);
    const double before = std::log(trial.ratio());
    CHECK(run(20, 1e6) == pays && run(20) != pays && run(20) == pays);
    CHECK(trial.comparisons() == 13);
    CHECK(std::abs(std::log(trial.ratio()) - before) <= (0.2 + 0.02) / 12);
    trial.begin(++number, 20, 20);  // and did not end
    for (int i = 0; i < 63; ++i) CHECK(run(20) == pays);
  }
}

}  // namespace

void check_program() {
  for (const Kind kind : {Kind::f32, Kind::bf16, Kind::q4_1}) check_kv_prefetch(kind);
  check_trial();
  check_cold_step();
  for (const Kind kind : {Kind::f32, Kind::bf16, Kind::q4_1}) check_with(kind);
  for (const Kind kind : {Kind::f32, Kind::bf16, Kind::q4_1}) check_argmax(kind);
}

}  // namespace octavo::check
