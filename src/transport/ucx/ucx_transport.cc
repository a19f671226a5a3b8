// SPDX-License-Identifier: Apache-2.0
//
// One rank's end of the UCX transport.
#include "transport/ucx/ucx_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "transport/poll_wakeup_event.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_lanes.h"
#include "transport/ucx/ucx_worker.h"

namespace inccl {

namespace ucx {
namespace {

constexpr Time kCloseLimit = kSecond;

class UcxEnd final : public UcxTransport {
 public:
  UcxEnd(int rank, int nranks, bool linger, std::unique_ptr<Worker> worker)
      : rank_(rank),
        nranks_(nranks),
        linger_(linger),
        worker_(std::move(worker)),
        wakeup_source_(worker_.get()) {}
  ~UcxEnd() override;

  Status OpenWakeupEvent() {
    Result<std::unique_ptr<PollWakeupEvent>> event = PollWakeupEvent::Create({&wakeup_source_});
    if (!event.ok()) return event.status();
    wakeup_event_ = *std::move(event);
    return Status::Ok();
  }
  std::span<const std::byte> address() const override { return worker_->address(); }
  Status Attach(int peer, std::span<const std::byte> address) override;

  Caps caps() const override { return {.name = "ucx"}; }
  LaneCaps CapsFor(int /*producer*/, std::span<const int> /*consumers*/) const override {
    return {};
  }
  Result<std::unique_ptr<SendLane>> OpenSend(const LaneSpec& spec) override;
  Result<std::unique_ptr<RecvLane>> OpenRecv(const LaneSpec& spec) override;
  Result<int> Progress(Time now) override { return worker_->Progress(now); }
  bool unsent() const override { return worker_->unsent(); }
  void AppendUnsent(std::vector<int>* ranks) const override { worker_->AppendUnsent(ranks); }
  WakeupEvent* wakeup_event() override { return wakeup_event_.get(); }
  WakeupSource* wakeup_source() override { return &wakeup_source_; }
  void Quiesce(Time deadline) override;
  uint64_t memory_bytes() const override { return memory_bytes_; }
  TransportCounters counters() const override { return counters_; }

 private:
  Status CheckOpen(const LaneSpec& spec, LaneSide side, int peer,
                   const std::unordered_set<uint64_t>& opened) const;
  Result<std::shared_ptr<LaneBuffers>> NewBuffers(const LaneSpec& spec);

  const int rank_, nranks_;
  const bool linger_;  // Quiesce waits for peers, as closing may discard what they have not read
  TransportCounters counters_;
  uint64_t memory_bytes_ = 0;
  std::unordered_set<uint64_t> opened_send_, opened_recv_;
  std::vector<std::shared_ptr<LaneBuffers>> buffers_;  // outlive the worker
  std::unique_ptr<Worker> worker_;
  UcxWakeupSource wakeup_source_;
  std::unique_ptr<PollWakeupEvent> wakeup_event_;
};

UcxEnd::~UcxEnd() { Quiesce(SystemClock().Now() + kCloseLimit); }

void UcxEnd::Quiesce(Time deadline) {
  const auto read = [&] {
    return std::all_of(buffers_.begin(), buffers_.end(),
                       [](const auto& buffers) { return buffers->AllReleased(); });
  };
  if (linger_) {
    worker_->Close(deadline, read);
  } else {
    worker_->Close(deadline);
  }
  for (const std::shared_ptr<LaneBuffers>& buffers : buffers_) {
    for (Operation& operation : buffers->slice_ops) worker_->Cancel(&operation);
    for (Operation& operation : buffers->credit_ops) worker_->Cancel(&operation);
  }
}

Status UcxEnd::Attach(int peer, std::span<const std::byte> address) {
  if (Status status = CheckPeer(rank_, peer, nranks_); !status.ok()) return status;
  if (worker_->connected(peer)) return AttachedTwice(rank_, peer);
  if (address.empty() || address.size() > kMaxUcxAddressBytes) {
    return InternalError(fmt::format("rank {}: peer rank {}: a UCX address of {} bytes", rank_,
                                     peer, address.size()));
  }
  return worker_->Connect(peer, address);
}

Status UcxEnd::CheckOpen(const LaneSpec& spec, LaneSide side, int peer,
                         const std::unordered_set<uint64_t>& opened) const {
  if (!worker_->connected(peer)) return NotAttached(rank_, spec, peer);
  return opened.contains(spec.Key()) ? OpenedTwice(rank_, spec, side) : Status::Ok();
}

Result<std::shared_ptr<LaneBuffers>> UcxEnd::NewBuffers(const LaneSpec& spec) {
  Result<std::shared_ptr<LaneBuffers>> buffers = LaneBuffers::Create(rank_, spec);
  if (!buffers.ok()) return buffers;
  buffers_.push_back(*buffers);
  memory_bytes_ += (*buffers)->slots.bytes();
  return buffers;
}

Result<std::unique_ptr<SendLane>> UcxEnd::OpenSend(const LaneSpec& spec) {
  Status status = CheckLaneSpec(spec, LaneSide::kSend, rank_, nranks_, *this);
  if (!status.ok()) return status;
  status = CheckOpen(spec, LaneSide::kSend, spec.consumers.front(), opened_send_);
  if (!status.ok()) return status;
  Result<std::shared_ptr<LaneBuffers>> buffers = NewBuffers(spec);
  if (!buffers.ok()) return buffers.status();
  opened_send_.insert(spec.Key());
  return std::unique_ptr<SendLane>(
      new UcxSendLane(spec, *std::move(buffers), worker_.get(), &counters_));
}

Result<std::unique_ptr<RecvLane>> UcxEnd::OpenRecv(const LaneSpec& spec) {
  Status status = CheckLaneSpec(spec, LaneSide::kRecv, rank_, nranks_, *this);
  if (!status.ok()) return status;
  status = CheckOpen(spec, LaneSide::kRecv, spec.producer, opened_recv_);
  if (!status.ok()) return status;
  Result<std::shared_ptr<LaneBuffers>> buffers = NewBuffers(spec);
  if (!buffers.ok()) return buffers.status();
  opened_recv_.insert(spec.Key());
  return std::unique_ptr<RecvLane>(
      new UcxRecvLane(spec, *std::move(buffers), worker_.get(), &counters_));
}

}  // namespace
}  // namespace ucx

bool UcxTransport::Built() { return true; }

Result<std::unique_ptr<UcxTransport>> UcxTransport::Create(int rank, int nranks,
                                                           const UcxOptions& options) {
  if (nranks < 1 || rank < 0 || rank >= nranks) {
    return InvalidArgument(fmt::format("rank {} is not one of {} ranks", rank, nranks));
  }
  Result<std::unique_ptr<ucx::Worker>> worker = ucx::Worker::Create(rank, nranks, options);
  if (!worker.ok()) return worker.status();
  const bool linger = !options.tls.empty() && options.tls != kDefaultUcxTls;
  auto end = std::make_unique<ucx::UcxEnd>(rank, nranks, linger, *std::move(worker));
  if (Status status = end->OpenWakeupEvent(); !status.ok()) return status;
  return std::unique_ptr<UcxTransport>(std::move(end));
}

}  // namespace inccl
