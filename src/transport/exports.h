// SPDX-License-Identifier: Apache-2.0
//
// Zero copy, the part of a transport that a new one need not have: memory of the caller that its
// peers access in place of slots.
#ifndef INCCL_TRANSPORT_EXPORTS_H_
#define INCCL_TRANSPORT_EXPORTS_H_

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "memory/region.h"

namespace inccl {

// A location in a region that its owner has exported to its peers.
struct RemoteAddress {
  uint32_t region = 0;  // MemoryHandle::region; 0: no location
  uint64_t offset = 0;
};

// What peers may do with registered memory. They only read device memory.
enum class Access : uint8_t { kRead, kReadWrite };

// How Exports::Register registers memory.
struct Registration {
  Access access = Access::kRead;
  bool on_device = false;
  bool keep = false;  // until Deregister; else other memory may take its place
};

// Memory that Exports::Register has exported to the peers.
struct MemoryHandle {
  uint32_t region = 0;  // id of the region that contains it; 0: nothing is registered
  bool on_device = false;
  bool writable = false;  // registered with Access::kReadWrite
  uint64_t offset = 0;    // of `begin` in the region
  // The part that peers may access. Of host memory only whole pages, because only these can be
  // revoked from late peers after an error.
  const std::byte *begin = nullptr, *end = nullptr;
  uint64_t memory = 0;  // identifies the memory; never reused

  // The address of [data, data + bytes) if peers may access all of it.
  RemoteAddress At(const std::byte* data, size_t size) const {
    if (region == 0 || data < begin || data > end || size > static_cast<size_t>(end - data)) {
      return {};
    }
    return {region, offset + static_cast<uint64_t>(data - begin)};
  }
};

// One thread at a time uses it, that of its transport, except where a method says otherwise.
class Exports {
 public:
  virtual ~Exports() = default;
  // Exports memory to the peers, or says why this transport cannot. Cheap if the memory is exported
  // already, and if it cannot be: calls ask for every buffer. Peers import it asynchronously (in
  // Transport::Progress); until then data goes through slots. Memory registered without `keep` may
  // replace the least recently used such memory, so a communicator registers only between calls,
  // and at most kPerCall buffers per call. Memory that is freed needs no Deregister.
  static constexpr int kPerCall = 8;
  virtual Result<MemoryHandle> Register(const void* data, size_t bytes,
                                        const Registration& how) = 0;
  // Ends one registration with `keep`, between calls. Peers may keep the memory imported until
  // other memory takes its place.
  virtual void Deregister(const MemoryHandle& memory) = 0;
  // OK if Register can export this memory while it has places; else the reason. Any thread.
  virtual Status CanRegister(const void* data, size_t bytes, bool on_device) const = 0;
  // Called after an error for the memory of the failed call, writable memory first. From then on
  // late peers cannot write to it (the contents of writable host memory are lost), and what they
  // read there never becomes a result: it is the input, or a later Release of the slice fails.
  // Ignores an empty handle.
  virtual Status RevokeAccess(const MemoryHandle& /*memory*/) { return Status::Ok(); }
  // Progress uses the importer until another one or nullptr is set; the caller keeps it alive until
  // then. Without an importer this rank imports no device memory.
  virtual void SetImporter(RegionImporter* /*importer*/) {}
};

// Refuses all memory.
Exports* NoExports();

}  // namespace inccl

#endif  // INCCL_TRANSPORT_EXPORTS_H_
