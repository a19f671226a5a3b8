// SPDX-License-Identifier: Apache-2.0
//
// Control plane over the sockets of a mesh.
#ifndef INCCL_CONTROL_SOCKET_PLANE_H_
#define INCCL_CONTROL_SOCKET_PLANE_H_

#include <memory>
#include <utility>

#include "base/mutex.h"
#include "control/control.h"
#include "control/socket_member.h"

namespace inccl::control {

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
