// NumPy arrays as the bindings take them: exact type, C-contiguous, never converted behind the caller's back.
// A wrong type, rank or layout is a TypeError (nanobind's), a wrong size a ValueError, a wrong index an
// IndexError.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>

#include "experts.hpp"
#include "kernels/kernels.hpp"

namespace octavo {

namespace nb = nanobind;

template <class T, int rank>
using Array = nb::ndarray<T, nb::ndim<rank>, nb::c_contig, nb::device::cpu>;

using FloatVector = Array<const float, 1>;
using FloatMatrix = Array<const float, 2>;
using IntVector = Array<const int32_t, 1>;
using IntMatrix = Array<const int32_t, 2>;
using ByteVector = Array<const uint8_t, 1>;
using ByteVectorOut = Array<uint8_t, 1>;
using FloatVectorOut = Array<float, 1>;
using FloatMatrixOut = Array<float, 2>;
using IntVectorOut = Array<int32_t, 1>;
using Panels = Array<const float, 3>;
using PanelsOut = Array<float, 3>;
using HalfPanels = Array<const uint16_t, 3>;
using HalfPanelsOut = Array<uint16_t, 3>;
using CodePanels = Array<const uint8_t, 2>;
using CodePanelsOut = Array<uint8_t, 2>;
using Pool = Array<const uint8_t, 2>;
using PoolOut = Array<uint8_t, 2>;

template <class A>
int64_t extent(const A& array, int axis) {
  return static_cast<int64_t>(array.shape(static_cast<size_t>(axis)));
}

inline void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

inline void require_size(const char* name, int64_t given, int64_t wanted) {
  require(given == wanted, std::string(name) + " has size " + std::to_string(given) + " where " +
                               std::to_string(wanted) + " is needed");
}

inline void require_index(const char* name, int64_t given, int64_t end) {
  if (given < 0 || given >= end) {
    throw std::out_of_range(std::string(name) + " is " + std::to_string(given) + "; allowed: 0 to " +
                            std::to_string(end - 1));
  }
}

inline void require_indices(const char* name, const int32_t* given, int64_t count, int64_t end) {
  for (int64_t i = 0; i < count; ++i) require_index(name, given[i], end);
}

// The chunks of a step are well formed: offsets ascend from 0 to `tokens`, one start and one table for each.
inline void require_chunks(const IntVector& starts, const IntVector& offsets, const IntMatrix& tables,
                           int64_t tokens) {
  const int64_t count = extent(starts, 0);
  require_size("offsets", extent(offsets, 0), count + 1);
  require_size("tables, first axis,", extent(tables, 0), count);
  require(offsets.data()[0] == 0 && offsets.data()[count] == tokens,
          "offsets must begin at 0 and end at the number of tokens");
  for (int64_t c = 0; c < count; ++c) {
    require(offsets.data()[c] < offsets.data()[c + 1], "offsets must ascend: every chunk has a token");
    require(starts.data()[c] >= 0, "a chunk starts at a negative position");
  }
}

// A function of elements by its name; one that gates others.
Map map_of(const std::string& name);
Map gate_of(const std::string& name);

// Raise unless the mixture has as many experts as a row chooses.
void require_complete(const Mixture& mixture);

// The kind of a tensor by its name in a file; the names of all kinds, or of all that are quantised; and how many
// elements of a row share a block.
Kind kind_of(const std::string& name);
std::string kind_names(bool grouped_only);
inline int64_t block_size_of(Kind kind) { return row_of(kind).elements; }

// The kind of panels whose floats have 16 bits.
inline Kind half_kind_of(const std::string& name) {
  const Kind kind = kind_of(name);
  require(kind == Kind::f16 || kind == Kind::bf16, "panels of 16 bits are F16 or BF16; not " + name);
  return kind;
}

// Raise unless `data` is a matrix of this kind.
inline void require_matrix(const ByteVector& data, Kind kind, int64_t outputs, int64_t inputs) {
  require(outputs > 0 && inputs > 0 && outputs <= (int64_t{1} << 31) && inputs <= (int64_t{1} << 24),
          "a matrix of " + std::to_string(outputs) + " x " + std::to_string(inputs) +
              " is empty or absurdly large");
  require(inputs % block_size_of(kind) == 0, "a quantised row has " + std::to_string(inputs) +
                                                 " elements; it must be a multiple of " +
                                                 std::to_string(block_size_of(kind)));
  require_size("data, in bytes,", extent(data, 0), bytes_of(kind, outputs * inputs));
}

// Raise unless float panels [ceil(outputs / 16)][inputs][16] have their sizes.
template <class P>
void require_float_panels(const P& panels, int64_t outputs, int64_t inputs) {
  require_size("panels, first axis,", extent(panels, 0), (outputs + panel_width - 1) / panel_width);
  require_size("panels, second axis,", extent(panels, 1), inputs);
  require_size("panels, third axis,", extent(panels, 2), panel_width);
}

// Raise unless panels of the kind can have so many inputs.
inline void require_pairs(Kind kind, int64_t inputs) {
  require(kind != Kind::bf16 || inputs % 2 == 0,
          "panels of BF16 have " + std::to_string(inputs) + " inputs; it must be even: they lie in pairs");
}

void bind_experts(nb::module_& module);
void bind_files(nb::module_& module);
void bind_integers(nb::module_& module);
void bind_peaks(nb::module_& module);
void bind_program(nb::module_& module);
void bind_rows(nb::module_& module);
void bind_step(nb::module_& module);
void bind_vocabulary(nb::module_& module);

}  // namespace octavo
