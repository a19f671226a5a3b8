// SPDX-License-Identifier: Apache-2.0
//
// One rank's end of a communicator. It owns the transport and the control connections, and runs
// calls: at once in the calling thread, or in batches on a worker thread. CollectiveRunner runs a
// single call.
#ifndef INCCL_COMMUNICATOR_COMMUNICATOR_H_
#define INCCL_COMMUNICATOR_COMMUNICATOR_H_

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/rank_name.h"
#include "base/status.h"
#include "collectives/call.h"
#include "collectives/send_recv.h"
#include "communicator/collective_runner.h"
#include "communicator/comm_options.h"
#include "communicator/device_engines.h"
#include "communicator/staging.h"
#include "control/control.h"
#include "failure/liveness.h"
#include "failure/shrink_agreement.h"
#include "stream/batch.h"
#include "stream/worker.h"
#include "transport/transport.h"

namespace inccl {

struct CommEnds {
  int rank = 0, nranks = 1;
  std::vector<std::string> peer_names;  // "host:pid" by rank
  std::unique_ptr<Transport> transport;
  std::vector<pid_t> pids;  // of the ranks on this host, one for each
};

class Communicator {
 public:
  Communicator(CommEnds ends, CommOptions options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // To be given to the control plane, which is attached afterwards.
  Liveness* liveness() { return &liveness_; }
  void AttachControl(std::unique_ptr<ControlPlane> control);
  // The last step of creation, on all ranks at the same time: a small all-reduce of zeros, where
  // that takes no more memory than is committed. A user's first one then finds schedule, lanes and
  // pages in place. `cancelled` may be null.
  Status WarmUp(Time deadline, const std::atomic<bool>* cancelled);
  // The communicator has been created. From now on a fatal error may end the process.
  void Begin() { liveness_.Begin(); }

  int rank() const { return ends_.rank; }
  int nranks() const { return ends_.nranks; }
  // What messages call it.
  std::string rank_name() const { return RankName(ends_.rank, ends_.nranks, options_.name); }
  const CommOptions& options() const { return options_; }

  // Checked arguments in, result in call.recv. A kInvalidArgument has had no effect; any other
  // error is sticky. Waits for batches that are under way.
  Status Run(const Call& call);
  // Performs a batch in the calling thread.
  Status RunBatch(const Batch& batch);
  // Takes a batch over, to be run after those before; kSystemError: not taken.
  Status Enqueue(Batch&& batch) { return worker_.Enqueue(std::move(batch)); }
  bool idle() const { return worker_.idle(); }
  void WaitIdle() { worker_.WaitIdle(); }

  // Once, before the first call and while no other rank has made one: as PrepareFor, for calls on
  // memory of this device. Other ranks of this process may share the device, and what is allocated
  // there later might wait for their streams, which wait for this rank.
  void PrepareOn(int device) {
    if (device < 0 || ends_.nranks == 1) return;
    if (Result<DeviceEngine*> engine = engines_.Of(device); engine.ok()) (*engine)->Prepare();
    engines_.Attach();
  }

  // From any thread, before calls on memory of a device take their place on a stream: allocates
  // what they will need while nothing waits for it. An error is the calls' own, when they run.
  // Sends and receives of a group come together.
  void PrepareFor(std::span<const Call> calls) {
    for (const Call& call : calls) {
      if (call.on_device) return PrepareOnDevice(calls);
    }
  }

  Status error() const { return liveness_.error(); }
  ShrinkAgreement* shrink_agreement() { return &shrink_agreement_; }
  // From any thread: calls in progress end with an error; returns when they have.
  void Abort(const Status& why);
  // Abort, and a shrink in progress ends, too. For good: later ones do not begin.
  void AbortAll(const Status& why);
  // From any thread: the error becomes sticky, here and on all other ranks.
  void Fail(const Status& status) { liveness_.Fail(status); }
  // The same with what a call returns, whatever it is; returns what the caller is told: the first
  // error.
  Status MakeSticky(const Status& status);
  // From any thread: all ranks' calls end with an error.
  void Revoke();
  // Turns true when there is an error.
  const std::atomic<bool>* failed_flag() const { return liveness_.failed_flag(); }
  // What went wrong on the way to a communicator of this one's ranks: this one's error, if there is
  // one or comes soon; else `status`.
  Status CauseOf(const Status& status) const;
  // For messages about several communicators: "communicator 3 (rank 0/2)", counted in this process.
  const std::shared_ptr<const std::string>& label() const { return label_; }
  // Collectives that have completed on this rank, sends and receives not counted.
  uint64_t completed() const { return completed_.load(std::memory_order_relaxed); }

 private:
  // Makes errors sticky.
  Status RunGuarded(const Call& call) INCCL_REQUIRES(call_mutex_);
  Status RunSendRecvGuarded(const std::vector<Call>& calls) INCCL_REQUIRES(call_mutex_);
  // Nothing of the device's memory is touched before a staged call has succeeded.
  bool IsStaged(const Call& call) const;
  void PrepareOnDevice(std::span<const Call> calls);
  Status RunOnDevice(const Call& call) INCCL_REQUIRES(call_mutex_);
  // Runs the call on copies in memory of the host.
  Status RunStaged(const Call& call) INCCL_REQUIRES(call_mutex_);
  Status EnqueueAndWait(Batch batch);
  Status InAnotherCall() const;
  // Whether a batch is not to wait for its turn any more.
  bool GivesUp(const StreamOrder& turn, Time stalled);
  // For `preserve_input`.
  void SaveInput(const Call& call) INCCL_REQUIRES(call_mutex_);
  void RestoreInput(const Call& call) const INCCL_REQUIRES(call_mutex_);

  CommEnds ends_;
  const CommOptions options_;
  const std::shared_ptr<const std::string> label_;
  ShrinkAgreement shrink_agreement_;
  Liveness liveness_;
  std::unique_ptr<ControlPlane> control_;
  Staging staging_;
  DeviceEngines engines_;
  Mutex call_mutex_;  // held during a call; abort waits for it
  CollectiveRunner runner_ INCCL_GUARDED_BY(call_mutex_);
  std::vector<std::byte> saved_input_ INCCL_GUARDED_BY(call_mutex_);
  bool input_saved_ INCCL_GUARDED_BY(call_mutex_) = false;  // of the call under way
  std::atomic<uint64_t> completed_{0};
  Worker worker_;  // last: ends first
};

}  // namespace inccl

#endif  // INCCL_COMMUNICATOR_COMMUNICATOR_H_
