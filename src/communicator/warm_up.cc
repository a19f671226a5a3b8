// SPDX-License-Identifier: Apache-2.0
//
// The last step of creation: all ranks pass slices through the lanes of a small all-reduce. The
// user's first call then finds schedule, lanes and pages in place, and its code paths have run
// before.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>
#include <string>
#include <string_view>

#include "base/fault_point.h"
#include "base/log.h"
#include "bootstrap/gathering.h"
#include "communicator/communicator.h"

namespace inccl {
namespace {

// Ends the wait at the deadline, on an error, or when the creation is cancelled.
class Observer final : public WaitObserver {
 public:
  Observer(std::string name, Liveness* liveness, Time deadline, const std::atomic<bool>* cancelled)
      : name_(std::move(name)), liveness_(liveness), deadline_(deadline), cancelled_(cancelled) {}

  Status Check() override {
    if (cancelled_ != nullptr && cancelled_->load(std::memory_order_relaxed)) {
      return RemoteError(
          fmt::format("{}: init: this rank ended the creation of the communicator", name_));
    }
    return liveness_->Check();
  }

  Status OnStall(const Request& /*request*/, std::span<const int> awaited, Time stalled) override {
    if (!warned_ && stalled >= bootstrap::kPatience) {
      warned_ = true;
      Log(LogLevel::kWarn, LogSubsystem::kInit,
          "{}: init: still waiting, after {} ms, for peer {}, which has joined", name_,
          bootstrap::kPatience / kMillisecond, fmt::join(awaited, ", "));
    }
    if (SystemClock().Now() < deadline_) return Check();
    return TimeoutError(fmt::format("{}: init: peer {} has joined, but sent nothing in time", name_,
                                    fmt::join(awaited, ", ")));
  }

 private:
  const std::string name_;
  Liveness* const liveness_;
  const Time deadline_;
  const std::atomic<bool>* const cancelled_;
  bool warned_ = false;
};

// Rewords an error that Liveness attributes to the time before the first operation as an error of
// init.
Status OfInit(const Status& status, const std::string& name) {
  const std::string before = name + " before any op: ";
  if (!status.message().starts_with(before)) return status;
  return {status.code(), fmt::format("{}: init: {}", name,
                                     std::string_view(status.message()).substr(before.size()))};
}

}  // namespace

Status Communicator::WarmUp(Time deadline, const std::atomic<bool>* cancelled) {
  FAULT_RANK(fault::kNoRank);  // fault points of calls are for users' calls only
  const std::string name = rank_name();
  Observer observer(name, &liveness_, deadline, cancelled);
  Status status = CatchOutOfMemory([&] {
    const MutexLock lock(&call_mutex_);
    return runner_.WarmUp(&observer);
  });
  if (status.ok()) return status;
  liveness_.Fail(status);  // so that other ranks do not wait for this one
  return OfInit(sticky_error_.error(), name);
}

}  // namespace inccl
