// SPDX-License-Identifier: Apache-2.0
#include "control/socket_member.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "bootstrap/socket.h"
#include "control/loop.h"

namespace inccl::control {
namespace {

using bootstrap::FrameParser;
using bootstrap::IoResult;

constexpr int kMostReadsAtOnce = 8;  // so that one peer cannot occupy the thread
constexpr Time kLeastResend = 200 * kMillisecond;
// Of a connection's queue. What ranks send through this one must not break a connection of it.
constexpr size_t kMostQueuedRouted = kMaxControlQueue / 2;
// Reserved per peer, so that an error message and a disconnect need no allocation.
constexpr size_t kReservedOut =
    kMostNotifiedBytes + 4 * (bootstrap::kFrameHeaderBytes + bootstrap::kTagBytes);

// Whether the origin repeats a frame that is lost.
bool SentAgain(uint8_t kind) { return kind == Router::kRouted || kind == Router::kAck; }

// Null for a complete graph. Takes what it needs out of the mesh.
std::unique_ptr<Router> MakeRouter(Mesh* mesh, const ControlOptions& options, Router::Emit emit) {
  if (mesh->graph.complete()) return nullptr;
  Router::Terms terms{.rank = mesh->rank,
                      .nranks = mesh->nranks,
                      .graph = std::move(mesh->graph),
                      .key = std::move(mesh->key),
                      .keys = {},
                      .communicator = mesh->data_terms.communicator,
                      .resend_after = std::max(2 * options.heartbeat, kLeastResend)};
  for (const Peer& peer : mesh->peers) terms.keys.push_back(*peer.info.key);
  return std::make_unique<Router>(std::move(terms), std::move(emit));
}

}  // namespace

SocketMember::SocketMember(Mesh mesh, ControlHandler* handler, const ControlOptions& options)
    : rank_(mesh.rank),
      handler_(handler),
      options_(options),
      sockets_(mesh.sockets),
      index_of_(mesh.peers.size(), -1),
      router_(MakeRouter(&mesh, options,
                         [this](int neighbour, uint8_t kind, std::span<const std::byte> body) {
                           out_mutex_.AssertHeld();
                           const int index = index_of_[static_cast<size_t>(neighbour)];
                           if (index < 0 || leaving_) return;
                           Connection& connection = connections_[static_cast<size_t>(index)];
                           if (connection.queued() > kMostQueuedRouted && SentAgain(kind)) return;
                           Enqueue(&connection, kind, body);
                         })) {
  const size_t header = router_ == nullptr ? 0 : Router::kMostHeaderBytes;
  const auto most = static_cast<uint32_t>(kMaxControlBody + header);
  for (size_t peer = 0; peer < mesh.peers.size(); ++peer) {
    if (!mesh.peers[peer].control.valid()) continue;
    index_of_[peer] = static_cast<int>(connections_.size());
    Connection& connection = connections_.emplace_back();
    connection.peer = static_cast<int>(peer);
    connection.index = static_cast<uint32_t>(connections_.size() - 1);
    connection.fd = std::move(mesh.peers[peer].control);
    connection.in = FrameParser(most);
    if (std::optional<bootstrap::StreamCipher>& cipher = mesh.peers[peer].cipher; cipher) {
      connection.seal = std::move(cipher->seal);
      connection.in.Protect(std::move(cipher->open));
    }
  }
}

Status SocketMember::Start(uint64_t id) {
  const MutexLock dispatch(&dispatch_mutex_);  // the first events wait until all is set up
  const MutexLock lock(&out_mutex_);
  id_ = id;
  const Time now = SystemClock().Now();
  for (Connection& connection : connections_) {
    connection.open = true;
    connection.heard = now;
    connection.out.reserve(kReservedOut);
    sockets_->Add(connection.peer, SocketList::Use::kControl, connection.fd.get());
    Status status = Loop::Get().Watch(id_, connection.index, connection.fd.get(), EPOLLIN);
    if (!status.ok()) return status;
  }
  Loop::Get().CallAt(id_, now);
  return Status::Ok();
}

void SocketMember::OnEvents(uint32_t index, uint32_t events) {
  Connection* const connection = &connections_[index];
  {
    const MutexLock lock(&out_mutex_);
    if (!connection->open) return;
    if ((events & EPOLLOUT) != 0) Flush(connection);
    if (connection->departed) {
      if ((events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0) Drop(connection);
      return;
    }
  }
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) == 0) return;
  Read(connection);
  FlushCorked();
}

void SocketMember::Read(Connection* connection) {
  const MutexLock dispatch(&dispatch_mutex_);
  // Only this thread, and Silence with dispatch_mutex_ held, close connections.
  if (silenced_ || !connection->open) return;
  std::array<std::byte, 16384> buffer;
  for (int i = 0; i < kMostReadsAtOnce; ++i) {
    const IoResult got = bootstrap::ReadSome(connection->fd.get(), buffer);
    if (got.error == EAGAIN) return;
    if (got.error != 0 || got.closed) return EndBroken(connection);
    connection->heard = SystemClock().Now();
    if (connection->out_of_step) continue;
    bool more = true;
    const Status status = CatchOutOfMemory([&] {
      connection->in.Append(std::span(buffer).first(got.bytes));
      dispatch_mutex_.AssertHeld();
      more = Deliver(connection);
      return Status::Ok();
    });
    if (!status.ok()) {  // part of a message may be lost, so later input cannot be parsed
      connection->out_of_step = true;
      handler_->OnOutOfMemory();
    }
    if (!more) return;
  }
}

