// SPDX-License-Identifier: Apache-2.0
#ifndef INCCL_COMPRESS_WARM_UP_H_
#define INCCL_COMPRESS_WARM_UP_H_

#include "compress/codec.h"

namespace inccl {

// Runs the codec's part of a small all-reduce of at most this many ranks, so that a user's first
// call finds the code and the tables in memory. A codec that refuses such calls, or no memory for
// them, is no error.
void WarmUp(const Codec& codec, int nranks);

}  // namespace inccl

#endif  // INCCL_COMPRESS_WARM_UP_H_
