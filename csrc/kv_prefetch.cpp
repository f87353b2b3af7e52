#include "kv_prefetch.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "program.hpp"

namespace octavo {
namespace {

constexpr int64_t fetched_max = 16 << 20;  // bytes, of all owners: more might not stay in the last cache

constexpr int64_t comparisons_at_first = 12, runs_between = 64;
constexpr double gain_max = 0.2;  // of one comparison: what exceeds it was another process

}  // namespace

void KvPrefetch::list_blocks(const Program& program, const StepInput& input, const Owners& owners) {
  const KvLayer& kv = program.layer(0);
  owners_ = owners.count;
  lists_.resize(program.windows().size());
  for (size_t i = 0; i < lists_.size(); ++i) {
    List& list = lists_[i];
    list.window = program.windows()[i];
    list.blocks.clear();
    list.first.assign(static_cast<size_t>(owners_) + 1, 0);
    const int32_t* table_before = nullptr;  // of the last chunk: slots [first_before, last_before) are listed
    int64_t first_before = 0, last_before = 0;
    for (int64_t c = 0; c < input.num_chunks; ++c) {
      if (input.offsets[c] == input.offsets[c + 1]) continue;
      const int32_t* table = input.tables + c * input.table_width;
      const int64_t start = input.starts[c];
      const int64_t hidden = list.window ? std::max<int64_t>(0, start - list.window + 1) : 0;
      const int64_t first = hidden / kv.block_size, last = (start + kv.block_size - 1) / kv.block_size;
      for (int64_t slot = first; slot < last; ++slot) {
        const bool is_listed = slot >= first_before && slot < last_before && table_before[slot] == table[slot];
        if (!is_listed) list.blocks.push_back(kv.pool + kv.block_bytes * table[slot]);
      }
      table_before = table, first_before = first, last_before = last;
      const auto owner = static_cast<size_t>(owners.of(input.offsets[c]));
      list.first[owner + 1] = static_cast<int64_t>(list.blocks.size());
    }
    std::partial_sum(list.first.begin(), list.first.end(), list.first.begin(),
                     [](int64_t before, int64_t own) { return std::max(before, own); });
  }
}

KvPrefetchCursor KvPrefetch::part_of(const Program& program, const Linear& op, int64_t owner, int64_t first_panel,
                            int64_t last_panel) const {
  if (op.next_layer < 0) return {};
  const auto list = std::find_if(lists_.begin(), lists_.end(),
                                 [&](const List& one) { return one.window == op.next_window; });
  const KvLayer& kv = program.layer(op.next_layer);
  const int64_t bytes = kv_layer_bytes(kv.kind, kv.kv_heads, kv.head_size, kv.block_size);
  const int64_t first = list->first[static_cast<size_t>(owner)];
  const int64_t blocks = list->first[static_cast<size_t>(owner) + 1] - first;
  const int64_t all = std::min(blocks * bytes, fetched_max / owners_);
  const auto place_at = [&](int64_t panel) {
    return all * (op.work_before + panel * op.weight.inputs) / op.work_between / 64 * 64;
  };
  const int64_t place = place_at(first_panel);
  return {list->blocks.data() + first + place / bytes, kv.layer_start, bytes, place % bytes,
          place_at(last_panel) - place};
}

bool Trial::begin(int64_t number, int64_t rows, int64_t chunks) {
  const bool pays = gain_ >= 0;
  const bool follows_its_like = has_ended_ && number == number_ + 1 && rows == rows_ && chunks == chunks_;
  number_ = number;
  rows_ = rows;
  chunks_ = chunks;
  has_ended_ = false;
  if (plain_runs_left_ > 0) {
    --plain_runs_left_;
    place_ = -1;
    return pays;
  }
  place_ = follows_its_like ? (place_ + 1) % 3 : 0;
  return place_ == 1 ? !pays : pays;
}

void Trial::end(double seconds) {
  has_ended_ = true;
  if (place_ < 0) return;
  seconds_[place_] = seconds;
  if (place_ < 2) return;
  const double slower = std::log(seconds_[1]) - (std::log(seconds_[0]) + std::log(seconds_[2])) / 2;
  const double gain = std::clamp(gain_ >= 0 ? slower : -slower, -gain_max, gain_max);
  gain_ += (gain - gain_) / static_cast<double>(std::min(++comparisons_, comparisons_at_first));
  if (comparisons_ >= comparisons_at_first) plain_runs_left_ = runs_between;
}

double Trial::ratio() const { return std::exp(gain_); }

}  // namespace octavo
