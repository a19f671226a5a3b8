// SPDX-License-Identifier: Apache-2.0
//
// What every transport checks before it opens a lane.
#ifndef INCCL_TRANSPORT_LANE_CHECK_H_
#define INCCL_TRANSPORT_LANE_CHECK_H_

#include <string>

#include "base/status.h"
#include "transport/transport.h"

namespace inccl {

enum class LaneSide { kSend, kRecv };

// kInvalidArgument naming the field and its value if `spec` is no lane of `nranks` ranks that
// `rank` may open on this side with these capabilities.
Status CheckLaneSpec(const LaneSpec& spec, LaneSide side, int rank, int nranks, const Caps& caps);

// kInvalidUsage if no slot is acquired, kInvalidArgument if the slice does not fit one.
Status PublishError(const LaneSpec& spec, bool acquired, const SliceHeader& header);
inline Status CheckPublish(const LaneSpec& spec, bool acquired, const SliceHeader& header) {
  if (acquired && header.bytes <= spec.slot_bytes) [[likely]]
    return Status::Ok();
  return PublishError(spec, acquired, header);
}

// kInvalidUsage: Release without a peeked slice.
Status ReleaseError(const LaneSpec& spec);

// "data lane 3 -> 0,1 (channel 2, 4 x 131072 bytes)", for messages.
std::string Describe(const LaneSpec& spec);

}  // namespace inccl

#endif  // INCCL_TRANSPORT_LANE_CHECK_H_
