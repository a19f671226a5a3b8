// SPDX-License-Identifier: Apache-2.0
//
// Chooses the addresses to listen on, and among those of peers the ones to try.
#ifndef INCCL_BOOTSTRAP_INTERFACES_H_
#define INCCL_BOOTSTRAP_INTERFACES_H_

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/launcher.h"
#include "bootstrap/unique_id.h"
#include "config/variables.h"

namespace inccl::bootstrap {

// INCCL_SOCKET_ALLOW: the networks from which listeners accept TCP connections.
class AddressFilter {
 public:
  AddressFilter() = default;  // admits every address
  // A list like "10.0.0.0/8,192.0.2.7,2001:db8::/32"; "" admits every address. A kInvalidArgument
  // names the wrong word.
  static Result<AddressFilter> Parse(std::string_view list);

  bool Admits(const sockaddr_storage& address) const;
  // As Admits for the other end of a connection, and true if that is on this host.
  bool AdmitsPeerOf(int fd, const sockaddr_storage& peer) const;

  bool operator==(const AddressFilter&) const = default;

 private:
  struct Network {
    int family = AF_INET;
    std::array<std::byte, 16> address{};
    int bits = 0;

    bool operator==(const Network&) const = default;
  };
  std::vector<Network> networks_;
};

}  // namespace inccl::bootstrap

namespace inccl {

// At which TCP ports a rank listens, and whose connections it accepts.
struct ListenRules {
  PortRange ports;
  bootstrap::AddressFilter sources;

  bool operator==(const ListenRules&) const = default;
  // A kInvalidArgument says what is wrong with INCCL_SOCKET_ALLOW, without its name.
  static Result<ListenRules> Of(const Environment& environment) {
    Result<bootstrap::AddressFilter> sources =
        bootstrap::AddressFilter::Parse(environment.socket_allow);
    if (!sources.ok()) return sources.status();
    return ListenRules{environment.port_range, *std::move(sources)};
  }
};

}  // namespace inccl

namespace inccl::bootstrap {

// Matches a name against INCCL_SOCKET_IFNAME, a NameList (config/values.h). A pattern that is none
// matches nothing.
bool MatchesInterface(std::string_view pattern, std::string_view name);

// Returns the addresses (port 0) to listen on, at most kMostListenAddresses, in the order to try
// them: those of the first interface that is up and matches, where interfaces with a carrier come
// first. An empty pattern means every interface but lo, docker* and virbr*, and those that usually
// lead to containers of this machine (br-*, cni*, podman*, veth*) come last; 127.0.0.1, i.e. this
// machine only, if there is none. If nothing matches another pattern, a kInvalidUsage lists the
// candidates.
Result<std::vector<UniqueIdAddress>> ChooseAddresses(std::string_view pattern);
inline constexpr size_t kMostListenAddresses = 8;

// The addresses (port 0) of the two ends of a TCP connection; none if it has gone.
std::optional<UniqueIdAddress> LocalAddress(int fd);
std::optional<UniqueIdAddress> RemoteAddress(int fd);
// These compare addresses without ports. PutFirst adds `first` if it is not there.
void PutFirst(const UniqueIdAddress& first, std::vector<UniqueIdAddress>* addresses);
void MoveToFront(const UniqueIdAddress& first, std::vector<UniqueIdAddress>* addresses);
// The addresses of this machine; none if they cannot be listed.
std::vector<UniqueIdAddress> OwnAddresses();
// Removes those that this machine has, too: no connection to them would leave it.
void RemoveOwn(std::span<const UniqueIdAddress> own, std::vector<UniqueIdAddress>* addresses);
// The error if none is left of those at which a peer on another machine listens.
std::string IsAlsoHere(const std::string& peer, std::span<const UniqueIdAddress> addresses);

// Link-local IPv6 addresses of other hosts are reached through the interface that the pattern
// selects here: its index becomes their scope, in the place of the index on the host they come
// from.
void SetScopes(std::string_view pattern, std::vector<UniqueIdAddress>* addresses);

// The rate of the link of the first interface in Mbit/s, as its driver says; 0 if it does not know.
uint32_t LinkMbps(std::string_view pattern);

// Limits of a wait for a name server.
struct LookupLimits {
  Time deadline = kNever;
  Cancel cancelled = {};
};

// The address of INCCL_COMM_ID, "host:port" or "[IPv6]:port"; a name is looked up. Errors:
// kInvalidUsage, kTimeout, kRemoteError (cancelled).
Result<UniqueIdAddress> ResolveAddress(const std::string& text, const LookupLimits& limits);
// If that is a loopback address: an error where the launcher says that ranks are on other hosts,
// else a warning of rank 0, unless the text itself says so (a host may resolve its own name so).
Status CheckReach(const std::string& text, const UniqueIdAddress& address,
                  const Launcher& launcher);

// Whether ranks of this machine alone can reach the address.
bool IsLoopback(const UniqueIdAddress& address);

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_INTERFACES_H_
