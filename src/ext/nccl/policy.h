// SPDX-License-Identifier: Apache-2.0
//
// Which calls are compressed: INCCL_NCCL_POLICY. Without it none is, so that a program that gets
// this library in place of NCCL computes what it computed before.
#ifndef INCCL_EXT_NCCL_POLICY_H_
#define INCCL_EXT_NCCL_POLICY_H_

#include "ext/nccl/library.h"
#include "ext/nccl/types.h"

namespace inccl::nccl {

enum class Kind { kAllReduce, kReduceScatter, kAllGather };

// Reads INCCL_NCCL_POLICY, or the file that INCCL_NCCL_POLICY_FILE names, and makes the codecs.
// Called once, when libinccl is opened. Sets library->looks if there are rules, or calls are
// counted.
void ReadPolicy(Library* library);

// CCL_INVALID_ARGUMENT, after a warning, if the policy has an error. No communicator is created
// then.
ResultCode CheckPolicy();

struct PolicyChoice {
  int rule;           // its index; -1: none matches
  ccl_codec_t codec;  // NULL: the call runs uncompressed
};
// The first rule that the call matches. `count` is that of the call. Any thread.
PolicyChoice ChooseByPolicy(Kind kind, size_t count, int type, Comm comm);

// With INCCL_NCCL_LOG=1, prints the rules for a communicator of this name.
void TellPolicy(Comm comm, const char* name);

}  // namespace inccl::nccl

#endif  // INCCL_EXT_NCCL_POLICY_H_
