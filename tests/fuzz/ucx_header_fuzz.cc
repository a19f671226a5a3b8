// SPDX-License-Identifier: Apache-2.0
//
// Messages that come over UCX where a slice, or a credit, is due: whatever they hold, what is
// believed of them fits the slot, the lane's order, and the message.
#include <cstring>

#include "fuzz/fuzz.h"
#include "transport/ucx/ucx_wire.h"

namespace inccl::fuzz {
namespace {

constexpr uint32_t kSlotBytes = 64;

std::vector<std::byte> SliceExample(uint32_t seq, uint32_t bytes, size_t payload) {
  const ucx::WireHeader wire = {
      .seq = seq, .bytes = bytes, .slice = 3, .reserved = {}, .signature = 4};
  std::vector<std::byte> example(1 + sizeof wire + payload, std::byte{1});  // ticket 0
  std::memcpy(example.data() + 1, &wire, sizeof wire);
  return example;
}

}  // namespace

void Run(Data data) {
  Input input(data);
  const uint8_t first = input.Byte();
  const uint64_t before = first >> 1;
  const std::vector<std::byte> message = Exact(input.Rest());
  if ((first & 1) != 0) {
    SliceHeader header;
    const std::string wrong = ucx::ReadWireHeader(message, before, kSlotBytes, &header);
    if (!wrong.empty()) return;
    Require(header.bytes <= kSlotBytes, "a slice fits its slot");
    Require(message.size() == kHeaderBytes + header.bytes, "the payload is all that follows");
    Require(header.source.region == 0 && header.target.region == 0, "UCX has no zero copy");
    uint32_t seq = 0;
    std::memcpy(&seq, message.data(), sizeof seq);
    Require(seq == before + 1, "slices come in order");
  } else {
    const uint64_t published = before + 1;
    ucx::CreditMessage credit;
    if (!ucx::ReadCredit(message, before, published, &credit)) return;
    Require(message.size() == kCreditBytes, "a credit is a whole message");
    Require(credit.released == published, "nothing is released twice, or before it was sent");
  }
}

std::vector<std::vector<std::byte>> Examples() {
  std::vector<std::byte> credit(1 + kCreditBytes);
  credit[1] = std::byte{1};
  return {SliceExample(1, 4, 4), SliceExample(1, 0, 0), SliceExample(1, 65, 65),
          SliceExample(2, 4, 4), credit};
}

}  // namespace inccl::fuzz
