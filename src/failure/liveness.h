// SPDX-License-Identifier: Apache-2.0
//
// Finds failures of a communicator: peers that have died or left, calls that differ between ranks,
// and waits that do not end. Thread-safe. The control thread handles messages of peers, also while
// the caller is outside the library.
#ifndef INCCL_FAILURE_LIVENESS_H_
#define INCCL_FAILURE_LIVENESS_H_

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "collectives/call.h"
#include "collectives/progress.h"
#include "collectives/send_recv.h"
#include "control/control.h"
#include "failure/positions.h"
#include "failure/shrink_agreement.h"
#include "failure/sticky_error.h"

namespace inccl {

struct LivenessOptions {
  int rank = 0, nranks = 1;
  std::vector<std::string> peer_names;  // "host:pid" by rank
  Time op_timeout = 600 * kSecond;
  std::string comm_name = {};
  // Ranks that have stood still for so long and wait for each other in a circle fail.
  Time circle_stall = kSecond;
  Time warn_after = 10 * kSecond;  // log a warning for a call without progress
};

class Liveness final : public ControlHandler, public WaitObserver {
 public:
  // `sticky_error` gets what this object finds; `shrink_agreement` gets the messages and peer
  // failures that concern it. Both outlive this object.
  Liveness(LivenessOptions options, StickyError* sticky_error, ShrinkAgreement* shrink_agreement,
           Invitations* invitations);

  // Called after construction, because the control plane is created after its handler.
  void Attach(ControlPlane* control) { control_.store(control); }
  // Begins a call and compares it with the peers' records of the same call number.
  Status BeginCall(uint64_t sequence, const Call& call, uint64_t* signature);
  // Begins sends and receives. `calls` lives until EndCall.
  void BeginSendRecv(const std::vector<Call>* calls);
  void EndCall();
  // Any thread. For calls in progress, too.
  void SetOpTimeout(Time timeout) { op_timeout_.store(timeout, std::memory_order_relaxed); }
  Time op_timeout() const { return op_timeout_.load(std::memory_order_relaxed); }

  // Makes the error sticky unless there is one already. Adds this rank's position in the order of
  // calls to a text that does not name the rank.
  void Fail(const Status& status) { Fail(status, StickyError::Origin::kFailure); }
  // As Fail, for a caller that ends the communicator on purpose: abort_on_error does not apply.
  void EndOnPurpose(const Status& why) { Fail(why, StickyError::Origin::kOnPurpose); }

  // For inccl-status, any thread: asks all other ranks for their positions, says whether all have
  // answered that live, and returns what is known, by rank. This rank's own entry is of now.
  void AskAll();
  bool HasAnswers() const;
  std::vector<RankStatus> RankStatuses() const;

  // WaitObserver
  Status Check() override {
    return sticky_error_->failed() ? sticky_error_->error() : Status::Ok();
  }
  Status OnStall(const Request& request, std::span<const int> awaited, Time stalled) override;

  // ControlHandler
  void OnMessage(int peer, uint8_t kind, std::span<const std::byte> body) override;
  void OnPeerClosed(int peer, bool clean) override;
  void OnPeerSilent(int peer, Time silence, Time limit) override;
  void OnPeerCutOff(int peer) override;
  void OnOutOfMemory() override { Fail(OutOfMemory()); }

 private:
  void OnRecord(int peer, const CallRecord& theirs);
  void OnAsk(int peer);
  void OnWhere(int peer, std::span<const std::byte> body);
  void OnError(int peer, std::span<const std::byte> body);
  void Fail(const Status& status, StickyError::Origin origin) INCCL_EXCLUDES(mutex_);
  bool LongGone(int peer) INCCL_REQUIRES(mutex_);
  // The records that a stall of this length sends to the neighbours, and the newest one if it is to
  // be sent to the awaited ranks, too.
  void CollectRecords(const Request& request, Time stalled,
                      std::vector<std::vector<std::byte>>* records, std::vector<std::byte>* newest)
      INCCL_REQUIRES(mutex_);
  // Returns the error that the stall amounts to, if any. *ask: this rank must ask the others for
  // their positions.
  Status Judge(const Request& request, std::span<const int> awaited, Time stalled, bool* ask)
      INCCL_REQUIRES(mutex_);
  // Whether this rank has asked since the stall reached `since`, and all ranks that still answer
  // have done so; sets *ask if it has not asked.
  bool AreAnswersThere(Time since, bool* ask) const INCCL_REQUIRES(mutex_);
  std::string WaitingFor(const Request& request, std::span<const int> awaited) const
      INCCL_REQUIRES(mutex_);
  Status InACircle(std::span<const int> circle) const INCCL_REQUIRES(mutex_);
  Status Disagreement(const std::optional<CallHistory::Difference>& difference) const
      INCCL_REQUIRES(mutex_);
  // "rank 1/4 in op 17 allreduce(...)", "rank 1/4 after op 17"
  std::string Where() const INCCL_REQUIRES(mutex_);
  Position OwnPosition() const INCCL_REQUIRES(mutex_);
  std::string Place() const INCCL_REQUIRES(mutex_);  // Where() without the rank
  std::string Named(int peer) const { return options_.peer_names[static_cast<size_t>(peer)]; }

  const LivenessOptions options_;
  std::atomic<Time> op_timeout_;
  const Status out_of_memory_;  // made in advance, because there may be no memory for it later
  StickyError* const sticky_error_;
  ShrinkAgreement* const shrink_agreement_;
  Invitations* const invitations_;
  std::atomic<ControlPlane*> control_{nullptr};

  std::atomic<bool> in_call_{false};
  std::vector<std::atomic<bool>> departed_;  // by rank: has disconnected
  mutable Mutex mutex_;
  // The sends and receives in progress. Only the caller's thread writes it.
  const std::vector<Call>* send_recv_ INCCL_GUARDED_BY(mutex_) = nullptr;
  CallHistory calls_ INCCL_GUARDED_BY(mutex_);
  // By rank: when the waiting thread first saw the disconnect; 0: not yet.
  std::vector<Time> departure_seen_ INCCL_GUARDED_BY(mutex_);
  // State of the call in progress.
  bool warned_ INCCL_GUARDED_BY(mutex_) = false;    // the slow call has been logged
  bool far_told_ INCCL_GUARDED_BY(mutex_) = false;  // awaited ranks that are no neighbours
  // Length of the stall when this rank last asked the others for their positions.
  Time asked_ INCCL_GUARDED_BY(mutex_) = 0;
  // Time of the OnStall that set the next two; 0: the call has not stalled.
  Time looked_ INCCL_GUARDED_BY(mutex_) = 0;
  Time stalled_ INCCL_GUARDED_BY(mutex_) = 0;          // time without progress
  std::vector<int> awaited_ INCCL_GUARDED_BY(mutex_);  // the peers that the call waits for
  Positions positions_ INCCL_GUARDED_BY(mutex_);       // of the other ranks
};

}  // namespace inccl

#endif  // INCCL_FAILURE_LIVENESS_H_
