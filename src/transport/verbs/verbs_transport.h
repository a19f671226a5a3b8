// SPDX-License-Identifier: Apache-2.0
//
// Sends slices over RDMA: the producer's device writes each slice straight into the consumer's slot
// (reliable connections of libibverbs, over InfiniBand or RoCE v2). A consumer grants credit when
// it opens its end of a lane. In the steady state a slice costs one work request and no system
// call.
#ifndef INCCL_TRANSPORT_VERBS_VERBS_TRANSPORT_H_
#define INCCL_TRANSPORT_VERBS_VERBS_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "bootstrap/crypto.h"
#include "transport/tcp/tcp_connection.h"
#include "transport/transport.h"
#include "transport/transport_factory.h"
#include "transport/verbs/verbs_wire.h"

namespace inccl {

struct VerbsOptions {
  VerbsPortOptions ports{};
  int traffic_class = 0;  // INCCL_IB_TC
  int timeout = 14;       // INCCL_IB_TIMEOUT: 4.096 us * 2^timeout until a retry, of 7
  tcp::Protection protection = tcp::Protection::kAuth;
  uint64_t expected_bytes = 0;  // of slots: Create fails if so much memory cannot be registered
};

class VerbsTransport : public Transport {
 public:
  static bool Built();
  // Opens the ports that the rank uses and makes a queue pair for each peer. Errors:
  // kInvalidArgument (rank), kInvalidUsage (no RDMA in this build or machine, or data is to be
  // encrypted), kSystemError (no port or memory; the text says why).
  static Result<std::unique_ptr<VerbsTransport>> Create(int rank, int nranks,
                                                        const VerbsOptions& options);
  static Caps CapsOf() { return {.name = "verbs"}; }

  // What the peers' Attach needs. It lets its owner write to this rank's slots, so it travels over
  // authenticated connections only.
  virtual std::vector<std::byte> address() const = 0;
  // Called once per peer, before lanes with it are opened, with the peer's address. Errors name
  // the peer as `name`, "1@host:pid", or as "rank 1" if that is empty.
  virtual Status Attach(int peer, std::span<const std::byte> address, const std::string& name) = 0;
  // Sends one packet to each of these peers, whose TryPaths runs at the same time and names this
  // rank, and expects one of each until the deadline. Called before lanes are opened, if at all.
  virtual Result<std::vector<PathFailure>> TryPaths(std::span<const int> peers,
                                                    const ConnectLimits& limits) = 0;
  // Called once after all Attach. `secret` is known to the ranks of this communicator only.
  virtual Status Protect(const bootstrap::Key& secret, bootstrap::Bytes communicator) = 0;
};

// Errors are those of VerbsTransport::Create.
Result<std::unique_ptr<TransportFactory>> MakeVerbsFactory(int rank, int nranks,
                                                           const VerbsOptions& options);

}  // namespace inccl

#endif  // INCCL_TRANSPORT_VERBS_VERBS_TRANSPORT_H_
