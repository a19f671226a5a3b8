// SPDX-License-Identifier: Apache-2.0
//
// Failure state of a communicator: its sticky error, peers that have died or left, calls that
// differ between ranks, and waits that do not end. Thread-safe. The control thread handles messages
// of peers, also while the caller is outside the library.
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
#include "failure/call_history.h"
#include "failure/positions.h"
#include "failure/shrink_agreement.h"

namespace inccl {

struct LivenessOptions {
  int rank = 0, nranks = 1;
  std::vector<std::string> peer_names;  // "host:pid" by rank
  Time op_timeout = 600 * kSecond;
  std::string comm_name = {};
  Time warn_after = 10 * kSecond;  // log a warning for a call without progress
  bool abort_on_error = false;     // the first error after Begin ends the process
};

class Liveness final : public ControlHandler, public WaitObserver {
 public:
  // `shrink_agreement` gets the messages and peer failures that concern it.
  Liveness(LivenessOptions options, WakeupEvent* wakeup_event, ShrinkAgreement* shrink_agreement);

  // Called after construction, because the control plane is created after its handler.
  void Attach(ControlPlane* control) { control_.store(control); }
  // Marks the end of creation; earlier errors are errors of creation.
  void Begin();

  // Begins a call and compares it with the peers' records of the same call number.
  Status BeginCall(uint64_t sequence, const Call& call, uint64_t* signature);
  // Begins sends and receives. `calls` lives until EndCall.
  void BeginSendRecv(const std::vector<Call>* calls);
  void EndCall();

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  const std::atomic<bool>* failed_flag() const { return &failed_; }
  Status error() const;
  // Makes the error sticky unless there is one already, and notifies all peers.
  void Fail(const Status& status) { End(status, options_.abort_on_error); }
  // As Fail, for a caller that ends the communicator on purpose: abort_on_error does not apply.
  void EndOnPurpose(const Status& why) { End(why, false); }

  // Returns when there is an error, or after `limit`.
  void WaitFailed(Time limit) const;

  // WaitObserver
  Status Check() override { return failed() ? error() : Status::Ok(); }
  Status OnStall(const Request& request, std::span<const int> awaited, Time stalled) override;

  // ControlHandler
  void OnMessage(int peer, uint8_t kind, std::span<const std::byte> body) override;
  void OnPeerClosed(int peer, bool clean) override;
  void OnPeerSilent(int peer, Time silence, Time limit) override;
  void OnOutOfMemory() override { Fail(OutOfMemory()); }

  // Called before the disconnect. Returns when all peers have been sent the notice of an error, if
  // there is one.
  void WaitNotified();

 private:
  void OnRecord(int peer, const CallRecord& theirs);
  void OnAsk(int peer);
  void OnWhere(int peer, std::span<const std::byte> body);
  void OnError(int peer, std::span<const std::byte> body);
  void End(const Status& status, bool abort);
  // Peers get `tell`, which may differ from this rank's `status`. `abort`: the process ends, too.
  void FailAndNotify(const Status& status, const Status& tell, bool abort)
      INCCL_EXCLUDES(notifying_, mutex_);
  void Notify(const Status& status) INCCL_REQUIRES(notifying_);
  bool LongGone(int peer) INCCL_REQUIRES(mutex_);
  // The records that a stall of this length sends to the peers.
  void CollectRecords(const Request& request, std::vector<std::vector<std::byte>>* records)
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
  std::string Place() const INCCL_REQUIRES(mutex_);  // Where() without the rank
  std::string Named(int peer) const { return options_.peer_names[static_cast<size_t>(peer)]; }

  const LivenessOptions options_;
  const Status out_of_memory_;  // made in advance, because there may be no memory for it later
  WakeupEvent* const wakeup_event_;
  ShrinkAgreement* const shrink_agreement_;
  std::atomic<ControlPlane*> control_{nullptr};

  std::atomic<bool> failed_{false};
  std::atomic<bool> in_call_{false};
  std::vector<std::atomic<bool>> departed_;  // by rank: has disconnected
  // Held from before failed_ becomes true until the peers have been notified. Taken after the
  // control plane's dispatch_mutex_, before its other mutexes.
  Mutex notifying_ INCCL_ACQUIRED_BEFORE(mutex_);
  bool begun_ INCCL_GUARDED_BY(notifying_) = false;
  mutable Mutex mutex_;
  Status error_ INCCL_GUARDED_BY(mutex_);
  // The sends and receives in progress. Only the caller's thread writes it.
  const std::vector<Call>* send_recv_ INCCL_GUARDED_BY(mutex_) = nullptr;
  CallHistory calls_ INCCL_GUARDED_BY(mutex_);
  // By rank: when the waiting thread first saw the disconnect; 0: not yet.
  std::vector<Time> departure_seen_ INCCL_GUARDED_BY(mutex_);
  // State of the call in progress.
  bool warned_ INCCL_GUARDED_BY(mutex_) = false;  // the slow call has been logged
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
