// Linear layers and row operations over awkward sizes, against plain loops in double.
#include "check/check.hpp"
#include "dispatch.hpp"
#include "team.hpp"

namespace octavo::check {
namespace {

int64_t panels_of(int64_t outputs) { return (outputs + panel_width - 1) / panel_width; }

// Three blocks, of which a product fetches 832 bytes from the middle of the first on; the list is no longer than that.
struct KvLists {
  std::vector<uint8_t> memory = std::vector<uint8_t>(3 * 1024);
  std::vector<const uint8_t*> blocks{memory.data(), memory.data() + 2048, memory.data() + 1024};
  KvPrefetchCursor cursor{blocks.data(), 256, 384, 192, 832};

  // However far it came, it stands where that many bytes end.
  void check() const {
    const int64_t place = 192 + 832 - cursor.left;
    CHECK(cursor.left >= 0 && cursor.block == blocks.data() + place / 384 && cursor.offset == place % 384);
  }
};

// Of weights in F32 or, rounded, in F16 or BF16.
void float_product(Random& random, Kind kind, int64_t rows, int64_t inputs, int64_t outputs) {
  const Kernels& k = kernels();
  const std::vector<float> x = random.values(rows * inputs), w = random.values(outputs * inputs),
                           bias = random.values(outputs);
  std::vector<uint8_t> panels(static_cast<size_t>(bytes_of(kind, panels_of(outputs) * inputs * panel_width)));
  std::vector<float> y(static_cast<size_t>(rows * outputs));
  k.pack({reinterpret_cast<const uint8_t*>(w.data()), Kind::f32, outputs, inputs, panels.data(), kind}, 0,
         panels_of(outputs));
  std::vector<uint8_t> rounded(static_cast<size_t>(rows * inputs * k.rounded_bytes));
  k.round_row(x.data(), rows * inputs, rounded.data());
  Product product{};
  product.x = kind == Kind::bf16 ? static_cast<const void*>(rounded.data()) : x.data();
  product.kind = kind;
  product.panels = panels.data();
  product.bias = bias.data();
  product.y = y.data();
  product.rows = rows;
  product.inputs = inputs;
  product.outputs = outputs;
  KvLists lists;
  product.kv_cursor = &lists.cursor;
  k.product(product, 0, panels_of(outputs));
  lists.check();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < outputs; ++o) {
      double sum = bias[static_cast<size_t>(o)];
      for (int64_t i = 0; i < inputs; ++i) {
        sum += static_cast<double>(x[static_cast<size_t>(r * inputs + i)]) *
               w[static_cast<size_t>(o * inputs + i)];
      }
      CHECK(close(y[static_cast<size_t>(r * outputs + o)], sum, kind == Kind::f32 ? 1e-4 : 0.1));
    }
  }
}

std::vector<Kind> quantised_kinds() {
  std::vector<Kind> kinds;
  for (const KindRow& row : kind_rows) {
    if (row.elements > 1) kinds.push_back(static_cast<Kind>(&row - kind_rows));
  }
  return kinds;
}

// A matrix of random codes with scales that are ordinary halves.
std::vector<uint8_t> random_file(Random& random, Kind kind, int64_t count) {
  std::vector<uint8_t> data(static_cast<size_t>(bytes_of(kind, count)));
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.bits() >> 16);
  const size_t stride = static_cast<size_t>(row_of(kind).bytes);
  const bool halves_are_last = kind == Kind::q2_k || kind == Kind::q3_k || kind == Kind::q6_k;
  const size_t first = halves_are_last ? stride - 2 * static_cast<size_t>(row_of(kind).halves) : 0;
  for (size_t i = first; i < data.size(); i += stride) {
    if (kind == Kind::mxfp4) {
      data[i] = static_cast<uint8_t>(122 + data[i] % 4);  // an exponent
      continue;
    }
    data[i + 1] = static_cast<uint8_t>(0x2C | (data[i + 1] & 0x83));
    if (has_minima(kind)) data[i + 3] = static_cast<uint8_t>(0x2C | (data[i + 3] & 0x83));
  }
  return data;
}

