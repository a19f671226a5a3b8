// SPDX-License-Identifier: Apache-2.0
//
// SocketMember's way out: what is sent, and the end of sending.
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "bootstrap/socket.h"
#include "control/socket_member.h"

namespace inccl::control {
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

}  // namespace inccl::control
