// SPDX-License-Identifier: Apache-2.0
//
// The three ways to run a step: kernels, moves, and copies around work on the host.
#include <algorithm>

#include "engine/device_engine.h"
#include "engine/device_engine_work.h"

namespace inccl {
namespace {

bool Elements(const Term& term) {
  return term.format.form == Form::kInput || term.format.form == Form::kOutput;
}

}  // namespace

Result<bool> DeviceEngine::Launch(Work* work) {
  if (!HasKernels() || on_host_) return false;
  bool to_device_alone = true;
  for (const Term& output : work->outputs) {
    const bool there = OnDevice(output);
    if (Elements(output) && !there) return false;
    to_device_alone = to_device_alone && there;
  }
  work->stage = Stage::kKernels;
  work->way = to_device_alone ? kToDevice : kFromDevice;
  Result<bool> launched = work->state->Launch(work->range, work->inputs, work->outputs, work);
  if (!launched.ok()) return launched;
  if (*launched) {
    work->marks[work->way] = UINT64_MAX;
  } else {
    work->GiveBack();
  }
  return launched;
}

// Copies the input directly if every output has the same bytes as the single input.
Result<bool> DeviceEngine::Move(Work* work) {
  if (work->inputs.size() != 1 || on_host_) return false;
  const Term& input = work->inputs[0];
  const size_t bytes = work->range.count * SizeOf(call_.type);
  const bool own = OwnThere(input);
  const bool registered = IsRegistered(input);
  if (own && input_here_ != nullptr) return false;
  if (own ? !work->state->InputIsPayload()
          : input.format.form != Form::kResult || !work->state->ResultIsPayload() ||
                input.bytes != bytes || !(registered || slots_.Copies(input.data, bytes))) {
    return false;
  }
  for (const Term& output : work->outputs) {
    if (OnDevice(output)) {
      if (own && Reduces(call_.collective)) return false;
      continue;
    }
    if (registered) return false;
    if (!own) continue;  // a copy from slot to slot, below
    const bool payload = (output.format.form == Form::kSum && output.format.contributions == 1) ||
                         (output.format.form == Form::kResult && !Reduces(call_.collective) &&
                          work->state->ResultIsPayload());
    if (!payload || output.bytes < bytes || !slots_.Copies(output.data, bytes)) return false;
  }
  work->stage = Stage::kCopyingOut;
  work->here.push_back(input);
  work->inputs_here = 1;
  for (size_t i = 0; i < work->outputs.size(); ++i) {
    Term& output = work->outputs[i];
    const bool there = OnDevice(output);
    if (!own && !there) {
      work->here.push_back(output);
      work->combined.push_back(i);
      continue;
    }
    Status status = Copy(work, there ? kToDevice : kFromDevice, output.data, input.data, bytes);
    if (!status.ok()) return status;
    output.bytes = static_cast<uint32_t>(bytes);
  }
  if (work->combined.empty()) return true;
  if (Status status = CombineHere(work); !status.ok()) return status;
  return true;
}

Status DeviceEngine::CopyIn(Work* work) {
  const size_t bytes = work->range.count * SizeOf(call_.type);
  work->stage = Stage::kCopyingIn;
  bool waits = false, copies = false;
  for (const Term& input : work->inputs) {
    Term term = input;
    if (OwnThere(input) && input_here_ != nullptr) {
      term.data = const_cast<std::byte*>(input_here_) + (input.data - call_.input);
      waits = true;
    } else if (OwnThere(input) || IsRegistered(input)) {
      const size_t size = OwnThere(input) ? bytes : input.bytes;
      Result<std::byte*> memory = work->Scratch(size);
      if (!memory.ok()) return memory.status();
      term.data = *memory;
      copies = true;
      Status status = Copy(work, kFromDevice, term.data, input.data, size);
      if (!status.ok()) return status;
    }
    work->here.push_back(term);
  }
  work->inputs_here = work->here.size();
  // With ResultIsPayload, the result slot for the peers also holds the bytes for the device.
  const std::byte* result = nullptr;
  for (const Term& output : work->outputs) {
    if (output.format.form == Form::kResult && work->state->ResultIsPayload() &&
        slots_.Copies(output.data, bytes)) {
      result = output.data;
    }
  }
  for (size_t i = 0; i < work->outputs.size(); ++i) {
    Term term = work->outputs[i];
    if (OnDevice(term)) {
      if (result != nullptr) {
        work->returned.push_back({i, result});
        continue;
      }
      Result<std::byte*> memory = work->Scratch(bytes);
      if (!memory.ok()) return memory.status();
      term.data = *memory;
      work->returned.push_back({i, term.data});
    }
    work->here.push_back(term);
    work->combined.push_back(i);
  }
  if (copies) return Status::Ok();  // the queue runs them after the copy of the input
  if (waits) {
    work->marks[kFromDevice] = input_mark_;
    Result<bool> reached = Reached(work);
    if (!reached.ok()) return reached.status();
    if (!*reached) return Status::Ok();
  }
  return CombineHere(work);
}

Status DeviceEngine::CombineHere(Work* work) {
  const size_t bytes = work->range.count * SizeOf(call_.type);
  const std::span<Term> terms(work->here);
  const std::span<Term> outputs = terms.subspan(work->inputs_here);
  Status status = work->state->Combine(work->range, terms.first(work->inputs_here), outputs);
  if (!status.ok()) return status;
  for (size_t i = 0; i < outputs.size(); ++i) {
    work->outputs[work->combined[i]].bytes = outputs[i].bytes;
  }
  work->stage = Stage::kCopyingOut;
  for (const Work::Returned& returned : work->returned) {
    Term& output = work->outputs[returned.output];
    output.bytes = static_cast<uint32_t>(bytes);
    status = Copy(work, kToDevice, output.data, returned.from, bytes);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

}  // namespace inccl