void integer_product(Random& random, Kind kind, int64_t rows, int64_t inputs, int64_t outputs) {
  const Kernels& k = kernels();
  const std::vector<uint8_t> data = random_file(random, kind, outputs * inputs);
  std::vector<float> w(static_cast<size_t>(outputs * inputs));
  k.dequantise(data.data(), kind, outputs * inputs, w.data());
  const size_t bytes = static_cast<size_t>(panels_of(outputs) * code_panel_bytes(kind, inputs));
  std::unique_ptr<uint8_t, void (*)(void*)> panels(static_cast<uint8_t*>(std::aligned_alloc(64, bytes)),
                                                   std::free);
  k.pack_codes({data.data(), kind, outputs, inputs, panels.get(), kind}, 0, panels_of(outputs));
  const std::vector<float> x = random.values(rows * inputs);
  const int64_t stride = code_stride(rows);
  const size_t groups = static_cast<size_t>(stride * inputs / quant_group);
  std::vector<int8_t> codes(static_cast<size_t>(stride * inputs));
  std::vector<float> scales(groups), origins(groups), shifts(groups), y(static_cast<size_t>(rows * outputs));
  std::vector<int32_t> starts(groups);
  const Activations given{rows,          stride,         inputs,        codes.data(),
                          scales.data(), origins.data(), starts.data(), shifts.data()};
  k.quantise_rows(x.data(), kind, 0, rows, given);
  IntegerProduct product{};
  product.x = given;
  product.panels = panels.get();
  product.kind = kind;
  product.y = y.data();
  product.outputs = outputs;
  KvLists lists;
  product.kv_cursor = &lists.cursor;
  k.integer_product(product, 0, panels_of(outputs));
  lists.check();
  if (k.vector_bits == 512 && rows == 5) CHECK(lists.cursor.left == (is_super(kind) ? 832 : 0));
  std::vector<float> row(static_cast<size_t>(inputs));
  for (int64_t o = 0; o < outputs; ++o) {
    k.unpack_codes(panels.get(), kind, inputs, o, row.data());
    CHECK(std::memcmp(row.data(), w.data() + o * inputs, row.size() * sizeof(float)) == 0);
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (int64_t i = 0; i < inputs; ++i) {
        const size_t at = static_cast<size_t>((i / quant_group * stride + r) * quant_group + i % quant_group);
        const size_t group = static_cast<size_t>(i / quant_group * stride + r);
        sum += static_cast<double>(codes[at]) * scales[group] * row[static_cast<size_t>(i)];
      }
      CHECK(close(y[static_cast<size_t>(r * outputs + o)], sum, 1e-3));
    }
  }
}

void row_operations(Random& random, int64_t size) {
  const Kernels& k = kernels();
  const std::vector<float> x = random.values(size), weight = random.values(size), bias = random.values(size);
  std::vector<float> out(static_cast<size_t>(size));
  k.rms_norm(x.data(), weight.data(), 1e-5f, size, out.data());
  k.layer_norm(x.data(), weight.data(), bias.data(), 1e-5f, size, out.data());
  for (const Map map : {Map::exp, Map::tanh, Map::silu, Map::gelu_tanh, Map::gelu, Map::relu}) {
    k.map(map, x.data(), size, out.data());
    k.gated(map, x.data(), weight.data(), size, out.data());
    for (const float value : out) CHECK(std::isfinite(value));
  }
  k.add(x.data(), bias.data(), size, out.data());
  k.scale(out.data(), 0.5f, size, out.data());
  k.soft_cap(out.data(), 30.0f, size, out.data());
  double sum = 0;
  for (const float value : x) sum += std::exp(static_cast<double>(value));
  CHECK(close(k.log_sum_exp(x.data(), size), std::log(sum), 1e-6));
  const int32_t best = k.argmax(x.data(), size);
  for (const float value : x) CHECK(value <= x[static_cast<size_t>(best)]);
  k.gumbel(7, 0, 3, 0, size, out.data());
  for (const float value : out) CHECK(std::isfinite(value));
}

}  // namespace

void check_products() {
  Random random(1);
  for (const int64_t rows : {1, 2, 3, 5, 7, 8, 9, 13}) {
    float_product(random, Kind::f32, rows, 33, 71);
    for (const Kind kind : {Kind::f32, Kind::f16, Kind::bf16}) {
      float_product(random, kind, rows, 34, 71);
      float_product(random, kind, rows, 64, 400);
    }
    for (const Kind kind : quantised_kinds()) {
      if (is_super(kind)) {
        integer_product(random, kind, rows, 512, 71);
      } else {
        integer_product(random, kind, rows, 64, 71);
        integer_product(random, kind, rows, 32, 16 * 9);
      }
    }
  }
  for (const int64_t rows : {16, 33, 272}) {  // what matrix registers take, in blocks of rows and of groups
    for (const Kind kind : quantised_kinds()) {
      integer_product(random, kind, rows, is_super(kind) ? 1024 : 800, 71);
    }
  }
  for (int64_t size = 1; size < 70; ++size) row_operations(random, size);
}

}  // namespace octavo::check
