// SPDX-License-Identifier: Apache-2.0
//
// What one rank writes to another. A slice is a frame (tcp_connection.h) in the consumer's slot. A
// grant is a frame, too, in the consumer's inbox, which is lane 0 of each direction: it names a
// lane by its key and says where the lane's slots are. A credit has no bytes: its immediate data
// say all.
#ifndef INCCL_TRANSPORT_VERBS_VERBS_WIRE_H_
#define INCCL_TRANSPORT_VERBS_VERBS_WIRE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace inccl {

// The ports of the RDMA devices: what they are, which of them the options admit, and why a port
// cannot be used.

// Which ports a rank may use, in NCCL's grammar; docs/environment.md.
struct VerbsPortOptions {
  std::string hca{};   // INCCL_IB_HCA
  int gid_index = -1;  // INCCL_IB_GID_INDEX; -1: the library chooses
  // NUMA nodes of the processors of a process that is bound to them. Ports there are preferred.
  std::vector<int> nodes{};
};

// One port of a device, for inccl-info.
struct VerbsPort {
  std::string device{};
  int port = 0;
  std::string state{};  // "ACTIVE", "DOWN", ...
  bool ethernet = false;
  int mtu = 0;                    // bytes
  double gbps = 0;                // rate of the link
  int node = -1;                  // NUMA node of the device; -1: unknown
  int gid_index = -1;             // of the GID that the rank would use; -1: none
  std::string gid{};              // that GID as text
  std::string why_not{};          // why a rank cannot use the port; "": it can
  std::string why_no_dma_bufs{};  // why the device cannot send from memory of GPUs; "": it can
};

// Returns the ports of all devices. Errors: kSystemError (no libibverbs), kInvalidUsage (a library
// that was built without RDMA).
Result<std::vector<VerbsPort>> ListVerbsPorts(const VerbsPortOptions& options);

namespace verbs {

// Whether INCCL_IB_HCA admits a port: names of devices, or device:port, separated by commas, match
// as prefixes; "=" before the list asks for equal names, "^" excludes the ports of the list.
bool Admits(const std::string& hca, const std::string& device, int port);

using Gid = std::array<std::byte, 16>;
bool IsIpv4Mapped(const Gid& gid);
bool IsLinkLocal(const Gid& gid);
std::string ToText(const Gid& gid);

}  // namespace verbs

}  // namespace inccl

namespace inccl::verbs {

// The immediate data of a message, in host order.
struct Immediate {
  bool credit = false;
  uint16_t lane = 0;  // the consumer's number of the lane, at most kMostLanes
  // Slice: its slot. Credit: the low bits of the slices that the producer may have sent in total;
  // fewer than 2^16 are under way.
  uint16_t value = 0;
};
inline constexpr uint16_t kMostLanes = 0x7ffe;  // of two ranks, per direction
// The "lane" of the credit that tries the path between two ranks. Its bytes land in the inbox,
// which holds no grants yet.
inline constexpr uint16_t kTrialLane = 0x7fff;
constexpr uint32_t Pack(const Immediate& immediate) {
  return (uint32_t{immediate.credit} << 31) | (uint32_t{immediate.lane} << 16) | immediate.value;
}
constexpr Immediate Unpack(uint32_t bits) {
  return {.credit = (bits >> 31) != 0,
          .lane = static_cast<uint16_t>((bits >> 16) & kTrialLane),
          .value = static_cast<uint16_t>(bits)};
}

// Flags in FrameHeader::credit_lane of a slice, since credits do not ride on slices.
inline constexpr uint32_t kIsInput = 1;  // SliceHeader::is_input
// The producer cannot read the payload, so that the CRC is the header's own. Only with
// Protection::kNone; the devices' own CRC is then the only one of the payload.
inline constexpr uint32_t kUnread = 2;

// The payload of a grant. The frame's header has the lane's number (lane), slot_bytes (slice),
// LaneSpec::Key (signature) and depth (credit).
struct GrantPayload {
  uint64_t address = 0;  // of slot 0 of the consumer
  uint32_t key = 0;      // with which the producer may write to the slots
  uint32_t stride = 0;   // bytes from slot to slot
};

// Lane 0: the producer of grants has all credits of it from the start.
inline constexpr uint16_t kInboxDepth = 8;
inline constexpr uint32_t kInboxStride = 512;
inline constexpr uint32_t kInboxBytes = kInboxDepth * kInboxStride;  // a packet of the largest MTU

// What a rank tells all peers before they connect, over authenticated connections.
struct RailAddress {
  bool ethernet = false;
  uint8_t mtu = 0;  // an ibv_mtu
  uint16_t lid = 0;
  Gid gid{};
  uint64_t inbox = 0;  // of rank 0; that of rank r lies r * kInboxBytes behind it
  uint32_t inbox_key = 0;
};
struct RankAddress {
  uint32_t first_packet = 0;  // the packet number of a queue pair is derived from it
  std::vector<RailAddress> rails;
  std::vector<uint32_t> queue_pairs;  // by rank

  std::vector<std::byte> Encode() const;
  // Returns false if the bytes are malformed or not from a communicator of `nranks`.
  static bool Decode(std::span<const std::byte> bytes, int nranks, RankAddress* address);
  // The number of the first packet that this rank sends to `peer`: 24 bits.
  uint32_t PacketNumberTo(int peer) const;
};
// The rail of the connection of two ranks, at either end: equal ones if both have as many.
constexpr size_t RailOf(int a, int b, size_t rails) { return static_cast<size_t>(a + b) % rails; }
inline constexpr size_t kMostRails = 8;
inline constexpr int kMostRanks = 3900;  // a longer address would not fit an offer

}  // namespace inccl::verbs

#endif  // INCCL_TRANSPORT_VERBS_VERBS_WIRE_H_
