// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/region_inbox.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/own_fds.h"
#include "transport/mapped/layout.h"

namespace inccl::shm {
namespace {

constexpr uint32_t kMagic = 0x31667269;  // "irf1"
constexpr int kMostAtOnce = 4096;        // messages per Take, so a flooding peer cannot hold it

// One message; numbers are in host order.
struct Message {
  uint32_t magic;
  int32_t rank;
  uint32_t region;
  uint32_t reserved;
  uint64_t generation;
};
static_assert(sizeof(Message) == 24);

struct alignas(cmsghdr) ControlBuffer {
  char bytes[CMSG_SPACE(sizeof(int))];
};

}  // namespace

Sent SendRegionFile(int inbox, const RegionLabel& label, int file) {
  Message message = {kMagic, label.rank, label.region, 0, label.generation};
  iovec part = {.iov_base = &message, .iov_len = sizeof message};
  ControlBuffer control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.bytes;
  header.msg_controllen = sizeof control.bytes;
  cmsghdr* const c = CMSG_FIRSTHDR(&header);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof file);
  std::memcpy(CMSG_DATA(c), &file, sizeof file);
  while (sendmsg(inbox, &header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    const bool full = errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS ||
                      errno == ENOMEM || errno == ETOOMANYREFS;
    return full ? Sent::kLater : Sent::kNever;
  }
  return Sent::kYes;
}

Result<RegionInbox> RegionInbox::Create(int nranks) {
  int ends[2] = {-1, -1};
  RegionInbox inbox(nranks);
  inbox.own_ = OpenOwnFd([&] {
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0
               ? ends[0]
               : -1;
  });
  if (!inbox.own_.valid()) return SystemErrorErrno("socketpair for descriptors of regions", errno);
  inbox.for_peers_.Reset(ends[1]);
  return inbox;
}

bool RegionInbox::Receive() {
  Message message{};
  iovec part = {.iov_base = &message, .iov_len = sizeof message};
  ControlBuffer control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.bytes;
  header.msg_controllen = sizeof control.bytes;
  const ssize_t got = recvmsg(own_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return errno == EINTR;
  UniqueFd file;
  int files = 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i, ++files) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      file.Reset(fd);  // closes the previous one
    }
  }
  const bool whole = got == sizeof message && (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  if (!whole || files != 1 || message.magic != kMagic || message.rank < 0 ||
      message.rank >= nranks_ || message.region < 1 || message.region > mapped::kRegions) {
    return true;
  }
  waiting_[{message.rank, message.region}] = {message.generation, std::move(file)};
  return true;
}

UniqueFd RegionInbox::Take(const RegionLabel& label) {
  for (int i = 0; i < kMostAtOnce && Receive(); ++i) {
  }
  const auto found = waiting_.find({label.rank, label.region});
  if (found == waiting_.end() || found->second.generation > label.generation) return UniqueFd();
  UniqueFd file;
  if (found->second.generation == label.generation) file = std::move(found->second.fd);
  waiting_.erase(found);
  return file;
}

}  // namespace inccl::shm
