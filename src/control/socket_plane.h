// SPDX-License-Identifier: Apache-2.0
//
// Control over the sockets of a mesh.
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

// What the control thread shares with the plane's owner.
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
    bool broken = false;  // writing is of no use; reading shows when it ends
    // It said disconnect. Nothing more is read, but it stays open until the other side closes it:
    // who leaves must not take our end for a death, and may be told that we leave too.
    bool departed = false;
    bool armed = false;        // waits for EPOLLOUT
    bool out_of_step = false;  // a part of what it sent is lost: what it sends is discarded
    std::vector<std::byte> out;
    size_t out_begin = 0;
    bootstrap::FrameParser in{kMaxControlBody};
    Time heard = 0;  // the last byte

    size_t queued() const { return out.size() - out_begin; }
  };

  void Enqueue(size_t peer, uint8_t kind, std::span<const std::byte> body);  // holds out_mutex_
  void Flush(size_t peer);                                                   // holds out_mutex_
  void GiveUp(size_t peer);                                                  // holds out_mutex_
  void SetEvents(size_t peer);                                               // holds out_mutex_
  void Drop(Connection* connection);                                         // holds out_mutex_
  bool Flushed() const;                                                      // holds out_mutex_
  void Read(size_t peer);
  // False: that was the last.
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
  uint64_t id_ = 0;  // 0: the loop does not know the member
  std::mutex close_mutex_;
  bool closed_ = false;
};

}  // namespace inccl::control

#endif  // INCCL_CONTROL_SOCKET_PLANE_H_
