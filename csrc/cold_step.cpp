#include "cold_step.hpp"

#include <algorithm>
#include <stdexcept>

namespace octavo {
namespace {

std::vector<int32_t> copied(const int32_t* first, int64_t count) { return {first, first + count}; }

bool is_cold(int32_t entry) { return entry >= cold_first; }

// Chunks [first, last) alone.
AttentionStep chunks_of(const AttentionStep& step, int64_t first, int64_t last) {
  AttentionStep part = step;
  part.starts += first;
  part.offsets += first;
  part.tables += first * step.table_width;
  part.num_chunks = last - first;
  part.owners = 1;
  return part;
}

// The groups of a walk, made partition by partition.
struct GroupBuilder {
  const SecondMemory& memory;
  int64_t frame_blocks;
  ColdWalk& walk;
  int64_t in_frame = 0;  // blocks of the group that is open

  void open(int64_t chunk, int64_t partition) {
    const auto extents = static_cast<int64_t>(walk.extents.size());
    const auto hosts = static_cast<int64_t>(walk.host_slots.size());
    walk.groups.push_back({chunk, partition, partition, extents, extents, hosts, hosts});
    in_frame = 0;
  }

  // The entries of one partition of the chunk.
  void add(int64_t chunk, int64_t partition, const int32_t* first, const int32_t* last) {
    const auto is_read = [&](int32_t entry) {
      return is_cold(entry) && memory.is_in_file(entry - cold_first);
    };
    if (in_frame + std::count_if(first, last, is_read) > frame_blocks) open(chunk, partition);
    ColdGroup& group = walk.groups.back();
    group.last_partition = partition + 1;
    for (const int32_t* entry = first; entry < last; ++entry) {
      if (!is_cold(*entry)) continue;
      const int32_t slot = *entry - cold_first;
      if (!memory.is_in_file(slot)) {
        walk.host_slots.push_back(slot);
        continue;
      }
      const bool has_extent = static_cast<int64_t>(walk.extents.size()) > group.first_extent;
      ColdExtent* before = has_extent ? &walk.extents.back() : nullptr;
      if (before && before->slot + before->count == slot && memory.follows(slot)) {
        ++before->count;
      } else {
        walk.extents.push_back({slot, 1, in_frame});
      }
      ++in_frame;
    }
    group.last_extent = static_cast<int64_t>(walk.extents.size());
    group.last_host = static_cast<int64_t>(walk.host_slots.size());
  }
};

}  // namespace

ColdStep::ColdStep(Program& its_program, const StepInput& given, int64_t pool_blocks, ColdReader& memory)
    : program(its_program),
      reader(memory),
      num_blocks(pool_blocks),
      tokens(copied(given.tokens, given.num_tokens)),
      positions(copied(given.positions, given.num_tokens)),
      logit_rows(copied(given.logit_rows, given.num_logit_rows)),
      starts(copied(given.starts, given.num_chunks)),
      offsets(copied(given.offsets, given.num_chunks + 1)),
      tables(copied(given.tables, given.num_chunks * given.table_width)),
      input{given.num_tokens,  given.num_logit_rows, given.num_chunks, given.table_width,
            tokens.data(),     positions.data(),     logit_rows.data(), starts.data(),
            offsets.data(),    tables.data(),        nullptr},
      replay(program.begin(input)) {
  const KvLayer& kv = program.layer(0);
  layer_bytes = kv_layer_bytes(kv.kind, kv.kv_heads, kv.head_size, kv.block_size);
  const std::vector<Phase>& phases = program.phases();
  for (size_t i = 0; i < phases.size(); ++i) {
    if (phases[i].kind == Phase::Kind::attention) last_attention = i;
  }
  walks.resize(program.windows().size());
  reader.acquire(layer_bytes, partition_size / kv.block_size);
  try {
    plan();
  } catch (...) {
    reader.release();
    throw;
  }
}

template <class Body>
void ColdStep::each_chunk(int64_t window, Body&& body) const {
  const int64_t block_size = program.layer(0).block_size;
  for (int64_t c = 0; c < input.num_chunks; ++c) {
    const int64_t start = input.starts[c], stop = start + input.offsets[c + 1] - input.offsets[c];
    const int64_t hidden = window ? std::max<int64_t>(0, start - window + 1) : 0;
    body(c, hidden / block_size, (stop - 1) / block_size + 1);
  }
}

ColdWalk ColdStep::walk_of(int64_t window) const {
  ColdWalk walk{window, {}, {}, {}};
  GroupBuilder groups{reader.memory(), reader.blocks_per_frame(), walk};
  const int64_t blocks = partition_size / program.layer(0).block_size;
  each_chunk(window, [&](int64_t chunk, int64_t first, int64_t last) {
    const int32_t* table = input.tables + chunk * input.table_width;
    if (std::none_of(table + first, table + last, is_cold)) return;
    groups.open(chunk, first / blocks);
    for (int64_t partition = first / blocks; partition * blocks < last; ++partition) {
      groups.add(chunk, partition, table + std::max(first, partition * blocks),
                 table + std::min(last, (partition + 1) * blocks));
    }
  });
  return walk;
}

// What the layers from `next_phase` on read, in their order.
void ColdStep::plan() {
  reader.stop();
  for (size_t i = 0; i < walks.size(); ++i) walks[i] = walk_of(program.windows()[i]);
  passes.clear();
  next_pass = 0;
  const std::vector<Phase>& phases = program.phases();
  for (size_t i = next_phase; i < phases.size(); ++i) {
    for (const Attend& op : phases[i].attention) {
      const auto walk = std::find_if(walks.begin(), walks.end(),
                                     [&](const ColdWalk& one) { return one.window == op.window; });
      passes.push_back({op.layer, &*walk});
    }
  }
  reserve_state();
  reader.start(passes);
}

// A step may turn cold while it is suspended.
void ColdStep::reserve_state() {
  const auto is_empty = [](const ColdWalk& walk) { return walk.groups.empty(); };
  if (state || std::all_of(walks.begin(), walks.end(), is_empty)) return;
  int64_t widest = 0;  // of a row's state, all heads
  for (const Phase& phase : program.phases()) {
    for (const Attend& op : phase.attention) {
      const int64_t head_size = program.layer(op.layer).head_size;
      widest = std::max(widest, program.buffer(op.q).width / head_size * part_floats(head_size));
    }
  }
  state = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(input.num_tokens * widest));
}

