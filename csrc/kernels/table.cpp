// One table of kernels: this file, like its neighbours, is compiled once per instruction set.
#include "kernels/table.hpp"

#include "kernels/simd.hpp"

#define OCTAVO_TEXT_OF(x) #x
#define OCTAVO_TEXT(x) OCTAVO_TEXT_OF(x)

namespace octavo::OCTAVO_ISA {
namespace {

constexpr Kernels table{
    OCTAVO_TEXT(OCTAVO_ISA),
    native_bytes * 8,
    product,
    pack,
    dequantise,
    unpack_row,
    integer_product,
    pack_codes,
    unpack_codes,
    quantise_rows,
    attend,
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

}  // namespace

const Kernels& kernels() { return table; }

}  // namespace octavo::OCTAVO_ISA
