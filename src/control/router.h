// SPDX-License-Identifier: Apache-2.0
//
// What a rank does where its control connections do not reach all others (ControlGraph): it passes
// on messages of others, and reaches far ranks, those without a connection to it, over its
// neighbours. It does no I/O: frames of neighbours go in, frames for neighbours come out.
//
// Four kinds of frames. Integers are little endian, ranks u32, numbers u64.
//   routed  to, from, number, hops u8, then sealed: kind u8, body; a tag of 16 bytes.
//           Travels on a shortest path over ranks that are not known to be gone. The ends of the
//           path count their messages; what is not acknowledged is sent again, so each arrives once
//           and in order, even if ranks on the way die. Only the two ends can read or forge it:
//           their keys follow from X25519 and the communicator's nonce.
//   ack     to, from, number, hops u8: all messages up to this number have arrived.
//   flood   from, number, kind u8, body. Each rank passes on the first copy. The neighbours of the
//           origin take what comes from the origin itself. Every connection keeps the order and
//           every rank passes on everything, so a number is never left out.
//   report  any number of: rank, end u8, silence in milliseconds u32. Each rank passes on the first
//           report about a rank. A neighbour of that rank goes by its own connection.
// Nothing of a rank is delivered after it is known to be gone. A rank that no path leads to any
// more counts as gone (kCutOff) if a rank has been lost; not if all that are gone have left in
// order, since ranks may leave early.
#ifndef INCCL_CONTROL_ROUTER_H_
#define INCCL_CONTROL_ROUTER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/crypto.h"
#include "bootstrap/mesh.h"

namespace inccl::control {

// Not thread-safe. Methods may throw std::bad_alloc, also where libcrypto fails, which it does for
// want of memory.
class Router {
 public:
  static constexpr uint8_t kRouted = 250, kAck = 251, kFlood = 252, kReport = 253;
  static bool Owns(uint8_t kind) { return kind >= kRouted && kind <= kReport; }
  static constexpr size_t kMostHeaderBytes = 64;  // of a frame besides a message's body

  // How a rank is gone. kLeft: in order; kClosed: its connection has ended otherwise.
  enum class End : uint8_t { kNone = 0, kLeft = 1, kClosed = 2, kSilent = 3, kCutOff = 4 };

  struct Terms {
    int rank = 0, nranks = 1;
    ControlGraph graph;
    std::shared_ptr<const bootstrap::ServerKey> key;  // of this rank
    std::vector<bootstrap::PublicKey> keys;           // by rank
    bootstrap::Nonce communicator{};
    Time resend_after = 2 * kSecond;  // at first; then less and less often
  };
  using Emit = std::function<void(int neighbour, uint8_t kind, std::span<const std::byte> body)>;

  Router(Terms terms, Emit emit);

  // To a far rank. Has no effect for one that is gone or that no path leads to.
  void Send(int to, uint8_t kind, std::span<const std::byte> body, Time now);
  void Broadcast(uint8_t kind, std::span<const std::byte> body);

  struct Message {
    int from = -1;  // -1: there is none
    uint8_t kind = 0;
    std::span<const std::byte> body;  // valid until the next call of OnFrame
  };
  // A frame of a neighbour, and the message that it brings for this rank. False: it is malformed.
  bool OnFrame(int neighbour, uint8_t kind, std::span<const std::byte> body, Time now,
               Message* message);
  // The connection to a neighbour has ended.
  void OnNeighbourGone(int neighbour, End end, Time silence, Time now);

  struct Gone {
    int rank = 0;
    End end = End::kNone;
    Time silence = 0;
  };
  // The next of the ranks that are newly known to be gone, without those of OnNeighbourGone.
  std::optional<Gone> NextGone();

  // Sends again and reports what is due. Called about as often as heartbeats are sent, and at
  // report_at().
  void OnTime(Time now);
  Time report_at() const { return report_at_; }  // kNever: there is nothing to report
  // Reports now what can wait otherwise.
  void SendReports();
  bool acknowledged() const { return unacknowledged_ == 0; }  // all messages of Send

 private:
  // Messages between this rank and a far one.
  struct Channel {
    std::optional<bootstrap::StreamCipher> cipher;  // none: sealing a message has failed
    uint64_t sent = 0, received = 0;                // numbers of the last messages
    std::deque<std::vector<std::byte>> waiting;     // the last ones sent; not acknowledged
    size_t waiting_bytes = 0;
    Time again_at = kNever, pause = 0;
    bool full = false;  // this has been logged
  };
  struct Envelope {
    int to = 0, from = 0;
    uint64_t number = 0;
    uint8_t hops = 0;
  };

  bool Alive(int rank) const { return ends_[static_cast<size_t>(rank)] == End::kNone; }
  bool IsNeighbour(int rank) const { return terms_.graph.Linked(terms_.rank, rank); }
  Channel& ChannelTo(int rank);
  int NextHop(int to);
  void PassOn(uint8_t kind, const Envelope& envelope, std::span<const std::byte> body);
  void SendAgain(Channel* channel, int to, Time now);
  void Forget(Channel* channel, size_t count);  // the first so many that wait
  bool OnEnvelope(uint8_t kind, std::span<const std::byte> body, Time now, Message* message);
  void OnRouted(const Envelope& envelope, std::span<const std::byte> body, Message* message);
  void OnAck(const Envelope& envelope, Time now);
  bool OnFlood(int neighbour, std::span<const std::byte> body, Message* message);
  bool OnReport(std::span<const std::byte> body, Time now);
  void EmitToAll(uint8_t kind, std::span<const std::byte> body, int but_a, int but_b);
  void MarkGone(const Gone& gone, Time now);
  void FollowGone(Time now);  // once for all ranks that are marked at a time
  void FindCutOff();

  const Terms terms_;
  const Emit emit_;
  std::vector<int> neighbours_;
  std::vector<End> ends_;        // by rank; kNone: it is there
  std::vector<uint64_t> heard_;  // by rank: number of the last flood
  uint64_t floods_ = 0;          // of this rank
  std::map<int, Channel> channels_;
  size_t unacknowledged_ = 0;  // messages of all channels
  std::vector<int> hops_;      // ControlGraph::NextHops; empty: not computed
  bool lost_ = false;          // a rank is gone that has not left in order
  std::vector<Gone> to_report_;
  Time report_at_ = kNever;
  std::deque<Gone> gone_;
  std::vector<std::byte> opened_;  // Message::body of a routed one
};

}  // namespace inccl::control

#endif  // INCCL_CONTROL_ROUTER_H_
