// SPDX-License-Identifier: Apache-2.0
//
// Messages on an authenticated stream: u32 length of the body, u8 kind, body; little endian. On a
// sealed stream (TCP) the body is encrypted, a tag of 16 bytes follows it and counts in the length,
// and the tag covers length and kind, too.
#ifndef INCCL_BOOTSTRAP_FRAME_H_
#define INCCL_BOOTSTRAP_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "bootstrap/aead.h"
#include "bootstrap/crypto.h"

namespace inccl::bootstrap {

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

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_FRAME_H_
