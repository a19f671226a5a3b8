// SPDX-License-Identifier: Apache-2.0
//
// Further rounds of blobs over the connections of a mesh that nobody else uses yet: a length (u32,
// little endian) and as many bytes, in each direction.
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
  int timeout_ms = 0;                            // what it came from, for texts
  const std::atomic<bool>* cancelled = nullptr;  // may be null
  Time patience = bootstrap::kPatience;          // before a log line says who is late
};

// Sends `mine` (at most kMaxBlob bytes) to every peer; what each rank sent, by rank, this one's
// included. All ranks call it equally often. Nothing is read beyond the blobs. An error begins with
// "rank r/n: init:" and names the peer: kRemoteError (gone), kInternalError (too large a blob),
// kTimeout.
Result<std::vector<std::vector<std::byte>>> ExchangeBlobs(const Mesh& mesh,
                                                          std::span<const std::byte> mine,
                                                          const ExchangeTerms& terms);

}  // namespace inccl

#endif  // INCCL_BOOTSTRAP_EXCHANGE_H_
