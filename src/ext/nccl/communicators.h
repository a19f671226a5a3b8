// SPDX-License-Identifier: Apache-2.0
//
// What libnccl.so.2 keeps of a communicator beyond what libinccl does: its name, for the policy,
// and whether it was revoked. Any thread.
#ifndef INCCL_EXT_NCCL_COMMUNICATORS_H_
#define INCCL_EXT_NCCL_COMMUNICATORS_H_

#include "ext/nccl/log.h"
#include "ext/nccl/types.h"

namespace inccl::nccl {

inline constexpr size_t kNameBytes = 129;

// As FromError. After ncclCommRevoke, calls on the communicator are ncclInvalidUsage.
ResultCode FromCallError(Comm comm, ccl_result_t result);
inline ResultCode FromCall(Comm comm, ccl_result_t result) {
  return __builtin_expect(result == CCL_SUCCESS, 1) ? CCL_SUCCESS : FromCallError(comm, result);
}

// The state of a communicator that ccl_comm_get_async_error has returned, as NCCL has it: success
// after ncclCommRevoke. Of an error it keeps the text.
ResultCode FromState(Comm comm, ccl_result_t state);

// The communicator at *slot has been created with this name; in a group, it will be at *slot after
// the end of the group, unless the group fails.
void Created(Comm* slot, const char* name);
// The thread's outermost group has ended.
void GroupEnded(bool success);

// Lets the communicators that are left leave in order, as ncclCommDestroy does, when the process
// exits: what this rank has sent arrives, and the ranks that remain see no error. Waits for those
// that are finalized, and at most a second for others.
void LeaveAtExit();
void Finalized(Comm comm);

void Revoked(Comm comm);
bool IsRevoked(Comm comm);
// The name, or "".
void NameOf(Comm comm, char (&name)[kNameBytes]);
// The communicator ends: its pointer may come back as another communicator.
void Forget(Comm comm);

}  // namespace inccl::nccl

#endif  // INCCL_EXT_NCCL_COMMUNICATORS_H_
