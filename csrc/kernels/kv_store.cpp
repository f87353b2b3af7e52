// The stores that fill a block: K and V of one token, rounded or quantised to the pool's kind.
#include "kernels/quantise.hpp"
#include "kernels/table.hpp"

namespace octavo::OCTAVO_ISA {
namespace {

void store_floats(const KvLayer& kv, uint8_t* keys, uint8_t* values, int64_t slot, const float* k,
                  const float* v) {
  const int64_t padded_size = kv_padded_size(kv.head_size);
  float* key = reinterpret_cast<float*>(keys) + slot;
  for (int64_t i = 0; i < kv.kv_heads * kv.head_size; ++i) key[i * kv.block_size] = k[i];
  float* value = reinterpret_cast<float*>(values) + slot * padded_size;
  for (int64_t h = 0; h < kv.kv_heads; ++h) {
    __builtin_memcpy(value + h * kv.block_size * padded_size, v + h * kv.head_size,
                     static_cast<uint64_t>(kv.head_size) * sizeof(float));
  }
}

void store_brains(const KvLayer& kv, uint8_t* keys, uint8_t* values, int64_t slot, const float* k,
                  const float* v) {
  const int64_t padded_size = kv_padded_size(kv.head_size), block_size = kv.block_size;
  uint16_t* key = reinterpret_cast<uint16_t*>(keys) + 2 * slot;
  for (int64_t i = 0; i < kv.kv_heads * kv.head_size; i += 2, key += 2 * block_size) {
    key[0] = brain_of(k[i]);
    key[1] = brain_of(k[i + 1]);
  }
  for (int64_t h = 0; h < kv.kv_heads; ++h) {
    const int64_t pair = (h * block_size + slot) / 2;
    uint16_t* value = reinterpret_cast<uint16_t*>(values) + 2 * pair * padded_size + slot % 2;
    for (int64_t d = 0; d < kv.head_size; ++d) value[2 * d] = brain_of(v[h * kv.head_size + d]);
  }
}

void store_codes(const KvLayer& kv, uint8_t* keys, uint8_t* values, int64_t slot, const float* k,
                 const float* v) {
  const int64_t padded_size = kv_padded_size(kv.head_size), words = kv.head_size / 4;
  float* scales = reinterpret_cast<float*>(values + kv.kv_heads * kv.block_size * padded_size);
  alignas(64) int8_t codes[head_size_max];
  for (int64_t h = 0; h < kv.kv_heads; ++h) {
    const int64_t row = h * kv.block_size + slot;
    scales[row] = quantise(k + h * kv.head_size, kv.head_size, codes).scale;
    uint8_t* key = keys + (h * words * kv.block_size + slot) * 4;
    for (int64_t i = 0; i < words; ++i) {
      uint32_t word;
      __builtin_memcpy(&word, codes + 4 * i, sizeof word);
      word ^= 0x80808080u;  // + 128 in each byte
      __builtin_memcpy(key + i * kv.block_size * 4, &word, sizeof word);
    }
    scales[kv.kv_heads * kv.block_size + row] = quantise(v + h * kv.head_size, kv.head_size, codes).scale;
    __builtin_memcpy(values + row * padded_size, codes, static_cast<uint64_t>(kv.head_size));
  }
}

}  // namespace

void store_kv(const KvLayer& kv, int64_t block, int64_t slot, const float* k, const float* v) {
  uint8_t* keys = kv.pool + block * kv.block_bytes + kv.layer_start;
  uint8_t* values = keys + kv.kv_heads * kv_key_bytes(kv.kind, kv.head_size, kv.block_size);
  switch (kv.kind) {
    case KvKind::f32: return store_floats(kv, keys, values, slot, k, v);
    case KvKind::bf16: return store_brains(kv, keys, values, slot, k, v);
    case KvKind::int8: return store_codes(kv, keys, values, slot, k, v);
  }
}

}  // namespace octavo::OCTAVO_ISA
