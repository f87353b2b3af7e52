// How a step's experts are shared out.
//
// Up to four jobs of the team, the first two of which are one task each where rows are few:
//
//   route     rows                          choices; then the caller sorts them into places
//   gather    places                        inputs, rounded or quantised as the weights need them
//   inner     (expert, output panels)       gate, up, activation and the codes of what comes out: a task
//                                           makes whole groups of 32, so nothing waits for all of a row
//   outer     output panels of all experts  down, weighted and summed up: a task owns some columns of `out`,
//                                           goes from expert to expert in order, and shares nothing
//
// Tasks go through their rows and outputs in blocks, so that what lies between two products stays in a core's
// caches, and each weight is read from memory once a task.
#include "experts.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>

#include "dispatch.hpp"
#include "team.hpp"

namespace octavo {
namespace {

constexpr int64_t block_rows = 96;    // of an expert, between two products
constexpr int64_t block_panels = 8;   // of outputs, likewise
constexpr int64_t block_width = block_panels * panel_width;
constexpr int64_t group_panels = quant_group / panel_width;  // whose outputs become one group of codes

constexpr int64_t row_work_min = 1 << 13;      // floats below which sharing costs more than it saves
constexpr int64_t product_work_min = 1 << 17;  // multiply-adds, likewise
constexpr int64_t inner_task_work = 1 << 20;   // multiply-adds of a task, where outputs can be cut so finely
constexpr int64_t outer_tasks_per_thread = 8;  // each reads all of `inner`

// Memory that grows, and begins at a cache line.
class Room {
 public:
  float* of(int64_t floats) {
    if (floats > floats_) {
      const int64_t wanted = std::max(floats, 2 * floats_);
      floats_ = 0;  // should there be no memory for it
      memory_.reset();
      const auto bytes = static_cast<size_t>((wanted * 4 + 63) / 64 * 64);
      memory_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
      if (!memory_) throw std::bad_alloc();
      floats_ = wanted;
    }
    return memory_.get();
  }

 private:
  struct Freed {
    void operator()(float* memory) const { std::free(memory); }
  };
  std::unique_ptr<float, Freed> memory_;
  int64_t floats_ = 0;
};

// Rows as weights of one kind take them: floats or rounded numbers (rows, width), or codes.
struct Form {
  Kind kind;
  RowForm form;

  explicit Form(const Weight& weight) : kind(weight.kind), form(weight.row_form()) {}
  bool operator==(const Form& other) const {
    return form == other.form && (form != RowForm::codes || kind == other.kind);
  }
  int64_t floats(int64_t rows, int64_t width) const {
    const int64_t needed = form == RowForm::codes ? activation_words(code_stride(rows), width) : rows * width;
    return (needed + 15) / 16 * 16;  // whole cache lines
  }
};

// An expert that some rows chose: its places [first, first + rows), and where its rows lie.
struct Used {
  const Expert* expert;
  int64_t first, rows;
  float *for_gate, *for_up, *inner;  // for_up is for_gate where both take the same form
};

struct Place {
  int64_t used;  // index among the used experts
  int64_t row;
  float weight;
  bool is_first;  // of the row's experts
};

struct Scratch {
  std::vector<int32_t> chosen;   // (rows, top_k)
  std::vector<float> weights;    // (rows, top_k)
  std::vector<int64_t> places_of;  // (experts + 1,) where each one's places begin
  std::vector<Place> places;
  std::vector<Used> used;
  std::vector<int64_t> first_task;  // of each used expert, and the end
  Room room;
};

// Of one thread, between two products.
struct Blocks {
  alignas(64) float first[block_rows * block_width];
  alignas(64) float second[block_rows * block_width];
};

Blocks& own_blocks() {
  static thread_local Blocks blocks;
  return blocks;
}

// Rows [row, row + rows) of groups [group, group + groups).
Activations part_of(const Activations& all, int64_t row, int64_t rows, int64_t group, int64_t groups) {
  const int64_t at = group * all.stride + row;
  return {rows,
          all.stride,
          groups * quant_group,
          all.codes + at * quant_group,
          all.scales + at,
          all.origins + at,
          all.starts + at,
          all.shifts + at};
}

// -- routing ----------------------------------------------------------------------------------------

// The top_k largest of `logits`, in ascending order of their indices.
void choose(const float* logits, int64_t count, int64_t top_k, int32_t* chosen) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (found == top_k && !(logits[i] > logits[chosen[found - 1]])) continue;
    int64_t at = found < top_k ? found++ : found - 1;
    for (; at > 0 && logits[i] > logits[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
    chosen[at] = static_cast<int32_t>(i);
  }
  std::sort(chosen, chosen + top_k);
}

// In order, in double, rounded once.
float sum_of(const float* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]);
  return static_cast<float>(sum);
}

