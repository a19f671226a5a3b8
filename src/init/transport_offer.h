// SPDX-License-Identifier: Apache-2.0
#ifndef INCCL_INIT_TRANSPORT_OFFER_H_
#define INCCL_INIT_TRANSPORT_OFFER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/transport_factory.h"

namespace inccl {

// Whether one rank could make one transport. Sent to peers.
struct TransportOffer {
  std::string transport;
  Status status;                   // OK, or why the rank could not make it or attach to its peers
  std::vector<std::byte> payload;  // an address, or empty
  bool device_slices = false;      // the rank has a device and no slice size was given
  uint32_t link_mbps = 0;          // bootstrap::LinkMbps of the rank

  std::vector<std::byte> Encode() const;
  // Returns kInternalError if the bytes are malformed.
  static Result<TransportOffer> Decode(std::span<const std::byte> bytes);
};

// What a rank found out about its paths, as a payload: the first failure's text stands for all.
std::vector<std::byte> EncodePathFailures(std::span<const PathFailure> failures);
// Returns kInternalError if the bytes are malformed or name no rank of `nranks`.
Result<std::vector<PathFailure>> DecodePathFailures(std::span<const std::byte> bytes, int nranks);

}  // namespace inccl

#endif  // INCCL_INIT_TRANSPORT_OFFER_H_
