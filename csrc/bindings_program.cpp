// Recording and replaying a program from Python. Shapes are checked while recording, indices at every run.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "arrays.hpp"
#include "cold_step.hpp"

namespace octavo {
namespace {

constexpr int64_t rows_max = 1 << 20;  // of one run

void require_open(const Program& program) {
  require(!program.is_finished(), "the program is finished; nothing can be recorded any more");
}

const Buffer& require_buffer(const Program& program, BufferId id, const char* name) {
  require_open(program);
  require_index(name, id, program.num_buffers());
  require(program.buffer(id).form == RowForm::floats, std::string(name) + " does not hold floats");
  return program.buffer(id);
}

// Two buffers of the same rows and width.
void require_alike(const Program& program, BufferId x, BufferId y) {
  const Buffer &a = require_buffer(program, x, "x"), &b = require_buffer(program, y, "y");
  require(a.rows == b.rows && a.width == b.width, "x and y differ in shape");
}

void require_weight(int64_t outputs, int64_t inputs) {
  require(outputs >= 1 && outputs <= (int64_t{1} << 31) && inputs >= 1 && inputs <= (int64_t{1} << 24),
          "a matrix of no or absurdly many outputs or inputs");
}

Weight float_weight(const Panels& panels, int64_t outputs) {
  require_weight(outputs, extent(panels, 1));
  require_float_panels(panels, outputs, extent(panels, 1));
  return {Kind::f32, reinterpret_cast<const uint8_t*>(panels.data()), outputs, extent(panels, 1)};
}

Weight half_weight(const HalfPanels& panels, const std::string& kind, int64_t outputs) {
  require_weight(outputs, extent(panels, 1));
  require_float_panels(panels, outputs, extent(panels, 1));
  require_pairs(half_kind_of(kind), extent(panels, 1));
  return {half_kind_of(kind), reinterpret_cast<const uint8_t*>(panels.data()), outputs, extent(panels, 1)};
}

Weight code_weight(const CodePanels& panels, const std::string& kind_name, int64_t outputs, int64_t inputs) {
  const Kind kind = kind_of(kind_name);
  require_weight(outputs, inputs);
  require(is_grouped(kind), "a matrix of kind " + kind_name + " has no integer codes");
  require(inputs > 0 && inputs % block_size_of(kind) == 0,
          "inputs must be a multiple of " + std::to_string(block_size_of(kind)));
  require_size("panels, first axis,", extent(panels, 0), (outputs + panel_width - 1) / panel_width);
  require_size("panels, second axis,", extent(panels, 1), code_panel_bytes(kind, inputs));
  return {kind, panels.data(), outputs, inputs};
}

BufferId given_rows(Program& program, int64_t width) {
  require_open(program);
  require(width >= 1 && width <= (int64_t{1} << 24), "a row of no or absurdly many elements");
  require(program.given() < 0, "the program has its given rows already");
  return program.given_rows(width);
}

BufferId embed(Program& program, const Weight& table, bool by_position) {
  require_open(program);
  return program.embed(table, by_position ? Source::positions : Source::tokens);
}

BufferId take(Program& program, BufferId x) {
  require(require_buffer(program, x, "x").rows == Rows::tokens, "x has no row for each token");
  return program.take(x);
}

BufferId rms_norm(Program& program, BufferId x, const FloatVector& weight, float eps) {
  const int64_t size = extent(weight, 0), width = require_buffer(program, x, "x").width;
  require(size >= 1 && width % size == 0, "weight does not divide the width of x");
  return program.rms_norm(x, weight.data(), size, eps);
}

BufferId layer_norm(Program& program, BufferId x, const FloatVector& weight, const FloatVector& bias,
                    float eps) {
  const int64_t width = require_buffer(program, x, "x").width;
  require_size("weight", extent(weight, 0), width);
  require_size("bias", extent(bias, 0), width);
  return program.layer_norm(x, weight.data(), bias.data(), eps);
}

BufferId linear(Program& program, BufferId x, const Weight& weight, const std::optional<FloatVector>& bias) {
  require_size("x, second axis,", require_buffer(program, x, "x").width, weight.inputs);
  if (bias) require_size("bias", extent(*bias, 0), weight.outputs);
  return program.linear(x, weight, bias ? bias->data() : nullptr);
}

BufferId rope(Program& program, BufferId x, const FloatMatrix& cos, const FloatMatrix& sin,
              int64_t head_size) {
  const Buffer& buffer = require_buffer(program, x, "x");
  const int64_t half = extent(cos, 1);
  require(buffer.rows == Rows::tokens, "x has no row for each token");
  require(head_size >= 1 && buffer.width % head_size == 0, "x must have a multiple of head_size columns");
  require(2 * half <= head_size, "cos has more columns than half a head");
  require_size("sin, first axis,", extent(sin, 0), extent(cos, 0));
  require_size("sin, second axis,", extent(sin, 1), half);
  return program.rope(x, cos.data(), sin.data(), extent(cos, 0), half, head_size);
}

const KvLayer& require_layer(const Program& program, int64_t layer) {
  require_index("layer", layer, program.num_layers());
  return program.layer(layer);
}

void store(Program& program, int64_t layer, BufferId k, BufferId v) {
  const KvLayer& kv = require_layer(program, layer);
  require_alike(program, k, v);
  require_size("k, second axis,", program.buffer(k).width, kv.kv_heads * kv.head_size);
  require(program.buffer(k).rows == Rows::tokens, "k has no row for each token");
  program.store(layer, k, v);
}

BufferId attend(Program& program, int64_t layer, BufferId q, float scale, std::optional<int64_t> window,
                std::optional<float> soft_cap, const std::optional<FloatVector>& sinks,
                const std::optional<FloatVector>& slopes) {
  const KvLayer& kv = require_layer(program, layer);
  const Buffer& buffer = require_buffer(program, q, "q");
  require(buffer.width % (kv.head_size * kv.kv_heads) == 0,
          "q has " + std::to_string(buffer.width) + " columns; needed: a multiple of kv heads times head size");
  require(buffer.rows == Rows::tokens, "q has no row for each token");
  require(!window || *window >= 1, "a window must see at least one position");
  require(!soft_cap || *soft_cap > 0.0f, "a soft cap must be positive");
  const int64_t heads = buffer.width / kv.head_size;
  if (sinks) require_size("sinks", extent(*sinks, 0), heads);
  if (slopes) require_size("slopes", extent(*slopes, 0), heads);
  return program.attend({q, layer, scale, window.value_or(0), soft_cap.value_or(0.0f),
                         sinks ? sinks->data() : nullptr, slopes ? slopes->data() : nullptr, -1});
}

BufferId experts(Program& program, BufferId x, BufferId logits, const Mixture& mixture) {
  const Buffer& rows = require_buffer(program, x, "x");
  const Buffer& of_router = require_buffer(program, logits, "logits");
  require_complete(mixture);
  require_size("x, second axis,", rows.width, mixture.hidden_size());
  require_size("logits, second axis,", of_router.width, static_cast<int64_t>(mixture.experts.size()));
  require(rows.rows == of_router.rows, "x and logits have different rows");
  return program.experts(x, logits, &mixture);
}

BufferId gated(Program& program, BufferId gate, BufferId up, const std::string& function) {
  require_alike(program, gate, up);
  return program.gated(gate, up, gate_of(function));
}

BufferId activate(Program& program, BufferId x, const std::string& function) {
  require_buffer(program, x, "x");
  return program.activate(x, map_of(function));
}

BufferId add(Program& program, BufferId x, BufferId y) {
  require_alike(program, x, y);
  return program.add(x, y);
}

BufferId scale(Program& program, BufferId x, float factor) {
  require_buffer(program, x, "x");
  return program.scale(x, factor);
}

BufferId soft_cap(Program& program, BufferId x, float cap) {
  require_buffer(program, x, "x");
  require(cap > 0.0f, "a soft cap must be positive");
  return program.soft_cap(x, cap);
}

// Of all parts together.
int64_t floats_per_row(const Program& program) {
  int64_t floats = 0;
  for (const Rows rows : {Rows::tokens, Rows::logits}) {
    for (const bool is_shared : {false, true}) floats += program.floats_per_row(rows, is_shared);
  }
  return floats;
}

void finish(Program& program, BufferId result) {
  require(require_buffer(program, result, "result").first_phase >= 0,
          "the result is what was given: nothing was recorded");
  program.finish(result);
}

// The result's rows as an array over the program's own memory: valid until its next run.
auto array_of(Program& program, const float* rows, const StepInput& input) {
  const Buffer& result = program.buffer(program.result());
  // Should the program get a larger arena, this one lives as long as an array over it.
  const nb::capsule owner(new std::shared_ptr<float>(program.arena()),
                          [](void* arena) noexcept { delete static_cast<std::shared_ptr<float>*>(arena); });
  const int64_t count = result.rows == Rows::tokens ? input.num_tokens : input.num_logit_rows;
  return nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig>(
      const_cast<float*>(rows), {static_cast<size_t>(count), static_cast<size_t>(result.width)}, owner);
}

auto run(Program& program, const StepInput& input) {
  const float* rows = nullptr;
  {
    const nb::gil_scoped_release unlocked;
    rows = program.run(input);
  }
  return array_of(program, rows, input);
}

StepInput step_input(const Program& program, const IntVector& tokens, const IntVector& positions,
                     const IntVector& starts, const IntVector& offsets, const IntMatrix& tables,
                     const IntVector& logit_rows) {
  const int64_t count = extent(tokens, 0), chunks = extent(starts, 0), table_width = extent(tables, 1);
  require(program.is_finished(), "the program is not finished");
  require(program.given() < 0, "the program takes rows, not a step");
  require(count >= 1 && count <= rows_max, "a step of no or absurdly many tokens");
  require_size("positions", extent(positions, 0), count);
  require_indices("token", tokens.data(), count, program.largest_row_of(Source::tokens));
  require_indices("position", positions.data(), count,
                  std::min(program.largest_row_of(Source::positions), program.rope_positions()));
  require(extent(logit_rows, 0) <= count, "more logit rows than tokens");
  require_indices("logit row", logit_rows.data(), extent(logit_rows, 0), count);
  require_chunks(starts, offsets, tables, count);
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t length = offsets.data()[c + 1] - offsets.data()[c];
    for (int64_t i = 0; i < length; ++i) {
      require(positions.data()[offsets.data()[c] + i] == starts.data()[c] + i,
              "positions do not follow the chunks' starts");
    }
  }
  return {count,         extent(logit_rows, 0), chunks,            table_width,
          tokens.data(), positions.data(),      logit_rows.data(), starts.data(),
          offsets.data(), tables.data(),        nullptr};
}

// The entries of each chunk's table (`tables`, of the shape of the input's) that some layer reads or writes
// exist: blocks of the pool, or, where nothing is written, slots of a second memory.
void require_entries(const Program& program, const StepInput& input, const int32_t* tables,
                     int64_t num_blocks, int64_t num_slots) {
  if (program.num_layers() == 0) return;
  const int64_t block_size = program.layer(0).block_size;
  for (int64_t c = 0; c < input.num_chunks; ++c) {
    const int64_t start = input.starts[c], stop = start + input.offsets[c + 1] - input.offsets[c];
    const int64_t first = program.first_block(start), written = start / block_size;
    const int64_t blocks = (stop - 1) / block_size + 1;
    const int32_t* table = tables + c * input.table_width;
    require(blocks <= input.table_width, "the block table of chunk " + std::to_string(c) + " is too short");
    for (int64_t i = first; i < written; ++i) {
      if (num_slots > 0 && table[i] >= cold_first) {
        require_index("slot of the second memory", table[i] - cold_first, num_slots);
      } else {
        require_index("block id", table[i], num_blocks);
      }
    }
    for (int64_t i = written; num_slots > 0 && i < blocks; ++i) {
      require(table[i] < cold_first, "chunk " + std::to_string(c) + " writes to a slot of the second memory");
    }
    require_indices("block id", table + written, blocks - written, num_blocks);
  }
}

auto run_step(Program& program, const IntVector& tokens, const IntVector& positions, const IntVector& starts,
              const IntVector& offsets, const IntMatrix& tables, const IntVector& logit_rows,
              int64_t num_blocks) {
  const StepInput input = step_input(program, tokens, positions, starts, offsets, tables, logit_rows);
  require_entries(program, input, input.tables, num_blocks, 0);
  return run(program, input);
}

// -- a step over a second memory ----------------------------------------------------------------------

// Raise unless every block of the program's has room in a slot, and every byte of the file an offset.
void require_room(const Program& program, const SecondMemory& memory) {
  const KvLayer& kv = program.layer(0);
  const int64_t layers = program.num_layers();
  const int64_t layer_bytes = kv_layer_bytes(kv.kind, kv.kv_heads, kv.head_size, kv.block_size);
  if (memory.num_host > 0) {
    require(memory.host_slot_bytes >= layers * layer_bytes,
            "host_slot_bytes is " + std::to_string(memory.host_slot_bytes) + "; a block has " +
                std::to_string(layers * layer_bytes));
  }
  if (!memory.has_file()) return;
  require(memory.pieces >= layers, "pieces is " + std::to_string(memory.pieces) + "; the program has " +
                                       std::to_string(layers) + " layers");
  const int64_t padded = memory.num_slots - memory.num_host + memory.lanes;  // whole stripes, and more
  require(padded <= INT64_MAX / layer_bytes / memory.pieces, "the file's slots are absurdly many or large");
}

void begin_step(Program& program, const IntVector& tokens, const IntVector& positions,
                const IntVector& starts, const IntVector& offsets, const IntMatrix& tables,
                const IntVector& logit_rows, int64_t num_blocks, ColdReader& reader) {
  const StepInput input = step_input(program, tokens, positions, starts, offsets, tables, logit_rows);
  require(!program.windows().empty(), "the program attends to nothing");
  require(num_blocks >= 0 && num_blocks <= cold_first, "absurdly many blocks");
  require_room(program, reader.memory());
  require_entries(program, input, input.tables, num_blocks, reader.memory().num_slots);
  const nb::gil_scoped_release unlocked;
  program.begin_step(input, num_blocks, reader);
}

nb::object advance(Program& program, const IntMatrix& tables, int64_t num_layers) {
  require(num_layers >= 1, "num_layers is " + std::to_string(num_layers) + "; allowed: from 1");
  StepInput input{};  // its counts are needed when the step has ended
  const int64_t chunks = extent(tables, 0), width = extent(tables, 1);
  const int32_t* entries = tables.data();
  const auto check = [&](const ColdStep& step) {
    input = step.input;
    require_size("tables, first axis,", chunks, input.num_chunks);
    require_size("tables, second axis,", width, input.table_width);
    require_entries(program, input, entries, step.num_blocks, step.reader.memory().num_slots);
  };
  const float* rows = nullptr;
  {
    const nb::gil_scoped_release unlocked;
    rows = program.advance(entries, num_layers, check);
  }
  return rows ? nb::cast(array_of(program, rows, input)) : nb::none();
}

void make_second_memory(ColdReader* self, const std::optional<ByteVector>& host, int64_t host_slot_bytes,
                        int64_t num_host, int fd, int64_t lanes, int64_t pieces, int64_t num_slots,
                        int64_t window_bytes, int64_t num_readers) {
  const auto between = [](const char* name, int64_t given, int64_t low, int64_t high) {
    const std::string allowed = std::to_string(low) + " to " + std::to_string(high);
    require(given >= low && given <= high,
            std::string(name) + " is " + std::to_string(given) + "; allowed: " + allowed);
  };
  between("num_slots", num_slots, 1, cold_first);
  between("num_host", num_host, 0, num_slots);
  if (num_host > 0) {
    require(host.has_value(), "there is no host memory for num_host slots");
    between("host_slot_bytes", host_slot_bytes, 1, int64_t{1} << 40);
    require(host_slot_bytes % 4 == 0 && reinterpret_cast<uintptr_t>(host->data()) % 4 == 0,
            "slots of host memory do not start at multiples of 4 bytes");
    require(extent(*host, 0) / host_slot_bytes >= num_host,
            "host has " + std::to_string(extent(*host, 0)) + " bytes, too few for num_host slots");
  }
  if (num_slots > num_host) {
    require(fd >= 0, "there is no file for the slots from num_host on");
    between("lanes", lanes, 1, 1 << 20);
    between("pieces", pieces, 1, 4096);
    between("window_bytes", window_bytes, 1, int64_t{1} << 40);
    between("num_readers", num_readers, 1, 64);
  } else {
    require(fd == -1, "a file is given, and no slot lies in it: num_slots is num_host; fd for none: -1");
  }
  new (self) ColdReader({host ? host->data() : nullptr, host_slot_bytes, num_host, fd, lanes, pieces,
                         num_slots, window_bytes, num_readers});
}

StepInput rows_input(const Program& program, const FloatMatrix& x) {
  require(program.is_finished() && program.given() >= 0, "the program takes no rows, or is not finished");
  require(!program.reads_step(), "the program takes a step, not rows alone");
  const int64_t count = extent(x, 0);
  require(count >= 1 && count <= rows_max, "no or absurdly many rows");
  require_size("x, second axis,", extent(x, 1), program.buffer(program.given()).width);
  StepInput input{};
  input.num_tokens = count;
  input.x = x.data();
  return input;
}

auto run_rows(Program& program, const FloatMatrix& x) { return run(program, rows_input(program, x)); }

void run_rows_argmax(Program& program, const FloatMatrix& x, const IntVectorOut& out) {
  const StepInput input = rows_input(program, x);
  require_size("out", extent(out, 0), input.num_tokens);
  int32_t* indices = out.data();
  const nb::gil_scoped_release unlocked;
  program.run_argmax(input, indices);
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<Weight>(m, "Weight");
  m.def("float_weight", float_weight, nb::arg("panels").noconvert(), nb::arg("outputs"));
  m.def("half_weight", half_weight, nb::arg("panels").noconvert(), nb::arg("kind"), nb::arg("outputs"));
  m.def("code_weight", code_weight, nb::arg("panels").noconvert(), nb::arg("kind"), nb::arg("outputs"),
        nb::arg("inputs"));
  nb::class_<ColdReader>(m, "SecondMemory")
      .def("__init__", make_second_memory, nb::arg("host").noconvert().none(), nb::arg("host_slot_bytes"),
           nb::arg("num_host"), nb::arg("fd"), nb::arg("lanes"), nb::arg("pieces"), nb::arg("num_slots"),
           nb::arg("window_bytes"), nb::arg("num_readers"), nb::keep_alive<1, 2>());
  nb::class_<Program>(m, "Program")
      .def(nb::init<std::vector<KvLayer>>(), nb::arg("layers"))
      .def("given_rows", given_rows, nb::arg("width"))
      .def("embed", embed, nb::arg("table"), nb::arg("by_position"))
      .def("take", take, nb::arg("x"))
      .def("rms_norm", rms_norm, nb::arg("x"), nb::arg("weight").noconvert(), nb::arg("eps"))
      .def("layer_norm", layer_norm, nb::arg("x"), nb::arg("weight").noconvert(), nb::arg("bias").noconvert(),
           nb::arg("eps"))
      .def("linear", linear, nb::arg("x"), nb::arg("weight"), nb::arg("bias").noconvert().none())
      .def("rope", rope, nb::arg("x"), nb::arg("cos").noconvert(), nb::arg("sin").noconvert(),
           nb::arg("head_size"))
      .def("store", store, nb::arg("layer"), nb::arg("k"), nb::arg("v"))
      .def("attend", attend, nb::arg("layer"), nb::arg("q"), nb::arg("scale"), nb::arg("window").none(),
           nb::arg("soft_cap").none(), nb::arg("sinks").noconvert().none(), nb::arg("slopes").noconvert().none())
      .def("experts", experts, nb::arg("x"), nb::arg("logits"), nb::arg("mixture"), nb::keep_alive<1, 4>())
      .def("gated", gated, nb::arg("gate"), nb::arg("up"), nb::arg("function"))
      .def("activate", activate, nb::arg("x"), nb::arg("function"))
      .def("add", add, nb::arg("x"), nb::arg("y"))
      .def("scale", scale, nb::arg("x"), nb::arg("factor"))
      .def("soft_cap", soft_cap, nb::arg("x"), nb::arg("cap"))
      .def("finish", finish, nb::arg("result"))
      .def(
          "time_phases",
          [](Program& program, bool on) {
            require(program.is_finished(), "the program is not finished");
            program.time_phases(on);
          },
          nb::arg("on"))
      .def("phase_times",
           [](const Program& program) {
             nb::list out;
             for (const auto& time : program.phase_times()) out.append(nb::make_tuple(time.what, time.seconds));
             return out;
           })
      .def("prefetch_kv", &Program::prefetch_kv, nb::arg("wanted").none())
      .def("kv_prefetch_trial",
           [](Program& program, int64_t rows) {
             require(rows >= 1, "no rows");
             const Trial& trial = program.kv_prefetch_trial(rows);
             return nb::make_tuple(trial.comparisons(), trial.ratio());
           },
           nb::arg("rows"))
      .def_prop_ro("num_phases", &Program::num_phases)
      .def_prop_ro("floats_per_row", floats_per_row)
      .def("run_step", run_step, nb::arg("tokens").noconvert(), nb::arg("positions").noconvert(),
           nb::arg("starts").noconvert(), nb::arg("offsets").noconvert(), nb::arg("tables").noconvert(),
           nb::arg("logit_rows").noconvert(), nb::arg("num_blocks"))
      .def("begin_step", begin_step, nb::arg("tokens").noconvert(), nb::arg("positions").noconvert(),
           nb::arg("starts").noconvert(), nb::arg("offsets").noconvert(), nb::arg("tables").noconvert(),
           nb::arg("logit_rows").noconvert(), nb::arg("num_blocks"), nb::arg("memory"),
           nb::keep_alive<1, 9>())
      .def("advance", advance, nb::arg("tables").noconvert(), nb::arg("num_layers"))
      .def("abandon", &Program::abandon, nb::call_guard<nb::gil_scoped_release>())
      .def("failed_slots", &Program::failed_slots)
      .def("cold_stats",
           [](const Program& program) {
             const ColdStats stats = program.cold_stats();
             return nb::make_tuple(stats.bytes_read, static_cast<double>(stats.wait_ns) * 1e-9);
           })
      .def("run_rows", run_rows, nb::arg("x").noconvert())
      .def("run_rows_argmax", run_rows_argmax, nb::arg("x").noconvert(), nb::arg("out").noconvert());
}

}  // namespace octavo
