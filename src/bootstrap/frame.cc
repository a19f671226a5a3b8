// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/frame.h"

#include <algorithm>

#include "base/bytes.h"

namespace inccl::bootstrap {

void AppendFrame(uint8_t kind, Bytes body, std::vector<std::byte>* out) {
  const auto length = static_cast<uint32_t>(body.size());
  const size_t need = out->size() + kFrameHeaderBytes + body.size();
  // Reserve first, so that running out of memory leaves *out unchanged.
  if (need > out->capacity()) out->reserve(std::max(need, 2 * out->capacity()));
  for (int i = 0; i < 4; ++i) out->push_back(static_cast<std::byte>(length >> (8 * i)));
  out->push_back(static_cast<std::byte>(kind));
  out->insert(out->end(), body.begin(), body.end());
}

void FrameParser::Append(Bytes bytes) {
  if (begin_ > 0 && (begin_ == buffer_.size() || begin_ >= buffer_.size() / 2)) {
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(begin_));
    begin_ = 0;
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

FrameParser::Next FrameParser::Pop(Frame* frame) {
  const Bytes rest = Bytes(buffer_).subspan(begin_);
  ByteReader reader(rest);
  uint32_t length = 0;
  if (!reader.U32(&length)) return Next::kNeedMore;
  if (length > max_body_) return Next::kMalformed;
  if (!reader.U8(&frame->kind) || reader.remaining() < length) return Next::kNeedMore;
  frame->body = rest.subspan(kFrameHeaderBytes, length);
  begin_ += kFrameHeaderBytes + length;
  return Next::kFrame;
}

}  // namespace inccl::bootstrap
