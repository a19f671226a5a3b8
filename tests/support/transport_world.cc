// SPDX-License-Identifier: Apache-2.0
#include "support/transport_world.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <filesystem>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#if INCCL_TEST_VERBS
#include "fakes/verbs/fake_verbs.h"
#endif
#include "support/tcp_ends.h"
#include "transport/composite/composite_transport.h"
#include "transport/emulated/emulated.h"
#include "transport/loopback/loopback.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_transport.h"
#include "transport/verbs/verbs_transport.h"
#include "verify/sim_world.h"
#include "world/clock.h"
#include "world/limits.h"
#include "world/process_world.h"

namespace inccl::test {
namespace {

constexpr LinkOptions kLink = {.gbps = 100, .latency_us = 2, .clock = nullptr};
// Of one wait and of one sleep: only a hang gets there, or a machine that stands still.
constexpr Time kDeadline = 60 * kSecond * kSlowness, kLongestSleep = 10 * kSecond * kSlowness;
constexpr Time kOnTime = 200 * kMillisecond;  // after the limit of a sleep
constexpr double kWorldSeconds = 600;         // of all processes

template <typename T>
T Checked(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(result).value();
}

// Waits on the wakeup_event, as the library does, but with sleeps so long that one that ends by its
// limit, and then finds what it has waited for, is a lost wake-up.
class BlockingContext final : public RankContext {
 public:
  using RankContext::RankContext;

  void Progress() override { Checked(transport->Progress(SystemClock().Now())); }

