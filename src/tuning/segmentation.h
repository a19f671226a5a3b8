// SPDX-License-Identifier: Apache-2.0
//
// How a call is cut into rows and slices, and how large slots are: a pure function of the call and
// of what all ranks have agreed on. The arithmetic of chunks is collectives/chunking.h.
#ifndef INCCL_TUNING_SEGMENTATION_H_
#define INCCL_TUNING_SEGMENTATION_H_

#include <cstdint>

#include "base/types.h"
#include "collectives/chunking.h"
#include "collectives/program.h"
#include "compress/codec.h"

namespace inccl {

struct CutRequest {
  Collective collective = Collective::kAllReduce;
  DataType type = DataType::kFloat32;
  uint64_t count = 0;  // elements of one vector (SegmentsOf)
  int nranks = 1;
  int channels = 1;
  uint32_t slice_bytes = 128 * 1024;
};
Chunking CutCall(const CutRequest& request, const Codec& codec);

SlotOptions SlotsFor(uint32_t slice_bytes);

}  // namespace inccl

#endif  // INCCL_TUNING_SEGMENTATION_H_
