// SPDX-License-Identifier: Apache-2.0
//
// Makes connections with peers: those that this rank begins and those that it accepts. Only Poll
// waits, and only as long as its caller says. One thread at a time.
#ifndef INCCL_BOOTSTRAP_CONNECTOR_H_
#define INCCL_BOOTSTRAP_CONNECTOR_H_

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "bootstrap/handshake.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/pending_connections.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {

// Connects a rank with its peers. Of every pair the higher rank connects and the lower one accepts;
// both prove that they know the communicator's key. Over unix sockets, which join the ranks of one
// machine, both check that the peer belongs to the same user, and each passes its descriptors to
// the other.

// A connection to make.
struct LinkPlan {
  int peer = 0;
  uint16_t connection = 0;  // number among those with this peer
  std::string peer_name;    // for errors
  PublicKey peer_key{};     // of its HandshakeTerms::own
  // Where the peer listens, in the order to try; all unix or all TCP. The accepting end needs them,
  // too, to know which kind is due.
  std::vector<SocketAddress> addresses;
};

// A connection that has been made.
struct Link {
  UniqueFd fd;
  Key send_key, receive_key;  // of TCP connections
  std::vector<UniqueFd> fds;  // that the peer has passed
};

struct ConnectTerms {
  int rank = 0, nranks = 1;
  HandshakeTerms handshake;
  size_t expected = 0;  // connections that peers may begin at once
  std::vector<int> share_fds;
  Time deadline = kNever;
  int timeout_ms = 0;
  AddressFilter sources;  // of TCP connections; others are refused
  // Called repeatedly with the peers that lack a connection; its error ends the attempt.
  // When `check_fd` becomes readable, it is called at once; -1: none.
  std::function<Status(const std::vector<int>& missing)> check;
  int check_fd = -1;
  // Peers may come late: this rank does not end a connection that it has made. If no address can be
  // connected to for `timeout_ms`, the connection fails. The rank accepts while it awaits a peer
  // only.
  bool patient = false;
  // The plan of a connection that a peer has begun and this rank has not; none: it is refused.
  std::function<std::optional<LinkPlan>(int peer, int connection)> expects;
  // Called with each new socket, so that the owner can wait for it, too.
  std::function<void(int fd)> watch;
};

struct Listener {
  UniqueFd fd;
  bool is_unix = false;
};

// Runs until all connections are made; links->at(i) is that of plans[i], which are in the order of
// peers and numbers. Errors name the peer. After a failure, `open` holds the descriptors; the
// caller closes them only after it has reported the failure, because a peer that sees them closed
// earlier would blame this rank.
Status ConnectPeers(ConnectTerms terms, const std::vector<LinkPlan>& plans,
                    std::vector<Listener> listeners, std::vector<Link>* links,
                    std::vector<UniqueFd>* open);

// One connection to a peer while it is being made.
class LinkAttempt {
 public:
  // `terms` outlives the attempt. The higher rank of the pair connects.
  LinkAttempt(const ConnectTerms* terms, LinkPlan plan);

  const LinkPlan& plan() const { return plan_; }
  bool is_unix() const { return plan_.addresses.front().is_unix(); }
  bool done() const { return state_ == State::kDone; }
  // Of a failed attempt to connect; "": none has failed.
  const std::string& last_failure() const { return last_failure_; }
  // When Start has something to do, unless the socket becomes ready before.
  Time NextTime() const;
  // What to wait for; fd -1: nothing.
  pollfd Awaited() const;

  // Does what is due now. An error ends the attempt.
  Status Start(Time now);
  // The socket is ready.
  Status Step();
  // Takes over the connection that the peer has made, or returns why not. `is_unix`: its kind.
  std::string Accept(const ServerHandshake& handshake, bool is_unix, UniqueFd* fd);

  Link TakeLink();
  UniqueFd TakeFd() { return std::move(link_.fd); }

 private:
  enum class State : uint8_t {
    kAwaited,      // the peer connects to this rank
    kPausing,      // this rank connects again at `at_`
    kConnecting,   // limited by `at_`
    kHandshaking,  // limited by `at_`
    kSwapping,     // exchanging descriptors
    kDone
  };

  const SocketAddress& target() const { return plan_.addresses[address_]; }
  void Pause(Time pause);
  Status Connect();
  // The current address has failed with this errno: goes on to the next one.
  Status NextAddress(int error);
  Status CheckOwner();
  Status StartHandshake();
  Status StepHandshake();
  Status Authenticated();
  Status Swap();

  const ConnectTerms* terms_;
  const LinkPlan plan_;
  State state_;
  Link link_;
  Time at_ = 0;
  Time unreachable_since_ = 0;  // 0: the last attempt has reached the peer
  Time lacking_since_ = 0;      // 0: the last attempt had a socket
  size_t address_ = 0;          // the address to try
  bool all_refused_ = true;     // by the addresses tried in this round
  std::string last_failure_;
  ClientHandshake handshake_;
  FdReceiver receiver_;
  bool sent_ = false, received_ = false;
  int rejections_ = 0;
};

class Connector {
 public:
  // A connection that is made, or the reason why it cannot be.
  struct Ended {
    LinkPlan plan;
    Result<Link> link;
  };

  // `terms` outlives it.
  Connector(const ConnectTerms* terms, std::vector<Listener> listeners);

  // Makes this connection: connects to a lower rank, awaits a higher one.
  void Begin(const LinkPlan& plan);
  // The peers that lack a connection which has begun, each once.
  std::vector<int> Missing() const;
  // Why the first connection that has failed cannot be made; it names the peer.
  Status Failure() const;
  // "; peer P: A: E" of an address that could not be connected to, or "".
  std::string LastFailure() const;
  // When Poll has something to do, unless a socket becomes ready before.
  Time NextTime() const;
  // Does what is due, waits for the sockets until `until` at most, and handles those that are
  // ready. Returns 0 only if poll has found none; an error is that of ConnectTerms::check.
  Result<int> Poll(Time until);
  // The connections that have ended since the last call.
  std::vector<Ended> TakeEnded();
  void MoveTo(std::vector<UniqueFd>* open);

 private:
  struct Entrance {
    Listener listener;
    PendingConnections pending;
    Time again_at = 0;       // not before then: the process lacked descriptors
    Time failing_since = 0;  // 0: it does not
  };
  struct Entry {
    explicit Entry(const ConnectTerms* terms, LinkPlan plan) : attempt(terms, std::move(plan)) {}
    bool ended() const { return !failure.ok() || attempt.done(); }

    LinkAttempt attempt;
    Status failure;
  };

  bool Accepts() const;
  int AcceptFrom(Entrance* entrance);
  void FailAwaited(const Entrance& entrance, int error);
  std::string Promote(const Entrance& entrance, const ServerHandshake& handshake, UniqueFd* fd);

  const ConnectTerms* const terms_;
  std::map<std::pair<int, int>, Entry> entries_;  // by peer and number
  std::vector<Entrance> entrances_;
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_CONNECTOR_H_
