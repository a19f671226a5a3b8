// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/socket_list.h"

#include <linux/tcp.h>  // newer than netinet/tcp.h
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

namespace inccl {

void SocketList::Add(int peer, Use use, int fd) {
  const MutexLock lock(&mutex_);
  entries_.push_back({peer, use, fd});
}

void SocketList::Remove(int fd) {
  const MutexLock lock(&mutex_);
  std::erase_if(entries_, [fd](const Entry& entry) { return entry.fd == fd; });
}

void SocketList::RemoveAll(Use use) {
  const MutexLock lock(&mutex_);
  std::erase_if(entries_, [use](const Entry& entry) { return entry.use == use; });
}

std::vector<SocketList::Traffic> SocketList::Read() const {
  const MutexLock lock(&mutex_);
  std::vector<Traffic> all;
  for (const Entry& entry : entries_) {
    Traffic traffic{.peer = entry.peer, .use = entry.use};
    tcp_info info{};  // an older kernel fills less of it
    socklen_t length = sizeof info;
    traffic.tcp = getsockopt(entry.fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0;
    if (traffic.tcp) {
      traffic.sent = info.tcpi_bytes_sent;
      traffic.received = info.tcpi_bytes_received;
      traffic.acknowledged = info.tcpi_bytes_acked;
      traffic.retransmits = info.tcpi_total_retrans;
      traffic.rtt_us = info.tcpi_rtt;
      traffic.quiet_ms = info.tcpi_last_data_recv;
    }
    all.push_back(traffic);
  }
  return all;
}

Time SocketList::QuietFor(int peer) const {
  Time least = kNever;
  for (const Traffic& traffic : Read()) {
    if (traffic.peer != peer || traffic.use != Use::kData || !traffic.tcp) continue;
    least = std::min(least, static_cast<Time>(traffic.quiet_ms) * kMillisecond);
  }
  return least;
}

uint32_t RoundTripUs(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0;
  return info.tcpi_min_rtt == UINT32_MAX ? 0 : info.tcpi_min_rtt;  // none seen
}

}  // namespace inccl
