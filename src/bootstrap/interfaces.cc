// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/fd.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/text.h"
#include "base/thread.h"
#include "bootstrap/socket.h"
#include "config/values.h"

namespace inccl::bootstrap {
namespace {

constexpr std::string_view kStandardInterfaces = "^lo,docker,virbr";
constexpr std::string_view kOfContainers = "br-,cni,podman,veth";

struct Interface {
  std::string name;
  bool runs = false;  // has a carrier
  std::vector<UniqueIdAddress> v4, v6, v6_link_local;
};

std::optional<UniqueIdAddress> FromSystem(const sockaddr* from) {
  UniqueIdAddress address;
  if (from->sa_family == AF_INET) {
    const auto* const in = reinterpret_cast<const sockaddr_in*>(from);
    address.family = 4;
    std::memcpy(address.address.data(), &in->sin_addr, 4);
    return address;
  }
  if (from->sa_family != AF_INET6) return std::nullopt;
  const auto* const in = reinterpret_cast<const sockaddr_in6*>(from);
  address.family = 6;
  std::memcpy(address.address.data(), &in->sin6_addr, 16);
  if (IN6_IS_ADDR_LINKLOCAL(&in->sin6_addr)) {
    address.scope = static_cast<uint16_t>(in->sin6_scope_id);
  }
  return address;
}

bool IsLinkLocal(const UniqueIdAddress& address) {
  in6_addr in{};
  std::memcpy(&in, address.address.data(), sizeof in);
  return address.family == 6 && IN6_IS_ADDR_LINKLOCAL(&in);
}

bool SameHost(const UniqueIdAddress& a, const UniqueIdAddress& b) {
  return a.family == b.family && a.address == b.address;
}

Result<std::vector<Interface>> ListInterfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return SystemErrorErrno("getifaddrs", errno);
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const std::optional<UniqueIdAddress> address = FromSystem(entry->ifa_addr);
    if (!address) continue;
    auto found = std::find_if(interfaces.begin(), interfaces.end(),
                              [&](const Interface& i) { return i.name == entry->ifa_name; });
    if (found == interfaces.end()) {
      interfaces.push_back({.name = entry->ifa_name,
                            .runs = (entry->ifa_flags & IFF_RUNNING) != 0,
                            .v4 = {},
                            .v6 = {},
                            .v6_link_local = {}});
      found = interfaces.end() - 1;
    }
    (address->family == 4    ? found->v4
     : IsLinkLocal(*address) ? found->v6_link_local
                             : found->v6)
        .push_back(*address);
  }
  return interfaces;
}

// One of each family first: some machines reach others by one of them only.
std::vector<UniqueIdAddress> AddressesOf(const Interface& interface, bool link_local) {
  std::vector<UniqueIdAddress> addresses;
  for (size_t i = 0; i < std::max(interface.v4.size(), interface.v6.size()); ++i) {
    if (i < interface.v4.size()) addresses.push_back(interface.v4[i]);
    if (i < interface.v6.size()) addresses.push_back(interface.v6[i]);
  }
  if (addresses.empty() && link_local && !interface.v6_link_local.empty()) {
    addresses.push_back(interface.v6_link_local.front());
  }
  return addresses;
}

struct Chosen {
  std::string interface;  // the first; "": none, so the loopback address
  std::vector<UniqueIdAddress> addresses;
};

