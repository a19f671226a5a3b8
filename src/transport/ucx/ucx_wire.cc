// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace inccl::ucx {

std::string ReadWireHeader(std::span<const std::byte> message, uint64_t ticket, uint32_t slot_bytes,
                           SliceHeader* header) {
  WireHeader wire;
  if (message.size() < sizeof wire) return fmt::format("a message of {} bytes", message.size());
  std::memcpy(&wire, message.data(), sizeof wire);
  const auto expected = static_cast<uint32_t>(ticket + 1);
  if (wire.seq != expected) {
    return fmt::format("slice number {}, expected {}", wire.seq, expected);
  }
  if (wire.bytes > slot_bytes || message.size() != sizeof wire + wire.bytes) {
    return fmt::format("a slice of {} bytes in a message of {}", wire.bytes, message.size());
  }
  *header = {.bytes = wire.bytes, .slice = wire.slice, .signature = wire.signature};
  return "";
}

bool ReadCredit(std::span<const std::byte> message, uint64_t released, uint64_t published,
                CreditMessage* credit) {
  *credit = {};
  if (!message.empty()) {
    std::memcpy(credit, message.data(), std::min(message.size(), sizeof *credit));
  }
  return message.size() == sizeof *credit && credit->released == released + 1 &&
         credit->released <= published;
}

}  // namespace inccl::ucx
