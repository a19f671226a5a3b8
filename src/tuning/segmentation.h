// SPDX-License-Identifier: Apache-2.0
//
// Segmentation of a call into windows and slices, and the sizes of slots. They are a pure function
// of the call and of options on which all ranks have agreed. collectives/chunking.h has the
// arithmetic of chunks.
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