Result<Chosen> ChooseInterfaces(std::string_view given) {
  const std::string_view pattern = given.empty() ? kStandardInterfaces : given;
  if (const Result<NameList> list = ParseNameList(pattern); !list.ok()) {
    return InvalidUsage(Escaped(fmt::format("socket_ifname (INCCL_SOCKET_IFNAME): \"{}\" is {}",
                                            given, list.status().message())));
  }
  Result<std::vector<Interface>> interfaces = ListInterfaces();
  if (!interfaces.ok()) return interfaces.status();
  std::string candidates;
  for (const Interface& interface : *interfaces) {
    candidates += (candidates.empty() ? "" : ", ") + interface.name;
  }
  const auto place = [&](const Interface& interface) {
    const bool inside = given.empty() && MatchesInterface(kOfContainers, interface.name);
    return (interface.runs ? 0 : 2) + (inside ? 1 : 0);
  };
  std::stable_sort(interfaces->begin(), interfaces->end(),
                   [&](const Interface& a, const Interface& b) { return place(a) < place(b); });
  Chosen chosen;
  for (const Interface& interface : *interfaces) {
    if (!MatchesInterface(given.empty() ? kStandardInterfaces : given, interface.name)) continue;
    const std::vector<UniqueIdAddress> addresses = AddressesOf(interface, !given.empty());
    if (addresses.empty()) continue;
    if (chosen.addresses.empty()) chosen.interface = interface.name;
    chosen.addresses.insert(chosen.addresses.end(), addresses.begin(), addresses.end());
    if (!given.empty()) break;
  }
  if (chosen.addresses.empty() && !given.empty()) {
    return InvalidUsage(
        fmt::format("socket_ifname (INCCL_SOCKET_IFNAME): \"{}\" matches no interface that is up "
                    "and has an address; there are {}",
                    Escaped(given), candidates));
  }
  if (chosen.addresses.empty()) {
    UniqueIdAddress loopback;
    loopback.address = {std::byte{127}, std::byte{0}, std::byte{0}, std::byte{1}};
    chosen.addresses.push_back(loopback);
  }
  if (chosen.addresses.size() > kMostListenAddresses) {
    chosen.addresses.resize(kMostListenAddresses);
  }
  return chosen;
}

std::string ListHosts(std::span<const UniqueIdAddress> addresses) {
  std::string list;
  for (const UniqueIdAddress& address : addresses) {
    char text[INET6_ADDRSTRLEN] = "?";
    inet_ntop(address.family == 6 ? AF_INET6 : AF_INET, address.address.data(), text, sizeof text);
    list += (list.empty() ? "" : ", ") + std::string(text);
  }
  return list;
}

std::optional<UniqueIdAddress> EndOf(int fd, int (*get)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (get(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return std::nullopt;
  return FromSystem(reinterpret_cast<const sockaddr*>(&storage));
}

}  // namespace

bool MatchesInterface(std::string_view pattern, std::string_view name) {
  const Result<NameList> list = ParseNameList(pattern);
  return list.ok() && list->Admits([&](std::string_view word) {
    return list->exact ? name == word : name.starts_with(word);
  });
}

namespace {

// A name that is being looked up: by a thread of its own, since getaddrinfo waits for a name server
// as long as the system's configuration says. Where the limit passes first, the thread is left
// alone.
struct Lookup {
  std::string host, port;
  Mutex mutex;
  CondVar changed;
  bool done INCCL_GUARDED_BY(mutex) = false;
  int error = 0;
  addrinfo* list = nullptr;

  ~Lookup() {
    if (list != nullptr) freeaddrinfo(list);
  }
  void Run(int flags) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    error = getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  }
};

Status LookUp(const std::shared_ptr<Lookup>& lookup, const LookupLimits& limits) {
  lookup->Run(AI_NUMERICHOST);
  if (lookup->error != EAI_NONAME) return Status::Ok();
  const Time begin = SystemClock().Now();
  Result<std::thread> thread = StartThread("inccl-lookup", [lookup] {
    lookup->Run(0);
    const MutexLock lock(&lookup->mutex);
    lookup->done = true;
    lookup->changed.NotifyAll();
  });
  if (!thread.ok()) return thread.status();
  thread->detach();
  const MutexLock lock(&lookup->mutex);
  while (!lookup->done) {
    const Time now = SystemClock().Now();
    if (now >= limits.deadline) {
      return TimeoutError(
          fmt::format("no name server has answered within {} ms", (now - begin) / kMillisecond));
    }
    if (Status status = limits.cancelled.Check(); !status.ok()) return status;
    lookup->changed.WaitFor(&lookup->mutex, std::min(limits.deadline - now, kCancelLag));
  }
  return Status::Ok();
}

}  // namespace

