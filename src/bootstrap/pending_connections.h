// SPDX-License-Identifier: Apache-2.0
//
// The connections of a listener that have not authenticated yet. The owner accepts and polls; this
// class checks where a connection comes from, keeps their number within a budget, and runs the
// handshakes.
#ifndef INCCL_BOOTSTRAP_PENDING_CONNECTIONS_H_
#define INCCL_BOOTSTRAP_PENDING_CONNECTIONS_H_

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "bootstrap/handshake.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {

// Decides which unauthenticated connections a listener keeps. A total budget, a budget per source
// and random choice keep a flood of foreign connections cheap and leave room for ranks.

// The origin of a connection: the process for a unix socket, else the address (for IPv6 the
// network).
struct Source {
  SocketAddress address;
  PeerCredentials peer;  // only for unix sockets

  uint64_t Key() const;  // equal for connections of one source
  std::string ToString() const;
};

struct Budget {
  size_t total = 0, per_source = 0;
};
// A budget that lets all ranks connect at once, four times over, from one host or (as threads) from
// one process. It uses at most a quarter of the descriptors that this process may open.
Budget BudgetFor(size_t ranks, bool unix_sockets);

// A limit for one step of a handshake when so many ranks come at once: they may share a few
// processors, and each of them serves all others.
Time LimitFor(Time limit, size_t ranks);

// Returns the index of the connection to drop for a new one from `source`, or pending.size() if
// none must go. `pending` holds the sources of the connections; `random` makes the choice.
size_t MakesRoom(std::span<const uint64_t> pending, uint64_t source, const Budget& budget,
                 uint64_t random);

// Limits log lines to one per second.
class LineLimit {
 public:
  bool Allow(Time now) {
    if (now < after_) return false;
    after_ = now + kSecond;
    return true;
  }

 private:
  Time after_ = 0;
};

class PendingConnections {
 public:
  struct Terms {
    std::string name;             // of the owner, for the log: "rank 1/4"
    std::string place = {};       // of the listener, as its owner calls it
    TermsOf handshake = {};       // of the communicators to which connections may belong
    AddressFilter sources = {};   // of TCP connections; others are refused
    uint32_t server = kNoRank;    // the rank that listens; kNoRank: a rendezvous
    bool is_unix = false;         // connections of other users are refused
    bool same_container = false;  // of a unix socket: those of other containers, too
    Time limit = 2 * kSecond;     // for a connection to authenticate; ExpectRanks
  };
  // Called with a connection whose handshake is complete. It takes `fd` if the peer is welcome;
  // else it returns the reason, and the connection is closed.
  using Promote = std::function<std::string(const ServerHandshake& handshake, UniqueFd* fd)>;

  explicit PendingConnections(Terms terms) : terms_(std::move(terms)), limit_(terms_.limit) {}

  // Sets budget and limit for this many ranks.
  void ExpectRanks(size_t ranks) {
    budget_ = BudgetFor(ranks, terms_.is_unix);
    limit_ = LimitFor(terms_.limit, ranks);
  }
  const std::string& place() const { return terms_.place; }
  // Takes over a connection that was just accepted. It may replace an older one.
  void Add(UniqueFd fd, const SocketAddress& address);
  // Appends one entry per connection.
  void AppendTo(std::vector<pollfd>* fds) const;
  // Advances the connections that poll found ready, and returns their number; `fds` begins with the
  // entries of AppendTo.
  size_t Advance(const pollfd* fds, const Promote& promote);
  // Closes the connections whose time is over.
  void Expire(Time now);
  Time NextDeadline() const;
  void MoveTo(std::vector<UniqueFd>* open);
  size_t size() const { return pending_.size(); }

 private:
  struct Pending {
    UniqueFd fd;
    Source source;
    ServerHandshake handshake;
    Time deadline = 0;
  };

  bool MayJoin(int fd, Source* source);
  void MakeRoomFor(const Source& source);
  // Returns false if the connection is to be dropped.
  bool Step(Pending* pending, const Promote& promote);
  // Logs at most one line per second.
  void Complain(const Source& source, const std::string& why);

  Terms terms_;
  std::vector<Pending> pending_;
  Budget budget_;
  Time limit_;
  LineLimit complaints_;
  uint64_t refused_ = 0;
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_PENDING_CONNECTIONS_H_
