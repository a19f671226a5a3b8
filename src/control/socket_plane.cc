// SPDX-License-Identifier: Apache-2.0
#include "control/socket_plane.h"

#include <fmt/format.h>
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

namespace inccl::control {
namespace {

using bootstrap::FrameParser;
using bootstrap::IoResult;

constexpr int kMostReadsAtOnce = 8;  // so that one peer cannot occupy the thread
constexpr Time kLongestFlush = 3600 * kSecond;
// Reserved per peer, so that an error message and a disconnect need no allocation.
constexpr size_t kReservedOut =
    kMostNotifiedBytes + 4 * (bootstrap::kFrameHeaderBytes + bootstrap::kTagBytes);

}  // namespace

SocketMember::SocketMember(Mesh mesh, ControlHandler* handler, const ControlOptions& options)
    : rank_(mesh.rank),
      handler_(handler),
      options_(options),
      sockets_(mesh.sockets),
      connections_(mesh.peers.size()) {
  for (size_t peer = 0; peer < connections_.size(); ++peer) {
    connections_[peer].fd = std::move(mesh.peers[peer].control);
    if (std::optional<bootstrap::StreamCipher>& cipher = mesh.peers[peer].cipher; cipher) {
      connections_[peer].seal = std::move(cipher->seal);
      connections_[peer].in.Protect(std::move(cipher->open));
    }
  }
}

Status SocketMember::Start(uint64_t id) {
  const MutexLock dispatch(&dispatch_mutex_);  // the first events wait until all is set up
  const MutexLock lock(&out_mutex_);
  id_ = id;
  const Time now = SystemClock().Now();
  for (size_t peer = 0; peer < connections_.size(); ++peer) {
    Connection& connection = connections_[peer];
    if (!connection.fd.valid()) continue;
    connection.open = true;
    connection.heard = now;
    connection.out.reserve(kReservedOut);
    sockets_->Add(static_cast<int>(peer), SocketList::Use::kControl, connection.fd.get());
    Status status =
        Loop::Get().Watch(id_, static_cast<uint32_t>(peer), connection.fd.get(), EPOLLIN);
    if (!status.ok()) return status;
  }
  Loop::Get().CallAt(id_, now);
  return Status::Ok();
}

void SocketMember::Send(int peer, uint8_t kind, std::span<const std::byte> body) {
  if (peer < 0 || static_cast<size_t>(peer) >= connections_.size() || peer == rank_ ||
      kind == kDisconnect || kind == kHeartbeat) {
    return;
  }
  if (body.size() > kMaxControlBody) {
    Log(LogLevel::kWarn, LogSubsystem::kControl,
        "rank {}: a control message of {} bytes to rank {} is too large", rank_, body.size(), peer);
    return;
  }
  const MutexLock lock(&out_mutex_);
  if (!leaving_) Enqueue(static_cast<size_t>(peer), kind, body);
}

void SocketMember::Enqueue(size_t peer, uint8_t kind, std::span<const std::byte> body) {
  Connection& connection = connections_[peer];
  if (!connection.open || connection.broken) return;
  if (connection.queued() + bootstrap::kFrameHeaderBytes + body.size() > kMaxControlQueue) {
    Log(LogLevel::kWarn, LogSubsystem::kControl, "rank {}: rank {} takes no control messages",
        rank_, peer);
    return GiveUp(peer);
  }
  const Status status = CatchOutOfMemory([&] {
    bootstrap::Aead* const seal = connection.seal ? &*connection.seal : nullptr;
    const bool appended = bootstrap::AppendFrame(kind, body, &connection.out, seal);
    return appended ? Status::Ok() : SystemError("libcrypto cannot seal a message");
  });
  if (!status.ok()) return GiveUp(peer);
  if (!connection.armed) Flush(peer);
}

void SocketMember::GiveUp(size_t peer) {
  Connection& connection = connections_[peer];
  connection.broken = true;
  connection.out.clear();
  connection.out_begin = 0;
  shutdown(connection.fd.get(), SHUT_RDWR);  // then the control thread reads end of file
}

void SocketMember::Flush(size_t peer) {
  Connection& connection = connections_[peer];
  while (connection.queued() > 0) {
    const IoResult sent = bootstrap::WriteSome(
        connection.fd.get(), bootstrap::Bytes(connection.out).subspan(connection.out_begin));
    if (sent.error == EAGAIN) break;
    if (sent.error != 0) {
      connection.broken = true;
      connection.out_begin = connection.out.size();
      break;
    }
    connection.out_begin += sent.bytes;
  }
  if (connection.queued() == 0) {
    connection.out.clear();
    connection.out_begin = 0;
    flushed_.NotifyAll();
  } else if (connection.out_begin >= connection.out.size() / 2) {
    connection.out.erase(connection.out.begin(),
                         connection.out.begin() + static_cast<ptrdiff_t>(connection.out_begin));
    connection.out_begin = 0;
  }
  const bool arm = connection.queued() > 0;
  if (arm == connection.armed) return;
  connection.armed = arm;
  SetEvents(peer);
}

void SocketMember::SetEvents(size_t peer) {
  const Connection& connection = connections_[peer];
  Loop::Get().ChangeEvents(
      id_, static_cast<uint32_t>(peer), connection.fd.get(),
      (connection.departed ? EPOLLRDHUP : EPOLLIN) | (connection.armed ? EPOLLOUT : 0u));
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

bool SocketMember::Acknowledged() const {
  return std::all_of(connections_.begin(), connections_.end(), [](const Connection& c) {
    int bytes = 0;  // that the peer's machine has not acknowledged
    return !c.open || c.broken || !c.seal || ioctl(c.fd.get(), SIOCOUTQ, &bytes) != 0 || bytes == 0;
  });
}

void SocketMember::SendDisconnect(Time flush_deadline) {
  const MutexLock lock(&out_mutex_);
  for (size_t peer = 0; peer < connections_.size(); ++peer) Enqueue(peer, kDisconnect, {});
  leaving_ = true;
  Time now = SystemClock().Now();
  const Time end = std::min(flush_deadline, now + kLongestFlush);
  for (; !Flushed() && now < end; now = SystemClock().Now()) {
    flushed_.WaitFor(&out_mutex_, end - now);
  }
  // Closing a TCP connection that has unread bytes resets it, and what is still on its way is lost.
  for (; !Acknowledged() && now < end; now = SystemClock().Now()) {
    flushed_.WaitFor(&out_mutex_, kMillisecond);
  }
}

void SocketMember::Silence() {
  const MutexLock dispatch(&dispatch_mutex_);
  silenced_ = true;
  const MutexLock lock(&out_mutex_);
  for (Connection& connection : connections_) Drop(&connection);
}

void SocketMember::OnEvents(uint32_t peer, uint32_t events) {
  {
    const MutexLock lock(&out_mutex_);
    Connection& connection = connections_[peer];
    if (!connection.open) return;
    if ((events & EPOLLOUT) != 0) Flush(peer);
    if (connection.departed) {
      if ((events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0) Drop(&connection);
      return;
    }
  }
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) Read(peer);
}

void SocketMember::Read(size_t peer) {
  const MutexLock dispatch(&dispatch_mutex_);
  Connection& connection = connections_[peer];
  // Only this thread, and Silence with dispatch_mutex_ held, close connections.
  if (silenced_ || !connection.open) return;
  std::array<std::byte, 16384> buffer;
  for (int i = 0; i < kMostReadsAtOnce; ++i) {
    const IoResult got = bootstrap::ReadSome(connection.fd.get(), buffer);
    if (got.error == EAGAIN) return;
    if (got.error != 0 || got.closed) return EndBroken(peer);
    connection.heard = SystemClock().Now();
    if (connection.out_of_step) continue;
    bool more = true;
    const Status status = CatchOutOfMemory([&] {
      connection.in.Append(std::span(buffer).first(got.bytes));
      dispatch_mutex_.AssertHeld();
      more = Deliver(peer);
      return Status::Ok();
    });
    if (!status.ok()) {  // part of a message may be lost, so later input cannot be parsed
      connection.out_of_step = true;
      handler_->OnOutOfMemory();
    }
    if (!more) return;
  }
}

bool SocketMember::Deliver(size_t peer) {
  while (true) {
    FrameParser::Frame frame;
    switch (connections_[peer].in.Pop(&frame)) {
      case FrameParser::Next::kNeedMore: return true;
      case FrameParser::Next::kMalformed:
        Log(LogLevel::kWarn, LogSubsystem::kControl,
            "rank {}: malformed control message from rank {}", rank_, peer);
        EndBroken(peer);
        return false;
      case FrameParser::Next::kFrame: break;
    }
    if (frame.kind == kDisconnect) {
      frame.body.empty() ? EndClean(peer) : EndBroken(peer);
      return false;
    }
    if (frame.kind == kHeartbeat) continue;
    TellHandler([&] { handler_->OnMessage(static_cast<int>(peer), frame.kind, frame.body); });
  }
}

void SocketMember::EndClean(size_t peer) {
  {
    const MutexLock lock(&out_mutex_);
    connections_[peer].departed = true;
    SetEvents(peer);
  }
  TellHandler([&] { handler_->OnPeerClosed(static_cast<int>(peer), true); });
}

void SocketMember::EndBroken(size_t peer) {
  {
    const MutexLock lock(&out_mutex_);
    Drop(&connections_[peer]);
  }
  TellHandler([&] { handler_->OnPeerClosed(static_cast<int>(peer), false); });
}

void SocketMember::EndSilent(size_t peer, Time silence) {
  TellHandler(
      [&] { handler_->OnPeerSilent(static_cast<int>(peer), silence, options_.dead_after); });
  const MutexLock lock(&out_mutex_);
  Drop(&connections_[peer]);
}

Time SocketMember::OnTime(Time now, Time late) {
  const MutexLock dispatch(&dispatch_mutex_);
  if (silenced_) return kNever;
  for (size_t peer = 0; peer < connections_.size(); ++peer) {
    Connection& connection = connections_[peer];
    {
      const MutexLock lock(&out_mutex_);
      if (!connection.open || connection.departed) continue;
      // Data that still waits to be written replaces a heartbeat.
      if (!leaving_ && connection.queued() == 0) Enqueue(peer, kHeartbeat, {});
    }
    connection.heard = std::min(now, connection.heard + late);
    if (now - connection.heard > options_.dead_after) EndSilent(peer, now - connection.heard);
  }
  // All communicators of a process use the same times, so the thread wakes once for all of them.
  return (now / options_.heartbeat + 1) * options_.heartbeat;
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

void SocketPlane::Close(Time flush_deadline) {
  if (!Loop::Get().InOwnProcess()) return;  // a child of fork(): the connections are not its own
  const MutexLock lock(&close_mutex_);
  if (closed_) return;
  closed_ = true;
  if (id_ == 0) return;
  member_->SendDisconnect(flush_deadline);
  member_->Silence();
  Loop::Get().Leave(id_);
}

}  // namespace inccl::control