Result<UniqueIdAddress> ResolveAddress(const std::string& text, const LookupLimits& limits) {
  const size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const auto lookup = std::make_shared<Lookup>();
  lookup->host = host;
  lookup->port = port;
  if (Status status = LookUp(lookup, limits); !status.ok()) {
    return Status(status.code(),
                  fmt::format("INCCL_COMM_ID={}: {}", Escaped(text), status.message()));
  }
  if (lookup->error != 0) {
    return InvalidUsage(
        fmt::format("INCCL_COMM_ID={}: {}", Escaped(text), gai_strerror(lookup->error)));
  }
  const addrinfo* const list = lookup->list;
  const std::optional<UniqueIdAddress> found = FromSystem(list->ai_addr);
  if (!found) return InvalidUsage(fmt::format("INCCL_COMM_ID={}: no IP address", Escaped(text)));
  UniqueIdAddress address = *found;
  address.port =
      ntohs(address.family == 6 ? reinterpret_cast<const sockaddr_in6*>(list->ai_addr)->sin6_port
                                : reinterpret_cast<const sockaddr_in*>(list->ai_addr)->sin_port);
  if (IsLinkLocal(address) && address.scope == 0) {
    return InvalidUsage(
        fmt::format("INCCL_COMM_ID={}: a link-local address needs its interface: [{}%eth0]:{}",
                    Escaped(text), Escaped(host), address.port));
  }
  return address;
}

bool IsLoopback(const UniqueIdAddress& address) {
  if (address.family == 4) return address.address[0] == std::byte{127};
  UniqueIdAddress last;  // ::1
  last.address[15] = std::byte{1};
  return address.address == last.address;
}

Status CheckReach(const std::string& text, const UniqueIdAddress& address,
                  const Launcher& launcher) {
  if (!IsLoopback(address)) return Status::Ok();
  const std::string what =
      fmt::format("INCCL_COMM_ID={} is {} on this host, which no other reaches", Escaped(text),
                  ListHosts({&address, 1}));
  if (!launcher.elsewhere.empty()) {
    return InvalidUsage(fmt::format("{}, and {}", what, launcher.elsewhere));
  }
  const bool says_so =
      text.starts_with("localhost:") || text.starts_with("127.") || text.starts_with("[");
  if (launcher.rank == 0 && !says_so) {
    Log(LogLevel::kWarn, LogSubsystem::kBootstrap,
        "rank 0/{}: init: {}; ranks on other hosts need the address of an interface",
        launcher.nranks, what);
  }
  return Status::Ok();
}

Result<std::vector<UniqueIdAddress>> ChooseAddresses(std::string_view given) {
  Result<Chosen> chosen = ChooseInterfaces(given);
  if (!chosen.ok()) return chosen.status();
  return std::move(chosen->addresses);
}

std::optional<UniqueIdAddress> LocalAddress(int fd) { return EndOf(fd, getsockname); }
std::optional<UniqueIdAddress> RemoteAddress(int fd) { return EndOf(fd, getpeername); }

void MoveToFront(const UniqueIdAddress& first, std::vector<UniqueIdAddress>* addresses) {
  std::stable_partition(addresses->begin(), addresses->end(),
                        [&](const UniqueIdAddress& a) { return SameHost(a, first); });
}

void PutFirst(const UniqueIdAddress& first, std::vector<UniqueIdAddress>* addresses) {
  std::erase_if(*addresses, [&](const UniqueIdAddress& a) { return SameHost(a, first); });
  addresses->insert(addresses->begin(), first);
  if (addresses->size() > kMostListenAddresses) addresses->pop_back();
}

std::vector<UniqueIdAddress> OwnAddresses() {
  const Result<std::vector<Interface>> interfaces = ListInterfaces();
  std::vector<UniqueIdAddress> own;
  if (!interfaces.ok()) return own;
  for (const Interface& interface : *interfaces) {
    own.insert(own.end(), interface.v4.begin(), interface.v4.end());
    own.insert(own.end(), interface.v6.begin(), interface.v6.end());
  }
  return own;
}

void RemoveOwn(std::span<const UniqueIdAddress> own, std::vector<UniqueIdAddress>* addresses) {
  std::erase_if(*addresses, [&](const UniqueIdAddress& address) {
    return std::any_of(own.begin(), own.end(),
                       [&](const UniqueIdAddress& one) { return SameHost(one, address); });
  });
}

