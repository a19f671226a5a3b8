// SPDX-License-Identifier: Apache-2.0
#include "world/delay_bridge.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <functional>
#include <queue>
#include <utility>

#include "base/clock.h"

namespace inccl::test {
namespace {

// In front of each frame, so that the kernel still cuts large ones and fills in checksums:
// virtio_net_hdr, whose header C++ does not take.
constexpr size_t kOffloadHeader = 10;
constexpr size_t kMostBytes = kOffloadHeader + ETH_HLEN + 65536;
constexpr int kFramesAtOnce = 32;

struct Frame {
  Time due = 0;
  uint64_t number = 0;
  size_t to = 0;
  std::vector<char> bytes;

  bool operator>(const Frame& other) const {
    return std::pair(due, number) > std::pair(other.due, other.number);
  }
};

}  // namespace

std::string OpenPorts(int count, std::vector<int>* ports) {
  for (int host = 0; host < count; ++host) {
    const std::string name = fmt::format("port{}", host);
    const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, htons(ETH_P_ALL));
    const int on = 1, buffer = 8 << 20;
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = static_cast<int>(if_nametoindex(name.c_str()));
    if (fd < 0 || setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) != 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) != 0 ||
        bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      return fmt::format("{}: {}", name, std::strerror(errno));
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof buffer);
    ports->push_back(fd);
  }
  return "";
}

void RunDelayBridge(const DelayBridgeOptions& options, const std::vector<int>& ports) {
  std::priority_queue<Frame, std::vector<Frame>, std::greater<>> waiting;
  std::vector<pollfd> polls;
  for (const int fd : ports) polls.push_back({fd, POLLIN, 0});
  std::vector<char> buffer(kMostBytes);
  uint64_t number = 0;
  const auto delay = [&](size_t from, size_t to) {
    const auto sites = static_cast<size_t>(options.sites);
    return sites > 0 && from % sites == to % sites ? Time{0} : options.delay_ms * kMillisecond;
  };
  while (true) {
    bool busy = false;
    for (size_t from = 0; from < ports.size(); ++from) {
      for (int k = 0; k < kFramesAtOnce; ++k) {
        const ssize_t got = recv(ports[from], buffer.data(), buffer.size(), 0);
        if (got < static_cast<ssize_t>(kOffloadHeader + ETH_HLEN)) break;
        busy = true;
        const auto* const to_mac =
            reinterpret_cast<const unsigned char*>(buffer.data() + kOffloadHeader);
        const bool to_all = (to_mac[0] & 1) != 0;
        const Time now = SystemClock().Now();
        for (size_t to = 0; to < ports.size(); ++to) {
          if (to == from || !(to_all || to_mac[ETH_ALEN - 1] == to + 1)) continue;
          waiting.push({now + delay(from, to), ++number, to, {buffer.data(), buffer.data() + got}});
        }
      }
    }
    const Time now = SystemClock().Now();
    while (!waiting.empty() && waiting.top().due <= now) {
      const Frame& frame = waiting.top();
      // A port that is down, or a full queue, loses it.
      (void)send(ports[frame.to], frame.bytes.data(), frame.bytes.size(), 0);
      waiting.pop();
    }
    if (busy) continue;
    const Time wait =
        waiting.empty() ? kSecond : std::max<Time>(0, waiting.top().due - SystemClock().Now());
    const timespec timeout{static_cast<time_t>(wait / kSecond), static_cast<long>(wait % kSecond)};
    ppoll(polls.data(), polls.size(), &timeout, nullptr);
  }
}

}  // namespace inccl::test
