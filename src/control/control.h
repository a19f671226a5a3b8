// SPDX-License-Identifier: Apache-2.0
//
// The control connections between the ranks of a communicator, which stay open: they carry small
// messages and report when a peer has left or died. One thread per process ("inccl-control") serves
// all communicators; it starts with the first and ends with the last.
//
// In a large communicator a rank has a connection with some ranks only, its neighbours
// (bootstrap/mesh.h). Ranks pass on what concerns far ranks (control/router.h):
// - A message to one far rank takes a shortest path, sealed end to end; one to all ranks is
// flooded.
// - Each rank hears of each far rank's end once, from that rank's neighbours.
// - Order: what a neighbour sends arrives in the order in which it was sent, and before its end. Of
//   a far rank the messages to one rank keep their order, and so do those to all ranks, but either
//   may overtake the other. The end of a far rank that leaves in order comes after all its messages
//   that have been acknowledged, for which Close waits. A message of a far rank that arrives after
//   the news of its death is dropped.
// - Messages arrive as long as a path of ranks leads to their goal. Where ranks have left in order
//   and no path is left, messages are lost without notice. Where ranks have died, too, OnPeerCutOff
//   says so.
//
// A stopped process or a lost host closes no connection. So each rank sends heartbeats and reports
// a peer as dead that is silent for too long. It subtracts its own scheduling delay from the
// silence, so a resumed process does not report its peers dead.
//
// On the wire: frames of bootstrap/messages.h. Kind 0 without a body is a disconnect, kind 255
// without a body a heartbeat; kinds from 250 on are of control/router.h. A malformed frame, or one
// larger than kMaxControlBody, closes the connection.
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
inline constexpr uint8_t kMostControlKind = 249;
// A message of up to this size to a neighbour needs no allocation while no other waits for it.
inline constexpr size_t kMostNotifiedBytes = 2048;
// Limit of the bytes that wait for one neighbour. A rank closes the connection to a peer that reads
// too slowly; both sides see that as not clean. Messages to a far rank that does not acknowledge
// 2 * kMaxControlBody are dropped. Where half of the limit waits, a rank leaves out what goes to a
// far rank: the origin sends it again.
inline constexpr size_t kMaxControlQueue = 8 << 20;

struct ControlOptions {
  Time heartbeat = kSecond;        // interval of heartbeats; the same on all ranks
  Time dead_after = 10 * kSecond;  // silence (no byte received) of a dead peer; kNever: no limit
};

// The control thread calls the methods, one at a time. They must not wait for long and must not
// close a plane; they may send.
class ControlHandler {
 public:
  virtual ~ControlHandler() = default;
  // `body` is valid during the call.
  virtual void OnMessage(int peer, uint8_t kind, std::span<const std::byte> body) = 0;
  // Called once per peer, after its last message. `clean`: the peer sent a disconnect; else it died
  // or its connection (with this rank, or of a far rank with one of its neighbours) failed.
  virtual void OnPeerClosed(int peer, bool clean) = 0;
  // Called when one of the above threw std::bad_alloc, which loses its message. Must not allocate.
  virtual void OnOutOfMemory() {}
  // Called instead of OnPeerClosed when the peer has been silent for longer than `limit`, or a far
  // one towards a neighbour. The connection is closed afterwards; messages sent in this call may
  // still reach the peer.
  virtual void OnPeerSilent(int peer, Time silence, Time limit) {
    (void)silence, (void)limit;
    OnPeerClosed(peer, false);
  }
  // Called instead of OnPeerClosed when ranks between this one and a far one have died or left, and
  // none that passes messages on is left.
  virtual void OnPeerCutOff(int peer) { OnPeerClosed(peer, false); }
};

// One rank's end.
class ControlPlane {
 public:
  // Closes the plane without flushing, unless it is closed already.
  virtual ~ControlPlane() = default;
  // Any thread; never blocks. Kinds 1 to kMostControlKind, at most kMaxControlBody bytes (a larger
  // message is logged and dropped). Has no effect for a peer that has gone and for this rank
  // itself. What goes to far ranks may throw std::bad_alloc.
  virtual void Send(int peer, uint8_t kind, std::span<const std::byte> body) = 0;
  virtual void Broadcast(uint8_t kind, std::span<const std::byte> body);  // to all others
  // To all others with a connection to this rank: what they send on to theirs reaches all ranks.
  virtual void SendToNeighbours(uint8_t kind, std::span<const std::byte> body);
  virtual bool IsNeighbour(int peer) const { return peer >= 0 && peer < nranks_; }
  // Sends a disconnect, after which nothing else is sent, and waits until it and all earlier
  // messages have left (over TCP: until the neighbours' machines have them; to a far rank: until it
  // has them, for a second at most). Returns false if that is not so at `until`: call it again.
  virtual bool Disconnect(Time /*until*/) { return true; }
  // As Disconnect, and gives up what has not left by then. When it returns, no callback runs or
  // will run. Any thread but the control thread; idempotent.
  virtual void Close(Time flush_deadline) = 0;

 protected:
  explicit ControlPlane(int nranks) : nranks_(nranks) {}
  const int nranks_;
};

// Takes over the connections of the mesh. Callbacks may come before this returns. `handler` must
// live until Close. Returns kSystemError if the system has no thread or descriptor left.
Result<std::unique_ptr<ControlPlane>> StartControl(Mesh mesh, ControlHandler* handler,
                                                   const ControlOptions& options = {});

// The same for ranks that are threads of this process, with one handler per rank. They need no
// heartbeats. The control thread delivers all messages.
Result<std::vector<std::unique_ptr<ControlPlane>>> MakeLocalControl(
    const std::vector<ControlHandler*>& handlers);

}  // namespace inccl

#endif  // INCCL_CONTROL_CONTROL_H_
