// SPDX-License-Identifier: Apache-2.0
//
// NumPy's .npy files, as far as data sets need them: little-endian fp32, fp16 or fp64, which are
// read as fp32 (fp64 rounded to nearest, refused beyond its range), C order, one or two dimensions.
// The format is NumPy's (numpy.lib.format, versions 1.0, 2.0 and 3.0): magic, version, length and
// text of a header that is a Python dictionary, then the elements. Everything else, and every file
// whose size is not exactly what its header says, is refused; nothing is allocated before the size
// is known to be there. Thread-safe: no state.
#ifndef INCCL_PERF_SUPPORT_NPY_H_
#define INCCL_PERF_SUPPORT_NPY_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace inccl::perf {

struct NpyArray {
  std::vector<uint64_t> shape;  // one or two extents
  std::vector<float> values;    // their product, last dimension contiguous
};

// What stands before the elements.
struct NpyHeader {
  std::vector<uint64_t> shape;
  uint64_t elements = 0;       // product of the extents; 8 * elements fits 63 bits
  uint64_t data_offset = 0;    // bytes before the first element
  uint32_t element_bytes = 0;  // 2, 4 or 8
};

// Longest header text that is accepted, in bytes.
inline constexpr uint64_t kMaxNpyHeader = 65536;

// Parses the header at the beginning of `bytes`, which may go on behind it. `name` is the file's,
// for the text of errors (kInvalidArgument).
Result<NpyHeader> ParseNpyHeader(std::string_view bytes, const std::string& name);

// Parses a whole file held in memory.
Result<NpyArray> ParseNpy(std::string_view bytes, const std::string& name);

// Reads a file. kSystemError if it cannot be read, kInvalidArgument if its contents are refused.
Result<NpyArray> ReadNpy(const std::string& path);

// The header (version 1.0, padded to a multiple of 64 bytes as NumPy pads it) for these extents.
std::string FormatNpyHeader(std::span<const uint64_t> shape);

// Writes `values` with these extents, whose product must be values.size().
Status WriteNpy(const std::string& path, std::span<const float> values,
                std::span<const uint64_t> shape);

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_NPY_H_
