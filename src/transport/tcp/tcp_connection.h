// SPDX-License-Identifier: Apache-2.0
//
// One data connection: a queue of frames that go out, and the frame that is coming in. Frames can
// be queued before the connection is made. No call blocks. One thread at a time. The frames, and
// what protects them.
#ifndef INCCL_TRANSPORT_TCP_TCP_CONNECTION_H_
#define INCCL_TRANSPORT_TCP_TCP_CONNECTION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "bootstrap/crypto.h"
#include "transport/transport.h"

namespace inccl::tcp {

// What travels on a data connection: frames of a header and, for a slice, its payload. The consumer
// of a lane gives it a number and grants it credit when it opens its end; a frame names the lane by
// this number. Credits are cumulative and ride on slices that go the other way, or travel alone.

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

// A frame that goes out. Its memory may change when *in_flight is false again.
struct OutFrame {
  FrameHeader* first() { return header != nullptr ? header : &own_header; }
  size_t bytes() { return sizeof(FrameHeader) + first()->bytes; }
  bool of_caller() const {
    return payload != nullptr && payload != reinterpret_cast<const std::byte*>(header + 1);
  }

  FrameHeader* header = nullptr;  // nullptr: `own_header`
  const std::byte* payload = nullptr;
  bool* in_flight = nullptr;
  bool sealed = false;
  FrameHeader own_header;
};

// A queue of frames, in a ring that grows.
class FrameQueue {
 public:
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  OutFrame& at(size_t i) { return ring_[(front_ + i) % ring_.size()]; }
  const OutFrame& at(size_t i) const { return ring_[(front_ + i) % ring_.size()]; }
  // An empty frame at the end.
  OutFrame* Append();
  void RemoveLast() { --size_; }
  // The first one is sent, or never will be.
  void Pop();
  // None will be sent. Returns whether there was one with a slice.
  bool Drop();
  // Whether one has its payload in a caller's memory.
  bool of_caller() const;

 private:
  std::vector<OutFrame> ring_;
  size_t front_ = 0, size_ = 0;
};

// Where the frames of a connection come from and go.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // The next frame to send of those that any connection with the peer may carry; false: none.
  virtual bool NextFrame(OutFrame* /*frame*/) { return false; }
  // The place for the payload of a slice, with room for header.bytes; nullptr and *wrong if no such
  // slice is due.
  virtual std::byte* PlaceOf(const FrameHeader& header, std::string* wrong) = 0;
  // A frame is complete and has been checked. Returns what is wrong with it, or "".
  virtual std::string Arrived(const FrameHeader& header) = 0;
};

class Connection {
 public:
  // `sink` outlives the connection; `name` begins its errors.
  Connection(std::string name, Protection protection, FrameSink* sink)
      : name_(std::move(name)), encrypts_(protection == Protection::kEncrypt), sink_(sink) {}

  // The connection is made, once.
  void Open(UniqueFd fd, FrameGuard out, FrameGuard in);
  bool made() const { return fd_.valid(); }
  // The connection carries nothing any more, or cannot be made.
  void Fail(std::string why);

  // Queues a frame that the caller has laid out in memory, header first. The memory belongs to the
  // connection until *in_flight is false again. Sends what the socket takes.
  Status Send(std::byte* frame, bool* in_flight);
  bool encrypts() const { return encrypts_; }
  // The same for a header alone, which is copied.
  Status Send(const FrameHeader& header);
  // Sends what the socket takes now.
  void Flush();
  // Reads what has arrived, up to a limit of frames, and returns the number of frames. An error is
  // one of the peer's doing: bytes that it must not send.
  Result<int> Receive();

  int fd() const { return fd_.get(); }
  bool unsent() const { return !queue_.empty() && failure_.empty(); }
  // Edge-triggered readiness: the owner calls these when epoll reports it.
  // `ended`: the peer sends no more, so a short read is not the last one.
  void SetReadable(bool ended) {
    readable_ = true;
    ended_ = ended_ || ended;
  }
  void SetWritable() { writable_ = true; }
  bool readable() const { return readable_ && failure_.empty(); }
  bool writable() const { return writable_ && failure_.empty(); }
  // Why the connection carries nothing any more; "": it lives.
  const std::string& failure() const { return failure_; }
  // The connection has failed with slices that were not sent.
  bool dropped_slices() const { return dropped_slices_; }
  // Ends the connection if a payload in a caller's memory is not sent.
  void DropUnsent();
  void Close();
  // Whether the peer's machine has acknowledged all that was sent.
  bool Acknowledged() const;

 private:
  bool Seal(OutFrame* out);
  void Refill();
  // Takes `bytes` off the front of the queue.
  void Complete(size_t bytes);
  std::span<std::byte> Place();
  Status Take(size_t bytes, int* frames);
  // The same for bytes that were read elsewhere.
  Status TakeCopies(std::span<const std::byte> bytes, int* frames);
  Status HeaderArrived(int* frames);
  Status FrameArrived(int* frames);
  Status Wrong(const std::string& what) const;

  const std::string name_;
  const bool encrypts_;
  UniqueFd fd_;
  std::optional<FrameGuard> out_guard_, in_guard_;  // of a connection that is made
  FrameSink* const sink_;
  FrameQueue queue_;
  size_t front_sent_ = 0;         // bytes of the first frame that are sent
  FrameHeader incoming_;          // of the next frame
  FrameHeader header_;            // of the frame whose payload is read
  std::byte* payload_ = nullptr;  // its place; nullptr: a header is read
  size_t have_ = 0;               // bytes of the payload or header
  bool readable_ = false, writable_ = false, ended_ = false;
  std::string failure_;
  bool dropped_slices_ = false;
};

}  // namespace inccl::tcp

#endif  // INCCL_TRANSPORT_TCP_TCP_CONNECTION_H_
