// SPDX-License-Identifier: Apache-2.0
//
// What IdentityState does where all that it reads and writes is in memory of devices: one kernel,
// with the same checks and the same bytes as Combine.
#include <algorithm>

#include "compress/device_buffers.h"
#include "compress/identity_codec.h"

namespace inccl {

static_assert(cuda::kMaxSources >= kMaxReduceInputs);

Result<bool> IdentityState::Launch(const Range& range, std::span<const Term> inputs,
                                   std::span<Term> outputs, DeviceWork* work) {
  uint32_t bytes = 0;
  if (Status s = Check(range, inputs, outputs, &bytes); !s.ok()) return s;
  // What kernels reach of it; nullptr: nothing.
  size_t there = 0;
  const auto reached = [&](const Term& term) -> std::byte* {
    const bool on_device = work->OnDevice(term.data, bytes);
    if (on_device) ++there;
    std::byte* const at = on_device ? term.data : work->Reach(term.data, bytes);
    return at != nullptr && IsAlignedTo(at, SizeOf(call_.type)) ? at : nullptr;
  };
  if (bytes == 0 || outputs.size() > cuda::kMaxReduced) return false;
  cuda::ReduceKernelArgs args{.type = call_.type,
                              .op = call_.op,
                              .count = range.count,
                              .scaled = Scaled(inputs),
                              .scale = scale_,
                              .factor = factor_};
  for (const Term& input : inputs) args.in[args.inputs++] = reached(input);
  // One is a rank's own. Sums of what is in slots are made by the processor, where there are no
  // others.
  const bool reads_there = there == inputs.size() || there >= 2;
  for (const Term& output : outputs) args.out[args.outputs++] = reached(output);
  const auto nowhere = [](const void* at) { return at == nullptr; };
  if (!reads_there || std::any_of(args.in, args.in + args.inputs, nowhere) ||
      std::any_of(args.out, args.out + args.outputs, nowhere)) {
    return false;
  }
  const Step step = StepOf(inputs, outputs);
  // A kernel writes the same to all outputs, sums or what they are divided to.
  const bool sums = std::any_of(outputs.begin(), outputs.end(), [](const Term& output) {
    return output.format.form == Form::kSum;
  });
  if (step == Step::kCopy || (step == Step::kFoldAndDivide && sums)) return false;

  if (step == Step::kFoldAndDivide) args.divisor = static_cast<uint32_t>(call_.nranks);
  Status status = work->Run(
      [&](const cuda::Launchers& kernels, void* stream) { return kernels.reduce(args, stream); });
  if (!status.ok()) return status;
  for (Term& output : outputs) output.bytes = bytes;
  return true;
}

// The kernel has done it all.
Status IdentityState::Land(const Range& /*range*/, std::span<const Term> /*inputs*/,
                           std::span<Term> /*outputs*/, DeviceWork* /*work*/) {
  return Status::Ok();
}

}  // namespace inccl
