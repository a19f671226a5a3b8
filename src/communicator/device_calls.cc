// SPDX-License-Identifier: Apache-2.0
//
// Calls of a communicator on device memory. They run on an engine of that device, on host copies of
// the whole buffers, or, with one rank, as one copy.
#include "communicator/communicator.h"
#include "device/runtime.h"

namespace inccl {

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