std::string IsAlsoHere(const std::string& peer, std::span<const UniqueIdAddress> addresses) {
  return fmt::format(
      "peer {} listens at {}, which this machine has, too: set INCCL_SOCKET_IFNAME on all ranks to "
      "an interface by which the machines reach each other",
      peer, ListHosts(addresses));
}

void SetScopes(std::string_view given, std::vector<UniqueIdAddress>* addresses) {
  if (std::none_of(addresses->begin(), addresses->end(), IsLinkLocal)) return;
  const Result<Chosen> chosen = ChooseInterfaces(given);
  const unsigned int index = chosen.ok() ? if_nametoindex(chosen->interface.c_str()) : 0;
  if (index == 0) return;
  for (UniqueIdAddress& address : *addresses) {
    if (IsLinkLocal(address)) address.scope = static_cast<uint16_t>(index);
  }
}

uint32_t LinkMbps(std::string_view pattern) {
  const Result<Chosen> chosen = ChooseInterfaces(pattern);
  if (!chosen.ok() || chosen->interface.size() >= IFNAMSIZ) return 0;
  const UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  ethtool_cmd settings{};
  settings.cmd = ETHTOOL_GSET;
  chosen->interface.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&settings);
  if (!fd.valid() || ioctl(fd.get(), SIOCETHTOOL, &request) != 0) return 0;
  const uint32_t speed = ethtool_cmd_speed(&settings);
  return speed <= INT_MAX ? speed : 0;  // SPEED_UNKNOWN
}

namespace {

std::span<const std::byte> AddressIn(const sockaddr_storage& storage) {
  if (storage.ss_family == AF_INET6) {
    return std::as_bytes(std::span(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr, 1));
  }
  return std::as_bytes(std::span(&reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr, 1));
}

bool SamePrefix(std::span<const std::byte> a, std::span<const std::byte> b, int bits) {
  const auto whole = static_cast<size_t>(bits / 8);
  if (!std::equal(a.begin(), a.begin() + bits / 8, b.begin())) return false;
  if (bits % 8 == 0) return true;
  return ((a[whole] ^ b[whole]) >> (8 - bits % 8)) == std::byte{0};
}

}  // namespace

Result<AddressFilter> AddressFilter::Parse(std::string_view list) {
  AddressFilter filter;
  while (!list.empty()) {
    const size_t comma = list.find(',');
    const std::string_view word = list.substr(0, comma);
    const size_t slash = word.find('/');
    Network network;
    const std::string address(word.substr(0, slash));
    if (address.find(':') != std::string::npos) network.family = AF_INET6;
    const int most = network.family == AF_INET6 ? 128 : 32;
    network.bits = most;
    bool good = inet_pton(network.family, address.c_str(), network.address.data()) == 1;
    if (slash != std::string_view::npos) {
      const std::string_view bits = word.substr(slash + 1);
      const auto [end, error] =
          std::from_chars(bits.data(), bits.data() + bits.size(), network.bits);
      good = good && error == std::errc() && end == bits.data() + bits.size() &&
             network.bits >= 0 && network.bits <= most;
    }
    if (!good) {
      return InvalidArgument(
          fmt::format("\"{}\" is no network like 10.0.0.0/8 or 2001:db8::/32", Escaped(word)));
    }
    filter.networks_.push_back(network);
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  return filter;
}

bool AddressFilter::Admits(const sockaddr_storage& address) const {
  return networks_.empty() ||
         std::any_of(networks_.begin(), networks_.end(), [&](const Network& network) {
           return network.family == address.ss_family &&
                  SamePrefix(network.address, AddressIn(address), network.bits);
         });
}

bool AddressFilter::AdmitsPeerOf(int fd, const sockaddr_storage& peer) const {
  if (Admits(peer)) return true;
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0) return false;
  const std::span<const std::byte> a = AddressIn(own), b = AddressIn(peer);
  return own.ss_family == peer.ss_family && std::equal(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace inccl::bootstrap
