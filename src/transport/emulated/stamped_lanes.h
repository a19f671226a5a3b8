// SPDX-License-Identifier: Apache-2.0
//
// Lanes that carry a time with every slice and every credit. Link emulation needs them below it;
// the lanes of loopback, shm and the simulator derive from them.
#ifndef INCCL_TRANSPORT_EMULATED_STAMPED_LANES_H_
#define INCCL_TRANSPORT_EMULATED_STAMPED_LANES_H_

#include <cstdint>

#include "base/clock.h"
#include "base/status.h"
#include "transport/transport.h"

namespace inccl::emulated {

class StampedSendLane : public SendLane {
 public:
  // Publish with a stamp for StampedRecvLane::PeekAhead.
  virtual Status PublishStamped(const SliceHeader& header, Time departure) = 0;
  // The latest stamp with which a consumer released the previous slice of the slot acquired last.
  virtual Time CreditDeparture() const = 0;
};

class StampedRecvLane : public RecvLane {
 public:
  // Reads the header and the stamp of the slice `ahead` positions behind the next one, if it has
  // arrived.
  virtual Result<bool> PeekAhead(uint32_t ahead, SliceHeader* header, Time* departure) = 0;
  // Release with a stamp for StampedSendLane::CreditDeparture.
  virtual Status ReleaseStamped(Time departure) = 0;
};

}  // namespace inccl::emulated

#endif  // INCCL_TRANSPORT_EMULATED_STAMPED_LANES_H_
