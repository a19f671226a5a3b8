// SPDX-License-Identifier: Apache-2.0
//
// The ports of the RDMA devices: what they are, which of them the options admit, and why a port
// cannot be used.
#ifndef INCCL_TRANSPORT_VERBS_VERBS_PORTS_H_
#define INCCL_TRANSPORT_VERBS_VERBS_PORTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace inccl {

// Which ports a rank may use, in NCCL's grammar; docs/environment.md.
struct VerbsPortOptions {
  std::string hca{};   // INCCL_IB_HCA
  int gid_index = -1;  // INCCL_IB_GID_INDEX; -1: the library chooses
  // NUMA nodes of the processors of a process that is bound to them. Ports there are preferred.
  std::vector<int> nodes{};
};

// One port of a device, for inccl-info.
struct VerbsPort {
  std::string device{};
  int port = 0;
  std::string state{};  // "ACTIVE", "DOWN", ...
  bool ethernet = false;
  int mtu = 0;                    // bytes
  double gbps = 0;                // rate of the link
  int node = -1;                  // NUMA node of the device; -1: unknown
  int gid_index = -1;             // of the GID that the rank would use; -1: none
  std::string gid{};              // that GID as text
  std::string why_not{};          // why a rank cannot use the port; "": it can
  std::string why_no_dma_bufs{};  // why the device cannot send from memory of GPUs; "": it can
};

// Returns the ports of all devices. Errors: kSystemError (no libibverbs), kInvalidUsage (a library
// that was built without RDMA).
Result<std::vector<VerbsPort>> ListVerbsPorts(const VerbsPortOptions& options);

namespace verbs {

// Whether INCCL_IB_HCA admits a port: names of devices, or device:port, separated by commas, match
// as prefixes; "=" before the list asks for equal names, "^" excludes the ports of the list.
bool Admits(const std::string& hca, const std::string& device, int port);

using Gid = std::array<std::byte, 16>;
bool IsIpv4Mapped(const Gid& gid);
bool IsLinkLocal(const Gid& gid);
std::string ToText(const Gid& gid);

}  // namespace verbs
}  // namespace inccl

#endif  // INCCL_TRANSPORT_VERBS_VERBS_PORTS_H_
