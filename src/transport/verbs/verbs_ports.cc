// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs_ports.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include "config/values.h"

namespace inccl::verbs {
namespace {

// One entry of INCCL_IB_HCA: a device, and after a colon its port.
bool Matches(std::string_view entry, bool exact, std::string_view device, int port) {
  const size_t colon = entry.find(':');
  if (colon != std::string_view::npos) {
    const std::string_view digits = entry.substr(colon + 1);
    int wanted = 0;
    const auto [stop, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), wanted);
    if (error != std::errc() || stop != digits.data() + digits.size() || wanted != port) {
      return false;
    }
    entry = entry.substr(0, colon);
  }
  return exact ? device == entry : device.starts_with(entry);
}

}  // namespace

bool Admits(const std::string& hca, const std::string& device, int port) {
  const Result<NameList> list = ParseNameList(hca);  // checked when the variable was read
  if (!list.ok()) return false;
  if (list->names.empty()) return true;
  return list->Admits(
      [&](std::string_view entry) { return Matches(entry, list->exact, device, port); });
}

bool IsIpv4Mapped(const Gid& gid) {
  constexpr std::array<uint8_t, 12> kPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.data(), kPrefix.data(), kPrefix.size()) == 0;
}

bool IsLinkLocal(const Gid& gid) {
  return gid[0] == std::byte{0xfe} && (gid[1] & std::byte{0xc0}) == std::byte{0x80};
}

std::string ToText(const Gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  return inet_ntop(AF_INET6, gid.data(), text.data(), text.size()) != nullptr ? text.data() : "";
}

}  // namespace inccl::verbs
