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

struct Bytes {
  size_t send, recv;
};

Bytes BytesOf(const Call& call, int rank, int nranks) {
  const Extent extent = ExtentOf(call.collective, call.count, nranks, rank == call.root);
  const size_t element = SizeOf(call.type);
  return {extent.send * element, extent.recv * element};
}

size_t BytesOf(const SendRecvCall& call) { return call.count * SizeOf(call.type); }

size_t BytesOf(const std::vector<SendRecvCall>& calls) {
  size_t total = 0;
  for (const SendRecvCall& call : calls) {
    if (call.on_device) total += Aligned(BytesOf(call));
  }
  return total;
}

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

Status Staging::Reserve(size_t bytes) {
  if (device_ == nullptr) device_ = CurrentDevice();
  if (device_ == nullptr) return InternalError("a call on a device's memory without a device");
  const Result<std::byte*> memory = Grow(bytes);
  if (!memory.ok()) return memory.status();
  memory_ = *memory;
  return Status::Ok();
}

void Staging::Prepare(const Call& call, int rank, int nranks) {
  const Bytes bytes = BytesOf(call, rank, nranks);
  (void)Grow(Aligned(bytes.send) + bytes.recv);
}

void Staging::Prepare(const std::vector<SendRecvCall>& calls) { (void)Grow(BytesOf(calls)); }

Result<Call> Staging::CopyIn(const Call& call, int rank, int nranks) {
  const Bytes bytes = BytesOf(call, rank, nranks);
  const size_t recv_at = Aligned(bytes.send);
  if (Status status = Reserve(recv_at + bytes.recv); !status.ok()) return status;
  Call staged = call;
  staged.on_device = false;
  staged.send = memory_;
  staged.recv = memory_ + recv_at;
  if (bytes.send > 0) {
    if (Status status = device_->Copy(memory_, call.send, bytes.send); !status.ok()) return status;
  }
  if (Status status = CopyInScalar(&staged); !status.ok()) return status;
  return staged;
}

Status Staging::CopyInScalar(Call* call) {
  if (call->scalar_at == nullptr) return Status::Ok();
  if (Status status = Reserve(0); !status.ok()) return status;
  if (device_->DeviceOf(call->scalar_at) < 0) return Status::Ok();
  Status status = device_->Copy(call->scalar.data(), call->scalar_at, SizeOf(call->type));
  call->scalar_at = nullptr;
  return status;
}

Status Staging::CopyOut(const Call& call, int rank, int nranks) {
  const Bytes bytes = BytesOf(call, rank, nranks);
  if (bytes.recv == 0) return Status::Ok();
  return device_->Copy(call.recv, memory_ + Aligned(bytes.send), bytes.recv);
}

Result<std::vector<SendRecvCall>> Staging::CopyIn(const std::vector<SendRecvCall>& calls) {
  if (Status status = Reserve(BytesOf(calls)); !status.ok()) return status;
  std::vector<SendRecvCall> staged = calls;
  std::byte* at = memory_;
  for (SendRecvCall& call : staged) {
    if (!call.on_device) continue;
    const size_t bytes = BytesOf(call);
    if (call.is_send && bytes > 0) {
      if (Status status = device_->Copy(at, call.send, bytes); !status.ok()) return status;
    }
    if (call.is_send) {
      call.send = at;
    } else {
      call.recv = at;
    }
    at += Aligned(bytes);
  }
  return staged;
}

Status Staging::CopyOut(const std::vector<SendRecvCall>& calls) {
  const std::byte* at = memory_;
  for (const SendRecvCall& call : calls) {
    if (!call.on_device) continue;
    const size_t bytes = BytesOf(call);
    if (!call.is_send && bytes > 0) {
      if (Status status = device_->Copy(call.recv, at, bytes); !status.ok()) return status;
    }
    at += Aligned(bytes);
  }
  return Status::Ok();
}

}  // namespace inccl
