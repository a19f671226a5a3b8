// SPDX-License-Identifier: Apache-2.0
//
// Emulates a network link per rank over another transport: it shows how long a collective would
// take if every rank had one full-duplex port of a given rate into a non-blocking switch.
//
// A slice costs kHeaderBytes + bytes. Slices leave through the sender's port in the order of
// Publish. The last byte arrives `latency` after it left and becomes visible once the receiver's
// port has passed it, in order of arrival over all lanes. A slice that arrives alone is visible on
// arrival; slices that arrive at once share the port's rate. Returning a credit costs kCreditBytes
// of the consumer's egress port; it overtakes slices that wait there (a network card sends packets
// of several connections in turn), and the producer may use it `latency` after it has left.
//
// Approximations: a slice is not split into packets, so a small slice waits for large ones
// published before it; an arriving credit costs nothing; there is no loss, and congestion only at
// the two ports.
//
// Times travel with slices and credits (StampedSendLane), on a clock that all ranks share (the
// host's monotonic clock, or a test's). The emulation never spins: Publish only reserves time,
// and NextEvent returns when the next slice or credit becomes visible.
#ifndef INCCL_TRANSPORT_EMULATED_EMULATED_H_
#define INCCL_TRANSPORT_EMULATED_EMULATED_H_

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "transport/transport.h"

namespace inccl {

struct LinkOptions {
  double gbps = 10;              // 10^9 bits per second, > 0, in each direction
  double latency_us = 0;         // >= 0, one way
  const Clock* clock = nullptr;  // nullptr: SystemClock()
};

// Returns a rank's end with its link. All ranks of a communicator need one, with equal options.
// There is no multicast: a fan-out needs one lane per receiver and pays for each. Opening a
// lane is an error (kInvalidArgument) if the lanes of `inner` carry no stamps.
std::unique_ptr<Transport> EmulateLink(std::unique_ptr<Transport> inner,
                                       const LinkOptions& options);

// The first time after the last Progress at which a slice or credit becomes visible without a
// Signal; kNever if there is none, or no emulated link.
Time NextEvent(const Transport& transport);

}  // namespace inccl

namespace inccl::emulated {

// Lanes that carry a time with every slice and every credit. Link emulation needs them below it;
// the lanes of loopback, shm and the simulator derive from them.

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

#endif  // INCCL_TRANSPORT_EMULATED_EMULATED_H_
