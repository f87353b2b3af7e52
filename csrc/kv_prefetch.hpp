// Fetching the K and V of the next attention while the linear layers before it run.
//
// With many sequences products wait for arithmetic and attention for memory, one after the other. K and V
// that were prefetched meanwhile lie in the last cache when attention begins. The step's tables name the
// blocks; each task of products fetches as large a part of them as it is of the work until then.
//
// Whether that pays depends on the machine: where memory has nothing to spare, products lose more than
// attention gains. So a program tries both ways on steps alike, and keeps to the faster one. No bit differs.
#pragma once

#include <vector>

#include "kernels/kernels.hpp"
#include "team.hpp"

namespace octavo {

struct Linear;
struct StepInput;
class Program;

// The blocks that a step's attention reads, owner after owner: one list for each size of window. What a sequence
// shares with the one before it stands there alone.
class KvPrefetch {
 public:
  // Forgets the step before.
  void list_blocks(const Program& program, const StepInput& input, const Owners& owners);

  // What a task that makes panels [first_panel, last_panel) for an owner's rows shall fetch.
  KvPrefetchCursor part_of(const Program& program, const Linear& op, int64_t owner, int64_t first_panel,
                  int64_t last_panel) const;

 private:
  struct List {
    int64_t window;
    std::vector<const uint8_t*> blocks;
    std::vector<int64_t> first;  // of each owner, and the end
  };

  std::vector<List> lists_;
  int64_t owners_ = 1;
};

// Whether something pays on this machine, learned from three runs alike that follow each other directly: the way
// that has paid so far, the other, and the first again, so that steps which grow evenly favour neither. At first
// all runs are such, later few are: under another load the machine may be another one.
class Trial {
 public:
  // Whether run `number` over so many rows and chunks shall do it.
  bool begin(int64_t number, int64_t rows, int64_t chunks);
  // How long that run took.
  void end(double seconds);

  // Time without over time with, in the mean of the last comparisons; and how many there were in all.
  double ratio() const;
  int64_t comparisons() const { return comparisons_; }

 private:
  double gain_ = 0;  // the ratio's logarithm
  int64_t comparisons_ = 0;
  int64_t plain_runs_left_ = 0;
  int64_t number_ = 0, rows_ = 0, chunks_ = 0;  // of the last run
  int64_t place_ = -1;                          // of that run among the three, or -1
  bool has_ended_ = false;
  double seconds_[3] = {};
};

}  // namespace octavo
