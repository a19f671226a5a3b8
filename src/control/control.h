// SPDX-License-Identifier: Apache-2.0
//
// The always-open connections between the ranks of a communicator: small messages, and the news
// that a peer has left or died. One thread per process ("inccl-control") serves all communicators;
// it starts with the first and ends with the last.
//
// A process that is stopped, or a host that is gone, closes nothing. So each rank says that it is
// alive, and takes a peer of which it hears nothing for long for dead. What it measures is the
// peer's silence less its own lateness: whoever was stopped or starved itself accuses nobody.
//
// On the wire: frames of bootstrap/frame.h, kind 0 without a body for disconnect, kind 255
// without a body for a sign of life. A frame that is malformed, or larger than kMaxControlBody,
// closes that connection.
#ifndef INCCL_CONTROL_CONTROL_H_
#define INCCL_CONTROL_CONTROL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/mesh.h"

namespace inccl {

inline constexpr uint32_t kMaxControlBody = 1 << 20;
// Messages of so many bytes need no memory, while no others wait to be written to a peer's socket.
inline constexpr size_t kMostNotifiedBytes = 2048;
// Bytes that may wait for one peer. A peer that takes so little that more would wait is given up:
// its connection is closed, which both sides see as not clean.
inline constexpr size_t kMaxControlQueue = 8 << 20;

struct ControlOptions {
  Time heartbeat = kSecond;        // between two signs of life; the same on all ranks
  Time dead_after = 10 * kSecond;  // silence; any byte breaks it; kNever: nobody counts as dead
};

// Called on the control thread, one call at a time, so it must not wait for long and must not close
// a plane; it may send.
class ControlHandler {
 public:
  virtual ~ControlHandler() = default;
  // In the order in which the peer sent them. `body` is valid during the call.
  virtual void OnMessage(int peer, uint8_t kind, std::span<const std::byte> body) = 0;
  // Once per peer, after its last message. `clean`: it said disconnect; else it died, or is broken.
  virtual void OnPeerClosed(int peer, bool clean) = 0;
  // One of the above ended in std::bad_alloc; what it said is lost. Needs no memory.
  virtual void OnOutOfMemory() {}
  // Instead of OnPeerClosed: the peer has been silent for longer than `limit`. Its connection is
  // closed afterwards; what is sent to it now may still reach it.
  virtual void OnPeerSilent(int peer, Time silence, Time limit) {
    (void)silence, (void)limit;
    OnPeerClosed(peer, false);
  }
};

// One rank's end.
class ControlPlane {
 public:
  // Close, without waiting for anything to be flushed, if that has not been done.
  virtual ~ControlPlane() = default;
  // Any thread; never blocks. Kinds 1 to 254, at most kMaxControlBody bytes (more is not sent, and
  // logged). To a peer that has gone, or to oneself: no effect.
  virtual void Send(int peer, uint8_t kind, std::span<const std::byte> body) = 0;
  void Broadcast(uint8_t kind, std::span<const std::byte> body);  // to all others
  // Says disconnect, and waits until that and all before it has left, at most until the deadline.
  // When it returns no callback runs or will run. Any thread but the control thread; idempotent.
  virtual void Close(Time flush_deadline) = 0;

 protected:
  explicit ControlPlane(int nranks) : nranks_(nranks) {}
  const int nranks_;
};

// Takes over the connections of the mesh. Callbacks may come before this returns. `handler` must
// live until Close. kSystemError if there is no thread or descriptor to be had.
Result<std::unique_ptr<ControlPlane>> StartControl(Mesh mesh, ControlHandler* handler,
                                                   const ControlOptions& options = {});

// The same for ranks that are threads of this process, which stop together and so need no signs of
// life; a handler per rank. Messages are delivered on the control thread, never in the sender's.
Result<std::vector<std::unique_ptr<ControlPlane>>> MakeLocalControl(
    const std::vector<ControlHandler*>& handlers);

}  // namespace inccl

#endif  // INCCL_CONTROL_CONTROL_H_
