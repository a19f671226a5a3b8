// SPDX-License-Identifier: Apache-2.0
//
// Passes descriptors over a unix socket with one message of 8 bytes: "icf1", count u32.
#ifndef INCCL_BOOTSTRAP_FD_PASSING_H_
#define INCCL_BOOTSTRAP_FD_PASSING_H_

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "base/fd.h"
#include "base/status.h"

namespace inccl::bootstrap {

inline constexpr size_t kMaxSharedFds = 16;
inline constexpr size_t kFdMessageBytes = 8;

// Returns false if the caller must try again: the socket is full, or too many descriptors are in
// flight.
Result<bool> SendFds(int socket, std::span<const int> fds);

// Receives what SendFds sent, over as many calls as needed.
class FdReceiver {
 public:
  // Returns true when complete. Errors: the peer has gone (kRemoteError) or sent something else
  // (kInternalError), or this process has no descriptors left (kSystemError).
  Result<bool> Receive(int socket);
  std::vector<UniqueFd> Take() { return std::move(fds_); }

 private:
  size_t have_ = 0;
  std::array<std::byte, kFdMessageBytes> message_{};
  std::vector<UniqueFd> fds_;
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_FD_PASSING_H_
