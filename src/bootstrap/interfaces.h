// SPDX-License-Identifier: Apache-2.0
//
// Which address to listen on.
#ifndef INCCL_BOOTSTRAP_INTERFACES_H_
#define INCCL_BOOTSTRAP_INTERFACES_H_

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bootstrap/unique_id.h"

namespace inccl::bootstrap {

// The grammar of INCCL_SOCKET_IFNAME, that of NCCL_SOCKET_IFNAME: comma-separated prefixes; "=" in
// front: exact names; "^" in front: none of these; "^=": none of exactly these.
bool MatchesInterface(std::string_view pattern, std::string_view name);

// Addresses (port 0) of the first interface that is up and matches: at most one IPv4 and one IPv6,
// the one to be tried first in front. An empty pattern: 127.0.0.1, this host only. kInvalidUsage
// listing the candidates if nothing matches.
Result<std::vector<UniqueIdAddress>> ChooseAddresses(std::string_view pattern);

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_INTERFACES_H_
