// Replaying: phase after phase, each shared out over the team, or chains of them where rows have owners.
#include "replay.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <new>

#include "cold_step.hpp"

namespace octavo {
namespace {

constexpr int64_t page = 4096, huge_page = 1 << 21;

}  // namespace

Program::Program(std::vector<KvLayer> layers) : layers_(std::move(layers)) {}

Program::~Program() { drop_cold_step(); }

// Room for so many floats. A batch that grows row by row shall not begin in fresh memory each time. What no
// run has reached of an arena is address space alone.
float* Program::memory_for(int64_t needed) {
  if (needed <= arena_floats_) return arena_.get();
  const int64_t floats = std::max(needed, 2 * arena_floats_);
  arena_floats_ = 0;  // should there be no memory for the new one
  arena_.reset();
  const int64_t unit = floats * 4 < huge_page ? page : huge_page;
  const auto bytes = static_cast<size_t>((floats * 4 + unit - 1) / unit * unit);
  arena_.reset(static_cast<float*>(std::aligned_alloc(static_cast<size_t>(unit), bytes)), std::free);
  if (!arena_) throw std::bad_alloc();
#if defined(__linux__)
  if (unit == huge_page) madvise(arena_.get(), bytes, MADV_HUGEPAGE);  // a wish: no harm if it is refused
#endif
  arena_floats_ = floats;
  return arena_.get();
}

Replay Program::begin(const StepInput& input) {
  const Sharing sharing(*this, Team::instance().size());
  Arena arena{*this, sharing.owners_of(input.num_tokens), sharing.owners_of(input.num_logit_rows), nullptr};
  arena.memory = memory_for(arena.floats());
  return {*this, input, kernels(), sharing, arena, nullptr};
}

void Program::run_phases(const Replay& replay, size_t count) {
  const Phase *phase = phases_.data(), *end = phase + count;
  while (phase < end) {  // one by one where they are timed
    const int64_t length = phase_seconds_.empty() ? replay.chain_length(phase, end) : 1;
    timed(static_cast<size_t>(phase - phases_.data()), [&] { replay.run_phases(phase, length); });
    phase += length;
  }
}

const float* Program::run(const StepInput& input) {
  const Running running(running_);
  require_no_cold_step();
  Replay replay = begin(input);
  const Owners& owners = replay.owners(Rows::tokens);
  const auto has_context = [&] {
    return std::any_of(input.starts, input.starts + input.num_chunks, [](int32_t start) { return start > 0; });
  };
  const bool can_prefetch = attends_ && owners.rows_of(0) >= prefetching_rows_min && has_context();
  const bool on_trial = can_prefetch && !wants_kv_prefetch_;
  Trial& trial = kv_prefetch_trial(input.num_tokens);
  ++num_runs_;
  const bool wanted = on_trial ? trial.begin(num_runs_, input.num_tokens, input.num_chunks)
                               : can_prefetch && wants_kv_prefetch_ == true;
  const auto begun = std::chrono::steady_clock::now();
  if (wanted) {
    kv_prefetch_.list_blocks(*this, input, owners);
    replay.kv_prefetch = &kv_prefetch_;
  }
  run_phases(replay, phases_.size());
  if (on_trial) trial.end(seconds_since(begun));
  return replay.shared_row(result_, 0);
}

void Program::run_argmax(const StepInput& input, int32_t* out) {
  const Running running(running_);
  require_no_cold_step();
  const Replay replay = begin(input);
  const size_t last = phases_.size() - 1;
  const std::vector<Linear>& products = phases_[last].products;
  if (products.size() != 1 || products[0].out != result_) {
    run_phases(replay, phases_.size());
    return replay.find_argmax(out);
  }
  run_phases(replay, last);
  timed(last, [&] { replay.run_argmax(products[0], out); });
}

}  // namespace octavo
