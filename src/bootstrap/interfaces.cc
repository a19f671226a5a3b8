// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/interfaces.h"

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
#include <climits>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "base/escaped.h"
#include "base/fd.h"
#include "config/values.h"

namespace inccl::bootstrap {
namespace {

constexpr std::string_view kStandardInterfaces = "^lo,docker,virbr";

struct Interface {
  std::string name;
  std::optional<UniqueIdAddress> v4, v6, v6_link_local;
};

void AddAddress(const ifaddrs& entry, Interface* interface) {
  UniqueIdAddress address;
  if (entry.ifa_addr->sa_family == AF_INET) {
    const auto* const in = reinterpret_cast<const sockaddr_in*>(entry.ifa_addr);
    address.family = 4;
    std::memcpy(address.address.data(), &in->sin_addr, 4);
    if (!interface->v4) interface->v4 = address;
    return;
  }
  const auto* const in = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr);
  address.family = 6;
  std::memcpy(address.address.data(), &in->sin6_addr, 16);
  if (IN6_IS_ADDR_LINKLOCAL(&in->sin6_addr)) {
    address.scope = static_cast<uint16_t>(in->sin6_scope_id);
    if (!interface->v6_link_local) interface->v6_link_local = address;
  } else if (!interface->v6) {
    interface->v6 = address;
  }
}

Result<std::vector<Interface>> ListInterfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return SystemErrorErrno("getifaddrs", errno);
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    auto found = std::find_if(interfaces.begin(), interfaces.end(),
                              [&](const Interface& i) { return i.name == entry->ifa_name; });
    if (found == interfaces.end()) {
      interfaces.push_back({.name = entry->ifa_name, .v4 = {}, .v6 = {}, .v6_link_local = {}});
      found = interfaces.end() - 1;
    }
    AddAddress(*entry, &*found);
  }
  return interfaces;
}

struct Chosen {
  std::string interface;  // "": none, so the loopback address
  std::vector<UniqueIdAddress> addresses;
};

Result<Chosen> ChooseInterface(std::string_view given) {
  const std::string_view pattern = given.empty() ? kStandardInterfaces : given;
  if (const Result<NameList> list = ParseNameList(pattern); !list.ok()) {
    return InvalidUsage(Escaped(fmt::format("socket_ifname (INCCL_SOCKET_IFNAME): \"{}\" is {}",
                                            given, list.status().message())));
  }
  Result<std::vector<Interface>> interfaces = ListInterfaces();
  if (!interfaces.ok()) return interfaces.status();
  std::string candidates;
  for (const Interface& interface : *interfaces) {
    if (MatchesInterface(pattern, interface.name)) {
      std::vector<UniqueIdAddress> addresses;
      if (interface.v4) addresses.push_back(*interface.v4);
      if (interface.v6) addresses.push_back(*interface.v6);
      if (addresses.empty() && !given.empty()) addresses.push_back(*interface.v6_link_local);
      if (!addresses.empty()) return Chosen{interface.name, std::move(addresses)};
    }
    candidates += (candidates.empty() ? "" : ", ") + interface.name;
  }
  if (given.empty()) {
    UniqueIdAddress loopback;
    loopback.address = {std::byte{127}, std::byte{0}, std::byte{0}, std::byte{1}};
    return Chosen{"", {loopback}};
  }
  return InvalidUsage(
      fmt::format("socket_ifname (INCCL_SOCKET_IFNAME): \"{}\" matches no interface that is up and "
                  "has an address; there are {}",
                  Escaped(given), candidates));
}

}  // namespace

bool MatchesInterface(std::string_view pattern, std::string_view name) {
  const Result<NameList> list = ParseNameList(pattern);
  return list.ok() && list->Admits([&](std::string_view word) {
    return list->exact ? name == word : name.starts_with(word);
  });
}

Result<UniqueIdAddress> ResolveAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  if (error != 0) {
    return InvalidUsage(fmt::format("INCCL_COMM_ID={}: {}", Escaped(text), gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  UniqueIdAddress address;
  if (list->ai_family == AF_INET6) {
    const auto* const in = reinterpret_cast<const sockaddr_in6*>(list->ai_addr);
    address.family = 6;
    std::memcpy(address.address.data(), &in->sin6_addr, 16);
    address.port = ntohs(in->sin6_port);
    address.scope = static_cast<uint16_t>(in->sin6_scope_id);
  } else {
    const auto* const in = reinterpret_cast<const sockaddr_in*>(list->ai_addr);
    std::memcpy(address.address.data(), &in->sin_addr, 4);
    address.port = ntohs(in->sin_port);
  }
  return address;
}

bool IsLoopback(const UniqueIdAddress& address) {
  if (address.family == 4) return address.address[0] == std::byte{127};
  UniqueIdAddress last;  // ::1
  last.address[15] = std::byte{1};
  return address.address == last.address;
}

Result<std::vector<UniqueIdAddress>> ChooseAddresses(std::string_view given) {
  Result<Chosen> chosen = ChooseInterface(given);
  if (!chosen.ok()) return chosen.status();
  return std::move(chosen->addresses);
}

void SetScopes(std::string_view given, std::vector<UniqueIdAddress>* addresses) {
  const auto is_link_local = [](const UniqueIdAddress& address) {
    in6_addr in{};
    std::memcpy(&in, address.address.data(), sizeof in);
    return address.family == 6 && IN6_IS_ADDR_LINKLOCAL(&in);
  };
  if (std::none_of(addresses->begin(), addresses->end(), is_link_local)) return;
  const Result<Chosen> chosen = ChooseInterface(given);
  const unsigned int index = chosen.ok() ? if_nametoindex(chosen->interface.c_str()) : 0;
  if (index == 0) return;
  for (UniqueIdAddress& address : *addresses) {
    if (is_link_local(address)) address.scope = static_cast<uint16_t>(index);
  }
}

uint32_t LinkMbps(std::string_view pattern) {
  const Result<Chosen> chosen = ChooseInterface(pattern);
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

}  // namespace inccl::bootstrap
