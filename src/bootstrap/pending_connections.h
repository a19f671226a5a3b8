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
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "bootstrap/address_filter.h"
#include "bootstrap/admission.h"
#include "bootstrap/handshake.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {

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
