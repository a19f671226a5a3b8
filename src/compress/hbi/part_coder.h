// SPDX-License-Identifier: Apache-2.0
//
// The payload of one part of a window with its sender's own scale codes: codes of all superblocks,
// packed fields, zeros up to the fixed size, and what its sender knows of the error. Levels follow
// from the codes, so a payload says by itself how it is to be read.
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

// Bytes of a superblock in payloads of these levels (0: planned from bits8), its codes included.
uint32_t PartSuperblockBytes(uint32_t bits8, uint32_t k);

// Travels behind each part, 16 bytes.
struct PartSummary {
  double error = 0;      // bound on the absolute error of an element so far, as coded
  uint32_t dropped = 0;  // superblocks that were dropped on the way
  double magnitude = 0;  // bound on what is in the payload; does not travel
};
inline constexpr uint32_t kSummaryBytes = 16;

// How elements become codes.
struct PartRounding {
  bool nearest = false;
  uint16_t shift = 0;
  uint32_t counter = 0;  // HashCounter of the part's first block
  double relative = 0;   // error of x besides what its summary says, relative to the largest
};

class PartCoder {
 public:
  void Reset(std::shared_ptr<const Planner> planner, uint32_t max_superblocks);
  const Planner* planner() const { return planner_.get(); }

  // Of a part, summary included.
  uint64_t Bytes(uint32_t superblocks) const {
    return uint64_t{superblocks} * superblock_bytes_ + kSummaryBytes;
  }
  // Writes Bytes(superblocks) bytes. x: superblocks of 256 values; values of poisoned blocks are
  // set to zero. `summary` is what is known of x; it becomes that of the payload.
  void Encode(float* x, uint32_t superblocks, const PartRounding& rounding, PartSummary* summary,
              uint8_t* payload);
  // Reads as many; kInternalError where no sender can have written that. y: the values; average:
  // divided by the number of ranks.
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
