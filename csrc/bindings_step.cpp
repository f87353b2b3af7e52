// The operations of a step: the product, attention over block tables, and what happens to rows.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>

#include "arrays.hpp"
#include "attention_step.hpp"
#include "dispatch.hpp"
#include "team.hpp"

namespace octavo {
namespace {

KvKind kv_kind_of(const std::string& name) {
  if (name == "f32") return KvKind::f32;
  if (name == "bf16") return KvKind::bf16;
  require(name == "int8", "kind is \"" + name + "\"; allowed: f32, bf16, int8");
  return KvKind::int8;
}

KvLayout checked_layout(int64_t layers, int64_t kv_heads, int64_t size, int64_t block,
                        const std::string& kind) {
  require(layers >= 1 && layers <= 4096, "num_layers is " + std::to_string(layers) + "; allowed: 1 to 4096");
  require(kv_heads >= 1 && kv_heads <= 4096,
          "num_kv_heads is " + std::to_string(kv_heads) + "; allowed: 1 to 4096");
  require(size >= 8 && size <= head_size_max && size % 8 == 0,
          "head_size is " + std::to_string(size) + "; allowed: multiples of 8 up to 256");
  require(block == 16 || block == 32 || block == 64,
          "block_size is " + std::to_string(block) + "; allowed: 16, 32, 64");
  return {layers, kv_heads, size, block, kv_kind_of(kind)};
}

template <class P>
void require_pool(const KvLayout& layout, const P& pool, int64_t layer) {
  require_size("a block of the pool, in bytes,", extent(pool, 1), layout.bytes_per_block());
  require(reinterpret_cast<uintptr_t>(pool.data()) % 4 == 0,
          "the pool does not start at a multiple of 4 bytes");
  require_index("layer", layer, layout.num_layers);
}

// Where each layer lies in the pool, which must outlive the result.
std::vector<KvLayer> layers_of(const KvLayout& layout, const PoolOut& pool) {
  require_pool(layout, pool, 0);
  std::vector<KvLayer> layers;
  for (int64_t i = 0; i < layout.num_layers; ++i) layers.push_back(layout.layer(pool.data(), i));
  return layers;
}

// The chunks of a step: token ranges, first positions and block tables, all checked.
struct Chunks {
  const int32_t* starts;
  const int32_t* offsets;
  const int32_t* tables;
  int64_t count, table_width;

  Chunks(const IntVector& start_array, const IntVector& offset_array, const IntMatrix& table_array,
         int64_t tokens)
      : starts(start_array.data()),
        offsets(offset_array.data()),
        tables(table_array.data()),
        count(extent(start_array, 0)),
        table_width(extent(table_array, 1)) {
    require_chunks(start_array, offset_array, table_array, tokens);
  }

  int64_t length(int64_t c) const { return offsets[c + 1] - offsets[c]; }
  const int32_t* table(int64_t c) const { return tables + c * table_width; }

