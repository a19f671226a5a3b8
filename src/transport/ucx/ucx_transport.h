// SPDX-License-Identifier: Apache-2.0
//
// Sends slices as tagged UCX messages. A lane has one tag for slices and one for credits. The
// consumer posts a receive into each of its free slots, so UCX writes a slice where the consumer
// reads it. UCP keeps the order of messages with one tag between two workers; the running numbers
// in the headers check that.
//
// Each transport has one UCX worker. The caller passes its address to the peers over an
// authenticated channel, because UCX parses addresses without checks.
#ifndef INCCL_TRANSPORT_UCX_UCX_TRANSPORT_H_
#define INCCL_TRANSPORT_UCX_UCX_TRANSPORT_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/transport.h"
#include "transport/transport_factory.h"

namespace inccl {

// SysV shared memory works between the processes of one host, has no name in any file system, is
// not limited by RLIMIT_FSIZE or the size of /dev/shm, and disappears with its last user. UCX's TCP
// is not a default, because any client that reaches its port can take over the process.
inline constexpr const char* kDefaultUcxTls = "sysv";
inline constexpr size_t kMaxUcxAddressBytes = 8 * 1024;

struct UcxOptions {
  std::string tls;   // UCX's transports, as in UCX_TLS; "": kDefaultUcxTls
  bool wake = true;  // false for transports that cannot wake a sleeping rank, which then polls
};

class UcxTransport : public Transport {
 public:
  // False in a build without UCX, where Create always fails.
  static bool Built();
  // Returns kInvalidUsage in a build without UCX, kInvalidArgument for a wrong rank, nranks or
  // option, and kSystemError if UCX is not installed or does not support the options.
  static Result<std::unique_ptr<UcxTransport>> Create(int rank, int nranks,
                                                      const UcxOptions& options = {});

  // The worker's address, at most kMaxUcxAddressBytes.
  virtual std::span<const std::byte> address() const = 0;
  // Connects to a peer; called once per peer, before lanes with it are opened. The peer's transport
  // must live until this returns. Errors name the peer.
  virtual Status Attach(int peer, std::span<const std::byte> address) = 0;
};

// Errors are those of UcxTransport::Create. A rank attaches to live peers: none of them leaves
// before all have attached.
Result<std::unique_ptr<TransportFactory>> MakeUcxFactory(int rank, int nranks,
                                                         const UcxOptions& options);

}  // namespace inccl

#endif  // INCCL_TRANSPORT_UCX_UCX_TRANSPORT_H_