void ColdStep::replace_tables(const int32_t* given) {
  bool is_same = true;  // as far as it is cold
  each_chunk(program.widest_window_, [&](int64_t chunk, int64_t first, int64_t last) {
    const int64_t table = chunk * input.table_width;
    for (int64_t i = table + first; i < table + last; ++i) {
      const int32_t before = tables[static_cast<size_t>(i)];
      is_same = is_same && (before == given[i] || (!is_cold(before) && !is_cold(given[i])));
    }
  });
  std::copy_n(given, tables.size(), tables.begin());
  if (!is_same) plan();
}

void ColdStep::attend_group(const AttentionStep& chunk, const ColdPass& pass, const ColdGroup& group) {
  const SecondMemory& memory = reader.memory();
  const uint8_t** places = reader.places();
  const bool reads = group.first_extent < group.last_extent;
  for (int64_t i = group.first_host; i < group.last_host; ++i) {
    const int64_t slot = pass.walk->host_slots[static_cast<size_t>(i)];
    places[slot] = memory.host + slot * memory.host_slot_bytes + pass.layer * layer_bytes;
  }
  if (reads) {
    const uint8_t* frame = reader.wait();
    for (int64_t i = group.first_extent; i < group.last_extent; ++i) {
      const auto& [slot, count, place] = pass.walk->extents[static_cast<size_t>(i)];
      for (int64_t at = 0; at < count; ++at) places[slot + at] = frame + (place + at) * layer_bytes;
    }
  }
  AttentionStep step = chunk;
  step.first_partition = group.first_partition;
  step.last_partition = group.last_partition;
  run_attention(step);
  if (reads) reader.consume();
}

// Chunks without cold entries together, the others group by group.
void ColdStep::attend(const Attend& op) {
  const ColdPass& pass = passes[next_pass++];
  const std::vector<ColdGroup>& groups = pass.walk->groups;
  AttentionStep step = replay.attention_step(op);
  if (groups.empty()) return run_attention(step);
  int64_t done = 0;  // chunks
  step.kv.cold = reader.places();
  for (const ColdGroup& group : groups) {
    if (done < group.chunk) run_attention(chunks_of(step, done, group.chunk));
    done = group.chunk + 1;
    AttentionStep chunk = chunks_of(step, group.chunk, done);
    chunk.state = state.get();
    attend_group(chunk, pass, group);
  }
  if (done < input.num_chunks) run_attention(chunks_of(step, done, input.num_chunks));
}

void ColdStep::advance(int64_t num_layers) {
  const std::vector<Phase>& phases = program.phases();
  while (!is_at_end()) {
    const Phase* phase = phases.data() + next_phase;
    const bool is_attention = phase->kind == Phase::Kind::attention;
    const int64_t length =
        program.phase_seconds_.empty() ? replay.chain_length(phase, phases.data() + phases.size()) : 1;
    program.timed(next_phase, [&] {
      if (!is_attention) return replay.run_phases(phase, length);
      for (const Attend& op : phase->attention) attend(op);
    });
    next_phase += static_cast<size_t>(length);
    if (is_attention && --num_layers == 0 && next_phase <= last_attention) return;
  }
}

void Program::require_no_cold_step() const {
  if (cold_step_) {
    throw std::logic_error("a cold step is under way in this program: abandon it, or use another program");
  }
}

// Keeps which slots it failed to read, and how much it read.
void Program::drop_cold_step() {
  if (!cold_step_) return;
  ColdReader& reader = cold_step_->reader;
  reader.stop();
  failed_slots_ = reader.failed_slots();
  take_cold_stats();
  cold_step_.reset();
}

void Program::take_cold_stats() {
  const ColdStats stats = cold_step_->reader.take_stats();
  cold_bytes_read_ += stats.bytes_read;
  cold_wait_ns_ += stats.wait_ns;
}

void Program::begin_step(const StepInput& input, int64_t num_blocks, ColdReader& memory) {
  const Running running(running_);
  require_no_cold_step();
  cold_step_ = std::make_unique<ColdStep>(*this, input, num_blocks, memory);
}

const float* Program::advance(const int32_t* tables, int64_t num_layers,
                              const std::function<void(const ColdStep&)>& check) {
  const Running running(running_);
  if (!cold_step_) throw std::logic_error("no cold step is under way in this program");
  ColdStep& step = *cold_step_;
  check(step);
  try {
    step.replace_tables(tables);
    step.advance(num_layers);
  } catch (...) {
    drop_cold_step();
    throw;
  }
  take_cold_stats();
  if (!step.is_at_end()) return nullptr;
  const float* result = step.replay.shared_row(result_, 0);
  drop_cold_step();
  return result;
}

void Program::abandon() {
  const Running running(running_);
  drop_cold_step();
}

std::vector<int32_t> Program::failed_slots() {
  const Running running(running_);
  return failed_slots_;
}

}  // namespace octavo
