// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <vector>

#include "base/fd.h"
#include "world/limits.h"

namespace inccl::test {
namespace {

struct Pair {
  UniqueFd mine, other;
};

Pair MakePair() {
  int ends[2] = {-1, -1};
  Pair pair;
  pair.mine = OpenOwnFd(
      [&] { return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0 ? ends[0] : -1; });
  pair.other.Reset(ends[1]);
  return pair;
}

// The child's exit code.
int InChild(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool SeesTheEnd(const UniqueFd& fd, int milliseconds = 0) {
  pollfd readable = {.fd = fd.get(), .events = POLLIN, .revents = 0};
  poll(&readable, 1, milliseconds);
  char byte = 0;
  return recv(fd.get(), &byte, 1, MSG_DONTWAIT) == 0;
}

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(OwnFdsTest, AChildDoesNotKeepTheConnectionsOfItsParent) {
  Pair pair = MakePair();
  int alive[2];
  ASSERT_EQ(pipe(alive), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(alive[1]);
    char byte = 0;
    _exit(static_cast<int>(read(alive[0], &byte, 1)));  // 0 when the parent lets it go
  }
  close(alive[0]);
  pair.mine.Reset();
  EXPECT_TRUE(SeesTheEnd(pair.other, 20000 * kSlowness));  // as soon as the child begins to run
  close(alive[1]);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(OwnFdsTest, AChildDoesNotEndTheConnectionsOfItsParent) {
  const Pair pair = MakePair();
  const int number = pair.mine.get();
  EXPECT_EQ(InChild([&] {
              if (send(number, "x", 1, MSG_NOSIGNAL) >= 0 || errno != EBADF) return 1;
              if (shutdown(number, SHUT_RDWR) == 0) return 2;
              return close(number) == 0 ? 0 : 3;
            }),
            0);
  EXPECT_FALSE(SeesTheEnd(pair.other));
  EXPECT_EQ(send(number, "x", 1, MSG_NOSIGNAL), 1);
}

// Where an owner in the child closes its number, nobody else has been given that number.
TEST(OwnFdsTest, TheNumberStaysTakenInTheChild) {
  std::vector<Pair> pairs;
  for (int i = 0; i < 100; ++i) pairs.push_back(MakePair());
  const int before = UniqueFd(dup(0)).get();
  EXPECT_EQ(InChild([&] {
              for (const Pair& pair : pairs) {
                if (!IsOpen(pair.mine.get()) || !IsOpen(pair.other.get())) return 1;
              }
              if (UniqueFd(dup(0)).get() != before) return 2;
              const int fd = pairs[50].mine.get();
              pairs.clear();
              return IsOpen(fd) ? 3 : 0;
            }),
            0);
}

TEST(OwnFdsTest, AChildOfAChildAndANewDescriptorThere) {
  const Pair pair = MakePair();
  EXPECT_EQ(InChild([] {
              Pair fresh = MakePair();
              const int code = InChild([&] {
                return send(fresh.mine.get(), "x", 1, MSG_NOSIGNAL) < 0 && errno == EBADF ? 0 : 1;
              });
              if (code != 0) return code;
              if (send(fresh.mine.get(), "x", 1, MSG_NOSIGNAL) != 1) return 2;
              fresh.mine.Reset();
              char bytes[2];
              return recv(fresh.other.get(), bytes, 2, 0) == 1 && SeesTheEnd(fresh.other) ? 0 : 3;
            }),
            0);
  EXPECT_FALSE(SeesTheEnd(pair.other));
}

// The child of a process that has all descriptors of its limit in use.
TEST(OwnFdsTest, WithoutAFreeDescriptor) {
  const Pair pair = MakePair();
  EXPECT_EQ(InChild([&] {
              const rlimit few = {.rlim_cur = 40, .rlim_max = 40};
              if (setrlimit(RLIMIT_NOFILE, &few) != 0) return 1;
              std::vector<Pair> pairs;
              for (Pair next = MakePair(); next.mine.valid(); next = MakePair()) {
                pairs.push_back(std::move(next));
              }
              while (dup(0) >= 0) {
              }
              return InChild([&] {
                for (const Pair& each : pairs) {
                  const int fd = each.mine.get();
                  if (send(fd, "x", 1, MSG_NOSIGNAL) >= 0 || errno != EBADF) return 4;
                  if (!IsOpen(fd)) return 5;
                }
                return pairs.empty() ? 6 : 0;
              });
            }),
            0);
}

// A closed descriptor is no longer meant, whoever has its number now.
TEST(OwnFdsTest, TheNextDescriptorOfTheSameNumberStaysWithTheChild) {
  Pair pair = MakePair();
  const Pair other = MakePair();
  const int number = pair.mine.get();
  pair.mine.Reset();
  const UniqueFd reused(fcntl(other.other.get(), F_DUPFD_CLOEXEC, number));
  ASSERT_EQ(reused.get(), number);
  EXPECT_EQ(InChild([&] { return send(number, "x", 1, MSG_NOSIGNAL) == 1 ? 0 : 1; }), 0);
}

}  // namespace
}  // namespace inccl::test
