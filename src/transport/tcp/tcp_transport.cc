// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/tcp_transport.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <utility>

#include "transport/lane_check.h"

namespace inccl {
namespace {

using bootstrap::Aead;
using tcp::Connection;
using tcp::FrameGuard;
using tcp::PeerLink;

constexpr Time kCloseLimit = kSecond;
constexpr int kEventsAtOnce = 64;
constexpr int kIdlePolls = 256;  // a rank that sleeps arms before (WaitPolicy)

timespec ToTimespec(Time time) {
  timespec out{};
  out.tv_sec = static_cast<time_t>(time / kSecond);
  out.tv_nsec = static_cast<decltype(out.tv_nsec)>(time % kSecond);
  return out;
}

Status ToStream(int fd) {
  const int one = 1;
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return SystemErrorErrno("fcntl of a data socket", errno);
  }
  // Other stream sockets have no such option.
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0 && errno != EOPNOTSUPP &&
      errno != ENOPROTOOPT) {
    return SystemErrorErrno("TCP_NODELAY", errno);
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<TcpTransport>> TcpTransport::Create(int rank, int nranks,
                                                           tcp::Protection protection) {
  if (nranks < 1 || rank < 0 || rank >= nranks) {
    return InvalidArgument(fmt::format("rank {} is not one of {} ranks", rank, nranks));
  }
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return SystemErrorErrno("tcp: epoll_create1", errno);
  std::unique_ptr<TcpTransport> made(new TcpTransport(rank, nranks, protection, std::move(epoll)));
  Result<std::unique_ptr<PollWakeupEvent>> event = PollWakeupEvent::Create({&made->wakeup_source_});
  if (!event.ok()) return event.status();
  made->wakeup_event_ = *std::move(event);
  return made;
}

TcpTransport::~TcpTransport() { Quiesce(SystemClock().Now() + kCloseLimit); }

Status TcpTransport::Attach(int peer, std::vector<TcpSocket> sockets, const std::string& name) {
  if (peer < 0 || peer >= nranks() || peer == rank_) {
    return InvalidArgument(
        fmt::format("rank {}: peer {} is not another one of {} ranks", rank_, peer, nranks()));
  }
  std::unique_ptr<PeerLink>& slot = peers_[static_cast<size_t>(peer)];
  if (slot != nullptr) {
    return InvalidUsage(fmt::format("rank {}: peer rank {} is attached twice", rank_, peer));
  }
  if (sockets.empty()) {
    return InvalidArgument(fmt::format("rank {}: peer rank {}: no data socket", rank_, peer));
  }
  const std::string prefix = fmt::format("rank {}: tcp: peer {}", rank_,
                                         name.empty() ? fmt::format("rank {}", peer) : name);
  const auto named = [&](const Status& status) {
    return Status(status.code(), fmt::format("{}: {}", prefix, status.message()));
  };
  auto link = std::make_unique<PeerLink>(peer, prefix);
  for (TcpSocket& socket : sockets) {
    if (Status status = ToStream(socket.fd.get()); !status.ok()) return named(status);
    Result<FrameGuard> out = FrameGuard::Create(protection_, socket.send_key, Aead::Use::kSeal);
    if (!out.ok()) return named(out.status());
    Result<FrameGuard> in = FrameGuard::Create(protection_, socket.receive_key, Aead::Use::kOpen);
    if (!in.ok()) return named(in.status());
    auto lanes = std::make_unique<tcp::ConnectionLanes>(rank_, prefix, std::move(socket.fd),
                                                        *std::move(out), *std::move(in));
    Connection* const connection = lanes->connection();
    link->Add(std::move(lanes));
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.ptr = connection;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection->fd(), &event) != 0) {
      return named(SystemErrorErrno("epoll_ctl", errno));
    }
  }
  attached_.push_back(link.get());
  slot = std::move(link);
  return Status::Ok();
}

Status TcpTransport::CheckOpen(const LaneSpec& spec, int peer,
                               const std::unordered_set<uint64_t>& opened,
                               const char* purpose) const {
  if (peers_[static_cast<size_t>(peer)] == nullptr) {
    return InvalidUsage(
        fmt::format("rank {}: {}: peer rank {} is not attached", rank_, Describe(spec), peer));
  }
  if (opened.contains(spec.Key())) {
    return InvalidUsage(
        fmt::format("rank {}: {} is opened twice for {}", rank_, Describe(spec), purpose));
  }
  return Status::Ok();
}

