// SPDX-License-Identifier: Apache-2.0
//
// Control plane over the sockets of a mesh.
#ifndef INCCL_CONTROL_SOCKET_PLANE_H_
#define INCCL_CONTROL_SOCKET_PLANE_H_

#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "bootstrap/frame.h"
#include "control/control.h"
#include "control/loop.h"

namespace inccl::control {

inline constexpr uint8_t kDisconnect = 0;
inline constexpr uint8_t kHeartbeat = 255;

// The part that the control thread shares with the plane's owner.
class SocketMember final : public Member {
 public:
  SocketMember(Mesh mesh, ControlHandler* handler, const ControlOptions& options);

  Status Start(uint64_t id);
  void Send(int peer, uint8_t kind, std::span<const std::byte> body);
  void SendDisconnect(Time flush_deadline);
  // Afterwards no callback runs or will run, and the sockets are closed.
  void Silence();

  void OnEvents(uint32_t peer, uint32_t events) override;
  void OnWake() override {}
  Time OnTime(Time now, Time late) override;

 private:
  // `fd`, `open`, `seal` and what is to be written: out_mutex_. `in`, `heard`: the control thread,
  // or dispatch_mutex_.
  struct Connection {
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
    bootstrap::FrameParser in{kMaxControlBody};
    Time heard = 0;  // time of the last received byte

    size_t queued() const { return out.size() - out_begin; }
  };

  void Enqueue(size_t peer, uint8_t kind, std::span<const std::byte> body)
      INCCL_REQUIRES(out_mutex_);
  void Flush(size_t peer) INCCL_REQUIRES(out_mutex_);
  void GiveUp(size_t peer) INCCL_REQUIRES(out_mutex_);
  void SetEvents(size_t peer) INCCL_REQUIRES(out_mutex_);
  void Drop(Connection* connection) INCCL_REQUIRES(out_mutex_);
  bool Flushed() const INCCL_REQUIRES(out_mutex_);
  // Over TCP: the peers' machines have all that was sent.
  bool Acknowledged() const INCCL_REQUIRES(out_mutex_);
  void Read(size_t peer);
  // False: that was the last.
  bool Deliver(size_t peer) INCCL_REQUIRES(dispatch_mutex_);
  void EndClean(size_t peer) INCCL_REQUIRES(dispatch_mutex_);
  void EndBroken(size_t peer) INCCL_REQUIRES(dispatch_mutex_);
  void EndSilent(size_t peer, Time silence) INCCL_REQUIRES(dispatch_mutex_);
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
  Mutex out_mutex_;
  CondVar flushed_;
  bool leaving_ INCCL_GUARDED_BY(out_mutex_) = false;
  std::vector<Connection> connections_;
};

class SocketPlane final : public ControlPlane {
 public:
  static Result<std::unique_ptr<ControlPlane>> Start(Mesh mesh, ControlHandler* handler,
                                                     const ControlOptions& options);
  ~SocketPlane() override { Close(0); }
  void Send(int peer, uint8_t kind, std::span<const std::byte> body) override;
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
