// What reading a model file needs: strings, de-quantising, packing of weight matrices, and block copies.
#include <nanobind/stl/string.h>
#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <cstring>

#include "arrays.hpp"
#include "dispatch.hpp"
#include "team.hpp"

namespace octavo {

std::string kind_names(bool grouped_only) {
  std::string names;
  for (const KindRow& row : kind_rows) {
    if (!grouped_only || row.elements > 1) names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return names;
}

Kind kind_of(const std::string& name) {
  for (const KindRow& row : kind_rows) {
    if (name == row.name) return static_cast<Kind>(&row - kind_rows);
  }
  throw std::invalid_argument("unknown kind of tensor '" + name + "'; known: " + kind_names(false));
}

namespace {

// `count` strings from `offset` on, each a little-endian u64 length and its bytes; and the offset behind
// them.
nb::tuple read_string_array(const ByteVector& data, int64_t offset, int64_t count) {
  const uint64_t size = static_cast<uint64_t>(extent(data, 0));
  require(offset >= 0 && static_cast<uint64_t>(offset) <= size, "the offset lies outside the data");
  uint64_t at = static_cast<uint64_t>(offset);
  // Each string takes at least the 8 bytes of its length: an absurd count is refused before anything is
  // allocated.
  require(count >= 0 && static_cast<uint64_t>(count) <= (size - at) / 8,
          std::to_string(count) + " strings cannot stand in the " + std::to_string(size - at) +
              " bytes that are left");
  nb::list strings;
  for (int64_t i = 0; i < count; ++i) {
    require(size - at >= 8, "the data ends inside the length of string " + std::to_string(i));
    uint64_t length = 0;
    for (int byte = 7; byte >= 0; --byte)
      length = length << 8 | data.data()[at + static_cast<uint64_t>(byte)];
    at += 8;
    require(length <= size - at, "string " + std::to_string(i) + " claims " + std::to_string(length) +
                                     " bytes where " + std::to_string(size - at) + " are left");
    strings.append(nb::bytes(data.data() + at, length));
    at += length;
  }
  return nb::make_tuple(strings, static_cast<int64_t>(at));
}

void dequantise(const ByteVector& data, const std::string& kind_name, int64_t count,
                const FloatVectorOut& out) {
  const Kind kind = kind_of(kind_name);
  require_size("out", extent(out, 0), count);
  require(count % block_size_of(kind) == 0,
          std::to_string(count) + " elements are no multiple of " + std::to_string(block_size_of(kind)));
  require_size("data, in bytes,", extent(data, 0), bytes_of(kind, count));
  const Kernels& k = kernels();
  const uint8_t* source = data.data();
  float* target = out.data();
  const nb::gil_scoped_release unlocked;
  constexpr int64_t slice = 1 << 16;  // a multiple of every group
  parallel((count + slice - 1) / slice, [&](int64_t task) {
    const int64_t first = task * slice, size = count - first < slice ? count - first : slice;
    k.dequantise(source + bytes_of(kind, first), kind, size, target + first);
  });
}

template <class P>
void pack_as(const ByteVector& data, Kind kind, int64_t outputs, int64_t inputs, Kind stored,
             const P& panels) {
  require_matrix(data, kind, outputs, inputs);
  require_float_panels(panels, outputs, inputs);
  require_pairs(stored, inputs);
  const int64_t count = extent(panels, 0);
  const Packing packing{data.data(), kind, outputs, inputs, panels.data(), stored};
  const Kernels& k = kernels();
  const nb::gil_scoped_release unlocked;
  const int64_t tasks = tasks_for(count, outputs * inputs, 1 << 15, Team::instance().size());
  parallel(tasks, [&](int64_t task) { k.pack(packing, count * task / tasks, count * (task + 1) / tasks); });
}

void pack(const ByteVector& data, const std::string& kind, int64_t outputs, int64_t inputs,
          const PanelsOut& panels) {
  pack_as(data, kind_of(kind), outputs, inputs, Kind::f32, panels);
}

void pack_halves(const ByteVector& data, const std::string& kind, int64_t outputs, int64_t inputs,
                 const std::string& stored, const HalfPanelsOut& panels) {
  pack_as(data, kind_of(kind), outputs, inputs, half_kind_of(stored), panels);
}

void copy_blocks(const PoolOut& pool, const IntVector& sources, const IntVector& targets) {
  const int64_t count = extent(sources, 0), block_bytes = extent(pool, 1);
  require_size("targets", extent(targets, 0), count);
  require_indices("source block", sources.data(), count, extent(pool, 0));
  require_indices("target block", targets.data(), count, extent(pool, 0));
  uint8_t* bytes = pool.data();
  const int32_t* from = sources.data();
  const int32_t* to = targets.data();
  const nb::gil_scoped_release unlocked;
  for (int64_t i = 0; i < count; ++i) {
    if (from[i] == to[i]) continue;
    std::memcpy(bytes + to[i] * block_bytes, bytes + from[i] * block_bytes, static_cast<size_t>(block_bytes));
  }
}

// Pages behind whole pages of the data, as if they had been written to; false where the system can't.
bool take_pages(const ByteVectorOut& data) {
#if defined(__linux__)
  constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, since Linux 5.14
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(data.data()), end = begin + data.size();
  const uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
  const nb::gil_scoped_release unlocked;
  return first >= last || madvise(reinterpret_cast<void*>(first), last - first, populate_write) == 0;
#else
  return data.size() == 0;
#endif
}

}  // namespace

void bind_files(nb::module_& m) {
  m.def("read_string_array", read_string_array, nb::arg("data").noconvert(), nb::arg("offset"),
        nb::arg("count"));
  m.def("dequantise", dequantise, nb::arg("data").noconvert(), nb::arg("kind"), nb::arg("count"),
        nb::arg("out").noconvert());
  m.def("pack", pack, nb::arg("data").noconvert(), nb::arg("kind"), nb::arg("outputs"), nb::arg("inputs"),
        nb::arg("panels").noconvert());
  m.def("pack_halves", pack_halves, nb::arg("data").noconvert(), nb::arg("kind"), nb::arg("outputs"),
        nb::arg("inputs"), nb::arg("stored"), nb::arg("panels").noconvert());
  m.def("copy_blocks", copy_blocks, nb::arg("pool").noconvert(), nb::arg("sources").noconvert(),
        nb::arg("targets").noconvert());
  m.def("take_pages", take_pages, nb::arg("data").noconvert());
}

}  // namespace octavo
