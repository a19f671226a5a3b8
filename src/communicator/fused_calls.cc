// SPDX-License-Identifier: Apache-2.0
//
// Calls of CollectiveRunner on several vectors, which run as one call on a copy of all of them. The
// residuals of the vectors make up a residual of this call, and get its errors when it succeeds.
#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "communicator/collective_runner.h"
#include "device/runtime.h"

namespace inccl {
namespace {

Status Copy(bool device, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return Status::Ok();
  if (device) return CurrentDevice()->Copy(to, from, bytes);
  std::memcpy(to, from, bytes);
  return Status::Ok();
}

}  // namespace

Status CollectiveRunner::RunFused(const Call& call) {
  const size_t element = SizeOf(call.type);
  std::deque<ResidualUse> uses;  // it does not move them
  bool feeds_back = false;
  for (const FusedVector& vector : *call.vectors) {
    if (vector.residual == nullptr) continue;
    feeds_back = true;
    const Status& taken = uses.emplace_back(vector.residual.get()).status();
    if (!taken.ok()) return taken;
  }
  fused_.resize(call.bytes());
  fused_errors_.assign(feeds_back ? call.count : 0, 0.0f);
  size_t first = 0;
  for (const FusedVector& vector : *call.vectors) {
    Status copied =
        Copy(call.on_device, fused_.data() + first * element, vector.send, vector.count * element);
    if (!copied.ok()) return copied;
    if (vector.residual != nullptr) {
      vector.residual->Scaled(0, std::span(fused_errors_).subspan(first, vector.count));
    }
    first += vector.count;
  }
  Call whole = call;
  whole.send = whole.recv = fused_.data();
  whole.on_device = false;
  if (feeds_back) {
    if (fused_residual_ == nullptr || fused_residual_->count() != call.count) {
      fused_residual_ = std::make_shared<Residual>(call.count, ResidualOptions());
    }
    whole.residual = fused_residual_;
    if (Status status = fused_residual_->Import(fused_errors_); !status.ok()) return status;
  }
  if (Status status = RunOne(whole, nullptr); !status.ok()) return status;
  if (feeds_back) {
    if (Status status = fused_residual_->Export(fused_errors_); !status.ok()) return status;
  }
  first = 0;
  for (const FusedVector& vector : *call.vectors) {
    Status copied =
        Copy(call.on_device, vector.recv, fused_.data() + first * element, vector.count * element);
    if (!copied.ok()) return copied;
    if (vector.residual != nullptr) {
      vector.residual->SetErrors(0, std::span(fused_errors_).subspan(first, vector.count));
    }
    first += vector.count;
  }
  for (ResidualUse& use : uses) use.Commit(sequence_);
  return Status::Ok();
}

}  // namespace inccl
