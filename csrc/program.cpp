// Recording: which phase an op joins, and where its result lies.
#include "program.hpp"

#include <algorithm>
#include <limits>

namespace octavo {

BufferId Program::new_buffer(Rows rows, int64_t width, RowForm form) {
  buffers_.push_back({rows, width, form, false, -1, -1, 0});
  return static_cast<BufferId>(buffers_.size()) - 1;
}

// The earliest phase in which an op of this kind may stand. Row operations of one chain follow each other
// row by row, without a barrier; whatever else reads a buffer waits for the phase that writes it to end.
int64_t Program::after(std::initializer_list<BufferId> read, Phase::Kind kind) const {
  int64_t earliest = 0;
  for (const BufferId id : read) {
    const int64_t written = buffer(id).first_phase;
    if (written < 0) continue;  // given from outside
    const bool same_chain =
        kind == Phase::Kind::rows && phases_[static_cast<size_t>(written)].kind == Phase::Kind::rows;
    earliest = std::max(earliest, written + (same_chain ? 0 : 1));
  }
  return earliest;
}

Phase& Program::phase_for(Phase::Kind kind, Rows rows, int64_t earliest,
                          std::initializer_list<BufferId> read, BufferId out) {
  const auto fits = [&](const Phase& phase) { return phase.kind == kind && phase.rows == rows; };
  int64_t index = earliest;
  const int64_t count = num_phases();
  while (index < count && !fits(phases_[static_cast<size_t>(index)])) ++index;
  if (index >= count) {
    phases_.push_back({kind, rows, {}, {}, {}, {}});
    index = count;
  }
  for (const BufferId id : read) {
    Buffer& buffer = buffers_[static_cast<size_t>(id)];
    buffer.last_phase = std::max(buffer.last_phase, index);
  }
  if (out >= 0) buffers_[static_cast<size_t>(out)].first_phase = index;
  if (out >= 0) buffers_[static_cast<size_t>(out)].last_phase = index;
  return phases_[static_cast<size_t>(index)];
}

template <class Op>
BufferId Program::add_row_op(Op op, std::initializer_list<BufferId> read, int64_t width, Rows rows) {
  op.out = new_buffer(rows, width);
  phase_for(Phase::Kind::rows, rows, after(read, Phase::Kind::rows), read, op.out).row_ops.push_back(op);
  return op.out;
}

BufferId Program::given_rows(int64_t width) { return given_ = new_buffer(Rows::tokens, width); }

BufferId Program::embed(const Weight& table, Source source) {
  reads_step_ = true;
  int64_t& rows = source == Source::tokens ? token_rows_ : position_rows_;
  rows = std::min(rows, table.outputs);
  return add_row_op(Embed{table, source, -1}, {}, table.inputs, Rows::tokens);
}

// A logits row reads another's tokens row, so it may not stand in that row's chain.
BufferId Program::take(BufferId x) {
  reads_step_ = true;
  const BufferId out = new_buffer(Rows::logits, buffer(x).width);
  buffers_[static_cast<size_t>(x)].is_shared = true;
  phase_for(Phase::Kind::rows, Rows::logits, buffer(x).first_phase + 1, {x}, out)
      .row_ops.push_back(Take{x, out});
  return out;
}

BufferId Program::rms_norm(BufferId x, const float* weight, int64_t size, float eps) {
  return add_row_op(RmsNorm{x, weight, eps, size, -1}, {x}, buffer(x).width, buffer(x).rows);
}

BufferId Program::layer_norm(BufferId x, const float* weight, const float* bias, float eps) {
  return add_row_op(LayerNorm{x, weight, bias, eps, -1}, {x}, buffer(x).width, buffer(x).rows);
}

// x as weights of this kind take it, made once however many layers read it.
BufferId Program::prepared(BufferId x, const Weight& weight) {
  if (weight.row_form() == RowForm::floats) return x;
  for (const Prepared& known : prepared_) {
    if (known.x == x && known.kind == weight.kind) return known.out;
  }
  const BufferId out = new_buffer(buffer(x).rows, buffer(x).width, weight.row_form());
  Phase& phase = phase_for(Phase::Kind::rows, buffer(x).rows, after({x}, Phase::Kind::rows), {x}, out);
  if (weight.has_codes()) {
    phase.row_ops.push_back(Quantise{x, weight.kind, out});
  } else {
    phase.row_ops.push_back(Round{x, out});
  }
  prepared_.push_back({x, weight.kind, out});
  return out;
}

BufferId Program::linear(BufferId x, const Weight& weight, const float* bias) {
  const BufferId given = prepared(x, weight);
  const BufferId out = new_buffer(buffer(x).rows, weight.outputs);
  num_weights_ += weight.outputs * weight.inputs;
  weight_bytes_ += weight.outputs * bytes_of(weight.kind, weight.inputs);
  phase_for(Phase::Kind::products, buffer(x).rows, after({given}, Phase::Kind::products), {given}, out)
      .products.push_back(Linear{given, weight, bias, out});
  return out;
}

BufferId Program::rope(BufferId x, const float* cos, const float* sin, int64_t positions, int64_t half,
                       int64_t head_size) {
  reads_step_ = true;
  rope_positions_ = std::min(rope_positions_, positions);
  return add_row_op(Rope{x, cos, sin, half, head_size, -1}, {x}, buffer(x).width, buffer(x).rows);
}

void Program::store(int64_t layer, BufferId k, BufferId v) {
  reads_step_ = true;
  Phase& phase = phase_for(Phase::Kind::rows, Rows::tokens, after({k, v}, Phase::Kind::rows), {k, v}, -1);
  phase.row_ops.push_back(Store{k, v, layer});
  stored_in_.resize(layers_.size(), -1);
  stored_in_[static_cast<size_t>(layer)] = &phase - phases_.data();
}

BufferId Program::attend(Attend op) {
  reads_step_ = true;
  stored_in_.resize(layers_.size(), -1);
  const int64_t stored = stored_in_[static_cast<size_t>(op.layer)];
  const int64_t earliest = std::max(after({op.q}, Phase::Kind::attention), stored + 1);
  const bool sees_all = op.window == 0 || (attends_ && widest_window_ == 0);
  widest_window_ = sees_all ? 0 : std::max(widest_window_, op.window);
  attends_ = true;
  if (std::find(windows_.begin(), windows_.end(), op.window) == windows_.end()) windows_.push_back(op.window);
  op.out = new_buffer(Rows::tokens, buffer(op.q).width);
  for (const BufferId id : {op.q, op.out}) buffers_[static_cast<size_t>(id)].is_shared = true;
  phase_for(Phase::Kind::attention, Rows::tokens, earliest, {op.q}, op.out).attention.push_back(op);
  return op.out;
}

BufferId Program::experts(BufferId x, BufferId logits, const Mixture* mixture) {
  const BufferId out = new_buffer(buffer(x).rows, buffer(x).width);
  for (const BufferId id : {x, logits, out}) buffers_[static_cast<size_t>(id)].is_shared = true;
  phase_for(Phase::Kind::experts, buffer(x).rows, after({x, logits}, Phase::Kind::experts), {x, logits}, out)
      .experts.push_back({x, logits, mixture, out});
  return out;
}

BufferId Program::gated(BufferId gate, BufferId up, Map function) {
  return add_row_op(Gated{gate, up, function, -1}, {gate, up}, buffer(gate).width, buffer(gate).rows);
}

BufferId Program::activate(BufferId x, Map function) {
  return add_row_op(Activate{x, function, -1}, {x}, buffer(x).width, buffer(x).rows);
}

BufferId Program::add(BufferId x, BufferId y) {
  return add_row_op(Add{x, y, -1}, {x, y}, buffer(x).width, buffer(x).rows);
}

BufferId Program::scale(BufferId x, float factor) {
  return add_row_op(Scale{x, factor, -1}, {x}, buffer(x).width, buffer(x).rows);
}

BufferId Program::soft_cap(BufferId x, float cap) {
  return add_row_op(SoftCap{x, cap, -1}, {x}, buffer(x).width, buffer(x).rows);
}

void Program::finish(BufferId result) {
  Buffer& last = buffers_[static_cast<size_t>(result)];
  last.is_shared = true;
  last.last_phase = num_phases();
  place_buffers();
  find_next_attention();
  result_ = result;
}

// Tells each linear layer over tokens which attention follows (of several side by side the first), and where it
// stands in the work until then.
void Program::find_next_attention() {
  auto first = phases_.begin();
  for (auto phase = first; phase != phases_.end(); ++phase) {
    if (phase->kind != Phase::Kind::attention) continue;
    int64_t work = 0;
    const auto each_before = [&](auto&& body) {
      for (auto before = first; before != phase; ++before) {
        if (before->rows != phase->rows) continue;
        std::for_each(before->products.begin(), before->products.end(), body);
      }
    };
    each_before([&](Linear& op) {
      op.next_layer = phase->attention[0].layer;
      op.next_window = phase->attention[0].window;
      op.work_before = work;
      work += (op.weight.outputs + panel_width - 1) / panel_width * op.weight.inputs;
    });
    each_before([&](Linear& op) { op.work_between = work; });
    first = phase;
  }
}

// First fit, in the order of recording: the lowest place where no buffer of the same part lies that is alive
// at the same time. For an owner its phases follow each other. The time of shared buffers is counted in chains:
// within one, some rows may be phases ahead of others, and in one place rows of different widths overlap.
void Program::place_buffers() {
  std::vector<int64_t> chain_of(phases_.size() + 1);
  for (size_t i = 1; i < chain_of.size(); ++i) {
    const bool same = i < phases_.size() && phases_[i].is_chained_to(phases_[i - 1]);
    chain_of[i] = chain_of[i - 1] + (same ? 0 : 1);
  }
  std::vector<const Buffer*> placed;
  for (Buffer& buffer : buffers_) {
    if (buffer.first_phase < 0) continue;  // given from outside
    const auto time = [&](int64_t phase) {
      return buffer.is_shared ? chain_of[static_cast<size_t>(phase)] : phase;
    };
    std::vector<std::pair<int64_t, int64_t>> taken;  // [first, last) of the neighbours in time
    for (const Buffer* other : placed) {
      if (other->rows != buffer.rows || other->is_shared != buffer.is_shared) continue;
      const bool together = time(other->first_phase) <= time(buffer.last_phase) &&
                            time(buffer.first_phase) <= time(other->last_phase);
      if (together) taken.emplace_back(other->place, other->place + other->floats());
    }
    std::sort(taken.begin(), taken.end());
    int64_t place = 0;
    for (const auto& [first, last] : taken) {
      if (first - place >= buffer.floats()) break;
      place = std::max(place, last);
    }
    buffer.place = place;
    int64_t& floats = part_floats_[buffer.rows == Rows::logits][buffer.is_shared];
    floats = std::max(floats, place + buffer.floats());
    placed.push_back(&buffer);
  }
}

int64_t Program::first_block(int64_t start) const {
  const int64_t hidden = widest_window_ ? start - widest_window_ + 1 : 0;
  return hidden > 0 ? hidden / layer(0).block_size : 0;
}

void Program::time_phases(bool on) { phase_seconds_.assign(on ? phases_.size() : 0, 0.0); }

std::vector<Program::PhaseTime> Program::phase_times() const {
  std::vector<PhaseTime> times;
  for (size_t i = 0; i < phase_seconds_.size(); ++i) {
    const Phase& phase = phases_[i];
    std::string what = "attention";
    if (phase.kind == Phase::Kind::rows) what = "rows, " + std::to_string(phase.row_ops.size()) + " ops";
    if (phase.kind == Phase::Kind::products) {
      what = "products";
      for (const Linear& op : phase.products) {
        what += " " + std::to_string(op.weight.inputs) + "x" + std::to_string(op.weight.outputs);
      }
    }
    for (const Route& op : phase.experts) {
      const Mixture& mixture = *op.mixture;
      what = "experts " + std::to_string(mixture.routing.top_k) + " of " +
             std::to_string(mixture.experts.size()) + ", " + std::to_string(mixture.hidden_size()) + "x" +
             std::to_string(mixture.inner_size());
    }
    times.push_back({what, phase_seconds_[i]});
  }
  return times;
}

int64_t Program::largest_row_of(Source source) const {
  return source == Source::tokens ? token_rows_ : position_rows_;
}

}  // namespace octavo
