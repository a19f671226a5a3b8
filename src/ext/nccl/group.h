// SPDX-License-Identifier: Apache-2.0
//
// The calling thread's group.
#ifndef INCCL_EXT_NCCL_GROUP_H_
#define INCCL_EXT_NCCL_GROUP_H_

#include "ext/nccl/types.h"

namespace inccl::nccl {

// True between the thread's ncclGroupStart and the outermost ncclGroupEnd.
bool InGroup();

// Returns `result`. In a group, the outermost ncclGroupEnd returns it, too, and starts nothing:
// for errors that libinccl does not know of.
ResultCode Fail(ResultCode result);

// What a call of the group has started goes on after it: the outermost ncclGroupEnd returns
// ncclInProgress.
void ProgressesAfterGroup();

}  // namespace inccl::nccl

#endif  // INCCL_EXT_NCCL_GROUP_H_
