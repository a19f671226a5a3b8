// SPDX-License-Identifier: Apache-2.0
//
// What libnccl.so.2 keeps of a communicator beyond what libinccl does.
#ifndef INCCL_EXT_NCCL_COMMUNICATORS_H_
#define INCCL_EXT_NCCL_COMMUNICATORS_H_

#include "ext/nccl/error.h"
#include "ext/nccl/types.h"

namespace inccl::nccl {

// As FromError. After ncclCommRevoke, calls on the communicator are ncclInvalidUsage.
ResultCode FromCallError(Comm comm, ccl_result_t result);
inline ResultCode FromCall(Comm comm, ccl_result_t result) {
  return __builtin_expect(result == CCL_SUCCESS, 1) ? CCL_SUCCESS : FromCallError(comm, result);
}

// A communicator that this process has revoked, until Forget. Any thread.
void Revoked(Comm comm);
bool IsRevoked(Comm comm);
void Forget(Comm comm);

}  // namespace inccl::nccl

#endif  // INCCL_EXT_NCCL_COMMUNICATORS_H_