 protected:
  void Wait(const std::function<bool()>& poll) override {
    const Time start = SystemClock().Now();
    WakeupEvent* wakeup_event = transport->wakeup_event();
    while (true) {
      for (int spin = 0; spin < 20; ++spin) {
        Progress();
        if (poll()) return;
      }
      const uint32_t token = wakeup_event->Arm();
      Progress();
      if (poll()) {
        wakeup_event->Disarm();
        return;
      }
      const Time now = SystemClock().Now();
      if (now - start > kDeadline) throw std::runtime_error("deadline: nothing came");
      const Time event = NextEvent(*transport);
      if (event != kNever) {
        wakeup_event->Wait(token, std::clamp<Time>(event - now, 0, kLongestSleep));
        continue;
      }
      wakeup_event->Wait(token, kLongestSleep);
      const Time late = SystemClock().Now() - now - kLongestSleep;
      if (late < 0 || late > kOnTime) continue;  // woken, or the machine stood still
      Progress();
      if (poll()) throw std::runtime_error("a wake-up was lost");
    }
  }
};

// A transport's end waits a second for what has not left yet. Where the machine stands still for as
// long, that would be lost, so it is waited for here.
void RunBody(RankContext& context, const std::function<void(RankContext&)>& body) {
  try {
    body(context);
    context.transport->Quiesce(SystemClock().Now() + kDeadline);
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
      Status status = ends[static_cast<size_t>(rank)]->Attach(
          peer, UniqueFd(dup(fds[0])), UniqueFd(dup(fds[1])), UniqueFd(dup(fds[2])),
          UniqueFd(dup(fds[3])));
      if (!status.ok()) throw std::runtime_error(status.message());
    }
  }
  return {std::make_move_iterator(ends.begin()), std::make_move_iterator(ends.end())};
}

constexpr size_t kSharedFds = 4;  // of ShmTransport

void SendFds(int socket, const std::vector<int>& fds) {
  const size_t bytes = fds.size() * sizeof(int);
  char byte = 'f';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(kSharedFds * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(bytes);
  message.msg_controllen = CMSG_SPACE(bytes);
  std::memcpy(CMSG_DATA(header), fds.data(), bytes);
  if (sendmsg(socket, &message, 0) != 1) throw std::runtime_error("sendmsg");
}

std::vector<int> ReceiveFds(int socket, size_t count = kSharedFds) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(kSharedFds * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (got != 1 || header == nullptr) throw std::runtime_error("recvmsg: a peer is gone");
  std::vector<int> fds(count);
  std::memcpy(fds.data(), CMSG_DATA(header), count * sizeof(int));
  return fds;
}

// Makes rank's end out of what travels over `sockets`, one per peer.
using JoinFunction = std::function<std::unique_ptr<Transport>(
    int rank, int nranks, const std::vector<UniqueFd>& sockets)>;

std::unique_ptr<Transport> JoinShm(int rank, int nranks, const std::vector<UniqueFd>& sockets) {
  std::unique_ptr<ShmTransport> shm = Checked(ShmTransport::Create(rank, nranks));
  for (int peer = 0; peer < nranks; ++peer) {
    if (peer != rank) SendFds(sockets[static_cast<size_t>(peer)].get(), shm->fds_to_share());
  }
  for (int peer = 0; peer < nranks; ++peer) {
    if (peer == rank) continue;
    const std::vector<int> fds = ReceiveFds(sockets[static_cast<size_t>(peer)].get());
    Status status =
        shm->Attach(peer, UniqueFd(fds[0]), UniqueFd(fds[1]), UniqueFd(fds[2]), UniqueFd(fds[3]));
    if (!status.ok()) throw std::runtime_error(status.message());
  }
  return shm;
}

// Sends `mine` to every peer and returns what they sent, by rank.
std::vector<std::vector<std::byte>> Swap(int rank, const std::vector<UniqueFd>& sockets,
                                         std::span<const std::byte> mine) {
  const size_t bytes = mine.size();
  for (size_t peer = 0; peer < sockets.size(); ++peer) {
    if (static_cast<int>(peer) == rank) continue;
    const int fd = sockets[peer].get();
    if (send(fd, &bytes, sizeof bytes, MSG_NOSIGNAL) != sizeof bytes ||
        send(fd, mine.data(), bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) {
      throw std::runtime_error("send: a peer is gone");
    }
  }
  std::vector<std::vector<std::byte>> theirs(sockets.size());
  for (size_t peer = 0; peer < sockets.size(); ++peer) {
    if (static_cast<int>(peer) == rank) continue;
    size_t length = 0;
    const int fd = sockets[peer].get();
    if (recv(fd, &length, sizeof length, MSG_WAITALL) != sizeof length) {
      throw std::runtime_error("recv: a peer is gone");
    }
    theirs[peer].resize(length);
    if (recv(fd, theirs[peer].data(), length, MSG_WAITALL) != static_cast<ssize_t>(length)) {
      throw std::runtime_error("recv: a peer is gone");
    }
  }
  return theirs;
}

void AttachAll(UcxTransport* end, int rank, const std::vector<std::vector<std::byte>>& addresses) {
  for (size_t peer = 0; peer < addresses.size(); ++peer) {
    if (static_cast<int>(peer) == rank) continue;
    Status status = end->Attach(static_cast<int>(peer), addresses[peer]);
    if (!status.ok()) throw std::runtime_error(status.message());
  }
}

// The machine's own devices instead of the stand-in's.
bool OnRdmaDevice() { return getenv("INCCL_TEST_RDMA") != nullptr; }

// On such a machine UCX takes the network that INCCL_UCX_TLS names.
UcxOptions UcxDefaults() {
  UcxOptions options;
  const char* const tls = OnRdmaDevice() ? getenv("INCCL_UCX_TLS") : nullptr;
  if (tls != nullptr) options.tls = tls;
  return options;
}

JoinFunction JoinUcx(const UcxOptions& options) {
  return [options](int rank, int nranks, const std::vector<UniqueFd>& sockets) {
    std::unique_ptr<UcxTransport> end = Checked(UcxTransport::Create(rank, nranks, options));
    AttachAll(end.get(), rank, Swap(rank, sockets, end->address()));
    const std::byte attached{1};
    Swap(rank, sockets, {&attached, 1});  // no rank leaves before all are attached
    return end;
  };
}

std::vector<std::unique_ptr<Transport>> MakeUcx(int nranks,
                                                const UcxOptions& options = UcxDefaults()) {
  std::vector<std::unique_ptr<UcxTransport>> ends;
  std::vector<std::vector<std::byte>> addresses;
  for (int rank = 0; rank < nranks; ++rank) {
    ends.push_back(Checked(UcxTransport::Create(rank, nranks, options)));
    const std::span<const std::byte> address = ends.back()->address();
    addresses.emplace_back(address.begin(), address.end());
  }
  for (int rank = 0; rank < nranks; ++rank) {
    AttachAll(ends[static_cast<size_t>(rank)].get(), rank, addresses);
  }
  return {std::make_move_iterator(ends.begin()), std::make_move_iterator(ends.end())};
}

// Both ends of a TCP connection over the loopback interface.
std::pair<UniqueFd, UniqueFd> TcpPair() {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.get(), name, length) != 0 || listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), name, &length) != 0) {
    throw std::runtime_error("no TCP listener");
  }
  UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(client.get(), name, length) != 0) throw std::runtime_error("connect");
  UniqueFd server(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!server.valid()) throw std::runtime_error("accept");
  return {std::move(client), std::move(server)};
}

