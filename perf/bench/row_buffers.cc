// SPDX-License-Identifier: Apache-2.0
#include "perf/bench/row_buffers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "perf/support/streaming.h"
#include "perf/support/verify.h"

namespace inccl::perf {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kMostOwned = size_t{16} << 20;  // more does not stay in caches

}  // namespace

Result<RowBuffers> RowBuffers::Create(const World& world, const BenchOptions& options,
                                      const Inputs& inputs, Gpu* gpu) {
  RowBuffers buffers(world, inputs, gpu);
  Result<Buffer> send = Buffer::Allocate(options.max_bytes, options.mem_alloc, gpu);
  if (!send.ok()) return send.status();
  Result<Buffer> recv = Buffer::Allocate(options.max_bytes, options.mem_alloc, gpu);
  if (!recv.ok()) return recv.status();
  buffers.send_ = *std::move(send);
  buffers.recv_ = *std::move(recv);
  return buffers;
}

Status RowBuffers::Begin(const RowCase& row_case) {
  case_ = row_case;
  layout_ = LayoutOf(case_.operation, case_.bytes, case_.type, world_->size(), world_->rank());
  inputs_->Fill(world_->rank(), case_.type, case_.op, 0, layout_.send, send_.host());
  return send_.Push(0, layout_.send * SizeOf(case_.type));
}

BenchCall RowBuffers::CallFor(bool in_place) const {
  const size_t element = SizeOf(case_.type);
  BenchCall call{case_.operation, case_.type, case_.op, case_.root,
                 layout_.count,   nullptr,    nullptr};
  call.send = in_place ? recv_.data() + layout_.in_place_send * element : send_.data();
  call.recv = recv_.data() + (in_place ? layout_.in_place_recv * element : 0);
  return call;
}

Status RowBuffers::RestoreInPlace() const {
  const size_t element = SizeOf(case_.type);
  return recv_.CopyFrom(send_, 0, layout_.in_place_send * element, layout_.send * element);
}

// In memory of the host: the side before has perhaps let other ranks read what this one received;
// then each line costs a message to their caches when it is written, which is not this side's
// doing.
Status RowBuffers::MakeReady(bool in_place) const {
  if (in_place) {
    Status s = RestoreInPlace();
    return s.ok() ? Synchronize() : s;
  }
  const size_t bytes = layout_.recv * SizeOf(case_.type);
  if (gpu_ != nullptr || bytes > kMostOwned) return {};
  for (size_t at = 0; at < bytes; at += kLine) {
    volatile std::byte& byte = recv_.data()[at];
    byte = byte;
  }
  return {};
}

Status RowBuffers::StreamOnce() const {
  const Streams streams =
      StreamsOf(case_.operation, layout_, case_.type, world_->rank(), case_.root);
  if (gpu_ != nullptr) return recv_.CopyFrom(send_, 0, 0, (streams.read + streams.write) / 2);
  perf::StreamOnce({send_.data(), streams.read}, {recv_.data(), streams.write});
  return {};
}

Status RowBuffers::Synchronize() const { return gpu_ == nullptr ? Status() : gpu_->Synchronize(); }

uint64_t RowBuffers::UsedRecv(bool in_place) const {
  return (in_place ? layout_.in_place : layout_.recv) * SizeOf(case_.type);
}

Status RowBuffers::Poison(bool in_place) const {
  const uint64_t used = UsedRecv(in_place), input = Input().size();
  std::memset(recv_.host(), static_cast<int>(kPoison), used + kGuardBytes);
  std::memset(send_.Guard(input).data(), static_cast<int>(kPoison), kGuardBytes);
  if (Status s = recv_.Push(0, used + kGuardBytes); !s.ok()) return s;
  if (Status s = send_.Push(input, kGuardBytes); !s.ok()) return s;
  const bool root_sends =
      case_.operation == Operation::kBroadcast || case_.operation == Operation::kScatter;
  if (in_place && (!root_sends || world_->rank() == case_.root)) {
    if (Status s = RestoreInPlace(); !s.ok()) return s;
  }
  return Synchronize();
}

Status RowBuffers::Fetch(bool in_place) const {
  const uint64_t used = std::max(UsedRecv(in_place), UsedRecv(false));
  Status s = recv_.Pull(0, used + kGuardBytes);
  return s.ok() ? send_.Pull(0, Input().size() + kGuardBytes) : s;
}

std::span<const std::byte> RowBuffers::Input() const {
  return {send_.host(), layout_.send * SizeOf(case_.type)};
}

std::span<const std::byte> RowBuffers::ResultBytes(bool in_place) const {
  const size_t element = SizeOf(case_.type);
  return {recv_.host() + (in_place ? layout_.in_place_recv * element : 0), layout_.recv * element};
}

uint64_t RowBuffers::Disturbed(bool in_place) const {
  return CountDisturbed(recv_.Guard(UsedRecv(in_place))) +
         CountDisturbed(send_.Guard(Input().size()));
}

}  // namespace inccl::perf
