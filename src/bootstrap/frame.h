// SPDX-License-Identifier: Apache-2.0
//
// Messages on an authenticated stream: u32 length of the body, u8 kind, body; little endian.
#ifndef INCCL_BOOTSTRAP_FRAME_H_
#define INCCL_BOOTSTRAP_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bootstrap/crypto.h"

namespace inccl::bootstrap {

inline constexpr size_t kFrameHeaderBytes = 5;
// Large enough for the table of a thousand ranks with large blobs.
inline constexpr uint32_t kMaxFrameBody = 16 << 20;

void AppendFrame(uint8_t kind, Bytes body, std::vector<std::byte>* out);

// Splits a stream into frames. It never holds more than has arrived, whatever a length field
// claims.
class FrameParser {
 public:
  explicit FrameParser(uint32_t max_body = kMaxFrameBody) : max_body_(max_body) {}

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
  std::vector<std::byte> buffer_;
  size_t begin_ = 0;  // start of the data that has not been popped
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_FRAME_H_