// A key of its own for each direction of each connection.
bootstrap::Key KeyOf(int from, int to, int number) {
  bootstrap::Mac bytes{};
  bytes[0] = static_cast<std::byte>(from);
  bytes[1] = static_cast<std::byte>(to);
  bytes[2] = static_cast<std::byte>(number);
  return bootstrap::Key(bytes);
}

TcpSocket SocketOf(int rank, int peer, int number, UniqueFd fd) {
  return {.fd = std::move(fd),
          .send_key = KeyOf(rank, peer, number),
          .receive_key = KeyOf(peer, rank, number)};
}

void Attach(TcpTransport* end, int peer, std::vector<TcpSocket> sockets) {
  Status status = end->Attach(peer, std::move(sockets));
  if (!status.ok()) throw std::runtime_error(status.message());
}

std::vector<std::unique_ptr<Transport>> MakeTcp(int nranks, tcp::Protection protection,
                                                int sockets) {
  std::vector<std::unique_ptr<TcpTransport>> ends;
  for (int rank = 0; rank < nranks; ++rank) {
    ends.push_back(Checked(TcpTransport::Create(rank, nranks, protection)));
  }
  for (int i = 0; i < nranks; ++i) {
    for (int j = i + 1; j < nranks; ++j) {
      std::vector<TcpSocket> of_i, of_j;
      for (int number = 0; number < sockets; ++number) {
        auto [a, b] = TcpPair();
        of_i.push_back(SocketOf(i, j, number, std::move(a)));
        of_j.push_back(SocketOf(j, i, number, std::move(b)));
      }
      Attach(ends[static_cast<size_t>(i)].get(), j, std::move(of_i));
      Attach(ends[static_cast<size_t>(j)].get(), i, std::move(of_j));
    }
  }
  return {std::make_move_iterator(ends.begin()), std::make_move_iterator(ends.end())};
}

std::unique_ptr<Transport> JoinTcp(int rank, int nranks, const std::vector<UniqueFd>& sockets) {
  std::unique_ptr<TcpTransport> end =
      Checked(TcpTransport::Create(rank, nranks, tcp::Protection::kAuth));
  for (int peer = 0; peer < nranks; ++peer) {
    if (peer == rank) continue;
    const int socket = sockets[static_cast<size_t>(peer)].get();
    UniqueFd mine;
    if (peer > rank) {
      auto [a, b] = TcpPair();
      mine = std::move(a);
      SendFds(socket, {b.get()});
    } else {
      mine.Reset(ReceiveFds(socket, 1).front());
    }
    std::vector<TcpSocket> data;
    data.push_back(SocketOf(rank, peer, 0, std::move(mine)));
    Attach(end.get(), peer, std::move(data));
  }
  return end;
}

Status ProtectVerbs(VerbsTransport* end) {
  return end->Protect(KeyOf(1, 2, 3), bootstrap::AsBytes("these ranks"));
}

