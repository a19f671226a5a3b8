// SPDX-License-Identifier: Apache-2.0
//
// The messages that ranks and the rendezvous exchange in frames after the handshake.
#ifndef INCCL_BOOTSTRAP_MESSAGES_H_
#define INCCL_BOOTSTRAP_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/crypto.h"
#include "bootstrap/mesh.h"
#include "bootstrap/unique_id.h"
#include "topology/host_map.h"

namespace inccl::bootstrap {

// Messages on an authenticated stream: u32 length of the body, u8 kind, body; little endian. On a
// sealed stream (TCP) the body is encrypted, a tag of 16 bytes follows it and counts in the length,
// and the tag covers length and kind, too.

inline constexpr size_t kFrameHeaderBytes = 5;
// Large enough for the table of a thousand ranks with large blobs.
inline constexpr uint32_t kMaxFrameBody = 16 << 20;

// Seals the frame if `seal` is not null. Returns false if libcrypto fails; *out is then unchanged.
bool AppendFrame(uint8_t kind, Bytes body, std::vector<std::byte>* out, Aead* seal = nullptr);

// Splits a stream into frames. It never holds more than has arrived, whatever a length field
// claims.
class FrameParser {
 public:
  explicit FrameParser(uint32_t max_body = kMaxFrameBody) : max_body_(max_body) {}

  // The frames of the stream are sealed. Called before the first Append.
  void Protect(Aead open) { open_ = std::move(open); }

  struct Frame {
    uint8_t kind = 0;
    Bytes body;  // valid until the next call
  };
  enum class Next : uint8_t { kFrame, kNeedMore, kMalformed };

  void Append(Bytes bytes);
  Next Pop(Frame* frame);
  size_t buffered() const { return buffer_.size() - begin_; }

 private:
  uint32_t max_body_;
  std::optional<Aead> open_;
  bool broken_ = false;  // a frame did not open
  std::vector<std::byte> buffer_;
  size_t begin_ = 0;  // start of the data that has not been popped
};

// A rank sends kRegister first, then a blob as often as all others do, and kDone, with the round
// trips to its peers, when it has all it needs, or kFailed. The root sends kTable when all ranks
// have registered, all blobs when each rank has sent one, and kGo, with what the round trips say of
// sites, when all are done, or kFailed instead of any of them.
enum class MessageKind : uint8_t {
  kRegister = 1,
  kTable = 2,
  kDone = 3,
  kGo = 4,
  kFailed = 5,
  kBlob = 6,   // at most kMaxBlob bytes
  kBlobs = 7,  // one from each rank
};

inline constexpr size_t kMaxHostName = 255;
inline constexpr size_t kMaxAgreement = 32 * 1024;
inline constexpr size_t kMaxErrorText = 64 * 1024;

// What the other ranks learn about a rank.
struct RankRecord {
  uint32_t rank = 0;
  uint32_t pid = 0;
  uint32_t uid = 0;
  uint64_t host_id = 0;                         // HostId with INCCL_HOSTID
  uint64_t machine_id = 0;                      // HostId without it
  std::string host;                             // Decode escapes it for use in messages
  std::string mesh_name;                        // name of its unix socket
  std::vector<UniqueIdAddress> mesh_addresses;  // where it listens for other machines; may be none
  std::vector<std::byte> blob;                  // at most kMaxBlob bytes
  PublicKey key{};                              // PeerInfo::key
  uint32_t round_trip_us = 0;                   // PeerInfo::round_trip_us
};

struct Registration {
  RankRecord record;
  uint32_t number = 0;  // of the communicator, among those that ranks make with this key
  uint32_t nranks = 0;
  uint32_t attempt = 0;  // of this rank to register, from 1; the latest counts
  // Not 0: this rank is one of so many members of a communicator that grows.
  uint32_t members = 0;
  uint32_t timeout_ms = 0;  // for messages
  Time remaining = 0;       // time to its deadline when it sent this
  std::string agreement;

  std::vector<std::byte> Encode() const;
  // A kInternalError says which field is wrong.
  static Result<Registration> Decode(Bytes bytes);
};

struct RankTable {
  Nonce session{};  // new for each mesh, so that it has its own keys
  Key secret;       // the same, for its ranks only
  std::vector<RankRecord> ranks;

  // Fills session and secret with random bytes.
  Status Draw();
  std::vector<std::byte> Encode() const;
  static Result<RankTable> Decode(Bytes bytes, uint32_t nranks);
};

using Blobs = std::vector<std::vector<std::byte>>;
std::vector<std::byte> EncodeBlobs(const Blobs& blobs);
Result<Blobs> DecodeBlobs(Bytes bytes, uint32_t nranks);

// Between the sender, `rank`, and others: the body of kDone. At most one for each other rank.
std::vector<std::byte> EncodeLinks(std::span<const MeasuredLink> links);
Result<std::vector<MeasuredLink>> DecodeLinks(Bytes bytes, uint32_t rank, uint32_t nranks);
// Of so many hosts: the body of kGo.
std::vector<std::byte> EncodeSites(const Sites& sites);
Result<Sites> DecodeSites(Bytes bytes, int hosts);

std::vector<std::byte> EncodeError(const Status& status);
// The status that was sent, with its text escaped; kInternalError if the bytes are malformed.
Status DecodeError(Bytes bytes);

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_MESSAGES_H_
