// SPDX-License-Identifier: Apache-2.0
//
// Encodes and decodes one part of a window with its sender's own scale codes: codes of all
// superblocks, packed fields, zeros up to the fixed size, and a summary of the error. The levels
// follow from the codes, so a payload is self-describing.
#ifndef INCCL_COMPRESS_HBI_PART_CODER_H_
#define INCCL_COMPRESS_HBI_PART_CODER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "compress/hbi/config.h"
#include "compress/hbi/plan.h"
#include "compress/kernels/hbi_kernels.h"

namespace inccl::hbi {

// Bytes of a superblock with these levels (0: planned from bits8), including its codes.
uint32_t PartSuperblockBytes(uint32_t bits8, uint32_t k);

// Error information; 16 bytes of it travel behind each part.
struct PartSummary {
  double error = 0;      // bound on the absolute error of an element so far, as coded
  uint32_t dropped = 0;  // superblocks dropped so far
  double magnitude = 0;  // bound on the magnitude of an element; does not travel
};
inline constexpr uint32_t kSummaryBytes = 16;

// How elements are rounded to codes.
struct PartRounding {
  bool nearest = false;
  uint16_t shift = 0;
  uint32_t counter = 0;  // HashCounter of the part's first block
  double relative = 0;   // error of x besides its summary, relative to the largest element
};

class PartCoder {
 public:
  void Reset(std::shared_ptr<const Planner> planner, uint32_t max_superblocks);
  const Planner* planner() const { return planner_.get(); }

  // Bytes of a part, including the summary.
  uint64_t Bytes(uint32_t superblocks) const {
    return uint64_t{superblocks} * superblock_bytes_ + kSummaryBytes;
  }
  // Writes Bytes(superblocks) bytes. x has 256 values per superblock; Encode sets those of poisoned
  // blocks to zero. `summary` describes x and becomes that of the payload.
  void Encode(float* x, uint32_t superblocks, const PartRounding& rounding, PartSummary* summary,
              uint8_t* payload);
  // Reads as many bytes into the values y; kInternalError if no sender can have written them. With
  // `average` it divides by the number of ranks.
  Status Decode(const uint8_t* payload, uint32_t superblocks, bool average, float* y,
                PartSummary* summary);

 private:
  std::shared_ptr<const Planner> planner_;
  const Kernels* kernels_ = nullptr;
  uint32_t superblock_bytes_ = 0;
  std::vector<uint8_t> points_;
};

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_PART_CODER_H_
