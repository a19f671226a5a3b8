// SPDX-License-Identifier: Apache-2.0
//
// The data connections with one peer, and the lanes that use them. A lane uses the connection that
// its channel selects.
#ifndef INCCL_TRANSPORT_TCP_TCP_PEER_H_
#define INCCL_TRANSPORT_TCP_TCP_PEER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/tcp/tcp_connection.h"
#include "transport/tcp/tcp_lanes.h"

namespace inccl::tcp {

// One connection with the lanes that use it.
class ConnectionLanes final : public FrameSink {
 public:
  // `name` begins the errors: "rank 0: tcp: peer 1@host:pid".
  ConnectionLanes(int rank, const std::string& name, Protection protection)
      : rank_(rank), name_(name), connection_(name, protection, this) {}

  Connection* connection() { return &connection_; }
  const Connection* connection() const { return &connection_; }
  Result<SendEnd*> OpenSend(const LaneSpec& spec);
  // Grants the producer its credit.
  Result<RecvEnd*> OpenRecv(const LaneSpec& spec);

  // A slice has been released, so its producer is owed a credit.
  void Owe(RecvEnd* end);
  // Puts the credit of one lane, if any is owed, into the header of a slice.
  void AddCredit(FrameHeader* header);
  // Sends the credits that are owed: all of them, or those of at least half a lane.
  Status SendCredits(bool all);
  // Frames, or credits that SendCredits(false) sends, or a connection that is not made although
  // this rank has opened a lane: its peer may need it for that lane.
  bool unsent() const;
  void DropUnsent();

  std::byte* PlaceOf(const FrameHeader& header, std::string* wrong) override;
  std::string Arrived(const FrameHeader& header) override;

 private:
  struct Grant {
    uint32_t slot_bytes = 0, depth = 0;
    SendEnd* end = nullptr;  // once this rank has opened it
  };

  // Its producer may soon lack credit.
  static bool OwesMuch(const RecvEnd& end) {
    return 2 * (end.released - end.announced) >= end.spec.depth;
  }
  // The connection is not made, and a lane needs it.
  bool awaited() const;
  RecvEnd* Due(const FrameHeader& header, std::string* wrong) const;
  std::string TakeGrant(const FrameHeader& header);
  std::string TakeCredit(const FrameHeader& header);
  // Joins the grant of this number and the end that this rank has opened. Returns what is wrong.
  std::string Join(size_t number, SendEnd* end);
  // Takes the credit of an owing end off the list and counts it as announced.
  uint64_t Announce(size_t index);

  const int rank_;
  const std::string name_;
  Connection connection_;
  std::vector<std::unique_ptr<SendEnd>> send_ends_;
  std::vector<std::unique_ptr<RecvEnd>> recv_ends_;   // by this rank's number - 1
  std::vector<Grant> grants_;                         // by the peer's number - 1
  std::unordered_map<uint64_t, size_t> number_of_;    // the peer's numbers, by lane key
  std::unordered_map<uint64_t, SendEnd*> ungranted_;  // by lane key
  std::vector<RecvEnd*> owing_;
};

class PeerLink {
 public:
  // `name` begins the errors, as that of ConnectionLanes.
  PeerLink(int rank, int peer, const std::string& name, Protection protection, int connections);

  // Connection number i. Lanes may be opened before it is made.
  Connection* connection(size_t i) { return connections_[i]->connection(); }
  const std::string& name() const { return name_; }
  ConnectionLanes* Of(const LaneSpec& spec) const {
    return connections_[spec.channel % connections_.size()].get();
  }

  // Receives and sends what the sockets are ready for; returns the number of frames that arrived.
  Result<int> Progress(Time now);
  Status SendCredits(bool all);
  bool unsent() const;
  bool dropped_slices() const;
  void DropUnsent();
  bool acknowledged() const;
  bool readable() const;
  // kRemoteError, some time after a connection was lost, so that a more precise report from the
  // control connection can come first.
  Status Lost() const;
  // Closes the sockets.
  void Close();
  int peer() const { return peer_; }

 private:
  const int peer_;
  const std::string name_;
  std::vector<std::unique_ptr<ConnectionLanes>> connections_;
  std::string failure_;
  Time failed_at_ = 0;
  bool lost_ = false;
};

}  // namespace inccl::tcp

#endif  // INCCL_TRANSPORT_TCP_TCP_PEER_H_
