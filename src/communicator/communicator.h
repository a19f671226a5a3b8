// SPDX-License-Identifier: Apache-2.0
//
// One rank's end of a communicator. It owns the transport and the control connections. It runs
// calls in the calling thread, or in batches on a worker thread. CollectiveRunner runs a single
// call.
#ifndef INCCL_COMMUNICATOR_COMMUNICATOR_H_
#define INCCL_COMMUNICATOR_COMMUNICATOR_H_

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/text.h"
#include "bootstrap/socket_list.h"
#include "collectives/call.h"
#include "collectives/send_recv.h"
#include "communicator/collective_runner.h"
#include "communicator/comm_options.h"
#include "communicator/device_engines.h"
#include "communicator/staging.h"
#include "communicator/status_report.h"
#include "communicator/zero_copy.h"
#include "control/control.h"
#include "failure/liveness.h"
#include "failure/shrink_agreement.h"
#include "failure/sticky_error.h"
#include "stream/batch.h"
#include "topology/host_map.h"
#include "transport/transport.h"

namespace inccl {

struct CommEnds {
  int rank = 0, nranks = 1;
  std::vector<std::string> peer_names;  // "host:pid" by rank
  std::unique_ptr<Transport> transport;
  std::vector<pid_t> pids;  // of the ranks on this machine, one for each
  HostMap hosts;
  Sites sites;
  std::string id;                       // equal on all ranks; different for each communicator
  std::shared_ptr<SocketList> sockets;  // may be null
};

class Communicator {
 public:
  Communicator(CommEnds ends, CommOptions options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // The control plane takes this as its handler; AttachControl follows.
  Liveness* liveness() { return &liveness_; }
  void AttachControl(std::unique_ptr<ControlPlane> control);
  // Called after AttachControl: shows this rank to inccl-status, by a socket in `directory`.
  Status Publish(const std::string& directory) { return PublishStatus(directory, &status_report_); }
  // The last step of creation, on all ranks at the same time: a small all-reduce of zeros, unless
  // it would need more memory than is committed. The user's first such call then finds schedule,
  // lanes and pages in place.
  Status WarmUp(Time deadline, const Cancel& cancelled);
  // Before the first call.
  void SetLineage(Lineage lineage) { lineage_ = std::move(lineage); }
  const Lineage& lineage() const { return lineage_; }
  // Marks the end of creation. From now on a fatal error may end the process.
  void Begin() { sticky_error_.Begin(); }

  int rank() const { return ends_.rank; }
  int nranks() const { return ends_.nranks; }
  // The name of this rank in messages.
  std::string rank_name() const { return RankName(ends_.rank, ends_.nranks, options_.name); }
  const CommOptions& options() const { return options_; }

  // Runs a call whose arguments have been checked. A call that returns kInvalidArgument has had no
  // effect; any other error is sticky. Waits for batches in progress.
  Status Run(const Call& call);
  // Runs a batch in the calling thread.
  Status RunBatch(const Batch& batch);
  // Takes ownership of a batch and runs it after earlier ones. On kSystemError it has not taken it.
  Status Enqueue(Batch&& batch) { return worker_.Enqueue(std::move(batch)); }
  bool idle() const { return worker_.idle(); }
  void WaitIdle() { worker_.WaitIdle(); }
  // After the last call: waits until nothing of this rank is on its way to its peers, who have then
  // heard that it leaves. False if that is not so at `until`: call it again, or destroy the
  // communicator, which waits as long as a call may take, after a failure for a moment.
  bool Part(Time until);

  // Any thread. Exports memory to the peers, until Deregister, for calls that use zero copy: at
  // once, or, while another thread is in a call, when that call has ended. Returns the handle;
  // nullptr if peers cannot access this memory.
  Result<void*> Register(const void* data, size_t bytes, bool on_device);
  // Any thread. False if there is no such handle.
  bool Deregister(const void* handle);

  // Called once, before any rank makes its first call: PrepareFor for calls on memory of this
  // device. Other ranks of this process may share the device. A later allocation there might wait
  // for their streams, which wait for this rank.
  void PrepareOn(int device) {
    if (device < 0 || ends_.nranks == 1) return;
    if (Result<DeviceEngine*> engine = engines_.Of(device); engine.ok()) (*engine)->Prepare();
    engines_.Attach();
  }

  // Any thread calls it before calls on device memory take their positions on a stream. It
  // allocates their memory while no stream waits for it. If it fails, the calls report the error
  // when they run. Sends and receives of a group are passed together.
  void PrepareFor(std::span<const Call> calls) {
    for (const Call& call : calls) {
      if (call.on_device) return PrepareOnDevice(calls);
    }
  }

  Status error() const { return sticky_error_.error(); }
  ShrinkAgreement* shrink_agreement() { return &shrink_agreement_; }
  Invitations* invitations() { return &invitations_; }
  // The number of a split that begins, from 1.
  uint64_t NextSplit() { return ++splits_; }
  // Any thread. Calls in progress end with an error; returns when they have ended.
  void Abort(const Status& why);
  // As Abort; also ends a shrink in progress and refuses later ones.
  void AbortAll(const Status& why);
  // Any thread. Makes the error sticky on this rank and on all others.
  void Fail(const Status& status) { liveness_.Fail(status); }
  // As Fail, for the result of a call (OK and kInvalidArgument pass unchanged). Returns the first
  // error.
  Status MakeSticky(const Status& status);
  // Any thread. Calls of all ranks end with an error.
  void Revoke();
  // Any thread. The limit of calls in progress and of later ones on this rank.
  void SetOpTimeout(Time timeout) { liveness_.SetOpTimeout(timeout); }
  // Becomes true at the first error.
  const std::atomic<bool>* failed_flag() const { return sticky_error_.failed_flag(); }
  // The cause of a failure to make a communicator from this one's ranks: this one's error, if there
  // is one or one comes soon; else `status`.
  Status CauseOf(const Status& status) const;
  // For messages about several communicators: "communicator 3 (rank 0/2)", numbered in this
  // process.
  const std::shared_ptr<const std::string>& label() const { return label_; }
  // The number of collectives that have completed on this rank, without sends and receives.
  uint64_t completed() const { return completed_.load(std::memory_order_relaxed); }

 private:
  // Marks the calls that the thread with call_mutex_ runs, and applies registrations around them.
  class Calling {
   public:
    explicit Calling(Communicator* communicator) : communicator_(communicator) {
      communicator_->in_call_.store(true, std::memory_order_release);
      communicator_->PassOnRegistrations();
    }
    ~Calling() {
      communicator_->PassOnRegistrations();
      communicator_->in_call_.store(false, std::memory_order_release);
    }
    Calling(const Calling&) = delete;
    Calling& operator=(const Calling&) = delete;

   private:
    Communicator* const communicator_;
  };
  // Between calls, with call_mutex_. After an error late peers may still use the regions.
  void PassOnRegistrations() {
    if (!sticky_error_.failed()) registrations_.Apply();
  }
  // Any thread; does nothing while a call is in progress, whose thread does it.
  void TryPassOnRegistrations();

  // These make errors sticky.
  Status RunGuarded(const Call& call) INCCL_REQUIRES(call_mutex_);
  Status RunSendRecvGuarded(const std::vector<Call>& calls) INCCL_REQUIRES(call_mutex_);
  // A staged call touches device memory only after it has succeeded on the host.
  bool IsStaged(const Call& call) const;
  void PrepareOnDevice(std::span<const Call> calls);
  Status RunOnDevice(const Call& call) INCCL_REQUIRES(call_mutex_);
  // Runs the call on copies in host memory.
  Status RunStaged(const Call& call) INCCL_REQUIRES(call_mutex_);
  Status EnqueueAndWait(Batch batch);
  Status InAnotherCall() const;
  // Whether a batch stops waiting for its position on a stream.
  bool GivesUp(const StreamOrder& turn, Time stalled);
  // For CommOptions::preserve_input.
  void SaveInput(const Call& call) INCCL_REQUIRES(call_mutex_);
  void RestoreInput(const Call& call) const INCCL_REQUIRES(call_mutex_);

  CommEnds ends_;
  const CommOptions options_;
  const std::shared_ptr<const std::string> label_;
  Lineage lineage_;
  ShrinkAgreement shrink_agreement_;
  Invitations invitations_;
  std::atomic<uint64_t> splits_{0};
  StickyError sticky_error_;
  Liveness liveness_;
  std::unique_ptr<ControlPlane> control_;
  Staging staging_;
  Registrations registrations_;
  // Held during a call, for which Abort waits, and shortly by Abort and TryPassOnRegistrations.
  Mutex call_mutex_;
  std::atomic<bool> in_call_{false};  // the thread with call_mutex_ runs calls
  CollectiveRunner runner_ INCCL_GUARDED_BY(call_mutex_);
  DeviceEngines engines_;  // after runner_: it waits for work that uses lanes and codec states
  std::vector<std::byte> saved_input_ INCCL_GUARDED_BY(call_mutex_);
  bool input_saved_ INCCL_GUARDED_BY(call_mutex_) = false;  // for the call in progress
  std::atomic<uint64_t> completed_{0};
  StatusReport status_report_;
  bool parting_ = false;
  void OnStuckInDriver(Time stuck);

  Worker worker_;  // destroyed first but for the watch, which uses it
  DriverWatch driver_watch_;
};

}  // namespace inccl

#endif  // INCCL_COMMUNICATOR_COMMUNICATOR_H_
