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

// One half of each of `count` words, 16 at most: the numbers of one of two tokens.
OCTAVO_INLINE void store_halves(uint16_t* words, bool second, int64_t count, const IntLanes& brains) {
#if defined(__AVX512BW__)
  const __m512i halves = second ? _mm512_slli_epi32((__m512i)brains.part[0], 16) : (__m512i)brains.part[0];
  const uint32_t within = 0xFFFFFFFFu >> (2 * (lane_count - count));
  _mm512_mask_storeu_epi16(words, (second ? 0xAAAAAAAAu : 0x55555555u) & within, halves);
#else
  alignas(64) int32_t lane[lane_count];
  store_words(reinterpret_cast<uint8_t*>(lane), brains);
  for (int64_t i = 0; i < count; ++i) words[2 * i + second] = static_cast<uint16_t>(lane[i]);
#endif
}

void store_brains(const KvLayer& kv, uint8_t* keys, uint8_t* values, int64_t slot, const float* k,
                  const float* v) {
  const int64_t size = kv.head_size, padded_size = kv_padded_size(size), all = kv.kv_heads * size;
  uint32_t* key = reinterpret_cast<uint32_t*>(keys) + slot;
  // A cache line each: requested together, they take one latency.
  for (int64_t i = 0; i < all / 2; ++i) __builtin_prefetch(key + i * kv.block_size, 1);
  for (int64_t i = 0; i < all; i += lane_count) {
    alignas(64) uint32_t brains[lane_count];
    store_words(reinterpret_cast<uint8_t*>(brains), brains_of(load_first(k + i, all - i)));
    for (int64_t d = 0; d < lane_count && i + d < all; d += 2, key += kv.block_size) {
      *key = brains[d] | brains[d + 1] << 16;
    }
  }
  for (int64_t h = 0; h < kv.kv_heads; ++h) {
    uint16_t* words = reinterpret_cast<uint16_t*>(values) + (h * kv.block_size + slot) / 2 * 2 * padded_size;
    for (int64_t i = 0; i < size; i += lane_count) {
      const int64_t count = size - i < lane_count ? size - i : lane_count;
      store_halves(words + 2 * i, slot % 2 != 0, count, brains_of(load_first(v + h * size + i, count)));
    }
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
