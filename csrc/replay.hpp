// One run of a program: its phases over the team, and where their rows are. Included by what runs programs:
// replay.cpp and cold_step.cpp.
#pragma once

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <vector>

#include "arena.hpp"
#include "attention_step.hpp"
#include "dispatch.hpp"
#include "largest.hpp"
#include "program.hpp"
#include "team.hpp"

namespace octavo {

inline double seconds_since(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

constexpr int64_t rows_together = 16;          // pass an operation before the next one begins
constexpr int64_t row_work_min = 1 << 13;      // floats below which sharing costs more than it saves
constexpr int64_t product_work_min = 1 << 17;  // multiply-adds, likewise
// Multiply-adds beyond which a task is cut again, so that threads end together: of codes, and of floats,
// whose tiles are wide.
constexpr int64_t code_task_work = 1 << 20, float_task_work = 1 << 23;

// Codes of rows that do not stay in a core's caches are read once for each task: then a task has so many panels.
constexpr int64_t far_codes = 768 << 10, panels_beside_far_codes = 16;

// Of a thread. With fewer rows all threads would wait for weights, which all of them read: those of six bits
// or less (the mean of all linear layers) come in time for as few as matrix registers take.
constexpr int64_t owner_rows_min = 32, owner_rows_min_few_bits = 16;

// Fewer wait for weights, and memory is never idle.
constexpr int64_t prefetching_rows_min = 3;

// How a step's rows are shared out. With enough of them each thread keeps its own through all phases, so that
// they stay in its caches; else they have one owner, and products are shared out by outputs.
struct Sharing {
  int64_t threads;  // as many as when the run began, whatever becomes of the team
  int64_t enough;

  Sharing(const Program& program, int64_t its_threads) : threads(its_threads), enough(INT64_MAX) {
    if (!program.reads_step() || threads > Team::owners_max) return;
    const bool few_bits = 4 * program.weight_bytes() <= 3 * program.num_weights();
    enough = (few_bits ? owner_rows_min_few_bits : owner_rows_min) * threads;
  }

  Owners owners_of(int64_t rows) const { return {rows, rows >= enough ? threads : 1}; }
};

// Output panels of a product that a tile takes at once: tasks begin at their multiples.
inline int64_t panel_unit(const Linear& op, int64_t rows, int64_t panels, int64_t wanted) {
  if (op.weight.has_codes()) return code_panels_unit(rows);
  return panels >= 24 * wanted ? 24 : 3;  // 24 suits every tile of floats; 3 is the width with many rows
}

// Output panels [first, last) of one product.
struct ProductTask {
  const Linear* op;
  int64_t first, last;
};

// Output panels whose largest is found as soon as they are computed: few enough that they stay in a core's
// caches, and every tile's width divides their number.
constexpr int64_t argmax_panels = 24;

// One phase of a chain: its tasks [first_task, first_task + tasks) among those of each owner.
struct Stage {
  const Phase* phase;
  int64_t first_task, tasks;
  int64_t first_product;  // of a phase of products: of its tasks, in the chain's list
};

// Phases that are one job. A gate opens when an owner's tasks of a stage are done.
struct Chain {
  std::vector<Stage> stages;
  std::vector<ProductTask> products;
  std::vector<Gate> gates;  // [owners][stages]
};

// One run: the program, its input, and where the rows of each buffer are.
struct Replay {
  const Program& program;
  const StepInput& input;
  const Kernels& k;
  Sharing sharing;
  Arena arena;
  const KvPrefetch* kv_prefetch;  // null: K and V are fetched when attention reads them

  const Owners& owners(Rows rows) const { return arena.owners(rows); }
  const Buffer& buffer(BufferId id) const { return program.buffer(id); }
  const float* given(int64_t row) const { return input.x + row * buffer(program.given_).width; }

  // A row, whose owner is `at`.
  float* row_of(BufferId id, const OwnerRows& at, int64_t row) const { return at.row(buffer(id), row); }
  const float* read(BufferId id, const OwnerRows& at, int64_t row) const {
    return id == program.given_ ? given(row) : row_of(id, at, row);
  }
  // Any row of a buffer that is shared.
  float* shared_row(BufferId id, int64_t row) const { return arena.shared_row(buffer(id), row); }
  const float* read_shared(BufferId id, int64_t row) const {
    return id == program.given_ ? given(row) : shared_row(id, row);
  }

  Activations codes(BufferId id, const OwnerRows& at) const {
    return activations_in(at.first_row(buffer(id)), at.count, buffer(id).width);
  }
  uint8_t* rounded(BufferId id, const OwnerRows& at, int64_t row) const {
    const int64_t row_bytes = buffer(id).width * k.rounded_bytes;
    return reinterpret_cast<uint8_t*>(at.first_row(buffer(id))) + (row - at.first) * row_bytes;
  }

  // -- row operations -------------------------------------------------------------------------------
  void operator()(const Embed& op, const OwnerRows& at, int64_t row) const {
    const int32_t index = (op.source == Source::tokens ? input.tokens : input.positions)[row];
    const Weight& w = op.table;
    if (w.has_codes()) {
      k.unpack_codes(w.panels, w.kind, w.inputs, index, row_of(op.out, at, row));
    } else {
      k.unpack_row(w.panels, w.kind, w.inputs, index, row_of(op.out, at, row));
    }
  }
  void operator()(const Take& op, const OwnerRows& at, int64_t row) const {
    const int64_t width = buffer(op.x).width;
    std::copy_n(read_shared(op.x, input.logit_rows[row]), width, row_of(op.out, at, row));
  }
  void operator()(const RmsNorm& op, const OwnerRows& at, int64_t row) const {
    const float* x = read(op.x, at, row);
    float* out = row_of(op.out, at, row);
    for (int64_t i = 0; i < buffer(op.x).width; i += op.size) {
      k.rms_norm(x + i, op.weight, op.eps, op.size, out + i);
    }
  }
  void operator()(const LayerNorm& op, const OwnerRows& at, int64_t row) const {
    k.layer_norm(read(op.x, at, row), op.weight, op.bias, op.eps, buffer(op.x).width,
                 row_of(op.out, at, row));
  }
  void operator()(const Rope& op, const OwnerRows& at, int64_t row) const {
    const int64_t angles = input.positions[row] * op.half;
    k.rope(read(op.x, at, row), op.cos + angles, op.sin + angles, buffer(op.x).width / op.head_size,
           op.head_size, 2 * op.half, row_of(op.out, at, row));
  }
  void operator()(const Store& op, const OwnerRows& at, int64_t row) const {
    const KvLayer& kv = program.layers_[static_cast<size_t>(op.layer)];
    const int64_t chunk = std::upper_bound(input.offsets, input.offsets + input.num_chunks + 1, row) -
                          input.offsets - 1;
    const int64_t position = input.positions[row];
    const int32_t block = input.tables[chunk * input.table_width + position / kv.block_size];
    k.store_kv(kv, block, position % kv.block_size, read(op.k, at, row), read(op.v, at, row));
  }
  void operator()(const Gated& op, const OwnerRows& at, int64_t row) const {
    k.gated(op.function, read(op.gate, at, row), read(op.up, at, row), buffer(op.out).width,
            row_of(op.out, at, row));
  }
  void operator()(const Activate& op, const OwnerRows& at, int64_t row) const {
    k.map(op.function, read(op.x, at, row), buffer(op.out).width, row_of(op.out, at, row));
  }
  void operator()(const Add& op, const OwnerRows& at, int64_t row) const {
    k.add(read(op.x, at, row), read(op.y, at, row), buffer(op.out).width, row_of(op.out, at, row));
  }
  void operator()(const Scale& op, const OwnerRows& at, int64_t row) const {
    k.scale(read(op.x, at, row), op.factor, buffer(op.out).width, row_of(op.out, at, row));
  }
  void operator()(const SoftCap& op, const OwnerRows& at, int64_t row) const {
    k.soft_cap(read(op.x, at, row), op.cap, buffer(op.out).width, row_of(op.out, at, row));
  }
  void operator()(const Round& op, const OwnerRows& at, int64_t row) const {
    k.round_row(read(op.x, at, row), buffer(op.x).width, rounded(op.out, at, row));
  }

  // Rows [first, last), all of the owner `at`.
  template <class Op>
  void run_op(const Op& op, const OwnerRows& at, int64_t first, int64_t last) const {
    for (int64_t row = first; row < last; ++row) (*this)(op, at, row);
  }
  void run_op(const Quantise& op, const OwnerRows& at, int64_t first, int64_t last) const {
    k.quantise_rows(read(op.x, at, first), op.kind, first - at.first, last - first, codes(op.out, at));
  }

  // How many tasks the rows of each owner make.
  int64_t num_row_tasks(const Phase& phase) const {
    const Owners all = owners(phase.rows);
    int64_t work = 0;
    for (const RowOp& op : phase.row_ops) work += all.rows * width_of(op);
    const int64_t wanted = tasks_for(all.rows, work, row_work_min, sharing.threads);
    return (wanted + all.count - 1) / all.count;
  }

  void run_row_task(const Phase& phase, int64_t owner, int64_t task, int64_t tasks) const {
    const OwnerRows at = arena.rows_of_owner(phase.rows, owner);
    const int64_t end = at.first + at.count * (task + 1) / tasks;
    for (int64_t row = at.first + at.count * task / tasks; row < end; row += rows_together) {
      const int64_t last = std::min(row + rows_together, end);
      for (const RowOp& op : phase.row_ops) {
        std::visit([&](const auto& one) { run_op(one, at, row, last); }, op);
      }
    }
  }

  // body(owner, task) for `tasks` tasks of each owner. Where all rows have one owner, tasks are shared out by
  // their place, so that a thread meets the same rows or outputs again.
  template <class Body>
  void by_owner(int64_t owners, int64_t tasks, Body&& body) const {
    int64_t first[Team::owners_max + 1];
    const int64_t parts = owners > 1 ? owners : std::min<int64_t>(sharing.threads, Team::owners_max);
    for (int64_t part = 0; part <= parts; ++part) first[part] = (owners * tasks * part + parts - 1) / parts;
    parallel_by_owner(first, parts, [&](int64_t task) { body(task / tasks, task % tasks); });
  }

  int64_t width_of(const RowOp& op) const {
    return std::visit(
        [&](const auto& one) {
          if constexpr (requires { one.out; }) {
            return buffer(one.out).width;
          } else {
            return 2 * buffer(one.k).width;
          }
        },
        op);
  }

  // -- products -------------------------------------------------------------------------------------
  const void* input_of(const Linear& op, const OwnerRows& at) const {  // of one without codes
    const bool is_rounded = op.weight.row_form() == RowForm::rounded;
    return is_rounded ? static_cast<const void*>(rounded(op.x, at, at.first)) : read(op.x, at, at.first);
  }

  void run_product(const ProductTask& task, int64_t owner) const {
    const Linear& op = *task.op;
    const Weight& w = op.weight;
    const OwnerRows at = arena.rows_of_owner(buffer(op.out).rows, owner);
    float* y = row_of(op.out, at, at.first);
    KvPrefetchCursor kv_cursor{};
    if (kv_prefetch) kv_cursor = kv_prefetch->part_of(program, op, owner, task.first, task.last);
    if (w.has_codes()) {
      k.integer_product({codes(op.x, at), w.panels, w.kind, op.bias, y, w.outputs, &kv_cursor}, task.first,
                        task.last);
    } else {
      k.product({input_of(op, at), w.panels, op.bias, y, at.count, w.inputs, w.outputs, w.kind, &kv_cursor},
                task.first, task.last);
    }
  }

  // Adds tasks of about equal work, each within one product, the same for the rows of each owner.
  void list_products(const Phase& phase, std::vector<ProductTask>& tasks) const {
    int64_t all = 0;
    for (const Linear& op : phase.products) all += op.weight.outputs * op.weight.inputs;
    const Owners whole = owners(buffer(phase.products[0].out).rows);
    const int64_t rows = whole.rows_of(0);
    const bool of_codes = phase.products[0].weight.has_codes();
    const int64_t task_work = of_codes ? code_task_work : float_task_work;
    const int64_t finer = sharing.threads > 1 ? rows * all / task_work : 1;
    const int64_t enough = tasks_for(all, whole.rows * all, product_work_min, sharing.threads) / whole.count;
    const int64_t wanted = std::max(enough, finer);
    for (const Linear& op : phase.products) {
      const int64_t panels = (op.weight.outputs + panel_width - 1) / panel_width;
      const int64_t own = op.weight.outputs * op.weight.inputs;
      int64_t share = std::max<int64_t>(1, (wanted * own + all / 2) / all);
      const bool are_far = of_codes && rows * op.weight.inputs > far_codes;
      if (are_far) share = std::min(share, std::max(sharing.threads, panels / panels_beside_far_codes));
      const int64_t unit = panel_unit(op, rows, panels, share), units = (panels + unit - 1) / unit;
      const int64_t parts = std::min(units, share);
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t first = units * part / parts * unit, last = units * (part + 1) / parts * unit;
        tasks.push_back({&op, first, std::min(last, panels)});
      }
    }
  }

  // -- chains of phases of rows and of products -------------------------------------------------------
  // Where rows have owners, what a phase makes of one owner's rows waits for nothing of another's: such phases
  // are one job, in which each owner passes from phase to phase by itself. `count` is 1 where they have not.
  void run_chain(const Phase* phases, int64_t count) const {
    static thread_local Chain own;  // keeps its memory from chain to chain
    Chain& chain = own;             // of this thread: a worker has one of its own
    const int64_t num_owners = owners(phases[0].rows).count;
    chain.stages.clear();
    chain.products.clear();
    int64_t tasks = 0;
    for (const Phase* phase = phases; phase < phases + count; ++phase) {
      const auto first_product = static_cast<int64_t>(chain.products.size());
      int64_t size = phase->kind == Phase::Kind::rows ? num_row_tasks(*phase) : 0;
      if (phase->kind == Phase::Kind::products) {
        list_products(*phase, chain.products);
        size = static_cast<int64_t>(chain.products.size()) - first_product;
      }
      chain.stages.push_back({phase, tasks, size, first_product});
      tasks += size;
    }
    if (chain.gates.size() < static_cast<size_t>(num_owners * count)) {
      chain.gates = std::vector<Gate>(static_cast<size_t>(num_owners * count));
    }
    for (int64_t i = 0; i < num_owners * count; ++i) {
      chain.gates[static_cast<size_t>(i)].close(chain.stages[static_cast<size_t>(i % count)].tasks);
    }
    by_owner(num_owners, tasks, [&](int64_t owner, int64_t task) { run_in_chain(chain, owner, task); });
  }

  void run_in_chain(Chain& chain, int64_t owner, int64_t task) const {
    size_t index = chain.stages.size() - 1;
    while (task < chain.stages[index].first_task) --index;
    const Stage& stage = chain.stages[index];
    Gate* gate = &chain.gates[static_cast<size_t>(owner) * chain.stages.size() + index];
    if (index > 0) gate[-1].wait();
    const int64_t own = task - stage.first_task;
    if (stage.phase->kind == Phase::Kind::rows) {
      run_row_task(*stage.phase, owner, own, stage.tasks);
    } else {
      run_product(chain.products[static_cast<size_t>(stage.first_product + own)], owner);
    }
    if (chain.stages.size() > 1) gate->pass();
  }

  // -- the largest of each row ----------------------------------------------------------------------
  // Of the result, which has been computed.
  void find_argmax(int32_t* out) const {
    const Buffer& result = buffer(program.result_);
    parallel(owners(result.rows).rows, [&](int64_t row) {
      out[row] = k.argmax(shared_row(program.result_, row), result.width);
    });
  }

  // Of a product's outputs, which exist only some panels at a time: they have the bits that `run_product` writes.
  void run_argmax(const Linear& op, int32_t* out) const {
    static thread_local std::vector<Largest> found;  // [slices][rows], kept from run to run
    const Owners all = owners(buffer(op.out).rows);
    const int64_t slice = argmax_panels * panel_width, slices = (op.weight.outputs + slice - 1) / slice;
    found.assign(static_cast<size_t>(slices * all.rows), {});
    Largest* places = found.data();
    by_owner(all.count, slices, [&](int64_t owner, int64_t task) {
      const int64_t first = task * slice, width = std::min(slice, op.weight.outputs - first);
      const int64_t row = all.first(owner), rows = all.rows_of(owner);
      const float* y = outputs_between(op, owner, first, width);
      for (int64_t i = 0; i < rows; ++i) {
        places[task * all.rows + row + i] = largest_of(k, y + i * width, width, first);
      }
    });
    for (int64_t row = 0; row < all.rows; ++row) {
      Largest best;
      for (int64_t i = 0; i < slices; ++i) best.take_in(places[i * all.rows + row]);
      out[row] = best.index;
    }
  }

  // Outputs [first, first + width) of an owner's rows, (rows, width): of this thread, until the next call.
  const float* outputs_between(const Linear& op, int64_t owner, int64_t first, int64_t width) const {
    static thread_local std::vector<float> y;
    const Weight& w = op.weight;
    const OwnerRows at = arena.rows_of_owner(buffer(op.out).rows, owner);
    const int64_t rows = at.count, panel = first / panel_width;
    const int64_t panels = (width + panel_width - 1) / panel_width;
    if (y.size() < static_cast<size_t>(rows * width)) y.resize(static_cast<size_t>(rows * width));
    const float* bias = op.bias ? op.bias + first : nullptr;
    if (w.has_codes()) {
      const uint8_t* codes_of_panels = w.panels + panel * code_panel_bytes(w.kind, w.inputs);
      k.integer_product({codes(op.x, at), codes_of_panels, w.kind, bias, y.data(), width}, 0, panels);
    } else {
      const uint8_t* floats = w.panels + panel * bytes_of(w.kind, panel_width * w.inputs);
      k.product({input_of(op, at), floats, bias, y.data(), rows, w.inputs, width, w.kind}, 0, panels);
    }
    return y.data();
  }

  AttentionStep attention_step(const Attend& op) const {
    const KvLayer& kv = program.layers_[static_cast<size_t>(op.layer)];
    const int64_t heads = buffer(op.q).width / kv.head_size;
    return {kv, read_shared(op.q, 0), shared_row(op.out, 0), nullptr, input.starts, input.offsets,
            input.tables, input.table_width, input.num_chunks, heads, op.scale, op.window,
            op.soft_cap, op.sinks, op.slopes, 0, owners(Rows::tokens).count, nullptr};
  }

  void run_attention_phase(const Phase& phase) const {
    for (const Attend& op : phase.attention) run_attention(attention_step(op));
  }

  void run_experts_phase(const Phase& phase) const {
    for (const Route& op : phase.experts) {
      run_experts({*op.mixture, read_shared(op.x, 0), read_shared(op.logits, 0), shared_row(op.out, 0),
                   owners(phase.rows).rows});
    }
  }

  // How many of the phases in [first, end), from `first` on, are one job.
  int64_t chain_length(const Phase* first, const Phase* end) const {
    if (owners(first->rows).count == 1) return 1;
    const Phase* next = first + 1;
    while (next < end && next->is_chained_to(next[-1])) ++next;
    return next - first;
  }

  void run_phases(const Phase* first, int64_t count) const {
    if (first->kind == Phase::Kind::attention) return run_attention_phase(*first);
    if (first->kind == Phase::Kind::experts) return run_experts_phase(*first);
    run_chain(first, count);
  }
};

// One run at a time.
class Program::Running {
 public:
  explicit Running(std::atomic<bool>& flag) : flag_(flag) {
    if (flag.exchange(true)) throw std::logic_error("the program is running in another thread");
  }
  ~Running() { flag_.store(false); }

 private:
  std::atomic<bool>& flag_;
};

// Runs phase `index`, or `body` instead of it; measures the time if phases are timed.
template <class Body>
void Program::timed(size_t index, Body&& body) {
  if (phase_seconds_.empty()) return body();
  const auto begun = std::chrono::steady_clock::now();
  body();
  phase_seconds_[index] += seconds_since(begun);
}

}  // namespace octavo
