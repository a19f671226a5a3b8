// SPDX-License-Identifier: Apache-2.0
#include "control/control.h"

#include "control/local_plane.h"
#include "control/socket_plane.h"

namespace inccl {

void ControlPlane::Broadcast(uint8_t kind, std::span<const std::byte> body) {
  for (int peer = 0; peer < nranks_; ++peer) Send(peer, kind, body);
}

void ControlPlane::SendToNeighbours(uint8_t kind, std::span<const std::byte> body) {
  for (int peer = 0; peer < nranks_; ++peer) Send(peer, kind, body);
}

Result<std::unique_ptr<ControlPlane>> StartControl(Mesh mesh, ControlHandler* handler,
                                                   const ControlOptions& options) {
  return control::SocketPlane::Start(std::move(mesh), handler, options);
}

Result<std::vector<std::unique_ptr<ControlPlane>>> MakeLocalControl(
    const std::vector<ControlHandler*>& handlers) {
  return control::LocalPlane::MakeAll(handlers);
}

}  // namespace inccl
