// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/address_filter.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <span>

#include "base/escaped.h"

namespace inccl::bootstrap {
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
