// SPDX-License-Identifier: Apache-2.0
//
// Runs the steps of calls whose elements are in device memory. The engine launches a step on one of
// two streams of the library. It uses the codec's kernels where the codec has some for the step. A
// step that only moves bytes is a copy between the device and slots, where the device reaches the
// slots. Else the engine copies the elements to pinned host memory, combines them there and copies
// the results back.
#ifndef INCCL_ENGINE_DEVICE_ENGINE_H_
#define INCCL_ENGINE_DEVICE_ENGINE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/collective_args.h"
#include "compress/device_work.h"
#include "device/device.h"
#include "device/pinned_buffer.h"
#include "engine/device_constants.h"
#include "engine/device_slots.h"
#include "engine/engine.h"
#include "engine/imported_regions.h"
#include "transport/transport.h"

namespace inccl {

class DeviceEngine final : public Engine {
 public:
  // Pinned memory that a step usually needs.
  struct StepBytes {
    size_t with_kernels = 0;
    size_t without = 0;  // for copies of all operands, including peers' registered buffers
  };
  // An engine for device `number`. All pointers outlive the engine. `regions` holds the peers'
  // device memory, imported for this or another device of the rank.
  static Result<std::unique_ptr<DeviceEngine>> Create(Device* device, int number,
                                                      const Transport* transport,
                                                      const ImportedRegions* regions,
                                                      const StepBytes& step_bytes);
  // Waits for all streams of the engine.
  ~DeviceEngine() override;

  // Registers the existing slots with the device. No other thread may use the transport meanwhile.
  void Prepare() { slots_.Update(); }

  // A call on device memory. Terms of form kOutput outside `output` are host memory.
  struct Call : CollectiveArgs {
    const std::byte* input = nullptr;
    size_t input_bytes = 0;
    const std::byte* output = nullptr;
    size_t output_bytes = 0;
    bool compressed = false;
  };
  Status Begin(const Call& call);
  // Begins a call on host memory.
  void BeginOnHost();

  Result<CompletionId> Combine(CodecState* state, const Range& range, std::span<const Term> inputs,
                               std::span<Term> outputs) override;
  Result<bool> Done(CompletionId completion) override;

  // Called after an error: waits until no work of the call runs on the device and drops its
  // completions.
  void Drain();

 private:
  // One stream per direction (elements to lanes, lanes to elements), so both run at once.
  enum Way : size_t { kFromDevice, kToDevice, kWays };
  enum class Stage { kKernels, kCopyingIn, kCopyingOut };
  class Work;

  DeviceEngine(Device* device, int number, const Transport* transport,
               const ImportedRegions* regions);
  bool OnDevice(const Term& output) const;
  // True if the operand lies in the call's own input on the device.
  bool OwnThere(const Term& input) const;
  // True if the operand lies in a peer's registered device buffer: its input or a part of its
  // result.
  bool IsRegistered(const Term& input) const;
  // True if this is device memory that kernels of this device reach.
  bool IsThere(const std::byte* memory, size_t bytes) const;
  bool HasKernels() const { return !refused_ && device_->Kernels() != nullptr; }
  Result<bool> Launch(Work* work);
  Result<bool> Move(Work* work);
  Status CopyIn(Work* work);
  // Combines the copied operands on the host and starts the copies of results to the device.
  Status CombineHere(Work* work);
  Status Copy(Work* work, Way way, std::byte* to, const std::byte* from, size_t bytes);
  Status Mark(Work* work);
  Result<bool> Reached(Work* work);
  Work* Take();
  void GiveBack(Work* work);

  Device* const device_;
  const int number_;
  const ImportedRegions* const regions_;
  bool refused_ = false;  // this device cannot run the kernels
  DeviceSlots slots_;
  std::array<std::unique_ptr<DeviceQueue>, kWays> queues_;
  Call call_;
  bool on_host_ = false;  // the current call is on host memory
  PinnedBuffer input_here_memory_;
  // A copy of the call's whole input, valid once input_mark_ is reached; nullptr: none.
  const std::byte* input_here_ = nullptr;
  uint64_t input_mark_ = 0;
  std::vector<std::unique_ptr<Work>> works_;  // a CompletionId is an index here + 1
  std::vector<Work*> free_;
  DeviceConstants constants_;
};

}  // namespace inccl

#endif  // INCCL_ENGINE_DEVICE_ENGINE_H_
