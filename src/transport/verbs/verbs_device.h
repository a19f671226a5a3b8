// SPDX-License-Identifier: Apache-2.0
//
// An open port of an RDMA device, and the memory that is registered with it.
#ifndef INCCL_TRANSPORT_VERBS_VERBS_DEVICE_H_
#define INCCL_TRANSPORT_VERBS_VERBS_DEVICE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "device/device.h"
#include "transport/verbs/verbs_library.h"
#include "transport/verbs/verbs_ports.h"

namespace inccl::verbs {

// Memory of this process that the device may read or write. The region ends before the memory.
struct RegisteredMemory {
  Mapping memory;
  MemoryRegion region{nullptr, nullptr};
  std::byte* data() const { return memory.data(); }
};

enum class Writer : uint8_t { kThisRank, kPeers };

class Device {
 public:
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  // Opens the ports that a rank uses, `most` at most: of those that can be used the ones near to
  // the process, and of these the fastest of one kind of network. Errors: kInvalidUsage (no
  // device), kSystemError, which names every port and why it cannot.
  static Result<std::vector<std::unique_ptr<Device>>> Open(const VerbsPortOptions& options,
                                                           size_t most);
  // All ports, also those that cannot be used (info().why_not) and therefore serve for info()
  // alone.
  static Result<std::vector<std::unique_ptr<Device>>> All(const VerbsPortOptions& options);

  // New memory, whole pages; children of this process do not inherit it. If the limit of locked
  // memory forbids it, the kSystemError names limit, need and remedy.
  Result<RegisteredMemory> Allocate(size_t bytes, Writer writer) const;
  // Registers memory, with the same error. Writer::kThisRank: the device only reads it.
  Result<MemoryRegion> Register(void* data, size_t bytes, Writer writer) const;
  // Registers memory of a GPU, which the device only reads.
  Result<MemoryRegion> Register(const DmaBuf& buffer) const;

  // "rxe0 port 1 is DOWN", or "" while the port is active.
  std::string PortTrouble() const;

  const Library& ibv() const { return *ibv_; }
  ibv_context* context() const { return context_.get(); }
  ibv_pd* pd() const { return pd_.get(); }
  const ibv_device_attr& limits() const { return limits_; }
  const VerbsPort& info() const { return info_; }
  std::string name() const;  // "rxe0:1"
  uint8_t port() const { return static_cast<uint8_t>(info_.port); }
  bool ethernet() const { return info_.ethernet; }
  uint16_t lid() const { return attributes_.lid; }
  ibv_mtu mtu() const { return attributes_.active_mtu; }
  uint8_t gid_index() const { return static_cast<uint8_t>(std::max(info_.gid_index, 0)); }
  const Gid& gid() const { return gid_; }

 private:
  Device(const Library* ibv, Context context)
      : ibv_(ibv), context_(std::move(context)), pd_(nullptr, ibv->ibv_dealloc_pd) {}
  void Inspect(const VerbsPortOptions& options);
  void ChooseGid(int wanted);

  const Library* ibv_;
  Context context_;
  ProtectionDomain pd_;
  ibv_device_attr limits_{};
  ibv_port_attr attributes_{};
  VerbsPort info_{};
  Gid gid_{};
};

}  // namespace inccl::verbs

#endif  // INCCL_TRANSPORT_VERBS_VERBS_DEVICE_H_
