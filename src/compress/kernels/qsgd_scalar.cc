// SPDX-License-Identifier: Apache-2.0
//
// The scalar reference of docs/codecs.md: one element at a time.
#include <algorithm>
#include <bit>
#include <cmath>

#include "compress/bit_fields.h"
#include "compress/codec.h"
#include "compress/hbi/format.h"
#include "compress/kernels/qsgd_kernels.h"

namespace inccl::qsgd {
namespace {

double ValueOf(const ScaleChoice& choice, uint32_t i) {
  return choice.by_scale[choice.index == nullptr ? 0 : choice.index[i]];
}

void AddCodes(const CodeArgs& args, uint32_t count, uint32_t* sums) {
  const double levels = args.levels;
  for (uint32_t i = 0; i < count; ++i) {
    const double scaled = static_cast<double>(args.x[i]) * ValueOf(args.factor, i);
    const double above = scaled > -levels ? scaled : -levels;  // NaN becomes -s
    const double code = above < levels ? above : levels;
    const uint32_t random = hbi::LowBias32(args.first + i);
    sums[i] += static_cast<uint32_t>(static_cast<int32_t>(code + levels + random * 0x1p-32));
  }
}

uint32_t AddFields(const uint16_t* fields, uint32_t count, uint32_t* sums) {
  uint32_t largest = 0;
  for (uint32_t i = 0; i < count; ++i) {
    largest = std::max<uint32_t>(largest, fields[i]);
    sums[i] += fields[i];
  }
  return largest;
}

void Narrow(const uint32_t* sums, uint32_t count, uint16_t* fields) {
  for (uint32_t i = 0; i < count; ++i) fields[i] = static_cast<uint16_t>(sums[i]);
}

void Decode(const uint32_t* sums, uint32_t zero, const ScaleChoice& unit, uint32_t count,
            float* y) {
  for (uint32_t i = 0; i < count; ++i) {
    y[i] = static_cast<float>(ValueOf(unit, i) * static_cast<int32_t>(sums[i] - zero));
  }
}

uint32_t Largest(const float* x, size_t count) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu);
  }
  return largest;
}

void Finest(const float* x, const ScaleChoice& factor, uint32_t levels, uint32_t count,
            uint8_t* scales) {
  for (uint32_t i = 0; i < count; ++i) {
    const double magnitude = std::fabs(static_cast<double>(x[i]));
    uint8_t& scale = scales[i];
    while (scale > 0 && !(magnitude * factor.by_scale[scale] <= levels)) --scale;
  }
}

void PackBytes(const uint8_t* fields, uint32_t width, std::byte* out) {
  PackFields(fields, kSuperblock, width, out);
}

void UnpackBytes(const std::byte* in, uint32_t width, uint8_t* fields) {
  UnpackFields(in, kSuperblock, width, fields);
}

}  // namespace

const Kernels& ScalarKernels() {
  static constexpr Kernels kKernels = {AddCodes, AddFields, Narrow,    Decode,
                                       Largest,  Finest,    PackBytes, UnpackBytes};
  return kKernels;
}

}  // namespace inccl::qsgd
