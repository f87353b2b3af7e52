// Fetching what comes next while something is computed.
#pragma once

#include "kernels/kernels.hpp"
#include "kernels/simd.hpp"

namespace octavo::OCTAVO_ISA {

OCTAVO_INLINE void prefetch(const void* source) { __builtin_prefetch(source, 0, 2); }

// Bytes that are wanted soon: some lines of them are fetched with each step of what is computed until then.
// Where many rows pass over the same weights, only the first tile of rows reads new bytes; left to itself the
// processor would wait for memory there, and leave memory idle for the rest of the time.
struct PrefetchCursor {
  const uint8_t *next, *end;
  int64_t lines;  // of 64 bytes, with each step
};

OCTAVO_INLINE PrefetchCursor fetched_within(const void* first, int64_t bytes, int64_t steps) {
  const uint8_t* begin = static_cast<const uint8_t*>(first);
  return {begin, begin + bytes, (bytes + 64 * steps - 1) / (64 * steps)};
}

OCTAVO_INLINE void fetch_some(PrefetchCursor& cursor) {
  for (int64_t i = 0; i < cursor.lines; ++i) prefetch(cursor.next + 64 * i);
  cursor.next += 64 * cursor.lines;
}

// Between two tiles: nothing is fetched twice.
OCTAVO_INLINE void end_when_done(PrefetchCursor& cursor) {
  if (cursor.next >= cursor.end) cursor.lines = 0;
}

// What a tile fetches of the K and V that attention will read: from one block, so many lines with each step (the
// last ones may lie behind its end: no harm).
template <int lines>
struct Piece {
  const uint8_t *next, *end;
};

template <int lines>
OCTAVO_INLINE Piece<lines> take_piece(KvPrefetchCursor* kv, int64_t steps) {
  if (!kv || kv->left <= 0) return {};
  int64_t size = 64 * lines * steps;
  if (size > kv->bytes - kv->offset) size = kv->bytes - kv->offset;
  if (size > kv->left) size = kv->left;
  const uint8_t* first = *kv->block + kv->start + kv->offset;
  kv->left -= size;
  kv->offset += size;
  if (kv->offset == kv->bytes) kv->offset = 0, ++kv->block;
  return {first, first + size};
}

template <int lines>
OCTAVO_INLINE void fetch_some(Piece<lines>& piece) {
  if (piece.next >= piece.end) return;
#pragma GCC unroll 8
  for (int i = 0; i < lines; ++i) prefetch(piece.next + 64 * i);
  piece.next += 64 * lines;
}

}  // namespace octavo::OCTAVO_ISA
