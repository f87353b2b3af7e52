// AMX's eight matrix registers, of up to 16 rows of 64 bytes each, where the machine has them.
//
// A product adds to a register of sums, row by row and column by column of 32 bits, the products of a row of
// the left register with a column of the right one. The left one holds rows as they are; the right one holds
// in its row i and column j the 32-bit word of inputs that meets word i of a left row: so K and V in bfloat16
// and integer panels lie in memory already. Bits of a row of sums depend on that row of the left register and
// on the right one alone.
#pragma once

#include "kernels/simd.hpp"

namespace octavo::OCTAVO_ISA {

#if defined(__AMX_INT8__) && defined(__AMX_BF16__)
#define OCTAVO_MATRICES
constexpr bool has_matrices = true;
#else
constexpr bool has_matrices = false;
#endif

constexpr int matrix_rows = 16;

// Rows, and bytes of a row, of each register; as LDTILECFG reads them.
struct alignas(64) MatrixShapes {
  uint8_t palette = 1, reserved[15] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int which, int64_t its_rows, int64_t its_row_bytes) {
    rows[which] = static_cast<uint8_t>(its_rows);
    row_bytes[which] = static_cast<uint16_t>(its_row_bytes);
  }
};
static_assert(sizeof(MatrixShapes) == 64);

#if defined(OCTAVO_MATRICES)

// The registers have these shapes while it lives.
class MatrixMode {
 public:
  explicit MatrixMode(const MatrixShapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes)); }
  ~MatrixMode() { asm volatile("tilerelease"); }
  MatrixMode(const MatrixMode&) = delete;
  MatrixMode& operator=(const MatrixMode&) = delete;
};

// Rows `pitch` bytes apart.
template <int which>
OCTAVO_INLINE void load_matrix(const void* source, int64_t pitch) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(which), "r"(source), "r"(pitch) : "memory");
}

template <int which>
OCTAVO_INLINE void store_matrix(void* target, int64_t pitch) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(which), "r"(target), "r"(pitch) : "memory");
}

template <int which>
OCTAVO_INLINE void clear_matrix() {
  asm volatile("tilezero %%tmm%c0" : : "i"(which));
}

constexpr int sum_registers = 4;  // the first four registers, by custom

OCTAVO_INLINE void clear_sums() {
  clear_matrix<0>();
  clear_matrix<1>();
  clear_matrix<2>();
  clear_matrix<3>();
}

// Integer sums of signed bytes: exact.
template <int sums, int left, int right>
OCTAVO_INLINE void multiply_bytes() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(left), "i"(right));
}

// float32 sums of pairs of bfloat16: the first numbers of all pairs are summed up from zero in fused steps,
// so are the second ones, the two are added, and that to what was there; subnormal numbers count as zero.
template <int sums, int left, int right>
OCTAVO_INLINE void multiply_brains() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(left), "i"(right));
}

#endif

}  // namespace octavo::OCTAVO_ISA