  // Every block of positions [first, start + length) of chunk c must exist.
  void require_blocks(int64_t c, int64_t first, int64_t block_size, int64_t num_blocks) const {
    const int64_t last_block = (starts[c] + length(c) - 1) / block_size;
    require(last_block < table_width, "the block table of chunk " + std::to_string(c) + " is too short");
    require_indices("block id", table(c) + first / block_size, last_block - first / block_size + 1,
                    num_blocks);
  }
};

template <class P>
void linear_of(const FloatMatrix& x, const P& panels, Kind kind, const std::optional<FloatVector>& bias,
               const FloatMatrixOut& out) {
  const int64_t rows = extent(x, 0), inputs = extent(x, 1), outputs = extent(out, 1);
  require_size("out, first axis,", extent(out, 0), rows);
  require_float_panels(panels, outputs, inputs);
  require_pairs(kind, inputs);
  const int64_t count = extent(panels, 0);
  if (bias) require_size("bias", extent(*bias, 0), outputs);
  const Kernels& k = kernels();
  const nb::gil_scoped_release unlocked;
  std::unique_ptr<uint8_t[]> rounded;
  const void* given = x.data();
  if (kind == Kind::bf16) {
    const int64_t row_bytes = inputs * k.rounded_bytes;
    rounded = std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(rows * row_bytes));
    given = rounded.get();
    const int64_t tasks = tasks_for(rows, rows * inputs, 1 << 14, Team::instance().size());
    parallel(tasks, [&](int64_t task) {
      for (int64_t row = rows * task / tasks; row < rows * (task + 1) / tasks; ++row) {
        k.round_row(x.data() + row * inputs, inputs, rounded.get() + row * row_bytes);
      }
    });
  }
  const Product product{given,  panels.data(), bias ? bias->data() : nullptr, out.data(), rows,
                        inputs, outputs,       kind};
  // Tasks begin at multiples of 24 panels, which suits every tile (8, 6, 4 or 3 vectors), if there are enough
  // panels, else of 3, the width of tiles with many rows.
  const int64_t wanted = tasks_for(count, rows * inputs * outputs, 1 << 16, Team::instance().size());
  const int64_t unit = count >= 24 * wanted ? 24 : 3, units = (count + unit - 1) / unit;
  const int64_t tasks = units < wanted ? units : wanted;
  parallel(tasks, [&](int64_t task) {
    const int64_t stop = units * (task + 1) / tasks * unit;
    k.product(product, units * task / tasks * unit, stop < count ? stop : count);
  });
}

void linear(const FloatMatrix& x, const Panels& panels, const std::optional<FloatVector>& bias,
            const FloatMatrixOut& out) {
  linear_of(x, panels, Kind::f32, bias, out);
}

void linear_halves(const FloatMatrix& x, const HalfPanels& panels, const std::string& kind,
                   const std::optional<FloatVector>& bias, const FloatMatrixOut& out) {
  linear_of(x, panels, half_kind_of(kind), bias, out);
}

template <class P>
void embed_of(const P& panels, Kind kind, int64_t outputs, const IntVector& rows, const FloatMatrixOut& out) {
  const int64_t count = extent(rows, 0), inputs = extent(panels, 1);
  require(outputs >= 0 && outputs <= extent(panels, 0) * panel_width,
          "the matrix has fewer rows than `outputs`");
  require_size("panels, third axis,", extent(panels, 2), panel_width);
  require_size("out, first axis,", extent(out, 0), count);
  require_size("out, second axis,", extent(out, 1), inputs);
  require_indices("row", rows.data(), count, outputs);
  require_pairs(kind, inputs);
  const Kernels& k = kernels();
  const nb::gil_scoped_release unlocked;
  parallel(count, [&](int64_t i) {
    k.unpack_row(panels.data(), kind, inputs, rows.data()[i], out.data() + i * inputs);
  });
}

void embed(const Panels& panels, int64_t outputs, const IntVector& rows, const FloatMatrixOut& out) {
  embed_of(panels, Kind::f32, outputs, rows, out);
}

void embed_halves(const HalfPanels& panels, const std::string& kind, int64_t outputs, const IntVector& rows,
                  const FloatMatrixOut& out) {
  embed_of(panels, half_kind_of(kind), outputs, rows, out);
}

void store_kv(const KvLayout& layout, const PoolOut& pool, int64_t layer, const FloatMatrix& keys,
              const FloatMatrix& values, const IntVector& starts, const IntVector& offsets,
              const IntMatrix& tables) {
  require_pool(layout, pool, layer);
  const int64_t tokens = extent(keys, 0), width = layout.num_kv_heads * layout.head_size;
  require_size("k, second axis,", extent(keys, 1), width);
  require_size("v, first axis,", extent(values, 0), tokens);
  require_size("v, second axis,", extent(values, 1), width);
  const Chunks chunks(starts, offsets, tables, tokens);
  for (int64_t c = 0; c < chunks.count; ++c) {
    chunks.require_blocks(c, chunks.starts[c], layout.block_size, extent(pool, 0));
  }
  const KvLayer kv = layout.layer(pool.data(), layer);
  const Kernels& k = kernels();
  const nb::gil_scoped_release unlocked;
  // Shared out because the first write to a page costs more than the bytes: the system has to find one.
  const int64_t tasks = tasks_for(tokens, tokens * width, 1 << 10, Team::instance().size());
  parallel(tasks, [&](int64_t task) {
    const int64_t first = tokens * task / tasks, last = tokens * (task + 1) / tasks;
    for (int64_t c = 0; c < chunks.count; ++c) {
      const int64_t start = chunks.offsets[c] > first ? chunks.offsets[c] : first;
      const int64_t stop = chunks.offsets[c + 1] < last ? chunks.offsets[c + 1] : last;
      for (int64_t row = start; row < stop; ++row) {
        const int64_t position = chunks.starts[c] + row - chunks.offsets[c];
        k.store_kv(kv, chunks.table(c)[position / kv.block_size], position % kv.block_size,
                   keys.data() + row * width, values.data() + row * width);
      }
    }
  });
}

void attend(const KvLayout& layout, const Pool& pool, int64_t layer, const FloatMatrix& q,
            const IntVector& starts, const IntVector& offsets, const IntMatrix& tables, float scale,
            std::optional<int64_t> window, std::optional<float> soft_cap,
            const std::optional<FloatVector>& sinks, const std::optional<FloatVector>& slopes,
            const FloatMatrixOut& out, const std::optional<FloatMatrixOut>& log_sum_exp,
            int64_t piece_partitions) {
  require_pool(layout, pool, layer);
  const int64_t tokens = extent(q, 0), width = extent(q, 1), heads = width / layout.head_size;
  require(heads >= 1 && width % layout.head_size == 0 && heads % layout.num_kv_heads == 0,
          "q has " + std::to_string(width) + " columns; needed: a multiple of kv heads times head size");
  require_size("out, first axis,", extent(out, 0), tokens);
  require_size("out, second axis,", extent(out, 1), width);
  require(!window || *window >= 1, "a window must see at least one position");
  require(!soft_cap || *soft_cap > 0.0f, "a soft cap must be positive");
  if (sinks) require_size("sinks", extent(*sinks, 0), heads);
  if (slopes) require_size("slopes", extent(*slopes, 0), heads);
  if (log_sum_exp) {
    require_size("log_sum_exp, first axis,", extent(*log_sum_exp, 0), tokens);
    require_size("log_sum_exp, second axis,", extent(*log_sum_exp, 1), heads);
  }
  require(piece_partitions >= 0, "piece_partitions is negative; allowed: from 0");
  const Chunks chunks(starts, offsets, tables, tokens);
  for (int64_t c = 0; c < chunks.count; ++c) {
    const int64_t hidden = window ? chunks.starts[c] - *window + 1 : 0;
    chunks.require_blocks(c, hidden > 0 ? hidden : 0, layout.block_size, extent(pool, 0));
  }
  kernels();  // an instruction set that does not exist is said here, not between parallel regions
  const AttentionStep step{layout.layer(const_cast<uint8_t*>(pool.data()), layer),
                           q.data(),
                           out.data(),
                           log_sum_exp ? log_sum_exp->data() : nullptr,
                           chunks.starts,
                           chunks.offsets,
                           chunks.tables,
                           chunks.table_width,
                           chunks.count,
                           heads,
                           scale,
                           window.value_or(0),
                           soft_cap.value_or(0.0f),
                           sinks ? sinks->data() : nullptr,
                           slopes ? slopes->data() : nullptr,
                           piece_partitions,
                           1,
                           nullptr};
  const nb::gil_scoped_release unlocked;
  run_attention(step);
}

}  // namespace

