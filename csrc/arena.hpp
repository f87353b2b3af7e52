// Where the rows of a program's buffers are while it runs.
//
//   part      of the arena: four of them, for tokens' and for logits' rows, shared or not
//   shared    buffers that others than a row's home read: row after row
//   unshared  home after home (team.hpp); within a home buffer after buffer, each row after row
//
// So whatever a home alone works on lies together, and its buffers take each other's places as soon as that
// home is done with them, wherever the others are.
#pragma once

#include "program.hpp"
#include "team.hpp"

namespace octavo {

// The rows [first, first + count) that are at home in one place.
struct HomeRows {
  int64_t home, first, count;
  float* shared;  // where the part of shared buffers begins, with room for so many rows
  int64_t shared_room;
  float* own;  // where this home's others begin
  int64_t own_room;

  float* first_row(const Buffer& buffer) const {
    if (buffer.is_shared) return shared + buffer.place * shared_room + first * buffer.width;
    return own + buffer.place * own_room;
  }
  float* row(const Buffer& buffer, int64_t row) const {
    return first_row(buffer) + (row - first) * buffer.width;
  }
};

struct Arena {
  const Program& program;
  Homes of_tokens, of_logits;
  float* memory;

  const Homes& homes(Rows rows) const { return rows == Rows::tokens ? of_tokens : of_logits; }

  // Quantised rows are spread a little, those of each home by themselves.
  static int64_t room(const Homes& all) { return all.rows + code_padding * all.count; }

  // Where a part begins, in floats; its end is where the next one does.
  int64_t start(Rows rows, bool is_shared) const {
    const bool tokens = rows == Rows::tokens;
    int64_t at = tokens ? 0 : start(Rows::tokens, false) + of(Rows::tokens, false) * room(of_tokens);
    if (!is_shared) at += of(rows, true) * homes(rows).rows;
    return at;
  }
  int64_t floats() const { return start(Rows::logits, false) + of(Rows::logits, false) * room(of_logits); }

  HomeRows at_home(Rows rows, int64_t home) const {
    const Homes& all = homes(rows);
    const int64_t first = all.first(home), before = first + code_padding * home;
    return {home,
            first,
            all.rows_of(home),
            memory + start(rows, true),
            all.rows,
            memory + start(rows, false) + of(rows, false) * before,
            all.rows_of(home) + code_padding};
  }

  // Any row of a shared buffer.
  float* shared_row(const Buffer& buffer, int64_t row) const {
    return memory + start(buffer.rows, true) + buffer.place * homes(buffer.rows).rows + row * buffer.width;
  }

 private:
  int64_t of(Rows rows, bool is_shared) const { return program.floats_per_row(rows, is_shared); }
};

}  // namespace octavo
