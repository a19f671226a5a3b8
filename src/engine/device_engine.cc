// SPDX-License-Identifier: Apache-2.0
#include "engine/device_engine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/device_engine_work.h"

namespace inccl {
namespace {

constexpr useconds_t kDrainLook = 20;
constexpr size_t kSmallInput = size_t{32} << 10;
constexpr size_t kWorksAhead = 3;  // the strands of a two-shot all-reduce

template <class Terms, class Predicate>
bool AnyOf(const Terms& terms, const Predicate& predicate) {
  return std::any_of(terms.begin(), terms.end(), predicate);
}

}  // namespace

DeviceEngine::DeviceEngine(Device* device, int number, const Transport* transport,
                           const ImportedRegions* regions)
    : device_(device),
      number_(number),
      regions_(regions),
      slots_(device, number, transport),
      input_here_memory_(device),
      constants_(device, number) {}

Result<std::unique_ptr<DeviceEngine>> DeviceEngine::Create(Device* device, int number,
                                                           const Transport* transport,
                                                           const ImportedRegions* regions,
                                                           const StepBytes& step_bytes) {
  std::unique_ptr<DeviceEngine> engine(new DeviceEngine(device, number, transport, regions));
  for (std::unique_ptr<DeviceQueue>& queue : engine->queues_) {
    Result<std::unique_ptr<DeviceQueue>> made = device->NewQueue(number);
    if (!made.ok()) return made.status();
    queue = *std::move(made);
  }
  if (device->Kernels() != nullptr && device->Kernels()->load != nullptr) {
    int error = 0;
    const Status status = engine->queues_[kFromDevice]->Run(
        [&error](const cuda::Launchers& kernels, void* /*stream*/) -> int {
          return error = kernels.load();
        });
    // The driver is too old or the library has no code for the device. Results are the same without
    // kernels.
    engine->refused_ = !status.ok();
    if (!status.ok()) {
      Log(LogLevel::kWarn, LogSubsystem::kInit,
          "device {} does not take the kernels, so that elements are copied to the host: {} ({})",
          number, status.message(), device->Kernels()->error_name(error));
    }
  }
  const size_t bytes = engine->HasKernels() ? step_bytes.with_kernels : step_bytes.without;
  // Allocates now what the first calls need: during a call an allocation may wait for the device,
  // whose streams wait for that call.
  for (size_t i = 0; i < kWorksAhead; ++i) {
    engine->works_.push_back(std::make_unique<Work>(engine.get(), i));
    if (Result<std::byte*> memory = engine->works_.back()->Scratch(bytes); !memory.ok()) {
      return memory.status();
    }
  }
  engine->free_.reserve(kWorksAhead);
  for (const std::unique_ptr<Work>& work : engine->works_) engine->GiveBack(work.get());
  if (Result<std::byte*> input = engine->input_here_memory_.Take(kSmallInput); !input.ok()) {
    return input.status();
  }
  if (Status status = engine->constants_.Prepare(); !status.ok()) return status;
  return engine;
}

DeviceEngine::~DeviceEngine() {
  for (std::unique_ptr<DeviceQueue>& queue : queues_) queue.reset();
}

// Copies a small input to the host as a whole, so that its steps wait for one copy instead of one
// each. Kernels read the input in place.
Status DeviceEngine::Begin(const Call& call) {
  call_ = call;
  on_host_ = false;
  input_here_ = nullptr;
  input_here_memory_.GiveBack();
  const bool kernels = call.compressed && HasKernels();
  if (call.input_bytes == 0 || call.input_bytes > kSmallInput || kernels) return Status::Ok();
  Result<std::byte*> memory = input_here_memory_.Take(call.input_bytes);
  if (!memory.ok()) return memory.status();
  Status status = queues_[kFromDevice]->Copy(*memory, call.input, call.input_bytes);
  if (!status.ok()) return status;
  Result<uint64_t> mark = queues_[kFromDevice]->Mark();
  if (!mark.ok()) return mark.status();
  input_here_ = *memory;
  input_mark_ = *mark;
  return Status::Ok();
}

bool DeviceEngine::IsThere(const std::byte* memory, size_t bytes) const {
  const auto within = [&](const std::byte* begin, size_t size) {
    return begin != nullptr && memory >= begin && memory <= begin + size &&
           bytes <= static_cast<size_t>(begin + size - memory);
  };
  return within(call_.input, call_.input_bytes) || within(call_.output, call_.output_bytes) ||
         (number_ == regions_->number() && regions_->Holds(memory, bytes));
}

bool DeviceEngine::OwnThere(const Term& input) const {
  return input.format.form == Form::kInput && input.data >= call_.input &&
         input.data < call_.input + call_.input_bytes;
}

bool DeviceEngine::IsRegistered(const Term& input) const {
  return regions_->any() && !OwnThere(input) && regions_->Holds(input.data, input.bytes);
}

void DeviceEngine::BeginOnHost() {
  call_ = {};
  on_host_ = true;
  input_here_ = nullptr;
}

// Outputs elsewhere are targets in a peer's region, which is host memory.
bool DeviceEngine::OnDevice(const Term& output) const {
  return output.format.form == Form::kOutput && output.data >= call_.output &&
         output.data < call_.output + call_.output_bytes;
}

DeviceEngine::Work* DeviceEngine::Take() {
  if (free_.empty()) {
    free_.reserve(works_.size() + 1);
    works_.push_back(std::make_unique<Work>(this, works_.size()));
    free_.push_back(works_.back().get());
  }
  Work* const work = free_.back();
  free_.pop_back();
  return work;
}

void DeviceEngine::GiveBack(Work* work) {
  work->GiveBack();
  free_.push_back(work);
}

Status DeviceEngine::Copy(Work* work, Way way, std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes == 0 || to == from) return Status::Ok();
  work->marks[way] = UINT64_MAX;  // until Mark
  return queues_[way]->Copy(to, from, bytes);
}

