// SPDX-License-Identifier: Apache-2.0
//
// The state of one step in progress; private to the files of DeviceEngine.
#ifndef INCCL_ENGINE_DEVICE_ENGINE_WORK_H_
#define INCCL_ENGINE_DEVICE_ENGINE_WORK_H_

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/device_engine.h"

namespace inccl {

class DeviceEngine::Work final : public DeviceWork {
 public:
  Work(DeviceEngine* engine, size_t index)
      : engine_(engine), index_(index), scratch_(engine->device_) {}

  void Start(CodecState* combining, const Range& elements, std::span<const Term> in,
             std::span<Term> out) {
    state = combining;
    range = elements;
    inputs = in;
    outputs = out;
    marks = {};
    kept = {};
    here.clear();
    combined.clear();
    returned.clear();
  }
  CompletionId completion() const { return index_ + 1; }
  void GiveBack() { scratch_.GiveBack(); }

  Result<std::byte*> Scratch(size_t bytes) override { return scratch_.Take(bytes); }
  std::byte* Reach(const std::byte* host, size_t bytes) override {
    return engine_->slots_.Reach(host, bytes);
  }
  bool OnDevice(const std::byte* memory, size_t bytes) const override {
    return engine_->IsThere(memory, bytes);
  }
  Result<const std::byte*> Constant(std::span<const std::byte> bytes,
                                    const std::shared_ptr<const void>& owner) override {
    return engine_->constants_.On(bytes, owner);
  }
  Status Run(
      const std::function<int(const cuda::Launchers& kernels, void* stream)>& launch) override {
    int error = 0;
    Status status =
        engine_->queues_[way]->Run([&](const cuda::Launchers& kernels, void* stream) -> int {
          error = launch(kernels, stream);
          return error;
        });
    if (error == 0) return status;
    return {status.code(), fmt::format("{} ({})", status.message(),
                                       engine_->device_->Kernels()->error_name(error))};
  }

  Stage stage = Stage::kKernels;
  Way way = kFromDevice;  // stream of the kernels
  CodecState* state = nullptr;
  Range range;
  std::span<const Term> inputs;
  std::span<Term> outputs;
  std::array<uint64_t, kWays> marks{};  // marks to wait for; 0: no work on that stream
  // The terms that the host combines: inputs, then outputs.
  std::vector<Term> here;
  size_t inputs_here = 0;
  struct Returned {
    size_t output = 0;  // index into `outputs`
    const std::byte* from = nullptr;
  };
  std::vector<Returned> returned;  // results to copy to the device after the host has combined
  std::vector<size_t> combined;    // indices into `outputs`, in the order of `here`

 private:
  DeviceEngine* const engine_;
  const size_t index_;
  PinnedBuffer scratch_;
};

}  // namespace inccl

#endif  // INCCL_ENGINE_DEVICE_ENGINE_WORK_H_
