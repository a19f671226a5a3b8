// SPDX-License-Identifier: Apache-2.0
//
// Whether the process at the other end of a unix socket runs in this process's container. Abstract
// names belong to a network namespace, which containers can share; user ids mean little between
// containers, as root of one is root of the other.
#ifndef INCCL_BOOTSTRAP_NAMESPACES_H_
#define INCCL_BOOTSTRAP_NAMESPACES_H_

#include "base/status.h"

namespace inccl::bootstrap {

// kInvalidUsage unless /proc shows it in the same user and pid namespace: "process 4711, which is
// in another pid namespace".
Status CheckPeerNamespaces(int fd);

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_NAMESPACES_H_
