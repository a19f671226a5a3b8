// SPDX-License-Identifier: Apache-2.0
//
// Control plane over the sockets of a mesh.
#ifndef INCCL_CONTROL_SOCKET_PLANE_H_
#define INCCL_CONTROL_SOCKET_PLANE_H_

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "bootstrap/messages.h"
#include "control/control.h"
#include "control/loop.h"
#include "control/router.h"

namespace inccl::control {

// One rank's connections to its neighbours, as the control thread shares them with their owner.

inline constexpr uint8_t kDisconnect = 0;
inline constexpr uint8_t kHeartbeat = 255;

class SocketMember final : public Member {
 public:
  SocketMember(Mesh mesh, ControlHandler* handler, const ControlOptions& options);

  Status Start(uint64_t id);
  void Send(int peer, uint8_t kind, std::span<const std::byte> body);
  void Broadcast(uint8_t kind, std::span<const std::byte> body);
  void SendToNeighbours(uint8_t kind, std::span<const std::byte> body);
  bool IsNeighbour(int peer) const;
  // False if not everything has left by `until`. `last`: it is not called again.
  bool SendDisconnect(Time until, bool last);
  // Afterwards no callback runs or will run, and the sockets are closed.
  void Silence();

  void OnEvents(uint32_t index, uint32_t events) override;
  void OnWake() override {}
  Time OnTime(Time now, Time late) override;

 private:
  // `fd`, `open`, `seal` and what is to be written: out_mutex_. `in`, `heard`: the control thread,
  // or dispatch_mutex_.
  struct Connection {
    int peer = -1;
    uint32_t index = 0;  // in connections_
    UniqueFd fd;
    bool open = false;
    bool broken = false;  // writing failed; reading shows when the connection ends
    // The peer sent a disconnect. This rank reads nothing more, but keeps the connection open until
    // the peer closes it: the leaving peer must not see a death, and still receives messages.
    bool departed = false;
    bool armed = false;        // waits for EPOLLOUT
    bool out_of_step = false;  // a part of a message is lost, so further input is discarded
    std::vector<std::byte> out;
    size_t out_begin = 0;
    std::optional<bootstrap::Aead> seal;  // over TCP
    bootstrap::FrameParser in;
    Time heard = 0;  // time of the last received byte

    size_t queued() const { return out.size() - out_begin; }
  };

  // Whether there is something to send; logs what is too large.
  bool CanSend(uint8_t kind, std::span<const std::byte> body) const;
  void Enqueue(Connection* connection, uint8_t kind, std::span<const std::byte> body)
      INCCL_REQUIRES(out_mutex_);
  void Flush(Connection* connection) INCCL_REQUIRES(out_mutex_);
  void FlushCorked() INCCL_EXCLUDES(out_mutex_);
  void GiveUp(Connection* connection) INCCL_REQUIRES(out_mutex_);
  void SetEvents(Connection* connection) INCCL_REQUIRES(out_mutex_);
  void Drop(Connection* connection) INCCL_REQUIRES(out_mutex_);
  bool Flushed() const INCCL_REQUIRES(out_mutex_);
  // Over TCP: the neighbours' machines have all that was sent.
  bool Acknowledged() const INCCL_REQUIRES(out_mutex_);
  void Read(Connection* connection);
  // False: that was the last.
  bool Deliver(Connection* connection) INCCL_REQUIRES(dispatch_mutex_);
  // False: the frame is malformed.
  bool PassToRouter(const Connection& connection, const bootstrap::FrameParser::Frame& frame)
      INCCL_REQUIRES(dispatch_mutex_);
  void ReportGone(const Connection& connection, Router::End end, Time silence)
      INCCL_REQUIRES(out_mutex_);
  // What the router has found.
  void TellGone() INCCL_REQUIRES(dispatch_mutex_) INCCL_EXCLUDES(out_mutex_);
  void EndClean(Connection* connection) INCCL_REQUIRES(dispatch_mutex_);
  void EndBroken(Connection* connection) INCCL_REQUIRES(dispatch_mutex_);
  void EndSilent(Connection* connection, Time silence) INCCL_REQUIRES(dispatch_mutex_);
  void Beat(Time now) INCCL_REQUIRES(dispatch_mutex_);
  // Over a unix socket: the peer has not read all that it got. A few hundred frames fill the
  // socket, and the last one must fit.
  static bool HasUnread(const Connection& connection);
  template <typename Function>
  void TellHandler(Function&& function) INCCL_REQUIRES(dispatch_mutex_) INCCL_EXCLUDES(out_mutex_) {
    const Status status = CatchOutOfMemory([&] {
      function();
      return Status::Ok();
    });
    if (!status.ok()) handler_->OnOutOfMemory();
  }

  const int rank_;
  ControlHandler* const handler_;
  const ControlOptions options_;
  const std::shared_ptr<SocketList> sockets_;
  uint64_t id_ = 0;
  // Held during callbacks; never taken by Send.
  Mutex dispatch_mutex_ INCCL_ACQUIRED_BEFORE(out_mutex_);
  bool silenced_ INCCL_GUARDED_BY(dispatch_mutex_) = false;
  Time next_beat_ INCCL_GUARDED_BY(dispatch_mutex_) = 0;
  Mutex out_mutex_;
  CondVar flushed_;
  bool leaving_ INCCL_GUARDED_BY(out_mutex_) = false;
  Time farewell_at_ INCCL_GUARDED_BY(out_mutex_) = kNever;  // no longer waits for far ranks then
  // What the router emits while it handles frames is written when all that has arrived is handled.
  bool corked_ INCCL_GUARDED_BY(out_mutex_) = false;
  bool unflushed_ INCCL_GUARDED_BY(out_mutex_) = false;
  std::vector<Connection> connections_;
  std::vector<int> index_of_;  // by rank, in connections_; -1: no neighbour
  // Null if the ranks' connections join all pairs.
  const std::unique_ptr<Router> router_ INCCL_PT_GUARDED_BY(out_mutex_);
};

class SocketPlane final : public ControlPlane {
 public:
  static Result<std::unique_ptr<ControlPlane>> Start(Mesh mesh, ControlHandler* handler,
                                                     const ControlOptions& options);
  ~SocketPlane() override { Close(0); }
  void Send(int peer, uint8_t kind, std::span<const std::byte> body) override;
  void Broadcast(uint8_t kind, std::span<const std::byte> body) override;
  void SendToNeighbours(uint8_t kind, std::span<const std::byte> body) override;
  bool IsNeighbour(int peer) const override { return member_->IsNeighbour(peer); }
  bool Disconnect(Time until) override;
  void Close(Time flush_deadline) override;

 private:
  SocketPlane(int nranks, std::shared_ptr<SocketMember> member)
      : ControlPlane(nranks), member_(std::move(member)) {}

  const std::shared_ptr<SocketMember> member_;
  uint64_t id_ = 0;    // 0: the loop does not know the member
  Mutex close_mutex_;  // taken before the member's and the loop's; never by the control thread
  bool closed_ INCCL_GUARDED_BY(close_mutex_) = false;
};

}  // namespace inccl::control

#endif  // INCCL_CONTROL_SOCKET_PLANE_H_
