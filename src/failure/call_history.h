// SPDX-License-Identifier: Apache-2.0
//
// The collectives that this rank has begun, and the records that other ranks have sent of theirs.
// It finds calls that differ between ranks. It does not contain sends and receives.
#ifndef INCCL_FAILURE_CALL_HISTORY_H_
#define INCCL_FAILURE_CALL_HISTORY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "collectives/call.h"

namespace inccl {

// Not thread-safe.
class CallHistory {
 public:
  // A call of a peer that differs from this rank's call of the same number.
  struct Difference {
    int peer = -1;
    CallRecord ours, theirs;
    // "ranks disagree at op 3: rank 0/4 calls ..., rank 2/4 calls ..."
    std::string ToString(int rank, int nranks) const;
  };

  explicit CallHistory(int nranks) : pending_(static_cast<size_t>(nranks)) {}

  // Adds this rank's next call. Returns a difference from an earlier record of a peer.
  std::optional<Difference> Begin(uint64_t sequence, const Call& call);
  // Compares a peer's record with this rank's call of the same number.
  std::optional<Difference> Compare(int peer, const CallRecord& theirs);

  // The number of the newest call; 0: none.
  uint64_t latest() const { return latest_; }
  const CallRecord& record() const { return records_[latest_ % kKept]; }
  // Covers the newest call and all before it. Ranks whose calls differed once do not agree on any
  // later call, even if the different calls could end without each other.
  uint64_t signature() const { return chain_; }
  // Appends the newest record, unless an earlier call of this function has appended it.
  void AppendNews(std::vector<std::vector<std::byte>>* records);
  // Appends the stored older records, at most once while a call is the newest.
  void AppendEarlier(std::vector<std::vector<std::byte>>* records);

 private:
  static constexpr size_t kKept = 64;

  std::array<CallRecord, kKept> records_;
  uint64_t chain_ = 0;
  uint64_t latest_ = 0;
  std::vector<std::optional<CallRecord>> pending_;  // by rank: a record of a call that this rank
                                                    // has not begun
  bool any_pending_ = false;
  uint64_t appended_ = 0, earlier_appended_ = 0;  // `latest_` at the last AppendNews and
                                                  // AppendEarlier
};

}  // namespace inccl

#endif  // INCCL_FAILURE_CALL_HISTORY_H_
