// SPDX-License-Identifier: Apache-2.0
//
// Sends slices over TCP. The payload of a slice goes from the producer's slot into the socket and
// from the socket into the consumer's slot. A consumer grants credit when it opens its end of a
// lane and reads only slices for which it has granted credit, so it always reads what arrives, and
// no lane blocks another one.
#ifndef INCCL_TRANSPORT_TCP_TCP_TRANSPORT_H_
#define INCCL_TRANSPORT_TCP_TCP_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "bootstrap/connector.h"
#include "bootstrap/crypto.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/socket_list.h"
#include "bootstrap/unique_id.h"
#include "transport/poll_wakeup_event.h"
#include "transport/tcp/tcp_connection.h"
#include "transport/tcp/tcp_peer.h"
#include "transport/transport.h"
#include "transport/transport_factory.h"

namespace inccl::tcp {

// The data connections of a rank that are not made yet: which peers there are, and the state of the
// connections that are being made. Of two ranks the higher one connects. No call blocks unless its
// caller asks for it. One thread at a time.
class PeerConnector {
 public:
  struct Options {
    int rank = 0, nranks = 1;
    bootstrap::HandshakeTerms handshake = {};
    bootstrap::AddressFilter sources = {};  // whose connections this rank accepts
    int sockets_per_peer = 1;
    int timeout_ms = 0;  // for the first connection that reaches a peer
  };
  struct PeerPlan {
    std::string name = {};  // "1@host:pid", for errors
    std::vector<UniqueIdAddress> addresses = {};
    bootstrap::PublicKey key{};
  };

  // `peers`, by rank, are those that may connect. Each socket is added to the epoll descriptor,
  // which outlives the connector, with the data nullptr; the owner then calls SetReady.
  PeerConnector(const Options& options, std::vector<bootstrap::Listener> listeners,
                const std::map<int, PeerPlan>& peers, int epoll);

  bool Has(int peer) const { return peers_.contains(peer); }
  const std::string& NameOf(int peer) const { return peers_.at(peer).plan.name; }
  int sockets_per_peer() const { return options_.sockets_per_peer; }
  // Makes the connections with this peer that have not begun yet.
  void Begin(int peer);
  void SetReady() { ready_ = true; }
  // Whether a socket is ready that the last Poll has not handled.
  bool ready() const { return ready_; }
  bool Due(Time now) const { return ready_ || blind_ || now >= next_; }
  // As bootstrap::Connector::Poll.
  void Poll(Time until);
  std::vector<bootstrap::Connector::Ended> TakeEnded();
  // The peers that lack a connection which has begun, each once.
  std::vector<int> Missing() const { return connector_.Missing(); }
  std::string LastFailure() const { return connector_.LastFailure(); }
  // All connections with all peers have been made, or have failed.
  bool complete() const { return ended_ == peers_.size() * sockets(); }

 private:
  struct PeerState {
    PeerPlan plan;
    uint32_t begun = 0;  // bit i: connection i, by either end
  };

  size_t sockets() const { return static_cast<size_t>(options_.sockets_per_peer); }
  bootstrap::ConnectTerms Terms(size_t peers, int epoll);
  bootstrap::LinkPlan PlanOf(int peer, const PeerState& state, int connection) const;
  // A peer has begun this connection, and this rank has not.
  std::optional<bootstrap::LinkPlan> Expects(int peer, int connection);

  const Options options_;
  std::map<int, PeerState> peers_;
  bool blind_ = false;  // the epoll descriptor does not have all sockets
  const bootstrap::ConnectTerms terms_;
  bootstrap::Connector connector_;
  size_t ended_ = 0;
  bool ready_ = true;
  Time next_ = 0;
};

}  // namespace inccl::tcp

namespace inccl {

// A connected stream socket whose other end has proven to be a certain peer.
struct TcpSocket {
  UniqueFd fd;
  bootstrap::Key send_key, receive_key;  // of this connection only; the peer has them swapped
};

class TcpTransport final : public Transport {
 public:
  // Returns kInvalidArgument for a wrong rank or nranks, and kSystemError without descriptors.
  static Result<std::unique_ptr<TcpTransport>> Create(int rank, int nranks,
                                                      tcp::Protection protection);
  ~TcpTransport() override;

  // Called once per peer, before lanes with it are opened. Both ends attach the same sockets in the
  // same order. Errors name the peer as `name`, "1@host:pid", or as "rank 1" if that is empty.
  Status Attach(int peer, std::vector<TcpSocket> sockets, const std::string& name = "");