// exp(x - the largest of x) in place; its sum.
float exponentials(const Kernels& k, float* x, int64_t count) {
  const float largest = *std::max_element(x, x + count);
  for (int64_t i = 0; i < count; ++i) x[i] -= largest;
  k.map(Map::exp, x, count, x);
  return sum_of(x, count);
}

// What each chosen expert counts. `all` has room for every expert.
void weigh(const Kernels& k, const Mixture& mixture, const float* logits, const int32_t* chosen, float* all,
           float* weights) {
  const Routing& routing = mixture.routing;
  const auto count = static_cast<int64_t>(mixture.experts.size());
  for (int64_t i = 0; i < routing.top_k; ++i) weights[i] = logits[chosen[i]];
  if (routing.scoring == Scoring::softmax) {
    std::copy_n(logits, count, all);
    const float sum = exponentials(k, all, count);
    for (int64_t i = 0; i < routing.top_k; ++i) weights[i] = all[chosen[i]] / sum;
  } else if (routing.scoring == Scoring::softmax_of_chosen) {
    const float sum = exponentials(k, weights, routing.top_k);
    for (int64_t i = 0; i < routing.top_k; ++i) weights[i] /= sum;
  } else {
    for (int64_t i = 0; i < routing.top_k; ++i) weights[i] = -weights[i];
    k.map(Map::exp, weights, routing.top_k, weights);
    for (int64_t i = 0; i < routing.top_k; ++i) weights[i] = 1.0f / (1.0f + weights[i]);
  }
  if (!routing.normalised) return;
  const float sum = sum_of(weights, routing.top_k);
  for (int64_t i = 0; i < routing.top_k; ++i) weights[i] /= sum;
}