std::unique_ptr<Transport> JoinVerbs(int rank, int nranks, const std::vector<UniqueFd>& sockets) {
  std::unique_ptr<VerbsTransport> end = Checked(VerbsTransport::Create(rank, nranks, {}));
  const std::vector<std::vector<std::byte>> addresses = Swap(rank, sockets, end->address());
  Status status;
  for (int peer = 0; peer < nranks && status.ok(); ++peer) {
    if (peer != rank) status = end->Attach(peer, addresses[static_cast<size_t>(peer)], "");
  }
  if (status.ok()) status = ProtectVerbs(end.get());
  if (!status.ok()) throw std::runtime_error(status.message());
  const std::byte attached{1};
  Swap(rank, sockets, {&attached, 1});
  return end;
}

#if INCCL_TEST_VERBS
std::vector<std::unique_ptr<Transport>> MakeVerbs(int nranks, bool in_thread, uint64_t seed) {
  if (!OnRdmaDevice()) {
    fake_verbs::Machine machine = fake_verbs::Get().StandardMachine();
    machine.in_thread = in_thread;
    machine.seed = seed;
    fake_verbs::Get().SetMachine(machine);
  }
  const VerbsOptions options{.protection =
                                 in_thread ? tcp::Protection::kAuth : tcp::Protection::kNone};
  std::vector<std::unique_ptr<VerbsTransport>> ends;
  for (int rank = 0; rank < nranks; ++rank) {
    ends.push_back(Checked(VerbsTransport::Create(rank, nranks, options)));
  }
  for (int rank = 0; rank < nranks; ++rank) {
    VerbsTransport* const end = ends[static_cast<size_t>(rank)].get();
    for (int peer = 0; peer < nranks; ++peer) {
      if (peer == rank) continue;
      Status status = end->Attach(peer, ends[static_cast<size_t>(peer)]->address(), "");
      if (!status.ok()) throw std::runtime_error(status.message());
    }
    Status status = ProtectVerbs(end);
    if (!status.ok()) throw std::runtime_error(status.message());
  }
  return {std::make_move_iterator(ends.begin()), std::make_move_iterator(ends.end())};
}
#else
std::vector<std::unique_ptr<Transport>> MakeVerbs(int, bool, uint64_t) { return {}; }
#endif

// The ranks' hosts, by rank.
using HostOf = std::function<int(int rank)>;

std::unique_ptr<Transport> Compose(int rank, int nranks, const HostOf& host_of,
                                   std::unique_ptr<ShmTransport> shm,
                                   std::unique_ptr<UcxTransport> ucx) {
  PairTable table(nranks);
  for (int a = 0; a < nranks; ++a) {
    for (int b = 0; b < a; ++b) table.Set(a, b, host_of(a) == host_of(b) ? 0 : 1);
  }
  std::vector<CompositeTransport::Part> parts;
  parts.push_back({shm->caps(), std::move(shm)});
  parts.push_back({ucx->caps(), std::move(ucx)});
  return Checked(CompositeTransport::Create(rank, std::move(table), std::move(parts)));
}

std::vector<std::unique_ptr<Transport>> MakeComposite(int nranks, const HostOf& host_of) {
  std::vector<std::unique_ptr<ShmTransport>> shm;
  std::vector<std::unique_ptr<UcxTransport>> ucx;
  for (int rank = 0; rank < nranks; ++rank) {
    shm.push_back(Checked(ShmTransport::Create(rank, nranks)));
    ucx.push_back(Checked(UcxTransport::Create(rank, nranks)));
  }
  std::vector<std::unique_ptr<Transport>> ends;
  for (int rank = 0; rank < nranks; ++rank) {
    for (int peer = 0; peer < nranks; ++peer) {
      if (peer == rank) continue;
      const auto r = static_cast<size_t>(rank), p = static_cast<size_t>(peer);
      Status status;
      if (host_of(peer) == host_of(rank)) {
        const std::vector<int> fds = shm[p]->fds_to_share();
        status = shm[r]->Attach(peer, UniqueFd(dup(fds[0])), UniqueFd(dup(fds[1])),
                                UniqueFd(dup(fds[2])), UniqueFd(dup(fds[3])));
      } else {
        status = ucx[r]->Attach(peer, ucx[p]->address());
      }
      if (!status.ok()) throw std::runtime_error(status.message());
    }
  }
  for (int rank = 0; rank < nranks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    ends.push_back(Compose(rank, nranks, host_of, std::move(shm[r]), std::move(ucx[r])));
  }
  return ends;
}

