// A function over rows, recorded once and replayed in one call: no interpreter, no allocation, and as few
// barriers as its data needs.
//
//   recorded          ops in the decoder's order, each writing one fresh buffer
//   phases            ops that may run side by side, in four kinds:
//                       rows       a chain of row operations; each task takes some rows through all of them
//                       products   linear layers; each task takes some output panels of one of them
//                       attention  one layer's
//                       experts    one layer's: experts.hpp
//                     over the step's tokens or over the rows whose logits are wanted; a barrier stands
//                     between phases and nowhere else
//   chains            with many rows each thread keeps its own (team.hpp), and passes through all phases
//                     between two of attention or experts without waiting for the others
//   arena             every buffer has a place (arena.hpp), which others take once it is needed no more
//
// An op joins the earliest phase of its kind that comes after whatever it reads; so q, k and v are one phase,
// gate and up another, and a layer of Llama has nine. Replaying runs the very kernels that the eager calls
// run, over the same rows: not one bit differs.
//
// No Python and no model here. Pointers given while recording must outlive the program.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cold_reader.hpp"
#include "experts.hpp"
#include "kernels/kernels.hpp"
#include "kv_prefetch.hpp"
#include "weight.hpp"

namespace octavo {

using BufferId = int32_t;

enum class Rows { tokens, logits };     // what a buffer has a row for
enum class Source { tokens, positions };  // which of a step's integers choose an embedding's rows

struct Buffer {
  Rows rows;
  int64_t width;         // numbers in a row
  RowForm form;
  bool is_shared;        // read by others than a row's owner: attention, experts, `take`, the caller
  int64_t first_phase, last_phase;
  int64_t place;         // in its part of the arena, in floats for each row

  // What one row takes in the arena: whole cache lines.
  int64_t floats() const {
    return ((form == RowForm::codes ? activation_words(1, width) : width) + 15) / 16 * 16;
  }
};

// The ops. `out` is the buffer that one writes, the other ids are read.
struct Embed { Weight table; Source source; BufferId out; };
struct Take { BufferId x, out; };
struct RmsNorm { BufferId x; const float* weight; float eps; int64_t size; BufferId out; };
struct LayerNorm { BufferId x; const float *weight, *bias; float eps; BufferId out; };
struct Round { BufferId x, out; };
struct Quantise { BufferId x; Kind kind; BufferId out; };
struct Linear {
  BufferId x;
  Weight weight;
  const float* bias;
  BufferId out;
  // Which attention comes next (-1: none), and how much of the work until then comes before: inputs
  // times panels of outputs.
  int64_t next_layer = -1, next_window = 0;
  int64_t work_before = 0, work_between = 0;
};
struct Rope { BufferId x; const float *cos, *sin; int64_t half, head_size; BufferId out; };
struct Store { BufferId k, v; int64_t layer; };
struct Attend {
  BufferId q;
  int64_t layer;
  float scale;
  int64_t window;  // 0: none
  float soft_cap;  // 0: none
  const float *sinks, *slopes;  // (H,) or null
  BufferId out;
};
struct Route { BufferId x, logits; const Mixture* mixture; BufferId out; };
struct Gated { BufferId gate, up; Map function; BufferId out; };
struct Activate { BufferId x; Map function; BufferId out; };
struct Add { BufferId x, y, out; };
struct Scale { BufferId x; float factor; BufferId out; };
struct SoftCap { BufferId x; float cap; BufferId out; };

using RowOp = std::variant<Embed, Take, RmsNorm, LayerNorm, Round, Quantise, Rope, Store, Gated, Activate,
                           Add, Scale, SoftCap>;

struct Phase {
  enum class Kind { rows, products, attention, experts } kind;
  Rows rows;  // which all its ops are over
  std::vector<RowOp> row_ops;
  std::vector<Linear> products;
  std::vector<Attend> attention;
  std::vector<Route> experts;

  // Whether rows pass through it one by one. Attention reads others; experts gather those that chose them.
  bool is_by_row() const { return kind == Kind::rows || kind == Kind::products; }

