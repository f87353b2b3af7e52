// The kernels of one instruction set, by name; table.cpp puts them into one `Kernels`. Where there is a base, an
// instruction set compiles only what its own instructions change (CMakeLists.txt lists it).
#pragma once

#include "kernels/kernels.hpp"

namespace octavo::OCTAVO_ISA {

const Kernels& kernels();

void product(const Product&, int64_t first_panel, int64_t last_panel);
void round_row(const float* x, int64_t count, void* out);
void pack(const Packing&, int64_t first_panel, int64_t last_panel);
void dequantise(const uint8_t* data, Kind kind, int64_t count, float* out);
void unpack_row(const void* panels, Kind kind, int64_t inputs, int64_t index, float* out);

void integer_product(const IntegerProduct&, int64_t first_panel, int64_t last_panel);
void pack_codes(const CodePacking&, int64_t first_panel, int64_t last_panel);
void unpack_codes(const uint8_t* panels, Kind kind, int64_t inputs, int64_t index, float* out);
void quantise_rows(const float* x, Kind kind, int64_t first, int64_t rows, const Activations& out);

void attend_f32(const Attention&, const AttentionTask&);
void attend_bf16(const Attention&, const AttentionTask&);
void attend_int8(const Attention&, const AttentionTask&);
void attend_cold_f32(const Attention&, const AttentionTask&);
void attend_cold_bf16(const Attention&, const AttentionTask&);
void attend_cold_int8(const Attention&, const AttentionTask&);
void merge_parts(const Attention&, const AttentionTask&);
void store_kv(const KvLayer&, int64_t block, int64_t slot, const float* k, const float* v);

void rms_norm(const float* x, const float* weight, float eps, int64_t size, float* out);
void layer_norm(const float* x, const float* weight, const float* bias, float eps, int64_t size, float* out);
void rope(const float* x, const float* cos, const float* sin, int64_t heads, int64_t head_size, int64_t dims,
          float* out);
void map(Map function, const float* x, int64_t count, float* out);
void gated(Map function, const float* gate, const float* up, int64_t count, float* out);
void add(const float* x, const float* y, int64_t count, float* out);
void scale(const float* x, float factor, int64_t count, float* out);
void soft_cap(const float* x, float cap, int64_t count, float* out);

float log_sum_exp(const float* x, int64_t count);
int32_t argmax(const float* x, int64_t count);
void gumbel(uint64_t seed, uint32_t choice, uint32_t position, uint32_t first, int64_t count, float* out);
void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

int64_t peak_multiply_add(int64_t rounds, float* values);
int64_t peak_pairs(int64_t rounds, float* values);
int64_t peak_dots(int64_t rounds, int8_t* values);
int32_t read_all(const uint8_t* data, int64_t count);

}  // namespace octavo::OCTAVO_ISA
