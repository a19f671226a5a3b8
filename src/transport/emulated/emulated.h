// SPDX-License-Identifier: Apache-2.0
//
// A network link per rank, emulated over another transport: what a collective would take if every
// rank had one full-duplex port of a given rate into a non-blocking switch.
//
// A slice costs kHeaderBytes + bytes. It leaves in the order of Publish, through the sender's port;
// its last byte arrives `latency` after it left, and is visible once the receiver's port has let it
// through, in order of arrival over all lanes. A slice that arrives alone is visible on arrival;
// the bytes of several that arrive at once share the port's rate. Returning a credit costs
// kCreditBytes of the consumer's port towards the network; it overtakes slices that wait there (a
// card sends packets of several connections in turn), and the producer may use it `latency` after
// it has left.
//
// Approximations: a slice is not cut into packets, so a small slice waits for large ones published
// before it; credits cost nothing where they arrive; there is no loss and no congestion but at the
// two ports.
//
// Times travel in SliceHeader::departure and in stamped releases, on the clock that all ranks share
// (the host's monotonic clock, or a test's). Nothing spins: Publish only reserves, and NextEvent
// says when the next thing becomes visible.
#ifndef INCCL_TRANSPORT_EMULATED_EMULATED_H_
#define INCCL_TRANSPORT_EMULATED_EMULATED_H_

#include <memory>

#include "base/clock.h"
#include "transport/transport.h"

namespace inccl {

struct LinkOptions {
  double gbps = 10;              // 10^9 bits per second, > 0, in each direction
  double latency_us = 0;         // >= 0, one way
  const Clock* clock = nullptr;  // nullptr: SystemClock()
};

// A rank's end with its link. Ranks that talk to each other all need one, with equal options.
// caps().multicast is false: a fan-out is one lane per receiver, and pays for each. `inner` must
// carry SliceHeader::departure and stamped releases (loopback, shm and sim do).
std::unique_ptr<Transport> EmulateLink(std::unique_ptr<Transport> inner,
                                       const LinkOptions& options);

}  // namespace inccl

#endif  // INCCL_TRANSPORT_EMULATED_EMULATED_H_
