// SPDX-License-Identifier: Apache-2.0
//
// How this host and user are told apart from others.
#ifndef INCCL_BOOTSTRAP_HOST_H_
#define INCCL_BOOTSTRAP_HOST_H_

#include <cstdint>
#include <string>

#include "base/status.h"
#include "bootstrap/crypto.h"

namespace inccl::bootstrap {

std::string HostName();

// Equal for processes that can reach each other by shared memory and abstract unix sockets: of the
// kernel's boot id and the network namespace, or of `override` alone if it is not empty.
Result<uint64_t> HostId(const std::string& override);

// The content of a secret file, 16 to 4096 bytes. It must be a regular file of this user (or root)
// that nobody else may read or write. kInvalidUsage naming it and what is wrong.
Result<Secret> ReadSecretFile(const std::string& path);

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_HOST_H_
