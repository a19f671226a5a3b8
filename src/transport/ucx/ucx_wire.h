// SPDX-License-Identifier: Apache-2.0
//
// What the messages of lanes over UCX hold, and what a consumer or a producer believes of them.
#ifndef INCCL_TRANSPORT_UCX_UCX_WIRE_H_
#define INCCL_TRANSPORT_UCX_UCX_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "transport/transport.h"

namespace inccl::ucx {

// Numbers in host order: UCX joins machines of one kind.
struct alignas(64) WireHeader {
  uint32_t seq;  // of the slice in its lane, from 1, modulo 2^32
  uint32_t bytes;
  uint32_t slice;
  uint32_t reserved;
  uint64_t signature;
  int64_t departure;
};
static_assert(sizeof(WireHeader) == kHeaderBytes);

struct CreditMessage {
  uint64_t released;  // slices so far, this one included
  int64_t departure;
};
static_assert(sizeof(CreditMessage) == kCreditBytes);

// The header of a message in which slice `ticket` of a lane is due; its payload follows it. What is
// wrong with it, "" if nothing is.
std::string ReadWireHeader(std::span<const std::byte> message, uint64_t ticket, uint32_t slot_bytes,
                           SliceHeader* header);

// False: this is not the credit that follows `released` of `published` slices.
bool ReadCredit(std::span<const std::byte> message, uint64_t released, uint64_t published,
                CreditMessage* credit);

}  // namespace inccl::ucx

#endif  // INCCL_TRANSPORT_UCX_UCX_WIRE_H_
