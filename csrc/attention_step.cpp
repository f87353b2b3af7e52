// How a step's attention is shared out.
//
// A task is up to 36 rows of one chunk, of one kv head or, where a head has few, of several: in a block they
// lie side by side, and decoding is bound by memory. It walks the partitions that the rows see. Where tasks
// are few or unequal (one sequence with a long context has only as many as kv heads), a task is cut at borders
// of partitions: each piece writes what it found in each partition, and a second pass merges them in ascending
// order, with the operations of the uncut walk. So cutting changes no bit.
#include "attention_step.hpp"

#include <algorithm>

#include "dispatch.hpp"
#include "team.hpp"

namespace octavo {
namespace {

constexpr int64_t page = 4096;
constexpr int64_t tasks_per_thread = 4;
constexpr int64_t read_together = 8192;  // bytes of K or V side by side: longer pieces are read no faster
constexpr int64_t rows_together = 18;    // of all heads of a task: more outgrow the nearest cache
constexpr int64_t pieces_per_thread = 8;  // so that the last one to finish is not long alone
constexpr int64_t read_cost = 16;         // reading a position's K and V, in rows that are computed with it
constexpr int64_t alone_max = 1 << 18;    // cost times D: some microseconds, less than waking the team

using Piece = AttentionScratch::Piece;

// The task of some rows of kv heads [first_head, last_head): of each head's rows [first, last) the first one
// sees the earliest position, the last one the latest.
Piece task_of(const AttentionStep& step, int64_t chunk, int64_t first_head, int64_t last_head, int64_t first,
              int64_t last) {
  const int64_t group = step.heads / step.kv.kv_heads, start = step.starts[chunk];
  const int64_t hidden = step.window ? start + first / group - step.window + 1 : 0;
  const int64_t low = hidden > 0 ? hidden : 0, high = start + (last - 1) / group + 1;
  return {chunk,
          (high - low) * (read_cost + last - first) * (last_head - first_head),
          low,
          {first_head, last_head, first, last, low / partition_size,
           (high + partition_size - 1) / partition_size, nullptr, {}}};
}

// How many kv heads share a task at most: what is read in one go shall be long, and each thread shall have
// some tasks.
int64_t heads_together(const AttentionStep& step, int64_t threads) {
  int64_t walks = 0;  // of one head through one partition
  for (int64_t c = 0; c < step.num_chunks; ++c) {
    const int64_t end = (step.starts[c] + partition_size) / partition_size;
    const int64_t walked = std::min(end, step.last_partition) - step.first_partition;
    walks += step.kv.kv_heads * std::max<int64_t>(walked, 0);
  }
  const int64_t bytes = kv_key_bytes(step.kv.kind, step.kv.head_size, step.kv.block_size);
  const int64_t wanted = std::min(walks / (threads * tasks_per_thread), read_together / bytes);
  return std::clamp<int64_t>(wanted, 1, step.kv.kv_heads);
}

// Leaves the task those of its partitions that this call walks: false if there are none.
bool clip_task(const AttentionStep& step, Piece& piece) {
  AttentionTask& task = piece.task;
  const int64_t first = std::max(task.first_partition, step.first_partition);
  const int64_t last = std::min(task.last_partition, step.last_partition);
  if (first >= last) return false;
  task.begins = first == task.first_partition;
  task.ends = last == task.last_partition;
  piece.cost = piece.cost * (last - first) / (task.last_partition - task.first_partition);
  task.first_partition = first;
  task.last_partition = last;
  return true;
}

void list_tasks(const AttentionStep& step, int64_t threads, std::vector<Piece>& tasks) {
  const int64_t group = step.heads / step.kv.kv_heads, kv_heads = step.kv.kv_heads;
  const int64_t together = heads_together(step, threads);
  for (int64_t c = 0; c < step.num_chunks; ++c) {
    const int64_t rows = (step.offsets[c + 1] - step.offsets[c]) * group;
    if (rows == 0) continue;
    const int64_t heads = std::max<int64_t>(1, std::min(together, rows_together / rows));
    for (int64_t head = 0; head < kv_heads; head += heads) {
      for (int64_t row = 0; row < rows; row += attention_rows) {
        Piece task = task_of(step, c, head, std::min(head + heads, kv_heads), row,
                             std::min<int64_t>(row + attention_rows, rows));
        if (clip_task(step, task)) tasks.push_back(task);
      }
    }
  }
}

// How many pieces a task becomes when each should cost about `share`.
int64_t pieces_of(const AttentionStep& step, const Piece& whole, int64_t share) {
  const int64_t partitions = whole.task.last_partition - whole.task.first_partition;
  const int64_t wanted = step.piece_partitions
                             ? (partitions + step.piece_partitions - 1) / step.piece_partitions
                             : (whole.cost + share / 2) / share;
  return wanted < 1 ? 1 : wanted < partitions ? wanted : partitions;
}

// Moves tasks that cost more than their share from `pieces` to `merges`, and their pieces into `pieces`.
void cut_tasks(const AttentionStep& step, int64_t share, AttentionScratch& scratch) {
  const size_t num_tasks = scratch.pieces.size();
  size_t kept = 0;
  int64_t floats = 0;
  for (size_t i = 0; i < num_tasks; ++i) {
    const Piece whole = scratch.pieces[i];
    if (pieces_of(step, whole, share) == 1) {
      scratch.pieces[kept++] = whole;
      continue;
    }
    scratch.merges.push_back(whole);
    floats += (whole.task.last_partition - whole.task.first_partition) *
              rows_in(whole.task) * part_floats(step.kv.head_size);
  }
  scratch.pieces.resize(kept);
  if (scratch.parts.size() < static_cast<size_t>(floats)) scratch.parts.resize(static_cast<size_t>(floats));
  float* parts = scratch.parts.data();
  for (Piece& whole : scratch.merges) {
    whole.task.parts = parts;
    const int64_t count = pieces_of(step, whole, share);
    const int64_t first = whole.task.first_partition, partitions = whole.task.last_partition - first;
    const int64_t stride = rows_in(whole.task) * part_floats(step.kv.head_size);
    for (int64_t i = 0; i < count; ++i) {
      Piece piece = whole;
      piece.task.first_partition = first + partitions * i / count;
      piece.task.last_partition = first + partitions * (i + 1) / count;
      piece.task.parts = parts + (piece.task.first_partition - first) * stride;
      scratch.pieces.push_back(piece);
    }
    parts += partitions * stride;
  }
}

Attention chunk_of(const AttentionStep& step, int64_t c) {
  const int64_t first = step.offsets[c], width = step.heads * step.kv.head_size;
  return {step.kv,
          step.q + first * width,
          step.out + first * width,
          step.log_sum_exp ? step.log_sum_exp + first * step.heads : nullptr,
          step.tables + c * step.table_width,
          step.starts[c],
          step.offsets[c + 1] - first,
          step.heads,
          step.scale,
          step.window,
          step.soft_cap,
          step.sinks,
          step.slopes,
          step.state ? step.state + first * step.heads * part_floats(step.kv.head_size) : nullptr};
}

using Kernel = void (*)(const Attention&, const AttentionTask&);

// Brings the pieces of each owner together; those of owner h begin at first[h].
void sort_by_owner(const AttentionStep& step, AttentionScratch& scratch,
                  int64_t (&first)[Team::owners_max + 1]) {
  const int64_t group = step.heads / step.kv.kv_heads;
  const Owners owners{step.offsets[step.num_chunks], step.owners};
  const auto owner_of = [&](const Piece& piece) {
    return owners.of(step.offsets[piece.chunk] + piece.task.first_row / group);
  };
  std::fill_n(first, owners.count + 1, 0);
  for (const Piece& piece : scratch.pieces) ++first[owner_of(piece) + 1];
  for (int64_t owner = 0; owner < owners.count; ++owner) first[owner + 1] += first[owner];
  int64_t next[Team::owners_max];
  std::copy_n(first, owners.count, next);
  scratch.sorted.resize(scratch.pieces.size());
  for (const Piece& piece : scratch.pieces) {
    scratch.sorted[static_cast<size_t>(next[owner_of(piece)]++)] = piece;
  }
  scratch.pieces.swap(scratch.sorted);
}

// One kernel over all pieces. Alone too it goes through the team, which sets the mode of floating point.
void run_pieces(const AttentionStep& step, const std::vector<Piece>& pieces, Kernel kernel, bool shared) {
  const int64_t count = static_cast<int64_t>(pieces.size()), tasks = shared ? count : 1;
  parallel(tasks, [&](int64_t task) {
    for (int64_t i = count * task / tasks; i < count * (task + 1) / tasks; ++i) {
      const Piece& piece = pieces[static_cast<size_t>(i)];
      kernel(chunk_of(step, piece.chunk), piece.task);
    }
  });
}

// Each piece names the keys that the next one begins with: most likely the same thread takes that one.
void run_by_owner(const AttentionStep& step, AttentionScratch& scratch, Kernel kernel) {
  int64_t first[Team::owners_max + 1];
  sort_by_owner(step, scratch, first);
  for (size_t i = 0; i + 1 < scratch.pieces.size(); ++i) {
    const auto& [chunk, cost, low, task] = scratch.pieces[i + 1];
    const int64_t begin = std::max(low / kv_lanes * kv_lanes, task.first_partition * partition_size);
    const int64_t stop = step.starts[chunk] + step.offsets[chunk + 1] - step.offsets[chunk];
    scratch.pieces[i].task.next = {step.tables + chunk * step.table_width, task.first_head, begin, stop};
  }
  const Piece* pieces = scratch.pieces.data();
  parallel_by_owner(first, step.owners,
                   [&](int64_t i) { kernel(chunk_of(step, pieces[i].chunk), pieces[i].task); });
}

}  // namespace

int64_t KvLayout::bytes_per_block() const { return (num_layers * layer_bytes() + page - 1) / page * page; }

KvLayer KvLayout::layer(uint8_t* pool, int64_t index) const {
  return {pool, bytes_per_block(), index * layer_bytes(), num_kv_heads, head_size, block_size, kind};
}

void run_attention(const AttentionStep& step) {
  thread_local AttentionScratch own;
  AttentionScratch& scratch = step.scratch ? *step.scratch : own;
  const Kernels& k = kernels();
  const Kernel attend = (step.kv.cold ? k.attend_cold : k.attend)[static_cast<int>(step.kv.kind)];
  scratch.pieces.clear();
  scratch.merges.clear();
  const int64_t threads = Team::instance().size();
  list_tasks(step, threads, scratch.pieces);
  int64_t cost = 0;
  for (const Piece& piece : scratch.pieces) cost += piece.cost;
  const bool shared = threads > 1 && cost * step.kv.head_size >= alone_max;
  if (shared || step.piece_partitions) cut_tasks(step, cost / (threads * pieces_per_thread) + 1, scratch);
  if (shared && step.owners > 1) {
    run_by_owner(step, scratch, attend);
  } else {
    run_pieces(step, scratch.pieces, attend, shared);
  }
  if (!scratch.merges.empty()) run_pieces(step, scratch.merges, k.merge_parts, shared);
}

}  // namespace octavo
