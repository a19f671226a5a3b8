// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/frame.h"

#include <algorithm>

#include "base/bytes.h"

namespace inccl::bootstrap {

bool AppendFrame(uint8_t kind, Bytes body, std::vector<std::byte>* out, Aead* seal) {
  const size_t tag = seal != nullptr ? kTagBytes : 0;
  const auto length = static_cast<uint32_t>(body.size() + tag);
  const size_t begin = out->size(), need = begin + kFrameHeaderBytes + length;
  // Reserve first, so that running out of memory leaves *out unchanged.
  if (need > out->capacity()) out->reserve(std::max(need, 2 * out->capacity()));
  for (int i = 0; i < 4; ++i) out->push_back(static_cast<std::byte>(length >> (8 * i)));
  out->push_back(static_cast<std::byte>(kind));
  out->insert(out->end(), body.begin(), body.end());
  if (seal == nullptr) return true;
  out->resize(need);
  const std::span<std::byte> frame = std::span(*out).subspan(begin);
  const bool sealed =
      seal->Seal(frame.first(kFrameHeaderBytes), frame.subspan(kFrameHeaderBytes, body.size()),
                 frame.last<kTagBytes>());
  if (!sealed) out->resize(begin);
  return sealed;
}

void FrameParser::Append(Bytes bytes) {
  if (begin_ > 0 && (begin_ == buffer_.size() || begin_ >= buffer_.size() / 2)) {
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(begin_));
    begin_ = 0;
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

FrameParser::Next FrameParser::Pop(Frame* frame) {
  if (broken_) return Next::kMalformed;
  const Bytes rest = Bytes(buffer_).subspan(begin_);
  ByteReader reader(rest);
  uint32_t length = 0;
  if (!reader.U32(&length)) return Next::kNeedMore;
  if (length > max_body_ + (open_ ? kTagBytes : 0)) return Next::kMalformed;
  if (!reader.U8(&frame->kind) || reader.remaining() < length) return Next::kNeedMore;
  const std::span<std::byte> whole = std::span(buffer_).subspan(begin_, kFrameHeaderBytes + length);
  begin_ += whole.size();
  frame->body = whole.subspan(kFrameHeaderBytes);
  if (!open_) return Next::kFrame;
  if (length >= kTagBytes) {
    const std::span<std::byte> body = whole.subspan(kFrameHeaderBytes, length - kTagBytes);
    frame->body = body;
    if (open_->Open(whole.first(kFrameHeaderBytes), body, whole.last<kTagBytes>())) {
      return Next::kFrame;
    }
  }
  broken_ = true;
  return Next::kMalformed;
}

}  // namespace inccl::bootstrap
