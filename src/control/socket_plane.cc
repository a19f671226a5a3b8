// SPDX-License-Identifier: Apache-2.0
#include "control/socket_plane.h"

namespace inccl::control {

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
