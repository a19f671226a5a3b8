// SPDX-License-Identifier: Apache-2.0
//
// What the lanes of one rank take of the memory that a transport has for slots.
#ifndef INCCL_INIT_SLOT_MEMORY_H_
#define INCCL_INIT_SLOT_MEMORY_H_

#include <cstdint>

#include "base/status.h"
#include "communicator/comm_options.h"
#include "transport/transport.h"

namespace inccl {

// Of all collectives, large and small, as the tuner runs them, of the default codec and of messages
// to every peer, together: whatever is called afterwards, its lanes are among these. (Codecs that
// are named in calls may need further ones, of their own sizes.) The same on all ranks.
Result<uint64_t> SlotMemory(const CommOptions& options, int nranks, bool multicast);

// kInvalidArgument naming the settings if that is more than the transport has.
Status CheckSlotMemory(const CommOptions& options, int nranks, const Caps& caps);

}  // namespace inccl

#endif  // INCCL_INIT_SLOT_MEMORY_H_
