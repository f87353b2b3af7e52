// A step whose sequences are larger than the pool: it reads some of their blocks from a second memory, and
// may be suspended between two layers.
//
// A chunk with cold entries is walked group after group (cold_reader.hpp): once a group's blocks are there,
// all rows of the chunk take in its partitions, and what they have so far is kept for the next group.
// Partitions and their order are those of the uncut walk, so not one bit differs.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cold_reader.hpp"
#include "replay.hpp"

namespace octavo {

struct ColdStep {
  // Copies the input, claims the reader, and reads ahead.
  ColdStep(Program& program, const StepInput& given, int64_t pool_blocks, ColdReader& memory);
  ~ColdStep() { reader.release(); }
  ColdStep(const ColdStep&) = delete;
  ColdStep& operator=(const ColdStep&) = delete;

  bool is_at_end() const { return next_phase == program.phases().size(); }
  // Runs phases on until so many of attention are done, or all.
  void advance(int64_t num_layers);
  void replace_tables(const int32_t* given);

  Program& program;
  ColdReader& reader;
  const int64_t num_blocks;
  std::vector<int32_t> tokens, positions, logit_rows, starts, offsets, tables;
  StepInput input{};  // of these
  Replay replay;

 private:
  void plan();
  ColdWalk walk_of(int64_t window) const;
  void attend(const Attend& op);
  void attend_group(const AttentionStep& chunk, const ColdPass& pass, const ColdGroup& group);
  void reserve_state();
  // Calls body(chunk, first, last): layers with this window read blocks [first, last) of its table.
  template <class Body>
  void each_chunk(int64_t window, Body&& body) const;

  int64_t layer_bytes = 0;
  size_t next_phase = 0, last_attention = 0;
  std::vector<ColdWalk> walks;   // one for each window
  std::vector<ColdPass> passes;  // of the attention still to come when `plan` was called
  size_t next_pass = 0;
  std::unique_ptr<float[]> state;  // see AttentionStep
};

}  // namespace octavo
