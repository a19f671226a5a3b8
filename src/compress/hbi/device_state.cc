// SPDX-License-Identifier: Apache-2.0
//
// HbiState for elements in device memory: Combine in two halves, with the same checks and the same
// bytes. Kernels process elements; the host merges side words, forwards payloads and computes
// checksums.
#include <algorithm>
#include <cstring>

#include "compress/checked_state.h"
#include "compress/device_buffers.h"
#include "compress/hbi/device_slices.h"
#include "compress/hbi/hbi_state.h"

namespace inccl::hbi {
namespace {

size_t Count(std::span<const Term> terms, Form form) {
  return static_cast<size_t>(std::count_if(
      terms.begin(), terms.end(), [form](const Term& term) { return term.format.form == form; }));
}

// Indices into DeviceWork::kept.
enum Kept : uint8_t { kOwnWords, kSum, kResult };

}  // namespace

bool HbiState::HasKernels(std::span<const Term> inputs, std::span<const Term> outputs) const {
  if (planner_->config().rht || planner_->group() != 0) return false;
  const size_t own = Count(inputs, Form::kInput), wanted = Count(outputs, Form::kOutput);
  if (own > 1 || wanted > 1 || own + wanted == 0) return false;
  if (Count(inputs, Form::kSum) > cuda::kMaxSources) return false;
  const auto aligned = [this](const Term& term) {
    const bool elements = term.format.form == Form::kInput || term.format.form == Form::kOutput;
    return !elements || IsAlignedTo(term.data, SizeOf(call_.type));
  };
  return std::all_of(inputs.begin(), inputs.end(), aligned) &&
         std::all_of(outputs.begin(), outputs.end(), aligned);
}

Status HbiState::LaunchForward(const SliceContext& slice, const Term& input,
                               std::span<Term> outputs, DeviceWork* work) {
  for (const Term& output : outputs) {
    if (output.format.form != Form::kOutput) continue;
    const auto* payload = reinterpret_cast<const uint8_t*>(input.data);
    Status status = LaunchDecode(slice, levels_.get(), payload, output.data, work);
    if (!status.ok()) return status;
  }
  for (const Term& output : outputs) {
    if (output.format.form == Form::kResult && input.bytes != 0) {
      std::memcpy(output.data, input.data, input.bytes);
    }
  }
  return Status::Ok();
}

Result<bool> HbiState::Launch(const Range& range, std::span<const Term> inputs,
                              std::span<Term> outputs, DeviceWork* work) {
  if (Status status = CheckOperation(range, inputs, outputs); !status.ok()) return status;
  if (!HasKernels(inputs, outputs)) return false;
  if (outputs[0].format.form == Form::kSide) {
    const SliceContext slice = Slice(range);
    if (Status status = CheckSide(range, slice, inputs, outputs); !status.ok()) return status;
    const auto own = std::find_if(inputs.begin(), inputs.end(), [](const Term& input) {
      return input.format.form == Form::kInput;
    });
    const Result<std::byte*> words = LaunchWords(slice, own->data, work);
    if (!words.ok()) return words.status();
    work->kept[kOwnWords] = *words;
    return true;
  }
  Plan(range.segment, range.first / kWindow);
  if (levels_ == nullptr) levels_ = planners_->LevelsOf(planner_);
  const SliceContext slice = Slice(range);
  if (IsForward(inputs)) {
    Status status = CheckForward(range, slice, inputs[0], outputs);
    if (status.ok()) status = LaunchForward(slice, inputs[0], outputs, work);
    if (!status.ok()) return status;
    return true;
  }
  uint32_t contributions = 0;
  SliceOutputs places;
  Status status = TakeInputs(range, slice, inputs, &contributions);
  if (status.ok()) status = PlaceOutputs(slice, contributions, outputs, &places);
  if (status.ok()) status = LaunchFold(slice, levels_.get(), sources_, work, &places);
  if (!status.ok()) return status;
  work->kept[kSum] = reinterpret_cast<std::byte*>(places.sum.at);
  work->kept[kResult] = reinterpret_cast<std::byte*>(places.result.at);
  return true;
}

Status HbiState::Complete(const Range& range, std::span<const Term> inputs, std::span<Term> outputs,
                          DeviceWork* work) {
  const auto kept = [work](Kept which) { return reinterpret_cast<uint8_t*>(work->kept[which]); };
  if (outputs[0].format.form == Form::kSide) {
    return FoldSide(range, Slice(range), kept(kOwnWords), inputs, outputs);
  }
  if (IsForward(inputs)) return Status::Ok();
  SliceOutputs places;
  places.sum.at = kept(kSum);
  places.result.at = kept(kResult);
  const auto elements = std::find_if(outputs.begin(), outputs.end(), [](const Term& output) {
    return output.format.form == Form::kOutput;
  });
  if (elements != outputs.end()) places.elements = elements->data;
  CopyOutputs(outputs, places);
  return Status::Ok();
}

}  // namespace inccl::hbi
