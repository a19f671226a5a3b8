// SPDX-License-Identifier: Apache-2.0
//
// Checks whether the process at the other end of a unix socket runs in this process's container.
// Abstract names belong to a network namespace, which containers can share, and user ids do not
// distinguish containers: root of one is root of the other.
#ifndef INCCL_BOOTSTRAP_NAMESPACES_H_
#define INCCL_BOOTSTRAP_NAMESPACES_H_

#include "base/status.h"

namespace inccl::bootstrap {

// Returns kInvalidUsage unless /proc shows the peer in the same user and pid namespace, e.g.
// "process 4711, which is in another pid namespace".
Status CheckPeerNamespaces(int fd);

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_NAMESPACES_H_
