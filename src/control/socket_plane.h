// SPDX-License-Identifier: Apache-2.0
//
// Control plane over the sockets of a mesh.
#ifndef INCCL_CONTROL_SOCKET_PLANE_H_
#define INCCL_CONTROL_SOCKET_PLANE_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

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
  // `fd`, `open` and what is to be written: out_mutex_. `in`, `heard`: the control thread, or
  // dispatch_mutex_.
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
    bootstrap::FrameParser in{kMaxControlBody};
    Time heard = 0;  // time of the last received byte

    size_t queued() const { return out.size() - out_begin; }
  };

  void Enqueue(size_t peer, uint8_t kind, std::span<const std::byte> body);  // holds out_mutex_
  void Flush(size_t peer);                                                   // holds out_mutex_
  void GiveUp(size_t peer);                                                  // holds out_mutex_
  void SetEvents(size_t peer);                                               // holds out_mutex_
  void Drop(Connection* connection);                                         // holds out_mutex_
  bool Flushed() const;                                                      // holds out_mutex_
  void Read(size_t peer);
  // Returns false after the peer's last message.
  bool Deliver(size_t peer);
  void EndClean(size_t peer);
  void EndBroken(size_t peer);
  void EndSilent(size_t peer, Time silence);
  template <typename Function>
  void TellHandler(Function&& function) {
    const Status status = CatchOutOfMemory([&] {
      function();
      return Status::Ok();
    });
    if (!status.ok()) handler_->OnOutOfMemory();
  }

  const int rank_;
  ControlHandler* const handler_;
  const ControlOptions options_;
  uint64_t id_ = 0;
  std::mutex dispatch_mutex_;  // held during callbacks; never taken by Send
  bool silenced_ = false;      // dispatch_mutex_
  std::mutex out_mutex_;
  std::condition_variable flushed_;
  bool leaving_ = false;  // out_mutex_
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
  uint64_t id_ = 0;  // number in the loop; 0: none
  std::mutex close_mutex_;
  bool closed_ = false;
};

}  // namespace inccl::control

#endif  // INCCL_CONTROL_SOCKET_PLANE_H_
