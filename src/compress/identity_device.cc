// SPDX-License-Identifier: Apache-2.0
//
// IdentityState for inputs in device memory, its own and peers' registered buffers: one kernel,
// with the same checks and the same bytes as Combine. Other operands may lie in slots.
#include <algorithm>

#include "compress/device_buffers.h"
#include "compress/identity_codec.h"

namespace inccl {

static_assert(cuda::kMaxSources <= kMaxReduceInputs);  // which Scaled takes

Result<bool> IdentityState::Launch(const Range& range, std::span<const Term> inputs,
                                   std::span<Term> outputs, DeviceWork* work) {
  uint32_t bytes = 0;
  if (Status s = Check(range, inputs, outputs, &bytes); !s.ok()) return s;
  if (bytes == 0 || inputs.size() > cuda::kMaxSources || outputs.size() > cuda::kMaxReduced) {
    return false;
  }
  const Step step = StepOf(inputs, outputs);
  // A kernel writes the same values to all outputs: either sums or quotients.
  const bool sums = std::any_of(outputs.begin(), outputs.end(), [](const Term& output) {
    return output.format.form == Form::kSum;
  });
  if (step == Step::kCopy || (step == Step::kFoldAndDivide && sums)) return false;
  // With one input on the device (the rank's own) and others in slots, the processor adds instead.
  const auto on_device = [&](const Term& term) { return work->OnDevice(term.data, bytes); };
  const auto there = std::count_if(inputs.begin(), inputs.end(), on_device);
  if (there < 2 && static_cast<size_t>(there) != inputs.size()) return false;

  cuda::ReduceKernelArgs args{.type = call_.type,
                              .op = call_.op,
                              .count = range.count,
                              .scaled = Scaled(inputs),
                              .scale = scale_,
                              .factor = factor_};
  // The address for kernels; nullptr if they cannot reach the memory.
  const auto reached = [&](const Term& term) -> std::byte* {
    std::byte* const at = on_device(term) ? term.data : work->Reach(term.data, bytes);
    return at != nullptr && IsAlignedTo(at, SizeOf(call_.type)) ? at : nullptr;
  };
  for (const Term& input : inputs) {
    if ((args.in[args.inputs++] = reached(input)) == nullptr) return false;
  }
  for (const Term& output : outputs) {
    if ((args.out[args.outputs++] = reached(output)) == nullptr) return false;
  }
  if (step == Step::kFoldAndDivide) args.divisor = static_cast<uint32_t>(call_.nranks);
  Status status = work->Run(
      [&](const cuda::Launchers& kernels, void* stream) { return kernels.reduce(args, stream); });
  if (!status.ok()) return status;
  for (Term& output : outputs) output.bytes = bytes;
  return true;
}

// The kernel has done all work.
Status IdentityState::Complete(const Range& /*range*/, std::span<const Term> /*inputs*/,
                               std::span<Term> /*outputs*/, DeviceWork* /*work*/) {
  return Status::Ok();
}

}  // namespace inccl
