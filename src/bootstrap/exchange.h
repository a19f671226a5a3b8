// SPDX-License-Identifier: Apache-2.0
//
// Exchanges further blobs over the connections of a mesh, before the control plane uses them. A
// message is a length (u32, little endian) and as many bytes; over TCP, these are encrypted, and a
// tag of 16 bytes over both follows.
//
// If the connections join all pairs, each rank sends its blob to all others. Else the blobs spread
// in steps (Bruck): in step k a rank gets from the rank 2^k above it the blobs of as many ranks
// from there on, each with a length (u32). A rank that fails sends its error to all its neighbours,
// with bit 31 of the length set, and who waits for it fails with that error.
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

// Gives `mine` (at most kMaxBlob bytes) to every peer and returns the blobs of all ranks, by rank,
// including this one's. All ranks call it equally often. It reads nothing beyond the blobs. An
// error begins with "rank r/n: init:" and names the peer: kRemoteError (it has gone),
// kInternalError (its blob is too large), kTimeout (if not all pairs have connections, the named
// rank may itself wait for another).
Result<std::vector<std::vector<std::byte>>> ExchangeBlobs(Mesh* mesh,
                                                          std::span<const std::byte> mine,
                                                          const ExchangeTerms& terms);

}  // namespace inccl

#endif  // INCCL_BOOTSTRAP_EXCHANGE_H_
