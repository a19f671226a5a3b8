// SPDX-License-Identifier: Apache-2.0
//
// Checks that every transport makes when it opens and uses a lane.
#ifndef INCCL_TRANSPORT_LANE_CHECK_H_
#define INCCL_TRANSPORT_LANE_CHECK_H_

#include <string>

#include "base/status.h"
#include "transport/transport.h"

namespace inccl {

enum class LaneSide { kSend, kRecv };

// Returns kInvalidArgument, naming the field and its value, if `spec` is not a valid lane among
// `nranks` ranks that `rank` may open on this side of this transport.
Status CheckLaneSpec(const LaneSpec& spec, LaneSide side, int rank, int nranks,
                     const Transport& transport);

// CheckPublish returns kInvalidUsage if no slot is acquired and kInvalidArgument if the slice does
// not fit into a slot. PublishError builds the error.
Status PublishError(const LaneSpec& spec, bool acquired, const SliceHeader& header);
inline Status CheckPublish(const LaneSpec& spec, bool acquired, const SliceHeader& header) {
  if (acquired && header.bytes <= spec.slot_bytes) [[likely]]
    return Status::Ok();
  return PublishError(spec, acquired, header);
}

// kInvalidUsage: the consumer called Release without a peeked slice.
Status ReleaseError(const LaneSpec& spec);

// Errors of Attach: kInvalidArgument if `peer` is not another one of the ranks; kInvalidUsage.
Status CheckPeer(int rank, int peer, int nranks);
Status AttachedTwice(int rank, int peer);
// Errors of OpenSend and OpenRecv: kInvalidUsage.
Status NotAttached(int rank, const LaneSpec& spec, int peer);
Status OpenedTwice(int rank, const LaneSpec& spec, LaneSide side);

// "data lane 3 -> 0,1 (channel 2, 4 x 131072 bytes)", for messages.
std::string Describe(const LaneSpec& spec);

}  // namespace inccl

#endif  // INCCL_TRANSPORT_LANE_CHECK_H_
