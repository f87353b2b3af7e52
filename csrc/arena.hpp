// Where the rows of a program's buffers are while it runs.
//
//   part      of the arena: four of them, for tokens' and for logits' rows, shared or not
//   shared    buffers that others than a row's owner read: row after row
//   unshared  owner after owner (team.hpp); within an owner buffer after buffer, each row after row, or group
//             after group where rows are quantised
//
// So whatever an owner alone works on lies together, and its buffers take each other's places as soon as that
// owner is done with them, however far the other owners are.
#pragma once

#include "program.hpp"
#include "team.hpp"

namespace octavo {

// The rows [first, first + count) of one owner, and where they lie.
struct OwnerRows {
  int64_t first, count;
  float* shared_part;
  int64_t shared_room;  // rows for which a shared buffer has room
  float* unshared;      // of this owner
  int64_t unshared_room;

  float* first_row(const Buffer& buffer) const {
    if (buffer.is_shared) return shared_part + buffer.place * shared_room + first * buffer.width;
    return unshared + buffer.place * unshared_room;
  }
  float* row(const Buffer& buffer, int64_t row) const {
    return first_row(buffer) + (row - first) * buffer.width;
  }
};

struct Arena {
  const Program& program;
  Owners of_tokens, of_logits;
  float* memory;

  const Owners& owners(Rows rows) const { return rows == Rows::tokens ? of_tokens : of_logits; }

  // Rows for which unshared buffers have room: quantised ones are spread a little, each owner's by themselves.
  static int64_t room(const Owners& all) { return all.rows + code_padding * all.count; }

  // Where a part begins, in floats; its end is where the next one does.
  int64_t start(Rows rows, bool is_shared) const {
    int64_t at = 0;
    if (rows == Rows::logits) {
      at = start(Rows::tokens, false) + program.floats_per_row(Rows::tokens, false) * room(of_tokens);
    }
    if (!is_shared) at += program.floats_per_row(rows, true) * owners(rows).rows;
    return at;
  }
  int64_t floats() const {
    return start(Rows::logits, false) + program.floats_per_row(Rows::logits, false) * room(of_logits);
  }

  OwnerRows rows_of_owner(Rows rows, int64_t owner) const {
    const Owners& all = owners(rows);
    const int64_t first = all.first(owner), count = all.rows_of(owner);
    const int64_t room_before = first + code_padding * owner;  // of the owners before this one
    return {first,
            count,
            memory + start(rows, true),
            all.rows,
            memory + start(rows, false) + program.floats_per_row(rows, false) * room_before,
            count + code_padding};
  }

  // Any row of a shared buffer.
  float* shared_row(const Buffer& buffer, int64_t row) const {
    return memory + start(buffer.rows, true) + buffer.place * owners(buffer.rows).rows + row * buffer.width;
  }
};

}  // namespace octavo
