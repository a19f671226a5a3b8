// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_lanes.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/rng.h"
#include "transport/transport.h"

namespace inccl::ucx {
namespace {

constexpr size_t kPage = 4096;
constexpr uint64_t kSliceSalt = 0x736c696365u, kCreditSalt = 0x637265646974u;

// Whole cache lines, or whole pages for large payloads.
size_t Stride(uint32_t slot_bytes) {
  const size_t bytes = sizeof(WireHeader) + slot_bytes;
  const size_t unit = bytes >= kPage ? kPage : 64;
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

LaneTags::LaneTags(const LaneSpec& spec)
    : slice(Mix64(spec.Key() ^ kSliceSalt)), credit(Mix64(spec.Key() ^ kCreditSalt)) {}

Result<std::shared_ptr<LaneBuffers>> LaneBuffers::Create(int rank, const LaneSpec& spec) {
  auto buffers = std::make_shared<LaneBuffers>();
  buffers->stride = Stride(spec.slot_bytes);
  const size_t bytes = buffers->stride * spec.depth;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return SystemErrorErrno(
        fmt::format("rank {}: {}: mmap of {} bytes", rank, Describe(spec), bytes), errno);
  }
  buffers->slots = Mapping(data, bytes);
  buffers->credits.resize(spec.depth);
  buffers->slice_ops.resize(spec.depth);
  buffers->credit_ops.resize(spec.depth);
  return buffers;
}

bool LaneBuffers::AllReleased() const {
  const auto seen = [](const Operation& operation) { return !operation.in_flight; };
  const auto come = std::count_if(credit_ops.begin(), credit_ops.end(), seen);
  return released + static_cast<uint64_t>(come) >= published;
}

UcxSendLane::UcxSendLane(LaneSpec spec, std::shared_ptr<LaneBuffers> buffers, Worker* worker,
                         TransportCounters* counters)
    : spec_(std::move(spec)),
      tags_(spec_),
      buffers_(std::move(buffers)),
      worker_(worker),
      counters_(counters),
      consumer_(spec_.consumers.front()) {
  for (uint32_t i = 0; i < spec_.depth; ++i) AwaitCredit(i);
}

void UcxSendLane::AwaitCredit(uint32_t index) {
  CreditMessage& credit = buffers_->credits[index];
  worker_->Receive(std::as_writable_bytes(std::span(&credit, 1)), tags_.credit,
                   &buffers_->credit_ops[index]);
}

Status UcxSendLane::TakeCredits() {
  while (true) {
    const Operation& operation = buffers_->credit_ops[credit_index_];
    if (operation.in_flight) return Status::Ok();
    const std::span<const std::byte> message =
        std::as_bytes(std::span(&buffers_->credits[credit_index_], 1));
    CreditMessage credit;
    const bool right = operation.bytes <= message.size() &&
                       ReadCredit(message.first(operation.bytes), buffers_->released,
                                  buffers_->published, &credit);
    if (operation.status != UCS_OK && !worker_->IsTruncation(consumer_, operation.status)) {
      return worker_->Lost(consumer_);
    }
    if (operation.status != UCS_OK || !right) {
      return InternalError(fmt::format(
          "rank {}: {}: peer rank {} sent a credit of {} bytes (UCX status {}) for {} slices, "
          "after {}, of {} published",
          spec_.producer, Describe(spec_), consumer_, operation.bytes,
          static_cast<int>(operation.status), credit.released, buffers_->released,
          buffers_->published));
    }
    AwaitCredit(credit_index_);
    ++buffers_->released;
    if (++credit_index_ == spec_.depth) credit_index_ = 0;
  }
}

Result<Span> UcxSendLane::TryAcquire() {
  if (!acquired_) {
    if (Status status = TakeCredits(); !status.ok()) return status;
    const bool credit = buffers_->published < buffers_->released + spec_.depth;
    if (!credit || buffers_->slice_ops[index_].in_flight) {
      if (Status status = worker_->Lost(consumer_); !status.ok()) return status;
      return Span{};
    }
    acquired_ = true;
  }
  return Span{buffers_->slot(index_) + sizeof(WireHeader), spec_.slot_bytes};
}

Status UcxSendLane::Publish(const SliceHeader& header) {
  if (Status status = CheckPublish(spec_, acquired_, header); !status.ok()) return status;
  if (Status status = worker_->Lost(consumer_); !status.ok()) return status;
  std::byte* const slot = buffers_->slot(index_);
  const WireHeader wire{.seq = static_cast<uint32_t>(buffers_->published + 1),
                        .bytes = header.bytes,
                        .slice = header.slice,
                        .reserved = {},
                        .signature = header.signature};
  std::memcpy(slot, &wire, sizeof wire);
  worker_->Send(consumer_, {slot, sizeof wire + header.bytes}, tags_.slice, Traffic::kSlice,
                &buffers_->slice_ops[index_]);
  acquired_ = false;
  ++buffers_->published;
  if (++index_ == spec_.depth) index_ = 0;
  ++counters_->slices;
  counters_->payload_bytes += header.bytes;
  return Status::Ok();
}

UcxRecvLane::UcxRecvLane(LaneSpec spec, std::shared_ptr<LaneBuffers> buffers, Worker* worker,
                         TransportCounters* counters)
    : spec_(std::move(spec)),
      tags_(spec_),
      buffers_(std::move(buffers)),
      worker_(worker),
      counters_(counters) {
  for (uint32_t i = 0; i < spec_.depth; ++i) AwaitSlice(i);
}

void UcxRecvLane::AwaitSlice(uint32_t index) {
  worker_->Receive({buffers_->slot(index), sizeof(WireHeader) + spec_.slot_bytes}, tags_.slice,
                   &buffers_->slice_ops[index]);
}

Result<bool> UcxRecvLane::ReadHeader(SliceHeader* header) const {
  const Operation& operation = buffers_->slice_ops[index_];
  if (operation.in_flight) {
    if (Status status = worker_->Lost(spec_.producer); !status.ok()) return status;
    return false;
  }
  const auto wrong = [&](const std::string& what) {
    return InternalError(
        fmt::format("{}: peer rank {} sent {}", Describe(spec_), spec_.producer, what));
  };
  if (operation.status != UCS_OK) {
    if (worker_->IsTruncation(spec_.producer, operation.status)) return wrong("too long a message");
    if (Status status = worker_->Lost(spec_.producer); !status.ok()) return status;
    return false;
  }
  const std::string what =
      ReadWireHeader({buffers_->slot(index_), operation.bytes}, ticket_, spec_.slot_bytes, header);
  if (!what.empty()) return wrong(what);
  return true;
}

Result<bool> UcxRecvLane::TryPeek(Incoming* incoming) {
  if (!peeked_) {
    Result<bool> there = ReadHeader(&incoming_.header);
    if (!there.ok() || !*there) return there;
    incoming_.payload = buffers_->slot(index_) + sizeof(WireHeader);
    peeked_ = true;
  }
  *incoming = incoming_;
  return true;
}

// Posts the receive for the slot's next slice before it sends the credit.
Status UcxRecvLane::Release() {
  if (!peeked_) return ReleaseError(spec_);
  Operation& operation = buffers_->credit_ops[index_];
  if (operation.in_flight) {  // the producer used a credit that this rank has not sent yet
    return InternalError(fmt::format("{}: a credit for peer rank {} is still on its way",
                                     Describe(spec_), spec_.producer));
  }
  AwaitSlice(index_);
  CreditMessage& credit = buffers_->credits[index_];
  credit = {.released = ticket_ + 1, .reserved = 0};
  worker_->Send(spec_.producer, std::as_bytes(std::span(&credit, 1)), tags_.credit,
                Traffic::kCredit, &operation);
  peeked_ = false;
  ++ticket_;
  if (++index_ == spec_.depth) index_ = 0;
  ++counters_->credits;
  return Status::Ok();
}

}  // namespace inccl::ucx