JoinFunction JoinComposite(const HostOf& host_of) {
  return [host_of](int rank, int nranks, const std::vector<UniqueFd>& sockets) {
    std::unique_ptr<ShmTransport> shm = Checked(ShmTransport::Create(rank, nranks));
    std::unique_ptr<UcxTransport> ucx = Checked(UcxTransport::Create(rank, nranks));
    const auto shares_host = [&](int peer) {
      return peer != rank && host_of(peer) == host_of(rank);
    };
    for (int peer = 0; peer < nranks; ++peer) {
      if (shares_host(peer)) {
        SendFds(sockets[static_cast<size_t>(peer)].get(), shm->fds_to_share());
      }
    }
    for (int peer = 0; peer < nranks; ++peer) {
      if (!shares_host(peer)) continue;
      const std::vector<int> fds = ReceiveFds(sockets[static_cast<size_t>(peer)].get());
      Status status =
          shm->Attach(peer, UniqueFd(fds[0]), UniqueFd(fds[1]), UniqueFd(fds[2]), UniqueFd(fds[3]));
      if (!status.ok()) throw std::runtime_error(status.message());
    }
    const auto addresses = Swap(rank, sockets, ucx->address());
    for (int peer = 0; peer < nranks; ++peer) {
      if (peer == rank || shares_host(peer)) continue;
      Status status = ucx->Attach(peer, addresses[static_cast<size_t>(peer)]);
      if (!status.ok()) throw std::runtime_error(status.message());
    }
    const std::byte attached{1};
    Swap(rank, sockets, {&attached, 1});  // no rank leaves before all are attached
    return Compose(rank, nranks, host_of, std::move(shm), std::move(ucx));
  };
}

// sockets[i][j] is rank i's end towards rank j.
using Sockets = std::vector<std::vector<UniqueFd>>;

void RunChild(int rank, int nranks, Sockets sockets, uint64_t seed, bool link,
              const JoinFunction& join, const std::function<void(RankContext&)>& body) {
  const std::vector<UniqueFd> mine = std::move(sockets[static_cast<size_t>(rank)]);
  sockets.clear();  // so that a dead peer is an end of file
  std::unique_ptr<Transport> end = join(rank, nranks, mine);
  if (link) end = EmulateLink(std::move(end), kLink);
  BlockingContext context(rank, nranks, end.get(), Mix64(seed + static_cast<uint64_t>(rank)));
  RunBody(context, body);
}

void RunProcesses(int nranks, uint64_t seed, bool link, const JoinFunction& join,
                  const std::function<void(RankContext&)>& body) {
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
  ProcessWorld world({.nranks = nranks, .deadline_seconds = kWorldSeconds, .baseline = false},
                     [&](const Side& side) {
                       try {
                         RunChild(side.rank(), nranks, std::move(sockets), seed, link, join, body);
                       } catch (const std::exception& error) {
                         ADD_FAILURE() << "rank " << side.rank() << ": " << error.what();
                       }
                       return 0;
                     });
  sockets.clear();  // so that a dead peer is an end of file
  world.ExpectAllExited();
}

// One rank at a time, in threads that hand a baton around: a rank that finds nothing gives it back,
// and when no rank finds anything virtual time goes on. Deterministic but for the library's bugs.
class SimRunner {
 public:
  SimRunner(std::vector<std::unique_ptr<Transport>> ends, SimWorld* world, uint64_t seed)
      : ends_(std::move(ends)), world_(world), rng_(seed), ranks_(ends_.size()) {}

  void Run(uint64_t seed, const std::function<void(RankContext&)>& body);
  // Called by rank with the baton; throws if the run has stopped.
  void GiveBaton(size_t rank);
  const Clock& clock() const { return world_->clock(); }

