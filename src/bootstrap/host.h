// SPDX-License-Identifier: Apache-2.0
//
// Identifies this host, and reads the user's secret file.
#ifndef INCCL_BOOTSTRAP_HOST_H_
#define INCCL_BOOTSTRAP_HOST_H_

#include <cstdint>
#include <string>

#include "base/status.h"
#include "bootstrap/crypto.h"

namespace inccl::bootstrap {

std::string HostName();

// Equal for processes that can reach each other by shared memory and abstract unix sockets. Derived
// from the kernel's boot id and the network namespace, or from `override` if that is not empty.
Result<uint64_t> HostId(const std::string& override);
// HostId(""), unless the override names the machine, too: "machine:" and a name.
Result<uint64_t> MachineId(const std::string& override);

// Reads a secret file of 16 to 4096 bytes. It must be a regular file of this user (or root) that no
// other user may read or write. A kInvalidUsage names the file and what is wrong.
Result<Secret> ReadSecretFile(const std::string& path);

// Checks whether the process at the other end of a unix socket runs in this process's container.
// Abstract names belong to a network namespace, which containers can share, and user ids do not
// distinguish containers: root of one is root of the other.

// Returns kInvalidUsage unless /proc shows the peer in the same user and pid namespace, e.g.
// "process 4711, which is in another pid namespace".
Status CheckPeerNamespaces(int fd);

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_HOST_H_
