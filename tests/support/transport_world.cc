// SPDX-License-Identifier: Apache-2.0
#include "support/transport_world.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <thread>
#include <vector>

#include "transport/loopback/loopback.h"
#include "transport/shm/shm_transport.h"

namespace inccl::test {
namespace {

constexpr Time kDeadline = 20 * kSecond;  // of one wait: only a hang gets there

template <typename T>
T Checked(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(result).value();
}

// Waits on the doorbell, as the library does, but with timeouts so long that a lost wake-up is a
// failure.
class BlockingContext final : public RankContext {
 public:
  using RankContext::RankContext;

  void Progress() override { Checked(transport->Progress(SystemClock().Now())); }

  void WaitUntil(const std::function<bool()>& poll) override {
    const Time start = SystemClock().Now();
    Doorbell* doorbell = transport->doorbell();
    while (true) {
      for (int spin = 0; spin < 20; ++spin) {
        Progress();
        if (poll()) return;
      }
      const uint32_t token = doorbell->Arm();
      Progress();
      if (poll()) {
        doorbell->Disarm();
        return;
      }
      const Time now = SystemClock().Now();
      if (now - start > kDeadline) throw std::runtime_error("deadline: nothing came");
      const Time event = transport->NextEvent();
      const Time longest = start + kDeadline + kSecond - now;
      doorbell->Wait(token, event == kNever ? longest : std::clamp<Time>(event - now, 0, longest));
    }
  }
};

void RunBody(RankContext& context, const std::function<void(RankContext&)>& body) {
  try {
    body(context);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << context.rank << ": " << error.what();
  }
}

void RunThreads(std::vector<std::unique_ptr<Transport>> ends, uint64_t seed,
                const std::function<void(RankContext&)>& body) {
  std::vector<std::thread> threads;
  const int nranks = static_cast<int>(ends.size());
  for (int rank = 0; rank < nranks; ++rank) {
    threads.emplace_back([&, rank, end = std::move(ends[static_cast<size_t>(rank)])]() mutable {
      BlockingContext context(rank, nranks, end.get(), Mix64(seed + static_cast<uint64_t>(rank)));
      RunBody(context, body);
      end.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<std::unique_ptr<Transport>> MakeShm(int nranks) {
  std::vector<std::unique_ptr<ShmTransport>> ends;
  for (int rank = 0; rank < nranks; ++rank)
    ends.push_back(Checked(ShmTransport::Create(rank, nranks)));
  for (int rank = 0; rank < nranks; ++rank) {
    for (int peer = 0; peer < nranks; ++peer) {
      if (peer == rank) continue;
      const std::vector<int> fds = ends[static_cast<size_t>(peer)]->fds_to_share();
      Status status = ends[static_cast<size_t>(rank)]->Attach(peer, UniqueFd(dup(fds[0])),
                                                              UniqueFd(dup(fds[1])));
      if (!status.ok()) throw std::runtime_error(status.message());
    }
  }
  return {std::make_move_iterator(ends.begin()), std::make_move_iterator(ends.end())};
}

void SendFds(int socket, const std::vector<int>& fds) {
  char byte = 'f';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(2 * sizeof(int));
  std::memcpy(CMSG_DATA(header), fds.data(), 2 * sizeof(int));
  if (sendmsg(socket, &message, 0) != 1) throw std::runtime_error("sendmsg");
}

std::vector<int> ReceiveFds(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (got != 1 || header == nullptr) throw std::runtime_error("recvmsg: a peer is gone");
  std::vector<int> fds(2);
  std::memcpy(fds.data(), CMSG_DATA(header), 2 * sizeof(int));
  return fds;
}

// sockets[i][j] is rank i's end towards rank j.
using Sockets = std::vector<std::vector<UniqueFd>>;

void RunChild(int rank, int nranks, Sockets sockets, uint64_t seed,
              const std::function<void(RankContext&)>& body) {
  const std::vector<UniqueFd> mine = std::move(sockets[static_cast<size_t>(rank)]);
  sockets.clear();  // so that a dead peer is an end of file
  std::unique_ptr<ShmTransport> end = Checked(ShmTransport::Create(rank, nranks));
  for (int peer = 0; peer < nranks; ++peer) {
    if (peer != rank) SendFds(mine[static_cast<size_t>(peer)].get(), end->fds_to_share());
  }
  for (int peer = 0; peer < nranks; ++peer) {
    if (peer == rank) continue;
    const std::vector<int> fds = ReceiveFds(mine[static_cast<size_t>(peer)].get());
    Status status = end->Attach(peer, UniqueFd(fds[0]), UniqueFd(fds[1]));
    if (!status.ok()) throw std::runtime_error(status.message());
  }
  BlockingContext context(rank, nranks, end.get(), Mix64(seed + static_cast<uint64_t>(rank)));
  RunBody(context, body);
}

void RunProcesses(int nranks, uint64_t seed, const std::function<void(RankContext&)>& body) {
  const auto n = static_cast<size_t>(nranks);
  Sockets sockets(n);
  for (auto& row : sockets) row.resize(n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i + 1; j < n; ++j) {
      int pair[2];
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
      sockets[i][j].Reset(pair[0]);
      sockets[j][i].Reset(pair[1]);
    }
  }
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < nranks; ++rank) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      try {
        RunChild(rank, nranks, std::move(sockets), seed, body);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
      std::fflush(nullptr);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(pid);
  }
  sockets.clear();
  for (size_t rank = 0; rank < n; ++rank) {
    int status = 0;
    ASSERT_EQ(waitpid(children[rank], &status, 0), children[rank]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "rank " << rank << " ended with wait status " << status;
  }
}

int CountEntries(const char* directory) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    static_cast<void>(entry);
    ++count;
  }
  return count;
}

}  // namespace

std::unique_ptr<SendLane> RankContext::OpenSend(const LaneSpec& spec) {
  return Checked(transport->OpenSend(spec));
}
std::unique_ptr<RecvLane> RankContext::OpenRecv(const LaneSpec& spec) {
  return Checked(transport->OpenRecv(spec));
}
bool RankContext::CanAcquire(SendLane* lane) { return Checked(lane->TryAcquire()).data != nullptr; }
bool RankContext::CanPeek(RecvLane* lane) {
  RecvLane::Incoming incoming;
  return Checked(lane->TryPeek(&incoming));
}
Span RankContext::Acquire(SendLane* lane) {
  Span span;
  WaitUntil([&] { return (span = Checked(lane->TryAcquire())).data != nullptr; });
  return span;
}
RecvLane::Incoming RankContext::Peek(RecvLane* lane) {
  RecvLane::Incoming incoming;
  WaitUntil([&] { return Checked(lane->TryPeek(&incoming)); });
  return incoming;
}
void RankContext::Publish(SendLane* lane, const SliceHeader& header) {
  if (Status status = lane->Publish(header); !status.ok()) {
    throw std::runtime_error(status.message());
  }
}
void RankContext::Release(RecvLane* lane) {
  if (Status status = lane->Release(); !status.ok()) throw std::runtime_error(status.message());
}
void RankContext::Signal(SendLane* lane) {
  Acquire(lane);
  Publish(lane, SliceHeader{});
}
void RankContext::Await(RecvLane* lane) {
  Peek(lane);
  Release(lane);
}

const char* Name(WorldKind kind) {
  switch (kind) {
    case WorldKind::kLoopback: return "Loopback";
    case WorldKind::kShmThreads: return "ShmThreads";
    case WorldKind::kShmProcesses: return "ShmProcesses";
  }
  return "?";
}

bool SharesMemory(WorldKind kind) { return kind != WorldKind::kShmProcesses; }

void RunRanks(WorldKind kind, int nranks, uint64_t seed,
              const std::function<void(RankContext&)>& body) {
  switch (kind) {
    case WorldKind::kLoopback: return RunThreads(MakeLoopback(nranks), seed, body);
    case WorldKind::kShmThreads: return RunThreads(MakeShm(nranks), seed, body);
    case WorldKind::kShmProcesses: return RunProcesses(nranks, seed, body);
  }
}

int CountFds() { return CountEntries("/proc/self/fd"); }
int CountShmNames() { return CountEntries("/dev/shm"); }

}  // namespace inccl::test