 private:
  static constexpr size_t kScheduler = SIZE_MAX;
  struct RankState {
    bool finished = false;
    bool idle = false;  // found nothing since the last event
    std::condition_variable wake;
  };
  void TakeBaton(size_t rank, std::unique_lock<std::mutex>* lock) {
    ranks_[rank].wake.wait(*lock, [&] { return holder_ == rank; });
  }
  void Schedule();
  bool Advance();

  std::vector<std::unique_ptr<Transport>> ends_;
  SimWorld* world_;
  Rng rng_;
  std::mutex mutex_;
  std::condition_variable scheduler_wake_;
  size_t holder_ = kScheduler;
  bool stopped_ = false;
  std::deque<RankState> ranks_;
};

class SimContext final : public RankContext {
 public:
  SimContext(SimRunner* runner, int r, int n, Transport* t, uint64_t seed)
      : RankContext(r, n, t, seed), runner_(runner) {}
  void Progress() override { Checked(transport->Progress(runner_->clock().Now())); }

 protected:
  void Wait(const std::function<bool()>& poll) override {
    while (true) {
      Progress();
      if (poll()) return;
      runner_->GiveBaton(static_cast<size_t>(rank));
    }
  }

 private:
  SimRunner* runner_;
};

void SimRunner::GiveBaton(size_t rank) {
  std::unique_lock lock(mutex_);
  ranks_[rank].idle = true;
  holder_ = kScheduler;
  scheduler_wake_.notify_one();
  TakeBaton(rank, &lock);
  if (stopped_) throw std::runtime_error("deadlock: no event is left");
}

// To the next event of the world or of a living rank's link; false if there is none.
bool SimRunner::Advance() {
  Time next = world_->next_event();
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].finished) next = std::min(next, NextEvent(*ends_[rank]));
  }
  if (next == kNever) return false;
  world_->AdvanceTo(next);
  return true;
}

void SimRunner::Schedule() {
  std::unique_lock lock(mutex_);
  while (true) {
    std::vector<size_t> living, ready;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].finished) continue;
      living.push_back(rank);
      if (!ranks_[rank].idle) ready.push_back(rank);
    }
    if (living.empty()) return;
    if (ready.empty() || rng_.Below(4) == 0) {
      if (!Advance() && ready.empty()) stopped_ = true;
      for (const size_t rank : living) ranks_[rank].idle = false;
      ready = living;
    }
    holder_ = ready[rng_.Below(ready.size())];
    ranks_[holder_].wake.notify_one();
    scheduler_wake_.wait(lock, [&] { return holder_ == kScheduler; });
  }
}

void SimRunner::Run(uint64_t seed, const std::function<void(RankContext&)>& body) {
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    threads.emplace_back([&, rank] {
      {
        std::unique_lock lock(mutex_);
        TakeBaton(rank, &lock);
      }
      SimContext context(this, static_cast<int>(rank), static_cast<int>(ranks_.size()),
                         ends_[rank].get(), Mix64(seed + rank));
      RunBody(context, body);
      std::unique_lock lock(mutex_);
      ranks_[rank].finished = true;
      holder_ = kScheduler;
      scheduler_wake_.notify_one();
    });
  }
  Schedule();
  for (std::thread& thread : threads) thread.join();
}

void RunSim(int nranks, uint64_t seed, bool multicast, bool link,
            const std::function<void(RankContext&)>& body) {
  SimOptions options;
  options.multicast = multicast;
  SimWorld world(nranks, seed, options);
  std::vector<std::unique_ptr<Transport>> ends;
  for (int rank = 0; rank < nranks; ++rank) {
    ends.push_back(world.NewTransport(rank));
    LinkOptions link_options = kLink;
    link_options.clock = &world.clock();
    if (link) ends.back() = EmulateLink(std::move(ends.back()), link_options);
  }
  SimRunner(std::move(ends), &world, seed).Run(seed, body);
}

