// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/tcp_frame.h"

#include <fmt/format.h>

#include <utility>

#include "base/crc32c.h"

namespace inccl::tcp {
namespace {

// What a tag covers: the header up to the tag.
bootstrap::Bytes Covered(const FrameHeader& header) {
  return std::as_bytes(std::span(&header, 1)).first(offsetof(FrameHeader, tag));
}

uint32_t HeaderCrc(FrameHeader header) {
  header.crc = 0;
  return Crc32c(Covered(header));
}

}  // namespace

const char* Name(Protection protection) {
  switch (protection) {
    case Protection::kNone: return "none";
    case Protection::kAuth: return "auth";
    case Protection::kEncrypt: return "encrypt";
  }
  return "?";
}

Result<FrameGuard> FrameGuard::Create(Protection protection, const bootstrap::Key& key,
                                      bootstrap::Aead::Use use) {
  if (protection == Protection::kNone) return FrameGuard(protection, std::nullopt);
  Result<bootstrap::Aead> aead = bootstrap::Aead::Create(key, use);
  if (!aead.ok()) return aead.status();
  return FrameGuard(protection, *std::move(aead));
}

Status FrameGuard::Seal(FrameHeader* header, std::span<std::byte> payload) {
  header->crc = encrypts() || payload.empty() ? 0 : Crc32c(payload);
  if (aead_ &&
      !aead_->Seal(Covered(*header), encrypts() ? payload : std::span<std::byte>(), header->tag)) {
    return SystemError("libcrypto refuses AES-128-GCM");
  }
  return Status::Ok();
}

Status FrameGuard::SealUnread(FrameHeader* header) const {
  if (protection_ != Protection::kNone) {
    return InternalError("a payload that cannot be read cannot be protected");
  }
  header->crc = HeaderCrc(*header);
  return Status::Ok();
}

bool FrameGuard::CheckUnread(const FrameHeader& header) const {
  return protection_ == Protection::kNone && header.crc == HeaderCrc(header);
}

// Under kEncrypt one tag covers header and payload.
bool FrameGuard::CheckHeader(const FrameHeader& header) {
  if (!aead_ || (protection_ == Protection::kEncrypt && header.bytes > 0)) return true;
  return aead_->Open(Covered(header), {}, header.tag);
}

bool FrameGuard::CheckPayload(const FrameHeader& header, std::span<std::byte> payload) {
  if (payload.empty()) return true;
  if (protection_ == Protection::kEncrypt) return aead_->Open(Covered(header), payload, header.tag);
  return Crc32c(payload) == header.crc;
}

std::string CheckFrame(const FrameHeader& header) {
  if (header.version != kFrameVersion || header.reserved != 0) {
    return fmt::format("a frame of version {}", header.version);
  }
  switch (header.kind) {
    case FrameKind::kGrant:
      if (header.lane != 0 && header.bytes == 0 && header.credit_lane == 0 && header.crc == 0 &&
          header.credit == 0)
        return "";
      break;
    case FrameKind::kSlice:
      if (header.lane != 0) return "";
      break;
    case FrameKind::kCredit:
      if (header.lane == 0 && header.bytes == 0 && header.credit_lane != 0 && header.crc == 0)
        return "";
      break;
  }
  return fmt::format("a malformed frame of kind {}", static_cast<int>(header.kind));
}

}  // namespace inccl::tcp
