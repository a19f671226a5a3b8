// SPDX-License-Identifier: Apache-2.0
//
// Times the operations of a codec on one core.
#ifndef INCCL_TOOLS_TUNE_CODEC_COSTS_H_
#define INCCL_TOOLS_TUNE_CODEC_COSTS_H_

#include <cstdint>
#include <string>

#include "base/status.h"

namespace inccl::tools {

// Of an fp32 element, in ps: medians.
struct CodecTimes {
  double encode_ps = 0;  // own elements to a payload
  double decode_ps = 0;  // a result to elements
  double hop_ps = 0;     // own elements and a payload to a payload
  double fold_ps = 0;    // a further payload that the same operation adds
  // What shortening a payload takes, and reading such a one: the mean of both. 0: the codec has
  // only one length.
  double shorten_ps = 0;
};

Result<CodecTimes> TimeCodec(const std::string& spec, uint64_t iterations);

}  // namespace inccl::tools

#endif  // INCCL_TOOLS_TUNE_CODEC_COSTS_H_
