// SPDX-License-Identifier: Apache-2.0
//
// Device memory that peers have exported, opened for a device of this rank.
#ifndef INCCL_ENGINE_IMPORTED_REGIONS_H_
#define INCCL_ENGINE_IMPORTED_REGIONS_H_

#include <cstddef>
#include <cstdint>
#include <map>

#include "device/device.h"
#include "transport/transport.h"

namespace inccl {

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

}  // namespace inccl

#endif  // INCCL_ENGINE_IMPORTED_REGIONS_H_
