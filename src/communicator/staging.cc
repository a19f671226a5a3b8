// SPDX-License-Identifier: Apache-2.0
#include "communicator/staging.h"

#include <algorithm>
#include <bit>

#include "device/runtime.h"

namespace inccl {
namespace {

constexpr size_t kAlignment = 4096;
constexpr size_t kLeastBytes = size_t{1} << 20;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Staging::~Staging() {
  for (std::byte* block : blocks_) owner_->FreeHost(block);
}

Result<std::byte*> Staging::Grow(size_t bytes) {
  const MutexLock lock(&mutex_);
  if (bytes <= bytes_) return blocks_.empty() ? nullptr : blocks_.back();
  if (owner_ == nullptr) owner_ = CurrentDevice();
  if (owner_ == nullptr) return InternalError("a call on a device's memory without a device");
  const size_t more = std::bit_ceil(std::max(bytes, kLeastBytes));
  blocks_.reserve(blocks_.size() + 1);
  Result<std::byte*> memory = owner_->AllocateHost(more);
  if (!memory.ok()) return memory.status();
  blocks_.push_back(*memory);
  bytes_ = more;
  return *memory;
}

Status Staging::FindDevice() {
  if (device_ == nullptr) device_ = CurrentDevice();
  if (device_ == nullptr) return InternalError("a call on a device's memory without a device");
  return Status::Ok();
}

Status Staging::Reserve(size_t bytes) {
  if (Status status = FindDevice(); !status.ok()) return status;
  const Result<std::byte*> memory = Grow(bytes);
  if (!memory.ok()) return memory.status();
  memory_ = *memory;
  return Status::Ok();
}

size_t Staging::Bytes::total() const { return Aligned(send) + Aligned(recv); }

Staging::Bytes Staging::BytesOf(const Call& call) const {
  if (!call.on_device) return {};
  const Extent extent = ExtentOf(call, rank_, nranks_);
  const size_t element = SizeOf(call.type);
  return {extent.send * element, extent.recv * element};
}

size_t Staging::BytesOf(std::span<const Call> calls) const {
  size_t total = 0;
  for (const Call& call : calls) total += BytesOf(call).total();
  return total;
}

void Staging::Prepare(std::span<const Call> calls) { (void)Grow(BytesOf(calls)); }

Result<std::vector<Call>> Staging::CopyIn(std::span<const Call> calls) {
  if (Status status = Reserve(BytesOf(calls)); !status.ok()) return status;
  std::vector<Call> staged(calls.begin(), calls.end());
  std::byte* at = memory_;
  for (Call& call : staged) {
    if (!call.on_device) continue;
    const Bytes bytes = BytesOf(call);
    if (bytes.send > 0) {
      if (Status status = device_->Copy(at, call.send, bytes.send); !status.ok()) return status;
    }
    if (Status status = CopyInScalar(&call); !status.ok()) return status;
    call.send = at;
    call.recv = at + Aligned(bytes.send);
    call.on_device = false;
    at += bytes.total();
  }
  return staged;
}

Status Staging::CopyInScalar(Call* call) {
  if (call->scalar_at == nullptr) return Status::Ok();
  if (Status status = FindDevice(); !status.ok()) return status;
  if (device_->DeviceOf(call->scalar_at) < 0) return Status::Ok();
  Status status = device_->Copy(call->scalar.data(), call->scalar_at, SizeOf(call->type));
  call->scalar_at = nullptr;
  return status;
}

Status Staging::CopyOut(std::span<const Call> calls) {
  const std::byte* at = memory_;
  for (const Call& call : calls) {
    const Bytes bytes = BytesOf(call);
    if (bytes.recv > 0) {
      Status status = device_->Copy(call.recv, at + Aligned(bytes.send), bytes.recv);
      if (!status.ok()) return status;
    }
    at += bytes.total();
  }
  return Status::Ok();
}

}  // namespace inccl
