// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/messages.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/text.h"
#include "bootstrap/handshake.h"
#include "bootstrap/socket.h"

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

namespace {

constexpr Time kMaxRemaining = 48 * 3600 * kSecond;

void Write(const RankRecord& record, ByteWriter* writer) {
  writer->U32(record.rank);
  writer->U32(record.pid);
  writer->U32(record.uid);
  writer->U64(record.host_id);
  writer->U64(record.machine_id);
  writer->String(std::string_view(record.host).substr(0, kMaxHostName));
  writer->String(record.mesh_name);
  WriteAddresses(record.mesh_addresses, writer);
  writer->String({reinterpret_cast<const char*>(record.blob.data()), record.blob.size()});
  writer->Raw(record.key);
  writer->U32(record.round_trip_us);
}

bool Read(ByteReader* reader, RankRecord* record) {
  std::string host, blob;
  if (!reader->U32(&record->rank) || !reader->U32(&record->pid) || !reader->U32(&record->uid) ||
      !reader->U64(&record->host_id) || !reader->U64(&record->machine_id) ||
      !reader->String(&host, kMaxHostName) || !reader->String(&record->mesh_name, kMaxUnixName) ||
      !ReadAddresses(reader, &record->mesh_addresses) || !reader->String(&blob, kMaxBlob) ||
      !reader->Raw(record->key) || !reader->U32(&record->round_trip_us)) {
    return false;
  }
  record->host = Escaped(host);
  const Bytes bytes = AsBytes(blob);
  record->blob.assign(bytes.begin(), bytes.end());
  return true;
}

}  // namespace

std::vector<std::byte> Registration::Encode() const {
  ByteWriter writer;
  Write(record, &writer);
  writer.U32(number);
  writer.U32(nranks);
  writer.U32(attempt);
  writer.U32(members);
  writer.U32(timeout_ms);
  writer.U64(static_cast<uint64_t>(std::clamp<Time>(remaining, 0, kMaxRemaining)));
  writer.String(agreement);
  return writer.bytes();
}

Result<Registration> Registration::Decode(Bytes bytes) {
  ByteReader reader(bytes);
  Registration r;
  uint64_t remaining = 0;
  if (!Read(&reader, &r.record) || !reader.U32(&r.number) || !reader.U32(&r.nranks) ||
      !reader.U32(&r.attempt) || !reader.U32(&r.members) || !reader.U32(&r.timeout_ms) ||
      !reader.U64(&remaining) || !reader.String(&r.agreement, kMaxAgreement) ||
      reader.remaining() != 0) {
    return InternalError("malformed registration");
  }
  if (r.nranks == 0 || r.nranks > kMostWireRanks || r.record.rank >= r.nranks) {
    return InternalError(fmt::format("registration of rank {} of {}", r.record.rank, r.nranks));
  }
  if (r.members > r.nranks) {
    return InternalError(fmt::format("registration of {} members of {}", r.members, r.nranks));
  }
  if (remaining > static_cast<uint64_t>(kMaxRemaining)) {
    return InternalError("registration with an impossible deadline");
  }
  r.remaining = static_cast<Time>(remaining);
  return r;
}

Status RankTable::Draw() {
  Mac random{};
  if (Status status = FillRandom(session); !status.ok()) return status;
  if (Status status = FillRandom(random); !status.ok()) return status;
  secret = Key(random);
  Wipe(random);
  return Status::Ok();
}

std::vector<std::byte> RankTable::Encode() const {
  ByteWriter writer;
  writer.Raw(session);
  writer.Raw(secret.bytes());
  writer.U32(static_cast<uint32_t>(ranks.size()));
  for (const RankRecord& record : ranks) Write(record, &writer);
  return writer.bytes();
}

Result<RankTable> RankTable::Decode(Bytes bytes, uint32_t nranks) {
  ByteReader reader(bytes);
  RankTable table;
  Mac secret{};
  uint32_t count = 0;
  if (!reader.Raw(table.session) || !reader.Raw(secret) || !reader.U32(&count) || count != nranks) {
    return InternalError(fmt::format("table of {} ranks instead of {}", count, nranks));
  }
  table.secret = Key(secret);
  Wipe(secret);
  for (uint32_t rank = 0; rank < count; ++rank) {
    RankRecord record;
    if (!Read(&reader, &record) || record.rank != rank) {
      return InternalError(fmt::format("malformed table at rank {}", rank));
    }
    table.ranks.push_back(std::move(record));
  }
  if (reader.remaining() != 0) return InternalError("table longer than its ranks");
  return table;
}