bool SocketMember::Deliver(Connection* connection) {
  while (true) {
    FrameParser::Frame frame;
    const FrameParser::Next next = connection->in.Pop(&frame);
    if (next == FrameParser::Next::kNeedMore) return true;
    bool good = next == FrameParser::Next::kFrame;
    if (good && frame.kind == kDisconnect && frame.body.empty()) {
      EndClean(connection);
      return false;
    }
    if (good && frame.kind > kMostControlKind) {
      good = frame.kind == kHeartbeat || PassToRouter(*connection, frame);
    } else if (good && frame.kind != kDisconnect && frame.body.size() <= kMaxControlBody) {
      TellHandler([&] { handler_->OnMessage(connection->peer, frame.kind, frame.body); });
    } else {
      good = false;
    }
    if (good) continue;
    Log(LogLevel::kWarn, LogSubsystem::kControl, "rank {}: malformed control message from rank {}",
        rank_, connection->peer);
    EndBroken(connection);
    return false;
  }
}

bool SocketMember::PassToRouter(const Connection& connection, const FrameParser::Frame& frame) {
  Router::Message message;
  {
    const MutexLock lock(&out_mutex_);
    if (router_ == nullptr) return false;
    const bool was_acknowledged = router_->acknowledged();
    corked_ = true;
    const Status status = CatchOutOfMemory([&] {
      out_mutex_.AssertHeld();
      const bool good =
          router_->OnFrame(connection.peer, frame.kind, frame.body, SystemClock().Now(), &message);
      return good ? Status::Ok() : InternalError("malformed");
    });
    corked_ = false;
    if (status.code() == Code::kInternalError) return false;
    if (!status.ok()) throw std::bad_alloc();
    if (!was_acknowledged && router_->acknowledged()) flushed_.NotifyAll();
    if (router_->report_at() != kNever) Loop::Get().CallAt(id_, router_->report_at());
  }
  if (message.from >= 0) {
    TellHandler([&] { handler_->OnMessage(message.from, message.kind, message.body); });
  }
  TellGone();
  return true;
}

void SocketMember::ReportGone(const Connection& connection, Router::End end, Time silence) {
  if (router_ == nullptr) return;
  // Without memory others may hear of it from other neighbours only; the handler hears of it still.
  (void)CatchOutOfMemory([&] {
    out_mutex_.AssertHeld();
    router_->OnNeighbourGone(connection.peer, end, silence, SystemClock().Now());
    return Status::Ok();
  });
  flushed_.NotifyAll();  // what it has not acknowledged is no longer waited for
  if (router_->report_at() != kNever) Loop::Get().CallAt(id_, router_->report_at());
}

void SocketMember::TellGone() {
  while (true) {
    std::optional<Router::Gone> gone;
    {
      const MutexLock lock(&out_mutex_);
      if (router_ != nullptr) gone = router_->NextGone();
    }
    if (!gone) return;
    TellHandler([&] {
      switch (gone->end) {
        case Router::End::kSilent:
          return handler_->OnPeerSilent(gone->rank, gone->silence, options_.dead_after);
        case Router::End::kCutOff: return handler_->OnPeerCutOff(gone->rank);
        default: return handler_->OnPeerClosed(gone->rank, gone->end == Router::End::kLeft);
      }
    });
  }
}

void SocketMember::EndClean(Connection* connection) {
  {
    const MutexLock lock(&out_mutex_);
    connection->departed = true;
    SetEvents(connection);
    ReportGone(*connection, Router::End::kLeft, 0);
  }
  TellHandler([&] { handler_->OnPeerClosed(connection->peer, true); });
  TellGone();
}

void SocketMember::EndBroken(Connection* connection) {
  {
    const MutexLock lock(&out_mutex_);
    Drop(connection);
    ReportGone(*connection, Router::End::kClosed, 0);
  }
  TellHandler([&] { handler_->OnPeerClosed(connection->peer, false); });
  TellGone();
}

void SocketMember::EndSilent(Connection* connection, Time silence) {
  {
    const MutexLock lock(&out_mutex_);
    ReportGone(*connection, Router::End::kSilent, silence);
  }
  TellHandler([&] { handler_->OnPeerSilent(connection->peer, silence, options_.dead_after); });
  TellGone();
  const MutexLock lock(&out_mutex_);
  Drop(connection);
}

void SocketMember::Beat(Time now) {
  for (Connection& connection : connections_) {
    {
      const MutexLock lock(&out_mutex_);
      if (!connection.open || connection.departed) continue;
      // Data that still waits to be written, or to be read, replaces a heartbeat.
      if (!leaving_ && connection.queued() == 0 && !HasUnread(connection)) {
        Enqueue(&connection, kHeartbeat, {});
      }
    }
    if (now - connection.heard > options_.dead_after)
      EndSilent(&connection, now - connection.heard);
  }
  // All communicators of a process use the same times, so the thread wakes once for all of them.
  next_beat_ = (now / options_.heartbeat + 1) * options_.heartbeat;
}

Time SocketMember::OnTime(Time now, Time late) {
  const MutexLock dispatch(&dispatch_mutex_);
  if (silenced_) return kNever;
  for (Connection& connection : connections_) {
    connection.heard = std::min(now, connection.heard + late);
  }
  if (now >= next_beat_) Beat(now);
  const MutexLock lock(&out_mutex_);
  if (router_ == nullptr || leaving_) return next_beat_;
  router_->OnTime(now);
  return std::min(next_beat_, router_->report_at());
}

}  // namespace inccl::control
