// SPDX-License-Identifier: Apache-2.0
//
// What a compressed all-reduce returns, made by one rank that has the inputs of all.
#ifndef INCCL_COMPRESS_SUM_OF_INPUTS_H_
#define INCCL_COMPRESS_SUM_OF_INPUTS_H_

#include <cstddef>
#include <span>

#include "base/status.h"
#include "base/types.h"
#include "compress/codec.h"

namespace inccl {

// Writes to `output` what `call` gives every rank whose contributions are `inputs`, one after the
// other by rank, to the last bit. `stats`: as CodecState::Finish fills them in on call.rank. For
// codecs that run on any schedule (Route::group is 0). Memory: about the inputs once more, in
// compressed form, besides one window's elements for each rank.
Status SumOfInputs(const Codec& codec, const CollectiveArgs& call,
                   std::span<const std::byte> inputs, std::byte* output, CodecStats* stats);

}  // namespace inccl

#endif  // INCCL_COMPRESS_SUM_OF_INPUTS_H_