std::vector<std::byte> EncodeBlobs(const Blobs& blobs) {
  ByteWriter writer;
  for (const std::vector<std::byte>& blob : blobs) {
    writer.String({reinterpret_cast<const char*>(blob.data()), blob.size()});
  }
  return writer.bytes();
}

Result<Blobs> DecodeBlobs(Bytes bytes, uint32_t nranks) {
  ByteReader reader(bytes);
  Blobs blobs;
  std::string blob;
  for (uint32_t rank = 0; rank < nranks; ++rank) {
    if (!reader.String(&blob, kMaxBlob)) {
      return InternalError(fmt::format("malformed blob of rank {}", rank));
    }
    blobs.emplace_back(AsBytes(blob).begin(), AsBytes(blob).end());
  }
  if (reader.remaining() != 0) return InternalError("more blobs than ranks");
  return blobs;
}

std::vector<std::byte> EncodeLinks(std::span<const MeasuredLink> links) {
  ByteWriter writer;
  writer.U32(static_cast<uint32_t>(links.size()));
  for (const MeasuredLink& link : links) {
    writer.U32(static_cast<uint32_t>(link.b));
    writer.U32(link.round_trip_us);
  }
  return writer.bytes();
}

Result<std::vector<MeasuredLink>> DecodeLinks(Bytes bytes, uint32_t rank, uint32_t nranks) {
  ByteReader reader(bytes);
  std::vector<MeasuredLink> links;
  uint32_t count = 0, peer = 0, us = 0;
  bool ok = reader.U32(&count) && count < nranks;
  for (uint32_t i = 0; ok && i < count; ++i) {
    ok = reader.U32(&peer) && reader.U32(&us) && peer < nranks && peer != rank;
    if (ok) links.push_back({static_cast<int>(rank), static_cast<int>(peer), us});
  }
  if (!ok || reader.remaining() != 0) return InternalError("malformed round trips");
  return links;
}

std::vector<std::byte> EncodeSites(const Sites& sites) {
  ByteWriter writer;
  writer.U32(static_cast<uint32_t>(sites.count));
  for (const int site : sites.of_host) writer.U8(static_cast<uint8_t>(site));
  for (const uint32_t us : sites.round_trip_us) writer.U32(us);
  return writer.bytes();
}

Result<Sites> DecodeSites(Bytes bytes, int hosts) {
  ByteReader reader(bytes);
  Sites sites;
  uint32_t count = 0;
  bool ok = reader.U32(&count) && count >= 1 && count <= static_cast<uint32_t>(kMostSites);
  std::vector<bool> used(ok ? count : 0);
  for (int host = 0; ok && count > 1 && host < hosts; ++host) {
    uint8_t site = 0;
    ok = reader.U8(&site) && site < count && (host > 0 || site == 0);
    if (!ok) break;
    sites.of_host.push_back(site);
    used[site] = true;
  }
  ok = ok && (count == 1 || std::find(used.begin(), used.end(), false) == used.end());
  sites.count = static_cast<int>(count);
  sites.round_trip_us.clear();
  for (uint32_t i = 0; ok && i < count * count; ++i) {
    ok = reader.U32(&sites.round_trip_us.emplace_back());
  }
  if (!ok || reader.remaining() != 0) return InternalError("malformed sites");
  return sites;
}

std::vector<std::byte> EncodeError(const Status& status) {
  ByteWriter writer;
  writer.U32(static_cast<uint32_t>(status.code()));
  writer.String(std::string_view(status.message()).substr(0, kMaxErrorText));
  return writer.bytes();
}

Status DecodeError(Bytes bytes) {
  ByteReader reader(bytes);
  uint32_t code = 0;
  std::string text;
  if (!reader.U32(&code) || !reader.String(&text, kMaxErrorText) || reader.remaining() != 0 ||
      code == 0 || code > static_cast<uint32_t>(Code::kTimeout)) {
    return InternalError("malformed error message");
  }
  return {static_cast<Code>(code), Escaped(text)};
}

}  // namespace inccl::bootstrap
