// SPDX-License-Identifier: Apache-2.0
//
// Failure state of a communicator: its sticky error, peers that have died or left, calls that
// differ between ranks, and waits that do not end. Thread-safe; the control thread handles messages
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
  Time warn_after = 10 * kSecond;  // a call without progress is worth a line in the log
  bool abort_on_error = false;     // the process ends at the first error after Begin
};

class Liveness final : public ControlHandler, public WaitObserver {
 public:
  // `shrink_agreement` gets what concerns the agreement on who is left.
  Liveness(LivenessOptions options, WakeupEvent* wakeup_event, ShrinkAgreement* shrink_agreement);

  // The control plane is made after its handler.
  void Attach(ControlPlane* control) { control_.store(control); }
  // The communicator has been created: until here an error is that of its creation.
  void Begin();

  // A call begins: compares with what others have said of the same place in the order.
  Status BeginCall(uint64_t sequence, const Call& call, uint64_t* signature);
  // Sends and receives begin; `calls` lives until EndCall.
  void BeginSendRecv(const std::vector<Call>* calls);
  void EndCall();

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  const std::atomic<bool>* failed_flag() const { return &failed_; }
  Status error() const;
  // The first error wins; it is told to all peers.
  void Fail(const Status& status) { End(status, options_.abort_on_error); }
  // The same where this rank's caller ends the communicator on purpose, which is no error of his.
  void EndOnPurpose(const Status& why) { End(why, false); }

  // Returns when there is an error, or after the limit.
  void WaitFailed(Time limit) const;

  // WaitObserver
  Status Check() override { return failed() ? error() : Status::Ok(); }
  Status OnStall(const Request& request, std::span<const int> awaited, Time stalled) override;

  // ControlHandler
  void OnMessage(int peer, uint8_t kind, std::span<const std::byte> body) override;
  void OnPeerClosed(int peer, bool clean) override;
  void OnPeerSilent(int peer, Time silence, Time limit) override;
  void OnOutOfMemory() override { Fail(OutOfMemory()); }

  // Before the goodbye: returns when a failure that is known here has been told to all others.
  void WaitNotified();

 private:
  void OnRecord(int peer, const CallRecord& theirs);
  void OnAsk(int peer);
  void OnWhere(int peer, std::span<const std::byte> body);
  void OnError(int peer, std::span<const std::byte> body);
  void End(const Status& status, bool abort);
  // What others are told need not be what is known here. `abort`: the process ends, too.
  void FailAndNotify(const Status& status, const Status& tell, bool abort)
      INCCL_EXCLUDES(notifying_, mutex_);
  void Notify(const Status& status) INCCL_REQUIRES(notifying_);
  bool LongGone(int peer) INCCL_REQUIRES(mutex_);
  // What a stall calls for.
  void CollectRecords(const Request& request, std::vector<std::vector<std::byte>>* records)
      INCCL_REQUIRES(mutex_);
  // *ask: the others are to be asked where they are.
  Status Judge(const Request& request, std::span<const int> awaited, Time stalled, bool* ask)
      INCCL_REQUIRES(mutex_);
  // Since this stall was as long as `since` all have answered that will.
  bool AreAnswersThere(Time since, bool* ask) const INCCL_REQUIRES(mutex_);
  std::string WaitingFor(const Request& request, std::span<const int> awaited) const
      INCCL_REQUIRES(mutex_);
  Status InACircle(std::span<const int> circle) const INCCL_REQUIRES(mutex_);
  Status Disagreement(const std::optional<CallHistory::Difference>& difference) const
      INCCL_REQUIRES(mutex_);
  // "rank 1/4 in op 17 allreduce(...)", "rank 1/4 after op 17"
  std::string Where() const INCCL_REQUIRES(mutex_);
  std::string Place() const INCCL_REQUIRES(mutex_);  // without the rank
  std::string Named(int peer) const { return options_.peer_names[static_cast<size_t>(peer)]; }

  const LivenessOptions options_;
  const Status out_of_memory_;  // with this rank's name, for which there may be no memory later
  WakeupEvent* const wakeup_event_;
  ShrinkAgreement* const shrink_agreement_;
  std::atomic<ControlPlane*> control_{nullptr};

  std::atomic<bool> failed_{false};
  std::atomic<bool> in_call_{false};
  std::vector<std::atomic<bool>> departed_;  // by rank: said goodbye
  // Held from before failed_ turns true until the others are told: taken after the control plane's
  // dispatch_mutex_, before its other mutexes.
  Mutex notifying_ INCCL_ACQUIRED_BEFORE(mutex_);
  bool begun_ INCCL_GUARDED_BY(notifying_) = false;
  mutable Mutex mutex_;
  Status error_ INCCL_GUARDED_BY(mutex_);
  // Under way. The caller's thread alone writes it.
  const std::vector<Call>* send_recv_ INCCL_GUARDED_BY(mutex_) = nullptr;
  CallHistory calls_ INCCL_GUARDED_BY(mutex_);
  // By rank: by the waiting thread, 0: not yet.
  std::vector<Time> departure_seen_ INCCL_GUARDED_BY(mutex_);
  // Of the call under way:
  bool warned_ INCCL_GUARDED_BY(mutex_) = false;  // that it is slow
  // The length of its stall when the others were asked where they are.
  Time asked_ INCCL_GUARDED_BY(mutex_) = 0;
  // When the next two were true; 0: it has not stalled.
  Time looked_ INCCL_GUARDED_BY(mutex_) = 0;
  Time stalled_ INCCL_GUARDED_BY(mutex_) = 0;          // how long it has made no progress
  std::vector<int> awaited_ INCCL_GUARDED_BY(mutex_);  // for whom it waits
  Positions positions_ INCCL_GUARDED_BY(mutex_);       // of the others
};

}  // namespace inccl

#endif  // INCCL_FAILURE_LIVENESS_H_