void bind_step(nb::module_& m) {
  nb::class_<KvLayer>(m, "KvLayer");
  nb::class_<KvLayout>(m, "KvLayout")
      .def(
          "__init__",
          [](KvLayout* self, int64_t layers, int64_t kv_heads, int64_t size, int64_t block,
             const std::string& kind) {
            new (self) KvLayout(checked_layout(layers, kv_heads, size, block, kind));
          },
          nb::arg("num_layers"), nb::arg("num_kv_heads"), nb::arg("head_size"), nb::arg("block_size"),
          nb::arg("kind") = "f32")
      .def_prop_ro("bytes_per_block", &KvLayout::bytes_per_block)
      .def("layers", layers_of, nb::arg("pool").noconvert());
  m.def("linear", linear, nb::arg("x").noconvert(), nb::arg("panels").noconvert(),
        nb::arg("bias").noconvert().none(), nb::arg("out").noconvert());
  m.def("embed", embed, nb::arg("panels").noconvert(), nb::arg("outputs"), nb::arg("rows").noconvert(),
        nb::arg("out").noconvert());
  m.def("linear_halves", linear_halves, nb::arg("x").noconvert(), nb::arg("panels").noconvert(),
        nb::arg("kind"), nb::arg("bias").noconvert().none(), nb::arg("out").noconvert());
  m.def("embed_halves", embed_halves, nb::arg("panels").noconvert(), nb::arg("kind"), nb::arg("outputs"),
        nb::arg("rows").noconvert(), nb::arg("out").noconvert());
  m.def("store_kv", store_kv, nb::arg("layout"), nb::arg("pool").noconvert(), nb::arg("layer"),
        nb::arg("k").noconvert(), nb::arg("v").noconvert(), nb::arg("starts").noconvert(),
        nb::arg("offsets").noconvert(), nb::arg("tables").noconvert());
  m.def("attend", attend, nb::arg("layout"), nb::arg("pool").noconvert(), nb::arg("layer"),
        nb::arg("q").noconvert(), nb::arg("starts").noconvert(), nb::arg("offsets").noconvert(),
        nb::arg("tables").noconvert(), nb::arg("scale"), nb::arg("window").none(), nb::arg("soft_cap").none(),
        nb::arg("sinks").noconvert().none(), nb::arg("slopes").noconvert().none(), nb::arg("out").noconvert(),
        nb::arg("log_sum_exp").noconvert().none() = nb::none(), nb::arg("piece_partitions") = 0);
}

}  // namespace octavo
