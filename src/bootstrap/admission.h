// SPDX-License-Identifier: Apache-2.0
//
// Decides which unauthenticated connections a listener keeps. A total budget, a budget per source
// and random choice keep a flood of foreign connections cheap and leave room for ranks.
#ifndef INCCL_BOOTSTRAP_ADMISSION_H_
#define INCCL_BOOTSTRAP_ADMISSION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/clock.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {

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

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_ADMISSION_H_
