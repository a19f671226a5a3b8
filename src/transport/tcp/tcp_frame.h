// SPDX-License-Identifier: Apache-2.0
//
// What travels on a data connection: frames of a header and, for a slice, its payload. The consumer
// of a lane gives it a number and grants it credit when it opens its end; a frame names the lane by
// this number. Credits are cumulative and ride on slices that go the other way, or travel alone.
#ifndef INCCL_TRANSPORT_TCP_TCP_FRAME_H_
#define INCCL_TRANSPORT_TCP_TCP_FRAME_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "bootstrap/crypto.h"
#include "transport/transport.h"

namespace inccl::tcp {

enum class FrameKind : uint8_t { kGrant = 1, kSlice = 2, kCredit = 3 };
inline constexpr uint8_t kFrameVersion = 1;

// Numbers are in host order: all ranks run on machines of one kind.
struct alignas(64) FrameHeader {
  FrameKind kind = FrameKind::kCredit;
  uint8_t version = kFrameVersion;
  uint16_t reserved = 0;
  uint32_t lane = 0;       // slice: the receiver's number of the lane; grant: the sender's. From 1
  uint32_t bytes = 0;      // of the payload that follows
  uint32_t slice = 0;      // SliceHeader::slice; grant: slot_bytes
  uint64_t signature = 0;  // SliceHeader::signature; grant: LaneSpec::Key
  uint64_t seq = 0;        // slice: its number in the lane, from 1; grant: depth
  uint32_t credit_lane = 0;  // the sender's number of a lane that it consumes; 0: no credit
  uint32_t crc = 0;          // CRC-32C of the payload, unless it is encrypted
  uint64_t credit = 0;       // slices of that lane that the producer may have sent in total
  std::array<std::byte, bootstrap::kTagBytes> tag{};
};
static_assert(sizeof(FrameHeader) == kHeaderBytes);

// How the frames of a communicator are protected.
enum class Protection : uint8_t {
  kNone,     // a CRC finds damage
  kAuth,     // a tag over the header, which holds the payload's CRC: no frame can be injected,
             // repeated or moved, but an attacker on the path can change payloads
  kEncrypt,  // AES-128-GCM over the payload, with the header as associated data
};
const char* Name(Protection protection);

// The protection of one direction of one connection. The sender seals each frame in the order in
// which it sends them, the receiver checks each in this order.
class FrameGuard {
 public:
  // `key` is not used by kNone.
  static Result<FrameGuard> Create(Protection protection, const bootstrap::Key& key,
                                   bootstrap::Aead::Use use);

  // Sets crc and tag, and encrypts the payload if that is asked for.
  Status Seal(FrameHeader* header, std::span<std::byte> payload);
  // The same where the sender cannot read the payload: the CRC is that of the header, and a frame
  // passes only without protection. An error with other protection.
  Status SealUnread(FrameHeader* header) const;
  bool CheckUnread(const FrameHeader& header) const;
  bool encrypts() const { return protection_ == Protection::kEncrypt; }
  // Called when the header has arrived. Returns false if it is not what the peer has sent.
  bool CheckHeader(const FrameHeader& header);
  // Called when the payload has arrived; decrypts it. Returns false if it is not what the peer has
  // sent.
  bool CheckPayload(const FrameHeader& header, std::span<std::byte> payload);

 private:
  FrameGuard(Protection protection, std::optional<bootstrap::Aead> aead)
      : protection_(protection), aead_(std::move(aead)) {}

  Protection protection_;
  std::optional<bootstrap::Aead> aead_;
};

// Checks a header that has passed its guard, apart from the lane that it names. Returns what is
// wrong, or "".
std::string CheckFrame(const FrameHeader& header);

}  // namespace inccl::tcp

#endif  // INCCL_TRANSPORT_TCP_TCP_FRAME_H_
