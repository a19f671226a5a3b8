// SPDX-License-Identifier: Apache-2.0
//
// What a benchmark calls: a collective, or a send and a receive in a group, which the library does
// not count among its collectives.
#ifndef INCCL_PERF_SUPPORT_OPERATION_H_
#define INCCL_PERF_SUPPORT_OPERATION_H_

#include <cstdint>

#include "base/types.h"

namespace inccl::perf {

// The collectives have the numbers of Collective.
enum class Operation : uint8_t {
  kAllReduce = static_cast<uint8_t>(Collective::kAllReduce),
  kReduceScatter = static_cast<uint8_t>(Collective::kReduceScatter),
  kAllGather = static_cast<uint8_t>(Collective::kAllGather),
  kBroadcast = static_cast<uint8_t>(Collective::kBroadcast),
  kReduce = static_cast<uint8_t>(Collective::kReduce),
  kAllToAll = static_cast<uint8_t>(Collective::kAllToAll),
  kGather = static_cast<uint8_t>(Collective::kGather),
  kScatter = static_cast<uint8_t>(Collective::kScatter),
  kSendRecv =
      kCollectiveKinds,  // every rank sends to the next one and receives from the one before
};

constexpr Operation OperationOf(Collective collective) {
  return static_cast<Operation>(collective);
}

constexpr bool Reduces(Operation which) {
  return which != Operation::kSendRecv && inccl::Reduces(static_cast<Collective>(which));
}

constexpr bool HasRoot(Operation which) {
  return which != Operation::kSendRecv && inccl::HasRoot(static_cast<Collective>(which));
}

inline const char* Name(Operation which) {
  return which == Operation::kSendRecv ? "sendrecv" : inccl::Name(static_cast<Collective>(which));
}

// Whom a rank sends to, and from whom it receives, in kSendRecv.
constexpr int NextRank(int rank, int nranks) { return (rank + 1) % nranks; }
constexpr int PreviousRank(int rank, int nranks) { return (rank + nranks - 1) % nranks; }

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_OPERATION_H_
