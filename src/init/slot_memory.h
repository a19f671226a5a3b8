// SPDX-License-Identifier: Apache-2.0
//
// The slot memory of a transport that the lanes of one rank take.
#ifndef INCCL_INIT_SLOT_MEMORY_H_
#define INCCL_INIT_SLOT_MEMORY_H_

#include <cstdint>

#include "base/status.h"
#include "communicator/comm_options.h"
#include "topology/host_map.h"
#include "transport/transport.h"

namespace inccl {

// Covers all collectives, large and small, with the tuner's algorithms and the default codec, and
// sends to every peer. The lanes of later calls are among these, except that codecs named in calls
// may need further lanes of other sizes. `shared_slots`: see Caps. The result is the same on all
// ranks, that of the rank with the most; it counts the lanes to ranks on other hosts, too.
Result<uint64_t> SlotMemory(const CommOptions& options, const HostMap& hosts, bool shared_slots);

// Returns kInvalidArgument with the names of the settings if the lanes need more memory than the
// transport has. OK for more than 128 ranks.
Status CheckSlotMemory(const CommOptions& options, const HostMap& hosts, const Caps& caps);

}  // namespace inccl

#endif  // INCCL_INIT_SLOT_MEMORY_H_
