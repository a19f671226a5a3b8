// SPDX-License-Identifier: Apache-2.0
//
// Format of the messages of lanes over UCX, and the checks on arrival.
#ifndef INCCL_TRANSPORT_UCX_UCX_WIRE_H_
#define INCCL_TRANSPORT_UCX_UCX_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "transport/transport.h"

namespace inccl::ucx {

// Numbers are in host order: all ranks run on machines of one kind.
struct alignas(64) WireHeader {
  uint32_t seq;  // number of the slice in its lane, from 1, modulo 2^32
  uint32_t bytes;
  uint32_t slice;
  uint32_t reserved[3];
  uint64_t signature;
};
static_assert(sizeof(WireHeader) == kHeaderBytes);

struct CreditMessage {
  uint64_t released;  // slices so far, including this one
  uint64_t reserved;
};
static_assert(sizeof(CreditMessage) == kCreditBytes);

// Reads and checks the header of the message that carries slice `ticket` of a lane; the payload
// follows it. Returns what is wrong, or "".
std::string ReadWireHeader(std::span<const std::byte> message, uint64_t ticket, uint32_t slot_bytes,
                           SliceHeader* header);

// Returns false if this is not the credit that follows `released` of `published` slices.
bool ReadCredit(std::span<const std::byte> message, uint64_t released, uint64_t published,
                CreditMessage* credit);

}  // namespace inccl::ucx

#endif  // INCCL_TRANSPORT_UCX_UCX_WIRE_H_
