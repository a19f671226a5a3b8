// SPDX-License-Identifier: Apache-2.0
//
// Descriptors over a stream, from a peer that sends any bytes in any pieces, with any number of
// descriptors beside each: what is received are as many descriptors as were announced, all of them
// open, and none is left behind.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "bootstrap/socket.h"
#include "fuzz/fuzz.h"

namespace inccl::fuzz {
namespace {

constexpr size_t kMost = bootstrap::kMaxSharedFds + 4;

int LowestFree() { return UniqueFd(fcntl(0, F_DUPFD_CLOEXEC, 0)).get(); }

void SendPiece(int socket, Data bytes, int file, size_t fds) {
  if (bytes.empty()) return;
  iovec part = {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  std::array<int, kMost> numbers;
  numbers.fill(file);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof numbers)] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (fds > 0) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds * sizeof(int));
    cmsghdr* const c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds * sizeof(int));
    std::memcpy(CMSG_DATA(c), numbers.data(), fds * sizeof(int));
  }
  Require(sendmsg(socket, &header, MSG_DONTWAIT) >= 0, "a small message fits");
}

void Exchange(Data data, int file) {
  int ends[2];
  Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0, "a pair");
  const UniqueFd receiver(ends[0]);
  UniqueFd sender(ends[1]);
  bootstrap::FdReceiver received;
  Input input(data);
  for (int pieces = 0; pieces < 8 && !input.empty(); ++pieces) {
    const size_t fds = input.Below(kMost + 1), bytes = 1 + input.Byte() % 12;
    SendPiece(sender.get(), input.Take(bytes), file, fds);
    const Result<bool> complete = received.Receive(receiver.get());
    if (!complete.ok()) return;
    if (!*complete) continue;
    const std::vector<UniqueFd> taken = received.Take();
    Require(taken.size() <= 8 * kMost, "no more than were sent");
    for (const UniqueFd& fd : taken) {
      Require(fcntl(fd.get(), F_GETFD) == FD_CLOEXEC, "open, and closed by exec");
    }
    return;
  }
  sender.Reset();
  const Result<bool> ended = received.Receive(receiver.get());
  Require(!ended.ok() || *ended, "the end of a connection is no reason to wait");
}

}  // namespace

void Run(Data data) {
  static const UniqueFd file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int free = LowestFree();
  Exchange(data, file.get());
  Require(LowestFree() == free, "no descriptor is left");
}

std::vector<std::vector<std::byte>> Examples() {
  const auto piece = [](uint8_t fds, const std::string& bytes) {
    std::vector<std::byte> example = {std::byte{fds}, std::byte{0},
                                      static_cast<std::byte>(bytes.size() - 1)};
    const std::vector<std::byte> text = FromText(bytes);
    example.insert(example.end(), text.begin(), text.end());
    return example;
  };
  using namespace std::string_literals;
  std::vector<std::byte> torn = piece(2, "icf1"s);
  const std::vector<std::byte> rest = piece(1, "\x03\0\0\0"s);
  torn.insert(torn.end(), rest.begin(), rest.end());
  return {piece(2, "icf1\x02\0\0\0"s), piece(0, "icf1\0\0\0\0"s), piece(17, "icf1\x11\0\0\0"s),
          piece(1, "icf1\x02\0\0\0"s), torn};
}

}  // namespace inccl::fuzz
