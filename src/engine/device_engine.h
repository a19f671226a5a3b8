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
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "compress/device_work.h"
#include "device/device.h"
#include "device/runtime.h"
#include "engine/engine.h"
#include "transport/transport.h"

namespace inccl {

// Device memory that peers have exported, opened for a device of this rank.

// Belongs to one communicator; only the thread that runs its calls uses it.
class ImportedRegions final : public RegionImporter {
 public:
  // For queues and kernels of device `number`. Both pointers outlive this object.
  ImportedRegions(Device* device, int number, Transport* transport)
      : device_(device), number_(number), transport_(transport) {}
  // Called when no work reads the regions any more.
  ~ImportedRegions() override;
  ImportedRegions(const ImportedRegions&) = delete;
  ImportedRegions& operator=(const ImportedRegions&) = delete;

  // Makes this the transport's importer.
  void Attach();
  int number() const { return number_; }
  // True if any region has been opened.
  bool any() const { return !opened_.empty(); }
  // True if this memory lies in an opened region, which the processor must not access.
  bool Holds(const std::byte* memory, size_t bytes) const;

  std::byte* Open(const Region::Handle& handle, size_t bytes) override;
  // Does nothing until this object ends: closing may wait for all work of the device, including the
  // current call, in which a peer may replace a region.
  void Close(std::byte* /*data*/) override {}

 private:
  struct Opened {
    size_t bytes = 0;
    uint64_t times = 0;
  };

  Device* const device_;
  const int number_;
  Transport* const transport_;
  bool attached_ = false;
  std::map<const std::byte*, Opened> opened_;
};

// Copies of constant data, such as a codec's tables, in a device's memory.

// Belongs to one engine; one thread at a time. No kernel may use the copies when this is destroyed.
class DeviceConstants {
 public:
  DeviceConstants(Device* device, int number) : device_(device), number_(number), here_(device) {}
  ~DeviceConstants();
  DeviceConstants(const DeviceConstants&) = delete;
  DeviceConstants& operator=(const DeviceConstants&) = delete;

  // Allocates memory for the first copies.
  Status Prepare() { return Grow(kAtOnce); }
  // See DeviceWork::Constant.
  Result<const std::byte*> On(std::span<const std::byte> bytes,
                              const std::shared_ptr<const void>& owner);

 private:
  static constexpr size_t kAtOnce = size_t{256} << 10;
  struct Known {
    std::shared_ptr<const void> owner;
    std::span<std::byte> copy;  // in device memory
  };

  Status Grow(size_t bytes);
  Result<std::byte*> Room(size_t bytes);

  Device* const device_;
  const int number_;
  std::map<const std::byte*, Known> known_;  // by host address
  std::vector<std::span<std::byte>> free_;
  PinnedBuffer here_;
  std::vector<std::byte*> memory_;  // allocations on the device
  std::byte* next_ = nullptr;       // free part of the last allocation
  size_t left_ = 0;
};

// Registers the memory of a transport's slots with a device, so that the device copies from and to
// slots and kernels access them.
class DeviceSlots {
 public:
  // Both pointers outlive this object.
  DeviceSlots(Device* device, int number, const Transport* transport)
      : device_(device), number_(number), transport_(transport) {}
  ~DeviceSlots();
  DeviceSlots(const DeviceSlots&) = delete;
  DeviceSlots& operator=(const DeviceSlots&) = delete;

  // Registers new slots. Slots that the device refuses cost an extra copy.
  void Update();
  // True if queues may copy from and to this memory.
  bool Copies(const std::byte* host, size_t bytes) { return Find(host, bytes) != nullptr; }
  // The address at which kernels access this memory; nullptr if they cannot.
  std::byte* Reach(const std::byte* host, size_t bytes);

 private:
  // The memory of one Device::Register. A copy must not cross its end, even if another piece
  // follows.
  struct Piece {
    std::byte* begin = nullptr;
    size_t bytes = 0;
    bool registered = false;
    std::byte* address = nullptr;  // of `begin` for kernels; nullptr: none
  };
  const Piece* Find(const std::byte* host, size_t bytes);
  const Piece* Known(const std::byte* host, size_t bytes) const;

  Device* const device_;
  const int number_;
  const Transport* const transport_;
  std::map<const std::byte*, Piece> pieces_;           // by begin
  std::map<const std::byte*, const std::byte*> ends_;  // by begin of a span: its end at last Update
  std::vector<Span> spans_;
};

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