  // Instead: connects to the peers of `connector`, each when the first lane with it is opened here
  // or when it connects.
  void ConnectWhenNeeded(std::unique_ptr<tcp::PeerConnector> connector) {
    connector_ = std::move(connector);
  }
  // Begins to connect to all of these peers. AdvanceConnections does what is due, without waiting;
  // it has something to do when epoll() is readable.
  void BeginAll();
  Status AdvanceConnections();
  // Waits for all that have begun; `check` is called repeatedly with those that are missing, and
  // its error ends the wait. Errors name the peer.
  Status ConnectNow(const std::function<Status(const std::vector<int>& missing)>& check);

  // `sockets` gets the sockets of all peers from the caller; this transport takes them off before
  // it closes them.
  void ShowIn(std::shared_ptr<SocketList> sockets) { sockets_ = std::move(sockets); }

  // The descriptor that PeerConnector adds its sockets to.
  int epoll() const { return epoll_.get(); }

  static Caps CapsOf() { return {.name = "tcp", .deep_lanes = true}; }
  Caps caps() const override { return CapsOf(); }
  LaneCaps CapsFor(int /*producer*/, std::span<const int> /*consumers*/) const override {
    return {.consumer_grants = true};
  }
  Result<std::unique_ptr<SendLane>> OpenSend(const LaneSpec& spec) override;
  Result<std::unique_ptr<RecvLane>> OpenRecv(const LaneSpec& spec) override;
  Result<int> Progress(Time now) override;
  bool unsent() const override;
  void AppendUnsent(std::vector<int>* ranks) const override;
  void DropUnsent() override;
  WakeupEvent* wakeup_event() override { return wakeup_event_.get(); }
  WakeupSource* wakeup_source() override { return &wakeup_source_; }
  bool delivered() const override;
  void Quiesce(Time deadline) override;
  uint64_t memory_bytes() const override { return memory_bytes_; }
  TransportCounters counters() const override { return counters_; }

 private:
  // Readable if a socket is.
  class Source final : public WakeupSource {
   public:
    explicit Source(TcpTransport* transport) : transport_(transport) {}
    int fd() const override { return transport_->epoll(); }
    void Arm() override;
    // False while a connection has more to read than the last Progress took, or is being made.
    bool Ready() override;

   private:
    TcpTransport* const transport_;
  };

  TcpTransport(int rank, int nranks, tcp::Protection protection, UniqueFd epoll)
      : rank_(rank),
        protection_(protection),
        epoll_(std::move(epoll)),
        wakeup_source_(this),
        peers_(static_cast<size_t>(nranks)) {}
  int nranks() const { return static_cast<int>(peers_.size()); }
  // Notes which connections are ready.
  void Poll();
  tcp::PeerLink* MakeLink(int peer, const std::string& name, int connections);
  // The connections with the peer of a lane, of which the first one may be about to be made.
  Result<tcp::PeerLink*> LinkFor(const LaneSpec& spec, int peer);
  // A connection has been made.
  Status Open(tcp::PeerLink* link, size_t number, TcpSocket socket);
  // Advances the connections that are being made, waiting until `until` at most. Returns how many
  // are made now: what strangers do is no progress. *failure: why one that has failed cannot be
  // made; kSystemError, which is this rank's, goes before what a peer has done.
  Result<int> Connect(Time until, Status* failure);

  const int rank_;
  const tcp::Protection protection_;
  UniqueFd epoll_;
  Source wakeup_source_;
  std::unique_ptr<PollWakeupEvent> wakeup_event_;
  std::unique_ptr<tcp::PeerConnector> connector_;      // nullptr: all connections are made
  std::vector<std::unique_ptr<tcp::PeerLink>> peers_;  // by rank; nullptr: no lane, no connection
  std::vector<tcp::PeerLink*> attached_;
  std::unordered_set<uint64_t> opened_send_, opened_recv_;
  std::shared_ptr<SocketList> sockets_;  // may be null
  TransportCounters counters_;
  uint64_t memory_bytes_ = 0;
  int idle_polls_ = 0;   // calls of Progress in a row in which nothing arrived
  bool arming_ = false;  // the rank is about to sleep
  bool closed_ = false;
};

}  // namespace inccl

namespace inccl {

struct TcpOptions {
  std::string interfaces;    // INCCL_SOCKET_IFNAME
  ListenRules listen;        // INCCL_PORT_RANGE, INCCL_SOCKET_ALLOW
  int sockets_per_peer = 0;  // 0: as many as the links require
  tcp::Protection protection = tcp::Protection::kAuth;
};

// Listens on the interface that the options select, until all connections are made. Of two ranks
// the higher one connects: when the communicator is made, in one of up to
// INCCL_TEST_CONTROL_ALL_PAIRS ranks, else when a lane between them is first needed. Errors:
// kInvalidUsage (no such interface), kSystemError.
Result<std::unique_ptr<TransportFactory>> MakeTcpFactory(int rank, int nranks,
                                                         const TcpOptions& options);

}  // namespace inccl

#endif  // INCCL_TRANSPORT_TCP_TCP_TRANSPORT_H_
