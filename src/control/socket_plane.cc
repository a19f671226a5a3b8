// SPDX-License-Identifier: Apache-2.0
#include "control/socket_plane.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

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
                      .key = mesh->data_terms.own,
                      .keys = {},
                      .communicator = mesh->data_terms.communicator,
                      .resend_after = std::max(2 * options.heartbeat, kLeastResend)};
  for (const Peer& peer : mesh->peers) terms.keys.push_back(peer.info.key);
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
    if (now - connection.heard <= options_.dead_after) continue;
    // Where a link loses much, one connection may stand still while others carry the peer's data.
    const Time quiet = sockets_->QuietFor(connection.peer);
    if (quiet <= options_.dead_after) {
      connection.heard = std::max(connection.heard, now - quiet);
    } else {
      EndSilent(&connection, now - connection.heard);
    }
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

// SocketMember's way out: what is sent, and the end of sending.

namespace {

using bootstrap::IoResult;

constexpr Time kLongestFlush = 3600 * kSecond;
constexpr Time kLongestWait = kSecond;  // for far ranks, of which one may be stopped

// What the peer has not read (unix sockets), or its machine not acknowledged (TCP).
int BytesOut(int fd) {
  int bytes = 0;
  return ioctl(fd, SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

}  // namespace

bool SocketMember::CanSend(uint8_t kind, std::span<const std::byte> body) const {
  if (kind == kDisconnect || kind > kMostControlKind) return false;
  if (body.size() <= kMaxControlBody) return true;
  Log(LogLevel::kWarn, LogSubsystem::kControl,
      "rank {}: a control message of {} bytes is too large", rank_, body.size());
  return false;
}

void SocketMember::Send(int peer, uint8_t kind, std::span<const std::byte> body) {
  if (peer < 0 || static_cast<size_t>(peer) >= index_of_.size() || peer == rank_) return;
  if (!CanSend(kind, body)) return;
  const MutexLock lock(&out_mutex_);
  if (leaving_) return;
  if (IsNeighbour(peer)) {
    Enqueue(&connections_[static_cast<size_t>(index_of_[static_cast<size_t>(peer)])], kind, body);
  } else if (router_ != nullptr) {
    router_->Send(peer, kind, body, SystemClock().Now());
  }
}

void SocketMember::Broadcast(uint8_t kind, std::span<const std::byte> body) {
  if (router_ == nullptr) return SendToNeighbours(kind, body);
  if (!CanSend(kind, body)) return;
  const MutexLock lock(&out_mutex_);
  if (!leaving_) router_->Broadcast(kind, body);
}

void SocketMember::SendToNeighbours(uint8_t kind, std::span<const std::byte> body) {
  if (!CanSend(kind, body)) return;
  const MutexLock lock(&out_mutex_);
  for (Connection& connection : connections_) {
    if (!leaving_) Enqueue(&connection, kind, body);
  }
}

bool SocketMember::IsNeighbour(int peer) const {
  return peer >= 0 && static_cast<size_t>(peer) < index_of_.size() &&
         index_of_[static_cast<size_t>(peer)] >= 0;
}

void SocketMember::Enqueue(Connection* connection, uint8_t kind, std::span<const std::byte> body) {
  if (!connection->open || connection->broken) return;
  if (connection->queued() + bootstrap::kFrameHeaderBytes + body.size() > kMaxControlQueue) {
    Log(LogLevel::kWarn, LogSubsystem::kControl, "rank {}: rank {} takes no control messages",
        rank_, connection->peer);
    return GiveUp(connection);
  }
  const Status status = CatchOutOfMemory([&] {
    bootstrap::Aead* const seal = connection->seal ? &*connection->seal : nullptr;
    const bool appended = bootstrap::AppendFrame(kind, body, &connection->out, seal);
    return appended ? Status::Ok() : SystemError("libcrypto cannot seal a message");
  });
  if (!status.ok()) return GiveUp(connection);
  if (connection->armed) return;
  corked_ ? void(unflushed_ = true) : Flush(connection);
}

void SocketMember::FlushCorked() {
  const MutexLock lock(&out_mutex_);
  if (!std::exchange(unflushed_, false)) return;
  for (Connection& connection : connections_) {
    if (connection.open && !connection.broken && !connection.armed && connection.queued() > 0) {
      Flush(&connection);
    }
  }
}

void SocketMember::GiveUp(Connection* connection) {
  connection->broken = true;
  connection->out.clear();
  connection->out_begin = 0;
  shutdown(connection->fd.get(), SHUT_RDWR);  // then the control thread reads end of file
}

void SocketMember::Flush(Connection* connection) {
  while (connection->queued() > 0) {
    const IoResult sent = bootstrap::WriteSome(
        connection->fd.get(), bootstrap::Bytes(connection->out).subspan(connection->out_begin));
    if (sent.error == EAGAIN) break;
    if (sent.error != 0) {
      connection->broken = true;
      connection->out_begin = connection->out.size();
      break;
    }
    connection->out_begin += sent.bytes;
  }
  if (connection->queued() == 0) {
    connection->out.clear();
    connection->out_begin = 0;
    flushed_.NotifyAll();
  } else if (connection->out_begin >= connection->out.size() / 2) {
    connection->out.erase(connection->out.begin(),
                          connection->out.begin() + static_cast<ptrdiff_t>(connection->out_begin));
    connection->out_begin = 0;
  }
  const bool arm = connection->queued() > 0;
  if (arm == connection->armed) return;
  connection->armed = arm;
  SetEvents(connection);
}

void SocketMember::SetEvents(Connection* connection) {
  Loop::Get().ChangeEvents(
      id_, connection->index, connection->fd.get(),
      (connection->departed ? EPOLLRDHUP : EPOLLIN) | (connection->armed ? EPOLLOUT : 0u));
}

void SocketMember::Drop(Connection* connection) {
  if (!connection->open) return;
  Loop::Get().Unwatch(connection->fd.get());
  sockets_->Remove(connection->fd.get());
  connection->fd.Reset();
  connection->open = false;
  connection->out.clear();
  connection->out_begin = 0;
  flushed_.NotifyAll();
}

bool SocketMember::Flushed() const {
  return std::all_of(connections_.begin(), connections_.end(),
                     [](const Connection& c) { return !c.open || c.broken || c.queued() == 0; });
}

bool SocketMember::HasUnread(const Connection& connection) {
  return !connection.seal && BytesOut(connection.fd.get()) > 0;
}

bool SocketMember::Acknowledged() const {
  return std::all_of(connections_.begin(), connections_.end(), [](const Connection& c) {
    return !c.open || c.broken || !c.seal || BytesOut(c.fd.get()) == 0;
  });
}

bool SocketMember::SendDisconnect(Time until, bool last) {
  const MutexLock lock(&out_mutex_);
  Time now = SystemClock().Now();
  const Time end = std::min(until, now + kLongestFlush);
  if (!leaving_) {
    // A far rank takes nothing more once it has heard that this one has left.
    farewell_at_ = std::min(farewell_at_, now + kLongestWait);
    const Time acknowledged = std::min(end, farewell_at_);
    for (; router_ != nullptr && !router_->acknowledged() && now < acknowledged;
         now = SystemClock().Now()) {
      flushed_.WaitFor(&out_mutex_, acknowledged - now);
    }
    if (!last && router_ != nullptr && !router_->acknowledged() && now < farewell_at_) return false;
    (void)CatchOutOfMemory([&] {
      out_mutex_.AssertHeld();
      if (router_ != nullptr) router_->SendReports();
      return Status::Ok();
    });
    for (Connection& connection : connections_) Enqueue(&connection, kDisconnect, {});
    leaving_ = true;
  }
  for (; !Flushed() && now < end; now = SystemClock().Now()) {
    flushed_.WaitFor(&out_mutex_, end - now);
  }
  // Closing a TCP connection that has unread bytes resets it, and what is still on its way is lost.
  for (; !Acknowledged() && now < end; now = SystemClock().Now()) {
    flushed_.WaitFor(&out_mutex_, kMillisecond);
  }
  return Flushed() && Acknowledged();
}

void SocketMember::Silence() {
  const MutexLock dispatch(&dispatch_mutex_);
  silenced_ = true;
  const MutexLock lock(&out_mutex_);
  for (Connection& connection : connections_) Drop(&connection);
}

Result<std::unique_ptr<ControlPlane>> SocketPlane::Start(Mesh mesh, ControlHandler* handler,
                                                         const ControlOptions& options) {
  const int nranks = mesh.nranks;
  auto member = std::make_shared<SocketMember>(std::move(mesh), handler, options);
  // The plane exists before its member joins the loop, so its destructor makes the member leave
  // after any error.
  std::unique_ptr<SocketPlane> plane(new SocketPlane(nranks, member));
  Result<uint64_t> id = Loop::Get().Join(member);
  if (!id.ok()) return id.status();
  plane->id_ = *id;
  if (Status status = member->Start(*id); !status.ok()) return status;
  return std::unique_ptr<ControlPlane>(std::move(plane));
}

void SocketPlane::Send(int peer, uint8_t kind, std::span<const std::byte> body) {
  member_->Send(peer, kind, body);
}

void SocketPlane::Broadcast(uint8_t kind, std::span<const std::byte> body) {
  member_->Broadcast(kind, body);
}

void SocketPlane::SendToNeighbours(uint8_t kind, std::span<const std::byte> body) {
  member_->SendToNeighbours(kind, body);
}

bool SocketPlane::Disconnect(Time until) {
  if (!Loop::Get().InOwnProcess()) return true;
  const MutexLock lock(&close_mutex_);
  return closed_ || id_ == 0 || member_->SendDisconnect(until, /*last=*/false);
}

void SocketPlane::Close(Time flush_deadline) {
  if (!Loop::Get().InOwnProcess()) return;  // a child of fork(): the connections are not its own
  const MutexLock lock(&close_mutex_);
  if (closed_) return;
  closed_ = true;
  if (id_ == 0) return;
  (void)member_->SendDisconnect(flush_deadline, /*last=*/true);
  member_->Silence();
  Loop::Get().Leave(id_);
}

}  // namespace inccl::control