std::vector<std::unique_ptr<Transport>> WithLinks(std::vector<std::unique_ptr<Transport>> ends) {
  for (auto& end : ends) end = EmulateLink(std::move(end), kLink);
  return ends;
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

void RankContext::WaitUntil(const std::function<bool()>& poll) {
  looked_at_ = nullptr;
  try {
    Wait(poll);
  } catch (const std::runtime_error& error) {
    const std::string what =
        looked_at_ == nullptr ? "a condition" : looked_for_ + Describe(*looked_at_);
    throw std::runtime_error(fmt::format("waits for {}: {}", what, error.what()));
  }
}

std::unique_ptr<SendLane> RankContext::OpenSend(const LaneSpec& spec) {
  return Checked(transport->OpenSend(spec));
}
std::unique_ptr<RecvLane> RankContext::OpenRecv(const LaneSpec& spec) {
  return Checked(transport->OpenRecv(spec));
}
bool RankContext::CanAcquire(SendLane* lane) {
  looked_at_ = &lane->spec(), looked_for_ = "a credit of ";
  return Checked(lane->TryAcquire()).data != nullptr;
}
bool RankContext::CanPeek(RecvLane* lane) {
  looked_at_ = &lane->spec(), looked_for_ = "a slice of ";
  RecvLane::Incoming incoming;
  return Checked(lane->TryPeek(&incoming));
}
Span RankContext::Acquire(SendLane* lane) {
  WaitUntil([&] { return CanAcquire(lane); });
  return Checked(lane->TryAcquire());
}
RecvLane::Incoming RankContext::Peek(RecvLane* lane) {
  WaitUntil([&] { return CanPeek(lane); });
  RecvLane::Incoming incoming;
  EXPECT_TRUE(Checked(lane->TryPeek(&incoming)));
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
    case WorldKind::kSim: return "Sim";
    case WorldKind::kSimUnicast: return "SimUnicast";
    case WorldKind::kLink: return "Link";
    case WorldKind::kLinkProcesses: return "LinkProcesses";
    case WorldKind::kLinkSim: return "LinkSim";
    case WorldKind::kUcxThreads: return "UcxThreads";
    case WorldKind::kUcxProcesses: return "UcxProcesses";
    case WorldKind::kUcxTcp: return "UcxTcp";
    case WorldKind::kUcxBlind: return "UcxBlind";
    case WorldKind::kTcpThreads: return "TcpThreads";
    case WorldKind::kTcpProcesses: return "TcpProcesses";
    case WorldKind::kTcpEncrypted: return "TcpEncrypted";
    case WorldKind::kTcpOnDemand: return "TcpOnDemand";
    case WorldKind::kVerbs: return "Verbs";
    case WorldKind::kVerbsThread: return "VerbsThread";
    case WorldKind::kVerbsProcesses: return "VerbsProcesses";
    case WorldKind::kCompositeThreads: return "CompositeThreads";
    case WorldKind::kCompositeProcesses: return "CompositeProcesses";
  }
  return "?";
}

