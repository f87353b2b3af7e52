// One table of kernels: this file, like its neighbours, is compiled once per instruction set.
//
// An instruction set that adds few instructions to another one, its base, differs from it in few kernels. Where
// the base is built too (OCTAVO_BASE is its name), all the others are the base's: they would be compiled to the
// same code.
//
//   avx2_vnni     avx2      products of bytes
//   avx512_bf16   avx512    products of pairs of bfloat16
//   avx512_amx    avx512    both, in matrix registers
#include "kernels/table.hpp"

#include "kernels/pairs.hpp"

#define OCTAVO_TEXT_OF(x) #x
#define OCTAVO_TEXT(x) OCTAVO_TEXT_OF(x)

#if defined(OCTAVO_BASE)
namespace octavo::OCTAVO_BASE {
const Kernels& kernels();
}
#endif

namespace octavo::OCTAVO_ISA {
namespace {

#if defined(OCTAVO_BASE)

Kernels table_over(Kernels table) {
  table.name = OCTAVO_TEXT(OCTAVO_ISA);
#if defined(__AVX512BF16__)
  table.attend[static_cast<int>(KvKind::bf16)] = attend_bf16;
  table.attend_cold[static_cast<int>(KvKind::bf16)] = attend_cold_bf16;
#if !defined(__AMX_INT8__)  // whose processors take four times as long for a product of pairs
  table.product = product;
  table.round_row = round_row;
  table.rounded_bytes = sizeof(Paired);
#endif
#endif
#if defined(__AMX_INT8__) || defined(__AVXVNNI__)
  table.integer_product = integer_product;
#endif
#if defined(__AMX_INT8__)
  table.merge_parts = merge_parts;
#endif
#if defined(__AVXVNNI__)
  table.attend[static_cast<int>(KvKind::int8)] = attend_int8;
  table.attend_cold[static_cast<int>(KvKind::int8)] = attend_cold_int8;
#endif
  table.peak_multiply_add = peak_multiply_add;
  table.peak_pairs = peak_pairs;
  table.peak_dots = peak_dots;
  table.read_all = read_all;
  return table;
}

#else

constexpr Kernels table{
    OCTAVO_TEXT(OCTAVO_ISA),
    native_bytes * 8,
    product,
    round_row,
    sizeof(Paired),
    pack,
    dequantise,
    unpack_row,
    integer_product,
    pack_codes,
    unpack_codes,
    quantise_rows,
    {attend_f32, attend_bf16, attend_int8},
    {attend_cold_f32, attend_cold_bf16, attend_cold_int8},
    merge_parts,
    store_kv,
    rms_norm,
    layer_norm,
    rope,
    map,
    gated,
    add,
    scale,
    soft_cap,
    log_sum_exp,
    argmax,
    gumbel,
    philox,
    peak_multiply_add,
    peak_pairs,
    peak_dots,
    read_all,
};

#endif

}  // namespace

const Kernels& kernels() {
#if defined(OCTAVO_BASE)
  static const Kernels table = table_over(OCTAVO_BASE::kernels());
#endif
  return table;
}

}  // namespace octavo::OCTAVO_ISA
