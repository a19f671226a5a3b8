// SPDX-License-Identifier: Apache-2.0
//
// The unique ids that ranks send to the members of a split over the control connections, which are
// sealed between machines, and end to end where other ranks pass them on: ranks outside, and who
// reads the data connections, must not learn them.
#ifndef INCCL_FAILURE_INVITATIONS_H_
#define INCCL_FAILURE_INVITATIONS_H_

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bootstrap/unique_id.h"
#include "control/control.h"

namespace inccl {

class Invitations {
 public:
  explicit Invitations(int nranks) : received_(static_cast<size_t>(nranks)) {}
  void Attach(ControlPlane* control) { control_.store(control); }

  // `split` numbers the splits of the communicator from 1, equally on all ranks.
  void Send(int peer, uint64_t split, const UniqueId& id);
  // Waits for what `peer` sends in this split. kRemoteError: *failed has become true; kTimeout.
  Result<UniqueId> Await(int peer, uint64_t split, Time deadline, const std::atomic<bool>* failed);

  // The control thread calls these. OnMessage returns false if the message is malformed.
  static bool Owns(uint8_t kind) { return kind == kInvitation; }
  bool OnMessage(int peer, std::span<const std::byte> body);

 private:
  static constexpr uint8_t kInvitation = 20;

  struct Received {
    uint64_t split = 0;  // 0: none
    UniqueId id;
  };
  std::atomic<ControlPlane*> control_{nullptr};
  Mutex mutex_;
  CondVar changed_;
  std::vector<Received> received_ INCCL_GUARDED_BY(mutex_);  // by rank, the latest
};

}  // namespace inccl

#endif  // INCCL_FAILURE_INVITATIONS_H_
