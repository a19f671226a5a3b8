// SPDX-License-Identifier: Apache-2.0
//
// Steps of calls whose elements are in memory of a device. A step is launched on one of two streams
// of the library's own: as kernels of the codec, where it has some for the step; else elements are
// copied to pinned memory of the host, combined there, and copied back. What only moves is copied
// between the device and slots, where the device reaches these.
#ifndef INCCL_ENGINE_DEVICE_ENGINE_H_
#define INCCL_ENGINE_DEVICE_ENGINE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

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
  // Pinned memory that a step takes, as a rule.
  struct StepBytes {
    size_t with_kernels = 0;
    size_t without = 0;  // all operands are brought, also what peers lend
  };
  // Of memory on the device of this number. All outlive it. `regions`: what peers lend, as this or
  // another device of the rank reaches it. A step takes `step_bytes` of pinned
  // memory, as a rule.
  static Result<std::unique_ptr<DeviceEngine>> Create(Device* device, int number,
                                                      const Transport* transport,
                                                      const ImportedRegions* regions,
                                                      const StepBytes& step_bytes);
  // Waits for all of its streams.
  ~DeviceEngine() override;

  // Tells the device of the slots that there are. While the transport is used by nobody else.
  void Prepare() { slots_.Update(); }

  // A call begins whose output is this memory of the device; other terms of form kOutput are memory
  // of the host.
  struct Call {
    Collective collective = Collective::kAllReduce;
    size_t element_bytes = 0;
    const std::byte* input = nullptr;
    size_t input_bytes = 0;
    const std::byte* output = nullptr;
    size_t output_bytes = 0;
    bool compressed = false;
  };
  Status Begin(const Call& call);
  // A call begins that is about memory of the host.
  void BeginOnHost();

  Result<CompletionId> Combine(CodecState* state, const Range& range, std::span<const Term> inputs,
                               std::span<Term> outputs) override;
  Result<bool> Done(CompletionId completion) override;

  // After an error: returns when nothing of the call is running any more, and forgets its
  // completions.
  void Drain();

 private:
  // Elements to lanes on one, elements from lanes on the other: both directions at once.
  enum Way : size_t { kFromDevice, kToDevice, kWays };
  enum class Stage { kKernels, kCopyingIn, kCopyingOut };
  class Work;

  DeviceEngine(Device* device, int number, const Transport* transport,
               const ImportedRegions* regions);
  bool OnDevice(const Term& output) const;
  // An operand of the call's own, on the device.
  bool OwnThere(const Term& input) const;
  // What a peer has registered of a device: its input, or a part of the result.
  bool IsRegistered(const Term& input) const;
  // Of a device, and kernels of this one reach it.
  bool IsThere(const std::byte* memory, size_t bytes) const;
  bool HasKernels() const { return !refused_ && device_->Kernels() != nullptr; }
  Result<bool> Launch(Work* work);
  Result<bool> Move(Work* work);
  Status CopyIn(Work* work);
  // Combines on the host what has been brought, and sends back what has to go to the device.
  Status CombineHere(Work* work);
  Status Copy(Work* work, Way way, std::byte* to, const std::byte* from, size_t bytes);
  Status Mark(Work* work);
  Result<bool> Reached(Work* work);
  Work* Take();
  void GiveBack(Work* work);

  Device* const device_;
  const int number_;
  const ImportedRegions* const regions_;
  bool refused_ = false;  // by this device: its kernels
  DeviceSlots slots_;
  std::array<std::unique_ptr<DeviceQueue>, kWays> queues_;
  Call call_;
  bool on_host_ = false;  // a call on memory of the host
  PinnedBuffer input_here_memory_;
  const std::byte* input_here_ = nullptr;  // all of the call's input, once this has been reached:
  uint64_t input_mark_ = 0;
  std::vector<std::unique_ptr<Work>> works_;  // a completion is a place here, + 1
  std::vector<Work*> free_;
  DeviceConstants constants_;
};

}  // namespace inccl

#endif  // INCCL_ENGINE_DEVICE_ENGINE_H_
