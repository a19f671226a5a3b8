// SPDX-License-Identifier: Apache-2.0
#include "failure/call_history.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/rng.h"

namespace inccl {

std::string CallHistory::Difference::ToString(int rank, int nranks) const {
  const bool we_first = rank < peer;
  return fmt::format("ranks disagree at op {}: rank {}/{} calls {}, rank {}/{} calls {}",
                     ours.sequence, we_first ? rank : peer, nranks,
                     (we_first ? ours : theirs).ToString(), we_first ? peer : rank, nranks,
                     (we_first ? theirs : ours).ToString());
}

std::optional<CallHistory::Difference> CallHistory::Begin(uint64_t sequence, const Call& call) {
  CallRecord& ours = records_[sequence % kKept];
  ours.Set(sequence, call);
  chain_ = Mix64(chain_ ^ ours.Signature());
  latest_ = sequence;
  if (!any_pending_) return std::nullopt;
  std::optional<Difference> difference;
  any_pending_ = false;
  for (size_t peer = 0; peer < pending_.size(); ++peer) {
    std::optional<CallRecord>& theirs = pending_[peer];
    if (!theirs) continue;
    if (theirs->sequence > sequence) {
      any_pending_ = true;
      continue;
    }
    if (theirs->sequence == sequence && !theirs->SameCall(ours)) {
      difference = {static_cast<int>(peer), ours, *theirs};
    }
    theirs.reset();
  }
  return difference;
}

std::optional<CallHistory::Difference> CallHistory::Compare(int peer, const CallRecord& theirs) {
  if (theirs.sequence > latest_) {
    pending_[static_cast<size_t>(peer)] = theirs;
    any_pending_ = true;
    return std::nullopt;
  }
  const CallRecord& ours = records_[theirs.sequence % kKept];
  if (ours.sequence != theirs.sequence || ours.SameCall(theirs)) return std::nullopt;
  return Difference{peer, ours, theirs};
}

void CallHistory::AppendNews(std::vector<std::vector<std::byte>>* records) {
  if (appended_ == latest_) return;
  appended_ = latest_;
  records->push_back(record().Encode());
}

void CallHistory::AppendEarlier(std::vector<std::vector<std::byte>>* records) {
  if (earlier_appended_ == latest_) return;
  earlier_appended_ = latest_;
  for (uint64_t back = std::min<uint64_t>(kKept, latest_) - 1; back > 0; --back) {
    records->push_back(records_[(latest_ - back) % kKept].Encode());
  }
}

}  // namespace inccl
