// SPDX-License-Identifier: Apache-2.0
#include "failure/invitations.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "base/bytes.h"
#include "bootstrap/crypto.h"

namespace inccl {
namespace {

constexpr size_t kBytes = 8 + kUniqueIdBytes;
constexpr Time kLookInterval = 10 * kMillisecond;  // at whether the communicator has failed

}  // namespace

void Invitations::Send(int peer, uint64_t split, const UniqueId& id) {
  ControlPlane* const control = control_.load();
  if (control == nullptr) return;
  std::array<std::byte, kBytes> body;
  for (size_t i = 0; i < 8; ++i) body[i] = static_cast<std::byte>(split >> (8 * i));
  id.Encode(body.data() + 8);
  control->Send(peer, kInvitation, body);
  bootstrap::Wipe(body);
}

Result<UniqueId> Invitations::Await(int peer, uint64_t split, Time deadline,
                                    const std::atomic<bool>* failed) {
  const MutexLock lock(&mutex_);
  const Received& received = received_[static_cast<size_t>(peer)];
  while (received.split < split) {
    if (failed->load()) return RemoteError("the communicator has failed");
    const Time now = SystemClock().Now();
    if (now >= deadline) {
      return TimeoutError(fmt::format("rank {} sent no id of the split communicator", peer));
    }
    changed_.WaitFor(&mutex_, std::min(kLookInterval, deadline - now));
  }
  if (received.split != split) {
    return InternalError(
        fmt::format("rank {} is in split {}, this rank in split {}", peer, received.split, split));
  }
  return received.id;
}

bool Invitations::OnMessage(int peer, std::span<const std::byte> body) {
  if (body.size() != kBytes) return false;
  Received received;
  ByteReader(body).U64(&received.split);
  Result<UniqueId> id = UniqueId::Decode(body.data() + 8);
  if (!id.ok() || received.split == 0) return false;
  received.id = *std::move(id);
  const MutexLock lock(&mutex_);
  Received& known = received_[static_cast<size_t>(peer)];
  if (received.split <= known.split) return false;
  known = std::move(received);
  changed_.NotifyAll();
  return true;
}

}  // namespace inccl