  // Whether rows that have owners (team.hpp) may pass from `before` to this phase without waiting for
  // others': nothing else reads another row but what takes the wanted ones.
  bool is_chained_to(const Phase& before) const {
    return is_by_row() && before.is_by_row() && rows == before.rows;
  }
};

// One step's input. The caller has checked the indices.
struct StepInput {
  int64_t num_tokens, num_logit_rows, num_chunks, table_width;
  const int32_t *tokens, *positions, *logit_rows;  // (T,), (T,), (R,)
  const int32_t *starts, *offsets, *tables;        // (C,), (C + 1,), (C, W)
  const float* x;                                  // rows given from outside, for a program that has such
};

struct Replay;
struct ColdStep;

class Program {
 public:
  // `layers[i]` is where layer i's K and V are; empty for a program that attends to nothing.
  explicit Program(std::vector<KvLayer> layers);
  ~Program();

  // -- recording ------------------------------------------------------------------------------------
  BufferId given_rows(int64_t width);
  BufferId embed(const Weight& table, Source source);
  BufferId take(BufferId x);
  BufferId rms_norm(BufferId x, const float* weight, int64_t size, float eps);
  BufferId layer_norm(BufferId x, const float* weight, const float* bias, float eps);
  BufferId linear(BufferId x, const Weight& weight, const float* bias);
  // cos and sin: (positions, half).
  BufferId rope(BufferId x, const float* cos, const float* sin, int64_t positions, int64_t half,
                int64_t head_size);
  void store(int64_t layer, BufferId k, BufferId v);
  // All but `out` of the op is given.
  BufferId attend(Attend op);
  // logits: of the router, (rows, experts). The mixture must outlive the program.
  BufferId experts(BufferId x, BufferId logits, const Mixture* mixture);
  BufferId gated(BufferId gate, BufferId up, Map function);
  BufferId activate(BufferId x, Map function);
  BufferId add(BufferId x, BufferId y);
  BufferId scale(BufferId x, float factor);
  BufferId soft_cap(BufferId x, float cap);
  // Ends the recording: `result` stays readable after a run.
  void finish(BufferId result);

  // -- replaying ------------------------------------------------------------------------------------
  // The result's rows, contiguous; valid until the next run. One run at a time: throws std::logic_error.
  const float* run(const StepInput& input);
  // out[i]: the lowest index of the largest number in row i of the result; -1 where there is NaN or +inf, or
  // nothing but -inf. A product that would be the result is not written: its largest is found piece by piece.
  void run_argmax(const StepInput& input, int32_t* out);

  // -- one step in several calls, whose block tables may have cold entries (cold_step.hpp) ---------------
  // Copies the input and starts to read. `memory` must stay until the step has ended; `num_blocks` are the
  // pool's. Throws std::logic_error where a step is under way already or `memory` serves another program's.
  void begin_step(const StepInput& input, int64_t num_blocks, ColdReader& memory);
  // Runs on until `num_layers` more phases of attention are done, after the last one to the end: the result's
  // rows as of `run`, or null where the step goes on. `tables` replace those before; where cold entries
  // differ, what was read ahead is dropped. `check` is called first, and may refuse them by throwing.
  const float* advance(const int32_t* tables, int64_t num_layers,
                       const std::function<void(const ColdStep&)>& check);
  // Waits for reads in flight and forgets the step, if there is one.
  void abandon();
  // Slots that the step that ended last could not read, in ascending order: they counted as zeros.
  std::vector<int32_t> failed_slots();
  // Of all such steps so far.
  ColdStats cold_stats() const { return {cold_bytes_read_, cold_wait_ns_}; }

  // Whether steps prefetch the next attention's K and V while linear layers run. Without a value the trial
  // decides. Neither this nor the trial may be used while the program runs.
  void prefetch_kv(std::optional<bool> wanted) { wants_kv_prefetch_ = wanted; }
  // Whether it has paid in steps of about so many rows.
  Trial& kv_prefetch_trial(int64_t rows) {
    return trials_[std::min(static_cast<size_t>(std::bit_width(static_cast<uint64_t>(rows))), trials_.size() - 1)];
  }

