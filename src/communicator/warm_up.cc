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
#include <vector>

#include "base/fault_point.h"
#include "base/log.h"
#include "bootstrap/gathering.h"
#include "communicator/collective_runner.h"
#include "communicator/communicator.h"
#include "compress/identity_codec.h"

namespace inccl {
namespace {

// The calls of the warm-up, in elements of fp32, and the most ranks whose slots for the second one
// fit the memory that shm commits at creation.
constexpr uint64_t kWarmUpElements[] = {1024, 6144};
constexpr int kMostWarmRanks = 8;
constexpr uint64_t kWarmUpSignature = 0x5245484541525345;  // in place of a call's signature

// Ends the wait at the deadline, on an error, or when the creation is cancelled.
class Observer final : public WaitObserver {
 public:
  Observer(std::string name, Liveness* liveness, Time deadline, const Cancel& cancelled)
      : name_(std::move(name)), liveness_(liveness), deadline_(deadline), cancelled_(cancelled) {}

  Status Check() override {
    if (const Status status = cancelled_.Check(); !status.ok()) {
      return Status(status.code(), fmt::format("{}: init: {}", name_, status.message()));
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
  const Cancel& cancelled_;
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

Status CollectiveRunner::WarmUp(WaitObserver* observer) {
  if (nranks_ == 1 || !AllLanesMulticast()) return Status::Ok();
  Call call;  // an all-reduce of fp32
  call.nranks = nranks_;
  call.rank = rank_;
  for (const uint64_t count : kWarmUpElements) {
    call.count = count;
    if (Status status = WarmUp(call, observer); !status.ok()) return status;
  }
  call.count = kWarmUpElements[0];
  call.codec = options_.default_codec;
  bool below_min_bytes = false;
  const bool compressed = call.codec != nullptr && SettleCodec(&call, &below_min_bytes).ok() &&
                          call.codec != nullptr &&
                          !SumsHosts(call.codec->route(), call.collective, hosts_);
  return compressed ? WarmUp(call, observer) : Status::Ok();
}

Status CollectiveRunner::WarmUp(Call call, WaitObserver* observer) {
  const Result<Plan*> plan = plans_.For(call, false);
  const bool warms =
      plan.ok() &&
      ((*plan)->choice.algorithm == Algorithm::kOneShot ||
       ((*plan)->choice.algorithm == Algorithm::kTwoShot && nranks_ <= kMostWarmRanks));
  if (!warms) return Status::Ok();
  std::vector<float> input(call.count), output(call.count);
  // A codec would drop zeros without a look at its tables.
  for (size_t i = 0; i < input.size(); ++i) input[i] = 1.0f / static_cast<float>(1 + i % 8);
  call.send = input.data();
  call.recv = output.data();
  return Execute(call, &plans_, *plan, nullptr, kWarmUpSignature, observer);
}

Status Communicator::WarmUp(Time deadline, const Cancel& cancelled) {
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