// One row's choices. Where a logit is NaN, the first experts, and weights that are NaN: the row is lost, and
// no other one.
void route(const Kernels& k, const Mixture& mixture, const float* logits, int32_t* chosen, float* weights) {
  static thread_local std::vector<float> all;
  const auto count = static_cast<int64_t>(mixture.experts.size());
  const int64_t top_k = mixture.routing.top_k;
  if (std::any_of(logits, logits + count, [](float value) { return value != value; })) {
    for (int64_t i = 0; i < top_k; ++i) chosen[i] = static_cast<int32_t>(i);
    std::fill_n(weights, top_k, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  if (all.size() < mixture.experts.size()) all.resize(mixture.experts.size());
  choose(logits, count, top_k, chosen);
  weigh(k, mixture, logits, chosen, all.data(), weights);
}

}  // namespace

// One run.
class ExpertsRun {
 public:
  ExpertsRun(const ExpertsStep& step, Scratch& scratch)
      : step_(step),
        mixture_(step.mixture),
        k_(kernels()),
        scratch_(scratch),
        hidden_(step.mixture.hidden_size()),
        inner_(step.mixture.inner_size()),
        threads_(Team::instance().size()) {}

  void run() {
    choose_experts();
    sort_places();
    lay_out();
    gather();
    make_inner();
    make_outer();
  }

 private:
  // -- 1. choices, places, and where all lies ---------------------------------------------------------
  void choose_experts() {
    const auto experts = static_cast<int64_t>(mixture_.experts.size());
    const int64_t top_k = mixture_.routing.top_k, rows = step_.rows;
    scratch_.chosen.resize(static_cast<size_t>(rows * top_k));
    scratch_.weights.resize(static_cast<size_t>(rows * top_k));
    int32_t* chosen = scratch_.chosen.data();
    float* weights = scratch_.weights.data();
    const int64_t tasks = tasks_for(rows, 4 * rows * experts, row_work_min, threads_);
    parallel(tasks, [&](int64_t task) {
      for (int64_t row = rows * task / tasks; row < rows * (task + 1) / tasks; ++row) {
        route(k_, mixture_, step_.logits + row * experts, chosen + row * top_k, weights + row * top_k);
      }
    });
  }

  void sort_places() {
    const size_t experts = mixture_.experts.size();
    const int64_t top_k = mixture_.routing.top_k, count = step_.rows * top_k;
    std::vector<int64_t>& next = scratch_.places_of;
    next.assign(experts + 1, 0);
    for (const int32_t chosen : scratch_.chosen) ++next[static_cast<size_t>(chosen) + 1];
    scratch_.used.clear();
    std::vector<int64_t>& used_of = scratch_.first_task;  // for now: which of the used ones an expert is
    used_of.assign(experts, -1);
    int64_t first = 0;
    for (size_t e = 0; e < experts; ++e) {
      const int64_t rows = next[e + 1];
      next[e] = first;
      if (rows == 0) continue;
      used_of[e] = static_cast<int64_t>(scratch_.used.size());
      scratch_.used.push_back({&mixture_.experts[e], first, rows, nullptr, nullptr, nullptr});
      first += rows;
    }
    scratch_.places.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const auto expert = static_cast<size_t>(scratch_.chosen[static_cast<size_t>(i)]);
      scratch_.places[static_cast<size_t>(next[expert]++)] = {used_of[expert], i / top_k,
                                                              scratch_.weights[static_cast<size_t>(i)],
                                                              i % top_k == 0};
    }
  }

  void lay_out() {
    int64_t floats = 0;
    for (const Used& used : scratch_.used) floats += floats_of(used);
    float* at = scratch_.room.of(floats);
    for (Used& used : scratch_.used) {
      const Form gate(used.expert->gate.weight), up(used.expert->up.weight), down(used.expert->down.weight);
      used.for_gate = at;
      at += gate.floats(used.rows, hidden_);
      used.for_up = gate == up ? used.for_gate : at;
      if (!(gate == up)) at += up.floats(used.rows, hidden_);
      used.inner = at;
      at += down.floats(used.rows, inner_);
    }
  }

  int64_t floats_of(const Used& used) const {
    const Form gate(used.expert->gate.weight), up(used.expert->up.weight), down(used.expert->down.weight);
    return gate.floats(used.rows, hidden_) + (gate == up ? 0 : up.floats(used.rows, hidden_)) +
           down.floats(used.rows, inner_);
  }

  // -- 2. inputs --------------------------------------------------------------------------------------
  void gather() {
    const auto count = static_cast<int64_t>(scratch_.places.size());
    const int64_t tasks = tasks_for(count, count * hidden_, row_work_min, threads_);
    parallel(tasks, [&](int64_t task) {
      for (int64_t i = count * task / tasks; i < count * (task + 1) / tasks; ++i) {
        const Place& place = scratch_.places[static_cast<size_t>(i)];
        const Used& used = scratch_.used[static_cast<size_t>(place.used)];
        put_input(used, Form(used.expert->gate.weight), used.for_gate, i - used.first, place);
        if (used.for_up == used.for_gate) continue;
        put_input(used, Form(used.expert->up.weight), used.for_up, i - used.first, place);
      }
    });
  }

  // The input of one place, the expert's `index`th.
  void put_input(const Used& used, const Form& form, float* memory, int64_t index, const Place& place) const {
    const float* x = step_.x + place.row * hidden_;
    if (form.form == RowForm::floats) {
      float* out = memory + index * hidden_;
      if (!mixture_.routing.weighs_input) std::copy_n(x, hidden_, out);
      if (mixture_.routing.weighs_input) k_.scale(x, place.weight, hidden_, out);
      return;
    }
    if (form.form == RowForm::rounded) return put_rounded(x, place, rounded_at(memory, index * hidden_));
    const Activations all = activations_in(memory, used.rows, hidden_);
    if (!mixture_.routing.weighs_input) return k_.quantise_rows(x, form.kind, index, 1, all);
    float* scaled = own_blocks().first;
    for (int64_t first = 0; first < hidden_; first += block_rows * block_width) {
      const int64_t width = std::min(block_rows * block_width, hidden_ - first);
      k_.scale(x + first, place.weight, width, scaled);
      k_.quantise_rows(scaled, form.kind, 0, 1,
                       part_of(all, index, 1, first / quant_group, width / quant_group));
    }
  }

  void put_rounded(const float* x, const Place& place, uint8_t* out) const {
    if (!mixture_.routing.weighs_input) return k_.round_row(x, hidden_, out);
    float* scaled = own_blocks().first;
    for (int64_t first = 0; first < hidden_; first += block_rows * block_width) {
      const int64_t width = std::min(block_rows * block_width, hidden_ - first);
      k_.scale(x + first, place.weight, width, scaled);
      k_.round_row(scaled, width, out + first * k_.rounded_bytes);
    }
  }

  // The number `index` of those that are rounded.
  uint8_t* rounded_at(float* memory, int64_t index) const {
    return reinterpret_cast<uint8_t*>(memory) + index * k_.rounded_bytes;
  }

  // -- 3. gate, up, activation ------------------------------------------------------------------------
  void make_inner() {
    std::vector<int64_t>& first_task = scratch_.first_task;
    first_task.assign(1, 0);
    int64_t work = 0;
    for (const Used& used : scratch_.used) {
      const int64_t own = 2 * used.rows * inner_ * hidden_, unit = unit_of(used);
      const int64_t units = (used.expert->gate.weight.num_panels() + unit - 1) / unit;
      work += own;
      first_task.push_back(first_task.back() + std::clamp<int64_t>(own / inner_task_work, 1, units));
    }
    run_shared(first_task.back(), work, [&](int64_t task) {
      const auto after = std::upper_bound(first_task.begin(), first_task.end(), task);
      const Used& used = scratch_.used[static_cast<size_t>(after - first_task.begin()) - 1];
      const int64_t unit = unit_of(used), panels = used.expert->gate.weight.num_panels();
      const int64_t units = (panels + unit - 1) / unit, own = task - after[-1], tasks = *after - after[-1];
      inner_panels(used, units * own / tasks * unit,
                   std::min(units * (own + 1) / tasks * unit, panels));
    });
  }

  // Output panels at whose multiples tasks begin: tiles and groups of codes end there.
  int64_t unit_of(const Used& used) const {
    if (!used.expert->gate.weight.has_codes()) return block_panels;
    const int64_t unit = code_panels_unit(used.rows);
    return unit % group_panels ? group_panels * unit : unit;
  }

  // Tasks of products, in the calling thread where there is little to do.
  template <class Body>
  void run_shared(int64_t tasks, int64_t work, Body&& body) const {
    if (threads_ > 1 && work >= product_work_min) return parallel(tasks, body);
    parallel(1, [&](int64_t) {
      for (int64_t task = 0; task < tasks; ++task) body(task);
    });
  }

  void inner_panels(const Used& used, int64_t first_panel, int64_t last_panel) const {
    Blocks& blocks = own_blocks();
    for (int64_t panel = first_panel; panel < last_panel; panel += block_panels) {
      const int64_t last = std::min(panel + block_panels, last_panel), column = panel * panel_width;
      const int64_t width = std::min(last * panel_width, inner_) - column;
      for (int64_t row = 0; row < used.rows; row += block_rows) {
        const int64_t rows = std::min(block_rows, used.rows - row);
        multiply(used.expert->gate, used.for_gate, used.rows, row, rows, panel, width, blocks.first);
        multiply(used.expert->up, used.for_up, used.rows, row, rows, panel, width, blocks.second);
        k_.gated(mixture_.activation, blocks.first, blocks.second, rows * width, blocks.first);
        put_inner(used, row, rows, column, width, blocks.first);
      }
    }
  }

  // y (rows, width): outputs from `panel` on for rows [row, row + rows) of the `all_rows` in `x`.
  void multiply(const Projection& projection, float* x, int64_t all_rows, int64_t row, int64_t rows,
                int64_t panel, int64_t width, float* y) const {
    const Weight& w = projection.weight;
    const uint8_t* panels = w.panels + panel * w.panel_bytes();
    const float* bias = projection.bias ? projection.bias + panel * panel_width : nullptr;
    const int64_t count = (width + panel_width - 1) / panel_width;
    if (w.has_codes()) {
      const Activations codes = activations_in(x, all_rows, w.inputs);
      const Activations own = part_of(codes, row, rows, 0, w.inputs / quant_group);
      k_.integer_product({own, panels, w.kind, bias, y, width}, 0, count);
    } else {
      const bool is_rounded = w.row_form() == RowForm::rounded;
      const void* own = is_rounded ? static_cast<void*>(rounded_at(x, row * w.inputs)) : x + row * w.inputs;
      k_.product({own, panels, bias, y, rows, w.inputs, width, w.kind}, 0, count);
    }
  }

  // Columns [column, column + width) of rows of an expert's inner.
  void put_inner(const Used& used, int64_t row, int64_t rows, int64_t column, int64_t width,
                 const float* values) const {
    const Weight& down = used.expert->down.weight;
    if (down.has_codes()) {
      const Activations all = activations_in(used.inner, used.rows, inner_);
      const Activations own = part_of(all, row, rows, column / quant_group, width / quant_group);
      return k_.quantise_rows(values, down.kind, 0, rows, own);
    }
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = (row + i) * inner_ + column;
      if (down.row_form() == RowForm::rounded) {
        k_.round_row(values + i * width, width, rounded_at(used.inner, at));
      } else {
        std::copy_n(values + i * width, width, used.inner + at);
      }
    }
  }

  // -- 4. down, and each row's sum --------------------------------------------------------------------
  void make_outer() {
    const int64_t panels = (hidden_ + panel_width - 1) / panel_width, unit = group_panels;
    const int64_t units = (panels + unit - 1) / unit;
    const int64_t work = static_cast<int64_t>(scratch_.places.size()) * hidden_ * inner_;
    const int64_t tasks = std::min(units, outer_tasks_per_thread * threads_);
    run_shared(tasks, work, [&](int64_t task) {
      const int64_t last_panel = std::min(units * (task + 1) / tasks * unit, panels);
      for (int64_t panel = units * task / tasks * unit; panel < last_panel; panel += block_panels) {
        outer_panels(panel, std::min(panel + block_panels, last_panel));
      }
    });
  }

  void outer_panels(int64_t first, int64_t last) const {
    float* y = own_blocks().first;
    const int64_t column = first * panel_width, width = std::min(last * panel_width, hidden_) - column;
    for (const Used& used : scratch_.used) {
      for (int64_t row = 0; row < used.rows; row += block_rows) {
        const int64_t rows = std::min(block_rows, used.rows - row);
        multiply(used.expert->down, used.inner, used.rows, row, rows, first, width, y);
        for (int64_t i = 0; i < rows; ++i) {
          sum_up(scratch_.places[static_cast<size_t>(used.first + row + i)], column, width, y + i * width);
        }
      }
    }
  }

  // Adds what one expert makes of a row; `y` is written over.
  void sum_up(const Place& place, int64_t column, int64_t width, float* y) const {
    float* out = step_.out + place.row * hidden_ + column;
    if (!mixture_.routing.weighs_input) k_.scale(y, place.weight, width, y);
    if (place.is_first) {
      std::copy_n(y, width, out);
    } else {
      k_.add(out, y, width, out);
    }
  }

  const ExpertsStep& step_;
  const Mixture& mixture_;
  const Kernels& k_;
  Scratch& scratch_;
  int64_t hidden_, inner_;
  int64_t threads_;
};

void run_experts(const ExpertsStep& step) {
  static thread_local Scratch scratch;
  if (step.rows > 0) ExpertsRun(step, scratch).run();
}

}  // namespace octavo
