// SPDX-License-Identifier: Apache-2.0
//
// Slices as tagged UCX messages. A lane has a tag for slices and one for credits; the consumer has
// a receive posted into every free slot of its own, so that a slice is written where it will be
// read, and a credit is a small message of its own. UCP keeps the order of messages with one tag
// between two workers, which the headers' running numbers check.
//
// There is one UCX worker per transport. Its address travels to the peers over an authenticated
// channel, which is the business of other code: UCX parses addresses and trusts them.
#ifndef INCCL_TRANSPORT_UCX_UCX_TRANSPORT_H_
#define INCCL_TRANSPORT_UCX_UCX_TRANSPORT_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/transport.h"

namespace inccl {

// SysV shared memory joins the processes of one host, has no name in any file system, knows neither
// RLIMIT_FSIZE nor the size of /dev/shm, and is gone with its last user. UCX's TCP is not among the
// defaults: whoever reaches its port owns the process.
inline constexpr const char* kDefaultUcxTls = "sysv";
inline constexpr size_t kMaxUcxAddressBytes = 8 * 1024;

struct UcxOptions {
  std::string tls;   // UCX's transports, as in UCX_TLS; "": kDefaultUcxTls
  bool wake = true;  // false: for transports that cannot wake a sleeper, who then looks often
};

class UcxTransport : public Transport {
 public:
  // False: Create always fails.
  static bool Built();
  // kInvalidUsage: built without UCX; kInvalidArgument: rank, nranks or options; kSystemError: UCX
  // is not installed, or cannot do what the options ask for.
  static Result<std::unique_ptr<UcxTransport>> Create(int rank, int nranks,
                                                      const UcxOptions& options = {});

  // At most kMaxUcxAddressBytes.
  virtual std::span<const std::byte> address() const = 0;
  // Once per peer and before lanes with it are opened. The peer's transport must live until this
  // returns. Errors name the peer.
  virtual Status Attach(int peer, std::span<const std::byte> address) = 0;
};

}  // namespace inccl

#endif  // INCCL_TRANSPORT_UCX_UCX_TRANSPORT_H_
