// SPDX-License-Identifier: Apache-2.0
//
// Exchanges further blobs over the connections of a mesh, before the control plane uses them. Each
// direction carries a length (u32, little endian) and as many bytes; over TCP, these are encrypted,
// and a tag of 16 bytes over both follows.
#ifndef INCCL_BOOTSTRAP_EXCHANGE_H_
#define INCCL_BOOTSTRAP_EXCHANGE_H_

#include <atomic>
#include <cstddef>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/gathering.h"
#include "bootstrap/mesh.h"

namespace inccl {

struct ExchangeTerms {
  Time deadline = kNever;
  int timeout_ms = 0;                            // the length of the deadline, for messages
  const std::atomic<bool>* cancelled = nullptr;  // may be null
  Time patience = bootstrap::kPatience;          // then a log line names the late ranks
};

// Sends `mine` (at most kMaxBlob bytes) to every peer and returns the blobs of all ranks, by rank,
// including this one's. All ranks call it equally often. It reads nothing beyond the blobs. An
// error begins with "rank r/n: init:" and names the peer: kRemoteError (it has gone),
// kInternalError (its blob is too large), kTimeout.
Result<std::vector<std::vector<std::byte>>> ExchangeBlobs(Mesh* mesh,
                                                          std::span<const std::byte> mine,
                                                          const ExchangeTerms& terms);

}  // namespace inccl

#endif  // INCCL_BOOTSTRAP_EXCHANGE_H_
