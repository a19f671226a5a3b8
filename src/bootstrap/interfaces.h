// SPDX-License-Identifier: Apache-2.0
//
// Chooses the address to listen on.
#ifndef INCCL_BOOTSTRAP_INTERFACES_H_
#define INCCL_BOOTSTRAP_INTERFACES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bootstrap/unique_id.h"

namespace inccl::bootstrap {

// Matches a name against INCCL_SOCKET_IFNAME, a NameList (config/values.h). A pattern that is none
// matches nothing.
bool MatchesInterface(std::string_view pattern, std::string_view name);

// Returns the addresses (port 0) of the first interface that is up and matches: at most one IPv4
// and one IPv6 address, in the order to try them. An empty pattern means "^lo,docker,virbr", as
// NCCL's default does, and then 127.0.0.1, i.e. this machine only, if no such interface is up. If
// nothing matches another pattern, a kInvalidUsage lists the candidates.
Result<std::vector<UniqueIdAddress>> ChooseAddresses(std::string_view pattern);

// Link-local IPv6 addresses of other hosts are reached through the interface that the pattern
// selects here: its index becomes their scope, in the place of the index on the host they come
// from.
void SetScopes(std::string_view pattern, std::vector<UniqueIdAddress>* addresses);

// The rate of the link of that interface in Mbit/s, as its driver says; 0 if it does not know.
uint32_t LinkMbps(std::string_view pattern);

// The address of "host:port" or "[IPv6]:port"; a name is looked up. Errors: kInvalidUsage.
Result<UniqueIdAddress> ResolveAddress(const std::string& text);

// Whether ranks of this machine alone can reach the address.
bool IsLoopback(const UniqueIdAddress& address);

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_INTERFACES_H_