Status DeviceEngine::Mark(Work* work) {
  for (size_t way = 0; way < kWays; ++way) {
    if (work->marks[way] != UINT64_MAX) continue;
    Result<uint64_t> mark = queues_[way]->Mark();
    if (!mark.ok()) return mark.status();
    work->marks[way] = *mark;
  }
  return Status::Ok();
}

Result<bool> DeviceEngine::Reached(Work* work) {
  for (size_t way = 0; way < kWays; ++way) {
    if (work->marks[way] == 0) continue;
    Result<bool> reached = queues_[way]->Reached(work->marks[way]);
    if (!reached.ok() || !*reached) return reached;
    work->marks[way] = 0;
  }
  return true;
}

Result<CompletionId> DeviceEngine::Combine(CodecState* state, const Range& range,
                                           std::span<const Term> inputs, std::span<Term> outputs) {
  const bool there =
      AnyOf(inputs, [this](const Term& input) { return OwnThere(input) || IsRegistered(input); }) ||
      AnyOf(outputs, [this](const Term& output) { return OnDevice(output); });
  if (!there || range.count == 0) {
    if (Status status = state->Combine(range, inputs, outputs); !status.ok()) return status;
    return CompletionId{0};
  }
  Work* const work = Take();  // after an error Drain gives it back
  work->Start(state, range, inputs, outputs);
  Result<bool> launched = Launch(work);
  if (!launched.ok()) return launched.status();
  if (!*launched) {
    Result<bool> moved = Move(work);
    if (!moved.ok()) return moved.status();
    if (!*moved) {
      if (Status status = CopyIn(work); !status.ok()) return status;
    }
  }
  if (Status status = Mark(work); !status.ok()) return status;
  if (work->stage == Stage::kCopyingOut && work->marks == decltype(work->marks){}) {
    GiveBack(work);
    return CompletionId{0};
  }
  return work->completion();
}

Result<bool> DeviceEngine::Done(CompletionId completion) {
  Work* const work = works_[completion - 1].get();
  Result<bool> reached = Reached(work);
  if (!reached.ok() || !*reached) return reached;
  switch (work->stage) {
    case Stage::kKernels: {
      Status status = work->state->Complete(work->range, work->inputs, work->outputs, work);
      if (!status.ok()) return status;
      break;
    }
    case Stage::kCopyingIn: {
      if (Status status = CombineHere(work); !status.ok()) return status;
      if (Status status = Mark(work); !status.ok()) return status;
      if (!work->returned.empty()) return false;
      break;
    }
    case Stage::kCopyingOut: break;
  }
  GiveBack(work);
  return true;
}

void DeviceEngine::Drain() {
  for (const std::unique_ptr<DeviceQueue>& queue : queues_) {
    // A failed queue runs no more work.
    const Result<uint64_t> mark = queue->Mark();
    if (!mark.ok()) continue;
    while (true) {
      const Result<bool> reached = queue->Reached(*mark);
      if (!reached.ok() || *reached) break;
      usleep(kDrainLook);
    }
  }
  free_.clear();
  for (const std::unique_ptr<Work>& work : works_) GiveBack(work.get());
}

}  // namespace inccl
