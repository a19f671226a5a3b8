// SPDX-License-Identifier: Apache-2.0
//
// Memory of devices that peers have registered, where a device of this rank reaches it.
#ifndef INCCL_ENGINE_IMPORTED_REGIONS_H_
#define INCCL_ENGINE_IMPORTED_REGIONS_H_

#include <cstddef>
#include <cstdint>
#include <map>

#include "device/device.h"
#include "transport/transport.h"

namespace inccl {

// One communicator's; used by its thread alone.
class ImportedRegions final : public RegionImporter {
 public:
  // Both outlive it. For queues and kernels of the device of this number.
  ImportedRegions(Device* device, int number, Transport* transport)
      : device_(device), number_(number), transport_(transport) {}
  // When nothing reads there any more.
  ~ImportedRegions() override;
  ImportedRegions(const ImportedRegions&) = delete;
  ImportedRegions& operator=(const ImportedRegions&) = delete;

  // From now on the transport opens here what peers lend.
  void Attach();
  int number() const { return number_; }
  // Whether there has been anything.
  bool any() const { return !opened_.empty(); }
  // True: this is memory that has been registered, which the processor must not touch.
  bool Holds(const std::byte* memory, size_t bytes) const;

  std::byte* Open(const Region::Handle& handle, size_t bytes) override;
  // Closing may wait for all that the device does, and so for the very call in which a peer's
  // region makes room for another one: it is done in the end.
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

}  // namespace inccl

#endif  // INCCL_ENGINE_IMPORTED_REGIONS_H_
