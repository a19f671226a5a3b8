// SPDX-License-Identifier: Apache-2.0
//
// The options of a quantizer of the family QSGDMaxNorm: "Unbiased Single-scale and Multi-scale
// Quantizers for Distributed Optimization" (arXiv 2109.12497). docs/codecs.md lists the
// differences.
#ifndef INCCL_COMPRESS_QSGD_QSGD_CONFIG_H_
#define INCCL_COMPRESS_QSGD_QSGD_CONFIG_H_

#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "compress/codec.h"
#include "compress/kernels/qsgd_kernels.h"

namespace inccl::qsgd {

// Payload of the first side phase for any range: the bits of its largest magnitude.
inline constexpr uint32_t kLargestBytes = sizeof(uint32_t);

struct Config {
  const char* name = "";
  std::string spec;              // canonical
  std::vector<uint32_t> scales;  // the numbers of levels, ascending

  // The codes of every scale lie in [-levels(), levels()].
  uint32_t levels() const { return scales[0]; }
  // Bits of the index of an element's scale; 0 if there is only one scale.
  uint32_t index_bits() const { return static_cast<uint32_t>(std::bit_width(scales.size() - 1)); }
};

// Sums of n codes, with n * s added, lie in [0, 2 n s].
inline constexpr uint64_t kFieldLimit = uint64_t{1} << 31;
constexpr uint32_t Width(uint32_t contributions, uint32_t levels) {
  return static_cast<uint32_t>(std::bit_width(uint64_t{2} * contributions * levels));
}

Status CheckCall(const Config& config, Collective collective, DataType type, ReduceOp op,
                 int nranks);

std::unique_ptr<CodecState> NewState(std::shared_ptr<const Config> config);

}  // namespace inccl::qsgd

#endif  // INCCL_COMPRESS_QSGD_QSGD_CONFIG_H_
