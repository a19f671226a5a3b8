// SPDX-License-Identifier: Apache-2.0
#include "communicator/communicator.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/fault_point.h"
#include "base/log.h"
#include "device/runtime.h"
#include "topology/processors.h"

namespace inccl {
namespace {

// After a failure only reports are on their way, and a peer may be unreachable.
constexpr Time kPartingLimitAfterFailure = 400 * kMillisecond;
constexpr Time kQuiesceLimit = kSecond, kQuiesceLimitAfterFailure = 200 * kMillisecond;
constexpr size_t kCopiesOfAStep = 2;  // host copies of a slice in device memory: CopyIn and CopyOut
constexpr Time kCauseLimit = 200 * kMillisecond;

// A rank that shares its core yields it at once, because the awaited rank may need it.
WaitPolicy PolicyFor(const std::vector<pid_t>& pids) {
  WaitPolicy policy;
  if (!EnoughCores(pids)) policy.spins = 0;
  return policy;
}

// Whether helpers may spin, if all ranks of the machine have as many threads as this one.
bool HelpersSpin(const std::vector<pid_t>& pids, int threads) {
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  if (threads == 1 || pids.size() * static_cast<size_t>(threads) > static_cast<size_t>(processors))
    return false;
  std::vector<pid_t> all;
  for (int i = 0; i < threads; ++i) all.insert(all.end(), pids.begin(), pids.end());
  return EnoughCores(all);
}

bool OnDevice(const Batch& batch) {
  const auto on_device = [](const Call& call) { return call.on_device; };
  return std::any_of(batch.calls.begin(), batch.calls.end(), on_device) ||
         std::any_of(batch.send_recv.begin(), batch.send_recv.end(), on_device);
}

std::shared_ptr<const std::string> NextLabel(int rank, int nranks) {
  static std::atomic<uint64_t> count{0};
  return std::make_shared<const std::string>(
      fmt::format("communicator {} (rank {}/{})", ++count, rank, nranks));
}

}  // namespace

Communicator::Communicator(CommEnds ends, CommOptions options)
    : ends_(std::move(ends)),
      options_(std::move(options)),
      label_(NextLabel(ends_.rank, ends_.nranks)),
      shrink_agreement_(ends_.rank, ends_.nranks, ends_.peer_names),
      invitations_(ends_.nranks),
      sticky_error_(options_.abort_on_error, ends_.transport->wakeup_event()),
      liveness_({.rank = ends_.rank,
                 .nranks = ends_.nranks,
                 .peer_names = ends_.peer_names,
                 .op_timeout = options_.op_timeout,
                 .comm_name = options_.name,
                 .circle_stall = options_.circle_stall},
                &sticky_error_, &shrink_agreement_, &invitations_),
      staging_(ends_.rank, ends_.nranks),
      registrations_(rank_name(), ends_.transport.get()),
      runner_({.rank = ends_.rank,
               .nranks = ends_.nranks,
               .name = rank_name(),
               .lineage = &lineage_,
               .transport = ends_.transport.get(),
               .liveness = &liveness_,
               .engines = &engines_,
               .hosts = ends_.hosts.hosts() > 1 ? &ends_.hosts : nullptr,
               .wait = PolicyFor(ends_.pids),
               .helpers_spin = HelpersSpin(ends_.pids, options_.threads)},
              &options_),
      engines_(ends_.transport.get(),
               {.with_kernels = kCopiesOfAStep * options_.slice_bytes,
                .without = (static_cast<size_t>(ends_.nranks) + 1) * options_.slice_bytes}),
      status_report_({.id = ends_.id,
                      .name = options_.name,
                      .transport = ends_.transport->caps().name,
                      .rank = ends_.rank,
                      .peer_names = ends_.peer_names,
                      .hosts = &ends_.hosts,
                      .sites = &ends_.sites,
                      .sockets = ends_.sockets,
                      .liveness = &liveness_,
                      .sticky_error = &sticky_error_,
                      .completed = &completed_}),
      worker_(
          [this](const Batch& batch) {
            const DriverWatch::Use use(&driver_watch_, OnDevice(batch) ? CurrentDevice() : nullptr);
            return RunBatch(batch);
          },
          [this](const StreamOrder& turn, Time stalled) { return GivesUp(turn, stalled); }),
      // Before peers, who wait as long, name this rank without the cause.
      driver_watch_([this] { return liveness_.op_timeout() / 2; },
                    [this](Time stuck) { OnStuckInDriver(stuck); }) {}

Communicator::~Communicator() {
  FAULT_RANK(ends_.rank);
  worker_.WaitIdle();
  (void)Part(SystemClock().Now() +
             (sticky_error_.failed() ? kPartingLimitAfterFailure : liveness_.op_timeout()));
  if (control_ != nullptr) control_->Close(SystemClock().Now());
  FAULT_POINT("destroy.after_disconnect");
  ends_.transport->Quiesce(SystemClock().Now() +
                           (sticky_error_.failed() ? kQuiesceLimitAfterFailure : kQuiesceLimit));
}

bool Communicator::Part(Time until) {
  FAULT_RANK(ends_.rank);
  worker_.WaitIdle();
  if (!std::exchange(parting_, true)) {
    FAULT_POINT("destroy.begin");
    WithdrawStatus(&status_report_);
  }
  sticky_error_.WaitNotified();
  while (!sticky_error_.failed() && !ends_.transport->delivered()) {
    if (SystemClock().Now() >= until) return false;
    const Status progress =
        CatchOutOfMemory([&] { return ends_.transport->Progress(SystemClock().Now()).status(); });
    if (!progress.ok()) {
      liveness_.Fail(progress);
      break;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return control_ == nullptr || control_->Disconnect(until);
}

void Communicator::AttachControl(std::unique_ptr<ControlPlane> control) {
  control_ = std::move(control);
  shrink_agreement_.Attach(control_.get());
  invitations_.Attach(control_.get());
  sticky_error_.Attach(control_.get());
  liveness_.Attach(control_.get());
}

void Communicator::Abort(const Status& why) {
  liveness_.EndOnPurpose(why);
  { const MutexLock lock(&call_mutex_); }
  worker_.WaitIdle();
}

void Communicator::AbortAll(const Status& why) {
  shrink_agreement_.Cancel(why);
  Abort(why);
}

Status Communicator::CauseOf(const Status& status) const {
  if (status.code() == Code::kRemoteError) sticky_error_.WaitFailed(kCauseLimit);
  return sticky_error_.failed() ? sticky_error_.error() : status;
}

bool Communicator::GivesUp(const StreamOrder& turn, Time stalled) {
  const Time limit = liveness_.op_timeout();
  if (!sticky_error_.failed() && stalled >= limit) {
    liveness_.Fail(CatchOutOfMemory([&] {
      return TimeoutError(
          fmt::format("{} waited {} ms (limit {} ms) for its turn on a stream: before it comes {}",
                      *label_, stalled / kMillisecond, limit / kMillisecond, turn.Before()));
    }));
  }
  return sticky_error_.failed();
}

void Communicator::OnStuckInDriver(Time stuck) {
  liveness_.Fail(CatchOutOfMemory([&] {
    return Status(
        Code::kUnhandledCudaError,
        fmt::format("a call of CUDA's driver has not returned for {} ms: it may wait for a stream "
                    "that waits for this rank, as with the first launch of a kernel or cudaFree "
                    "(docs/cuda.md, \"What can hang\"); the streams go on, and the call's buffers "
                    "may still change",
                    stuck / kMillisecond));
  }));
  worker_.Release(sticky_error_.error());
}

void Communicator::Revoke() {
  liveness_.EndOnPurpose(CatchOutOfMemory(
      [&] { return RemoteError(fmt::format("{} revoked the communicator", rank_name())); }));
}

Status Communicator::Run(const Call& call) {
  if (!worker_.idle()) {
    return MakeSticky(CatchOutOfMemory([&] {
      Batch batch;
      batch.Add(call);
      return EnqueueAndWait(std::move(batch));
    }));
  }
  if (!call_mutex_.TryLock()) {
    if (in_call_.load()) return InAnotherCall();
    call_mutex_.Lock();  // another thread registers memory, which is soon done
  }
  const MutexLock lock(&call_mutex_, std::adopt_lock);
  const Calling calling(this);
  return call.kind == CallKind::kCollective ? RunGuarded(call) : RunSendRecvGuarded({call});
}

Result<void*> Communicator::Register(const void* data, size_t bytes, bool on_device) {
  if (sticky_error_.failed()) return sticky_error_.error();
  void* const handle = registrations_.Add(data, bytes, on_device);
  TryPassOnRegistrations();
  return handle;
}

bool Communicator::Deregister(const void* handle) {
  if (!registrations_.Remove(handle)) return false;
  TryPassOnRegistrations();
  return true;
}

void Communicator::TryPassOnRegistrations() {
  if (!call_mutex_.TryLock()) return;
  const MutexLock lock(&call_mutex_, std::adopt_lock);
  PassOnRegistrations();
}

Status Communicator::RunBatch(const Batch& batch) {
  const MutexLock lock(&call_mutex_);
  const Calling calling(this);
  Status first;
  if (!batch.send_recv.empty()) first = RunSendRecvGuarded(batch.send_recv);
  for (const Call& call : batch.calls) {
    Status status = RunGuarded(call);
    if (first.ok()) first = std::move(status);
  }
  return first;
}

Status Communicator::EnqueueAndWait(Batch batch) {
  batch.completion = std::make_shared<Completion>();
  batch.completion->Add();
  const std::shared_ptr<Completion> completion = batch.completion;
  if (Status status = Enqueue(std::move(batch)); !status.ok()) return status;
  return completion->Wait();
}

Status Communicator::InAnotherCall() const {
  // The other call is about to end, or it is an abort.
  if (sticky_error_.failed()) return sticky_error_.error();
  return InvalidArgument(fmt::format(
      "comm: {} is in another call; a communicator takes one thread at a time", rank_name()));
}

Status Communicator::MakeSticky(const Status& status) {
  if (status.ok() || status.code() == Code::kInvalidArgument) return status;
  // This rank may see a peer's failure in shared memory before the peer's notice with the cause
  // arrives.
  if (status.code() == Code::kRemoteError) sticky_error_.WaitFailed(kCauseLimit);
  liveness_.Fail(status);
  // If another thread has found the first error, that thread ends the process.
  if (options_.abort_on_error) sticky_error_.WaitNotified();
  return sticky_error_.error();
}

Status Communicator::RunGuarded(const Call& call) {
  const bool warms_up = call.purpose == Purpose::kWarmUp;
  if (sticky_error_.failed()) return warms_up ? Status::Ok() : sticky_error_.error();
  FAULT_RANK(warms_up ? fault::kNoRank : ends_.rank);
  FAULT_POINT("call.before_begin");
  runner_.zero_copy()->Begin();
  Status status = CatchOutOfMemory([&] {
    call_mutex_.AssertHeld();
    if (call.on_device) return RunOnDevice(call);
    if (options_.preserve_input) SaveInput(call);
    return runner_.Run(call, nullptr);
  });
  // MakeSticky notifies the other ranks of any error in the call. Errors of the warm-up are none:
  // the user has not called yet.
  status = warms_up ? Status::Ok() : MakeSticky(status);
  FAULT_POINT("call.after_finish");
  // The other ranks have been notified. The stream waits until no engine touches its memory any
  // more.
  if (!status.ok() && call.on_device) {
    (void)CatchOutOfMemory([&] {
      engines_.Drain();
      return Status::Ok();
    });
  }
  liveness_.EndCall();
  if (status.ok()) {
    completed_.store(runner_.sequence(), std::memory_order_relaxed);
  } else if (status.code() != Code::kInvalidArgument) {
    ends_.transport->DropUnsent();
    runner_.zero_copy()->RevokeAccess();
    if (options_.preserve_input && !call.on_device) RestoreInput(call);
  }
  return status;
}

Status Communicator::RunSendRecvGuarded(const std::vector<Call>& calls) {
  if (sticky_error_.failed()) return sticky_error_.error();
  FAULT_RANK(ends_.rank);
  FAULT_POINT("call.before_begin");
  liveness_.BeginSendRecv(&calls);
  Status status = MakeSticky(CatchOutOfMemory([&] {
    call_mutex_.AssertHeld();
    if (LogEnabled(LogLevel::kInfo, LogSubsystem::kCollectives)) {
      Log(LogLevel::kInfo, LogSubsystem::kCollectives, "{} after op {}: {}", rank_name(),
          runner_.sequence(), SendRecvRequest::Describe(calls));
    }
    if (std::none_of(calls.begin(), calls.end(), [](const Call& c) { return c.on_device; })) {
      return runner_.RunSendRecv(calls);
    }
    Result<std::vector<Call>> staged = staging_.CopyIn(calls);
    if (!staged.ok()) return staged.status();
    if (Status moved = runner_.RunSendRecv(*staged); !moved.ok()) return moved;
    return staging_.CopyOut(calls);
  }));
  FAULT_POINT("call.after_finish");
  liveness_.EndCall();
  if (!status.ok()) ends_.transport->DropUnsent();
  return status;
}

void Communicator::SaveInput(const Call& call) {
  input_saved_ = false;  // marks the copy of an earlier call as invalid until this one is complete
  const std::span<std::byte> memory = InPlace(call, ends_.rank);
  saved_input_.assign(memory.begin(), memory.end());
  input_saved_ = true;
}

void Communicator::RestoreInput(const Call& call) const {
  if (!input_saved_) return;  // the call has not written to its buffer either
  std::copy(saved_input_.begin(), saved_input_.end(), InPlace(call, ends_.rank).begin());
}

// Calls of a communicator on device memory. They run on an engine of that device, on host copies of
// the whole buffers, or, with one rank, as one copy.

bool Communicator::IsStaged(const Call& call) const {
  if (call.reducer != nullptr) return true;
  if (ends_.nranks == 1) return Reduces(call.collective) && call.op == ReduceOp::kPreMulSum;
  if (call.collective == Collective::kAllToAll && call.send == call.recv) return true;
  return call.device < 0 || !engines_.Serves(call.device) ||
         (call.codec != nullptr && call.codec->route().sums_hosts) ||
         (options_.preserve_input && !InPlace(call, ends_.rank).empty());
}

Status Communicator::RunOnDevice(const Call& call) {
  const bool several = call.vectors != nullptr;
  if (!several && IsStaged(call)) return RunStaged(call);
  Call brought = call;
  if (Status status = staging_.CopyInScalar(&brought); !status.ok()) return status;
  if (several || ends_.nranks == 1) return runner_.Run(brought, nullptr);
  Result<DeviceEngine*> engine = engines_.Of(call.device);
  if (!engine.ok()) return engine.status();
  engines_.Attach();
  const Extent extent = ExtentOf(call, ends_.rank, ends_.nranks);
  Status begun =
      (*engine)->Begin({call, static_cast<const std::byte*>(call.send),
                        extent.send * SizeOf(call.type), static_cast<const std::byte*>(call.recv),
                        extent.recv * SizeOf(call.type), call.codec != nullptr});
  if (!begun.ok()) return begun;
  return runner_.Run(brought, *engine);
}

Status Communicator::RunStaged(const Call& call) {
  const std::span<const Call> one(&call, 1);
  Result<std::vector<Call>> staged = staging_.CopyIn(one);
  if (!staged.ok()) return staged.status();
  if (Status status = runner_.Run(staged->front(), nullptr); !status.ok()) return status;
  return staging_.CopyOut(one);
}

void Communicator::PrepareOnDevice(std::span<const Call> calls) {
  const Call& call = calls.front();
  if (call.vectors != nullptr) return;
  if (call.kind != CallKind::kCollective || IsStaged(call)) {
    staging_.Prepare(calls);
  } else if (ends_.nranks > 1) {
    (void)engines_.Of(call.device);
  }
}

}  // namespace inccl
