// SPDX-License-Identifier: Apache-2.0
#include "communicator/zero_copy.h"

#include "base/log.h"

namespace inccl {
namespace {

constexpr size_t kLeastZeroCopySlices = 2;

}  // namespace

// Memory that the transport does not export goes through slots.
MemoryHandle ZeroCopy::Register(const void* data, size_t bytes, const Registration& how) {
  const Result<MemoryHandle> memory = transport_->exports()->Register(data, bytes, how);
  return memory.ok() ? *memory : MemoryHandle{};
}

// Every consumer reads the input itself, and has read it before an in-place call overwrites it.
bool ZeroCopy::Applies(const Call& call, Algorithm algorithm) const {
  return TraitsOf(algorithm).zero_copy && call.codec == nullptr &&
         call.bytes() >= kLeastZeroCopySlices * slice_bytes_;
}

size_t ZeroCopy::InputBytes(const Call& call) const {
  const size_t bytes = call.bytes();
  switch (call.collective) {
    case Collective::kAllReduce:
    case Collective::kAllGather: return bytes;
    case Collective::kReduceScatter: return bytes * static_cast<size_t>(nranks_);
    case Collective::kBroadcast: return call.root == rank_ ? bytes : 0;
    default: return 0;
  }
}

void ZeroCopy::Begin(const Call& call, Algorithm algorithm) {
  if (!Applies(call, algorithm)) return;
  const size_t bytes = InputBytes(call);
  // The output first: if it is the input as well, peers do not map it again.
  if (call.collective == Collective::kAllReduce) {
    output_ = Register(call.recv, bytes, {.access = Access::kReadWrite});
  }
  if (bytes > 0) input_ = Register(call.send, bytes, {});
}

void ZeroCopy::BeginOnDevice(const Call& call, Algorithm algorithm) {
  if (!Applies(call, algorithm)) return;
  const size_t bytes = InputBytes(call);
  if (bytes > 0) input_ = Register(call.send, bytes, {.on_device = true});
  if (call.collective == Collective::kAllReduce) {
    result_ = Register(call.recv, bytes, {.on_device = true});
  }
}

void ZeroCopy::RevokeAccess() {
  // The output first: in place it is also the input, and peers write to it.
  for (const MemoryHandle* const memory : {&output_, &input_, &result_}) {
    const Status status =
        CatchOutOfMemory([&] { return transport_->exports()->RevokeAccess(*memory); });
    if (status.ok()) continue;
    Log(LogLevel::kWarn, LogSubsystem::kCollectives,
        "rank {}/{}: peers that are late may still use the buffers of the failed call: {}", rank_,
        nranks_, status.message());
  }
  Begin();
}

}  // namespace inccl
