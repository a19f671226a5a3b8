// SPDX-License-Identifier: Apache-2.0
//
// Descriptors over a unix socket, with one message of 8 bytes: "icf1", count u32.
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

// False: not now (the socket is full, or too many descriptors are on their way); try again.
Result<bool> SendFds(int socket, std::span<const int> fds);

// Receives what SendFds sent, in as many calls as it takes.
class FdReceiver {
 public:
  // True when complete. An error: the peer has gone (kRemoteError), sent something else
  // (kInternalError), or there are no descriptors left here (kSystemError).
  Result<bool> Receive(int socket);
  std::vector<UniqueFd> Take() { return std::move(fds_); }

 private:
  size_t have_ = 0;
  std::array<std::byte, kFdMessageBytes> message_{};
  std::vector<UniqueFd> fds_;
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_FD_PASSING_H_