void RunRanks(WorldKind kind, int nranks, uint64_t seed,
              const std::function<void(RankContext&)>& body) {
  switch (kind) {
    case WorldKind::kLoopback: return RunThreads(MakeLoopback(nranks), seed, body);
    case WorldKind::kShmThreads: return RunThreads(MakeShm(nranks), seed, body);
    case WorldKind::kShmProcesses: return RunProcesses(nranks, seed, /*link=*/false, JoinShm, body);
    case WorldKind::kSim: return RunSim(nranks, seed, /*multicast=*/true, /*link=*/false, body);
    case WorldKind::kSimUnicast:
      return RunSim(nranks, seed, /*multicast=*/false, /*link=*/false, body);
    case WorldKind::kLink: return RunThreads(WithLinks(MakeLoopback(nranks)), seed, body);
    case WorldKind::kLinkProcesses: return RunProcesses(nranks, seed, /*link=*/true, JoinShm, body);
    case WorldKind::kLinkSim: return RunSim(nranks, seed, /*multicast=*/true, /*link=*/true, body);
    case WorldKind::kUcxThreads: return RunThreads(MakeUcx(nranks), seed, body);
    case WorldKind::kUcxProcesses:
      return RunProcesses(nranks, seed, /*link=*/false, JoinUcx(UcxDefaults()), body);
    case WorldKind::kUcxTcp:
      return RunProcesses(nranks, seed, /*link=*/false, JoinUcx({.tls = "tcp", .wake = true}),
                          body);
    case WorldKind::kUcxBlind:
      return RunThreads(MakeUcx(nranks, {.tls = UcxDefaults().tls, .wake = false}), seed, body);
    case WorldKind::kTcpThreads:
      return RunThreads(MakeTcp(nranks, tcp::Protection::kNone, 1), seed, body);
    case WorldKind::kTcpProcesses: return RunProcesses(nranks, seed, /*link=*/false, JoinTcp, body);
    case WorldKind::kTcpEncrypted:
      return RunThreads(MakeTcp(nranks, tcp::Protection::kEncrypt, 2), seed, body);
    case WorldKind::kTcpOnDemand: {
      std::vector<std::unique_ptr<TcpTransport>> ends =
          MakeTcpOnDemand(nranks, tcp::Protection::kAuth, 2).ends;
      return RunThreads(
          {std::make_move_iterator(ends.begin()), std::make_move_iterator(ends.end())}, seed, body);
    }
    case WorldKind::kVerbs: return RunThreads(MakeVerbs(nranks, false, seed), seed, body);
    case WorldKind::kVerbsThread: return RunThreads(MakeVerbs(nranks, true, seed), seed, body);
    case WorldKind::kVerbsProcesses:
      return RunProcesses(nranks, seed, /*link=*/false, JoinVerbs, body);
    case WorldKind::kCompositeThreads:
      return RunThreads(MakeComposite(nranks, [](int rank) { return rank / 2; }), seed, body);
    case WorldKind::kCompositeProcesses:
      return RunProcesses(nranks, seed, /*link=*/false,
                          JoinComposite([](int rank) { return rank % 2; }), body);
  }
}

std::vector<WorldKind> AllWorlds() {
  if (OnRdmaDevice() && getenv("INCCL_UCX_TLS") != nullptr) {
    return {WorldKind::kUcxBlind};  // UCX loses wake-ups over ud_verbs
  }
  if (OnRdmaDevice()) return {WorldKind::kVerbs, WorldKind::kVerbsProcesses};
  std::vector<WorldKind> worlds = {
      WorldKind::kLoopback,      WorldKind::kShmThreads,   WorldKind::kShmProcesses,
      WorldKind::kSim,           WorldKind::kSimUnicast,   WorldKind::kLink,
      WorldKind::kLinkProcesses, WorldKind::kLinkSim,      WorldKind::kTcpThreads,
      WorldKind::kTcpProcesses,  WorldKind::kTcpEncrypted, WorldKind::kTcpOnDemand};
  if (VerbsTransport::Built()) {
    worlds.insert(worlds.end(), {WorldKind::kVerbs, WorldKind::kVerbsThread});
  }
  if (UcxTransport::Built()) {
    for (const WorldKind kind :
         {WorldKind::kUcxThreads, WorldKind::kUcxProcesses, WorldKind::kUcxTcp,
          WorldKind::kUcxBlind, WorldKind::kCompositeThreads, WorldKind::kCompositeProcesses}) {
      worlds.push_back(kind);
    }
  }
  return worlds;
}

int CountFds() { return CountEntries("/proc/self/fd"); }

std::set<std::string> ShmNames() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    names.insert(entry.path().filename());
  }
  return names;
}

std::string NewShmNames(const std::set<std::string>& before, double seconds) {
  std::string left;
  const double limit = Seconds() + seconds;
  do {
    left.clear();
    for (const std::string& name : ShmNames()) {
      if (!before.contains(name)) left += name + " ";
    }
    if (!left.empty()) usleep(2000);
  } while (!left.empty() && Seconds() < limit);
  return left;
}

}  // namespace inccl::test