Result<std::unique_ptr<SendLane>> TcpTransport::OpenSend(const LaneSpec& spec) {
  Status status = CheckLaneSpec(spec, LaneSide::kSend, rank_, nranks(), *this);
  if (status.ok()) status = CheckOpen(spec, spec.consumers.front(), opened_send_, "sending");
  if (!status.ok()) return status;
  PeerLink* const link = peers_[static_cast<size_t>(spec.consumers.front())].get();
  tcp::ConnectionLanes* const lanes = link->Of(spec);
  Result<tcp::SendEnd*> end = lanes->OpenSend(spec);
  if (!end.ok()) return end.status();
  opened_send_.insert(spec.Key());
  memory_bytes_ += (*end)->slots.memory.bytes();
  return std::unique_ptr<SendLane>(new tcp::TcpSendLane(*end, lanes, link, &counters_));
}

Result<std::unique_ptr<RecvLane>> TcpTransport::OpenRecv(const LaneSpec& spec) {
  Status status = CheckLaneSpec(spec, LaneSide::kRecv, rank_, nranks(), *this);
  if (status.ok()) status = CheckOpen(spec, spec.producer, opened_recv_, "receiving");
  if (!status.ok()) return status;
  PeerLink* const link = peers_[static_cast<size_t>(spec.producer)].get();
  tcp::ConnectionLanes* const lanes = link->Of(spec);
  Result<tcp::RecvEnd*> end = lanes->OpenRecv(spec);
  if (!end.ok()) return end.status();
  opened_recv_.insert(spec.Key());
  memory_bytes_ += (*end)->slots.memory.bytes();
  return std::unique_ptr<RecvLane>(new tcp::TcpRecvLane(*end, lanes, link, &counters_));
}

void TcpTransport::Poll() {
  std::array<epoll_event, kEventsAtOnce> events;
  const int ready = epoll_wait(epoll_.get(), events.data(), kEventsAtOnce, 0);
  for (int i = 0; i < ready; ++i) {
    auto* const connection = static_cast<Connection*>(events[static_cast<size_t>(i)].data.ptr);
    const uint32_t what = events[static_cast<size_t>(i)].events;
    constexpr uint32_t kEnds = EPOLLRDHUP | EPOLLHUP | EPOLLERR;
    if ((what & (EPOLLIN | kEnds)) != 0) connection->SetReadable((what & kEnds) != 0);
    if ((what & (EPOLLOUT | EPOLLERR)) != 0) connection->SetWritable();
  }
}

Result<int> TcpTransport::Progress(Time now) {
  if (closed_) return 0;
  Poll();
  int frames = 0;
  for (PeerLink* const link : attached_) {
    Result<int> arrived = link->Progress(now);
    if (!arrived.ok()) return arrived;
    frames += *arrived;
  }
  // Most credits ride on slices that go the other way. A rank that waits gives back all of them,
  // because its peers may wait for them.
  idle_polls_ = frames == 0 ? std::min(idle_polls_ + 1, kIdlePolls) : 0;
  const bool all = arming_ || idle_polls_ >= kIdlePolls;
  arming_ = false;
  for (PeerLink* const link : attached_) {
    if (Status status = link->SendCredits(all); !status.ok()) return status;
  }
  return frames;
}

bool TcpTransport::unsent() const {
  return !closed_ && std::any_of(attached_.begin(), attached_.end(),
                                 [](const PeerLink* link) { return link->unsent(); });
}

void TcpTransport::AppendUnsent(std::vector<int>* ranks) const {
  for (const PeerLink* const link : attached_) {
    if (link->unsent()) ranks->push_back(link->peer());
  }
}

void TcpTransport::DropUnsent() {
  for (PeerLink* const link : attached_) link->DropUnsent();
}

bool TcpTransport::delivered() const {
  return closed_ || std::all_of(attached_.begin(), attached_.end(), [](const PeerLink* link) {
           return !link->unsent() && link->acknowledged();
         });
}

void TcpTransport::Quiesce(Time deadline) {
  constexpr Time kPause = 100 * kMicrosecond;
  if (closed_) return;
  // Closing a socket with unread bytes resets the connection, which discards what is still on its
  // way.
  arming_ = true;  // a peer may wait for the last credits
  while ((arming_ || !delivered()) && SystemClock().Now() < deadline) {
    const Status progress =
        CatchOutOfMemory([&] { return Progress(SystemClock().Now()).status(); });
    if (!progress.ok()) break;
    const timespec pause = ToTimespec(kPause);
    nanosleep(&pause, nullptr);
  }
  closed_ = true;
  if (sockets_ != nullptr) sockets_->RemoveAll(SocketList::Use::kData);
  for (PeerLink* const link : attached_) link->Close();
}

void TcpTransport::Source::Arm() { transport_->arming_ = true; }

bool TcpTransport::Source::Ready() {
  return std::none_of(transport_->attached_.begin(), transport_->attached_.end(),
                      [](const PeerLink* link) { return link->readable(); });
}

}  // namespace inccl
