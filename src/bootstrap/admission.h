// SPDX-License-Identifier: Apache-2.0
//
// Which connections a listener keeps that have not yet proven to be a rank's, so that strangers who
// open many neither cost much nor crowd out ranks: budgets in all and per source, and chance.
#ifndef INCCL_BOOTSTRAP_ADMISSION_H_
#define INCCL_BOOTSTRAP_ADMISSION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/clock.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {

// Where a connection comes from: the process, over a unix socket; else the address (of IPv6: the
// network).
struct Source {
  SocketAddress address;
  PeerCredentials peer;  // of unix sockets

  uint64_t Key() const;  // equal for one source
  std::string ToString() const;
};

struct Budget {
  size_t total = 0, per_source = 0;
};
// So that all ranks may connect at once, from one host or (threads) from one process, four times
// over. No more than a quarter of the descriptors this process may open.
Budget BudgetFor(size_t ranks, bool unix_sockets);

// Which of the connections makes room for one more from `source`: their sources are `pending`,
// `random` chooses. pending.size(): none needs to.
size_t MakesRoom(std::span<const uint64_t> pending, uint64_t source, const Budget& budget,
                 uint64_t random);

// Lets one line per second through.
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
