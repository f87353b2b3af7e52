// Attention where entries of a block table may be cold: the kernels of each kind once more (attend.hpp). Over
// a base only those that its instruction set changes (table.cpp).
#define OCTAVO_COLD

#if !defined(OCTAVO_BASE) || defined(__AVX512BF16__)
#include "kernels/attend_bf16.cpp"
#endif
#if !defined(OCTAVO_BASE) || defined(__AVXVNNI__)
#include "kernels/attend_int8.cpp"
#endif
#if !defined(OCTAVO_BASE)
#include "kernels/attend_f32.cpp"
#endif