  // Seconds that each phase has taken, summed over all runs since `time_phases(true)`, and what it does.
  struct PhaseTime {
    std::string what;
    double seconds;
  };
  void time_phases(bool on);
  std::vector<PhaseTime> phase_times() const;

  const std::vector<Phase>& phases() const { return phases_; }
  const Buffer& buffer(BufferId id) const { return buffers_[static_cast<size_t>(id)]; }
  int64_t num_buffers() const { return static_cast<int64_t>(buffers_.size()); }
  BufferId result() const { return result_; }
  BufferId given() const { return given_; }
  const KvLayer& layer(int64_t index) const { return layers_[static_cast<size_t>(index)]; }
  // The size of a part of the arena, in floats for each row.
  int64_t floats_per_row(Rows rows, bool is_shared) const {
    return part_floats_[rows == Rows::logits][is_shared];
  }
  // The first block of a chunk's table that a step may read: earlier ones lie before every layer's window.
  int64_t first_block(int64_t start) const;
  const std::vector<int64_t>& windows() const { return windows_; }  // of all attention, each once
  bool reads_step() const { return reads_step_; }
  int64_t num_weights() const { return num_weights_; }  // of all linear layers
  int64_t weight_bytes() const { return weight_bytes_; }
  std::shared_ptr<float> arena() const { return arena_; }
  bool is_finished() const { return result_ >= 0; }
  int64_t num_phases() const { return static_cast<int64_t>(phases_.size()); }
  int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }
  int64_t largest_row_of(Source source) const;  // embedding rows that `source` may choose from
  int64_t rope_positions() const { return rope_positions_; }

 private:
  friend struct Replay;
  friend struct ColdStep;

  BufferId new_buffer(Rows rows, int64_t width, RowForm form = RowForm::floats);
  int64_t after(std::initializer_list<BufferId> read, Phase::Kind kind) const;
  Phase& phase_for(Phase::Kind kind, Rows rows, int64_t earliest, std::initializer_list<BufferId> read,
                   BufferId out);
  template <class Op>
  BufferId add_row_op(Op op, std::initializer_list<BufferId> read, int64_t width, Rows rows);
  BufferId prepared(BufferId x, const Weight& weight);
  void place_buffers();
  void find_next_attention();

  class Running;
  Replay begin(const StepInput& input);
  float* memory_for(int64_t floats);
  template <class Body>
  void timed(size_t phase, Body&& body);
  void run_phases(const Replay& replay, size_t count);
  void require_no_cold_step() const;
  void drop_cold_step();
  void take_cold_stats();

  std::vector<KvLayer> layers_;
  std::vector<int64_t> stored_in_;  // by layer: the phase that stores it, or -1
  std::vector<Buffer> buffers_;
  std::vector<Phase> phases_;
  struct Prepared { BufferId x; Kind kind; BufferId out; };
  std::vector<Prepared> prepared_;
  BufferId result_ = -1, given_ = -1;
  std::vector<int64_t> windows_;
  int64_t widest_window_ = 0;  // 0: a layer sees everything
  bool attends_ = false;
  int64_t part_floats_[2][2] = {};  // by `rows == Rows::logits` and `is_shared`
  int64_t rope_positions_ = INT64_MAX;
  int64_t token_rows_ = INT64_MAX, position_rows_ = INT64_MAX;
  int64_t num_weights_ = 0, weight_bytes_ = 0;

  KvPrefetch kv_prefetch_;
  std::optional<bool> wants_kv_prefetch_;
  int64_t num_runs_ = 0;
  std::array<Trial, 16> trials_;       // by the number of binary digits of a step's rows
  std::vector<double> phase_seconds_;  // empty: not timed
  bool reads_step_ = false;  // not of given rows alone
  std::atomic<bool> running_{false};
  std::shared_ptr<float> arena_;  // an array over a result keeps it alive
  int64_t arena_floats_ = 0;

  std::unique_ptr<ColdStep> cold_step_;  // suspended, or being advanced
  std::vector<int32_t> failed_slots_;
  std::atomic<int64_t> cold_bytes_read_{0}, cold_wait_ns_{0};
};

}  // namespace octavo
