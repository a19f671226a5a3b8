// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/tcp_connection.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/crc32c.h"

namespace inccl::tcp {
namespace {

constexpr size_t kFirstQueue = 16;
constexpr size_t kMostFramesAtOnce = 16;         // of one sendmsg
constexpr size_t kMostBytesAtOnce = 256 * 1024;  // about: they stay in a second-level cache
constexpr int kReceiveBudget = 64;               // frames of one Receive
// Read behind a header, so that a small frame takes one call. Larger payloads are copied this far.
constexpr size_t kReadAhead = 4096;

std::string ErrnoText(int error) {
  std::array<char, 128> text{};
  return strerror_r(error, text.data(), text.size());
}

}  // namespace

void Connection::Open(UniqueFd fd, FrameGuard out, FrameGuard in) {
  fd_ = std::move(fd);
  out_guard_ = std::move(out);
  in_guard_ = std::move(in);
  readable_ = writable_ = true;
}

OutFrame* FrameQueue::Append() {
  if (size_ == ring_.size()) {
    std::vector<OutFrame> larger(std::max(kFirstQueue, 2 * ring_.size()));
    for (size_t i = 0; i < size_; ++i) larger[i] = at(i);
    ring_ = std::move(larger);
    front_ = 0;
  }
  OutFrame* const frame = &ring_[(front_ + size_++) % ring_.size()];
  *frame = {};
  return frame;
}

void FrameQueue::Pop() {
  front_ = (front_ + 1) % ring_.size();
  --size_;
}

bool FrameQueue::Drop() {
  bool slices = false;
  for (; size_ > 0; Pop()) {
    if (at(0).in_flight == nullptr) continue;
    *at(0).in_flight = false;
    slices = true;
  }
  return slices;
}

bool FrameQueue::of_caller() const {
  for (size_t i = 0; i < size_; ++i) {
    if (at(i).of_caller()) return true;
  }
  return false;
}

void Connection::Fail(std::string why) {
  if (!failure_.empty()) return;
  failure_ = std::move(why);
  dropped_slices_ = queue_.Drop() || dropped_slices_;
}

Status Connection::Send(std::byte* frame, bool* in_flight) {
  if (!failure_.empty()) {  // the lanes report the loss of the peer
    dropped_slices_ = true;
    return Status::Ok();
  }
  OutFrame* const out = queue_.Append();
  out->header = reinterpret_cast<FrameHeader*>(frame);
  out->payload = frame + sizeof(FrameHeader);
  out->in_flight = in_flight;
  *in_flight = true;
  if (writable_) Flush();
  return Status::Ok();
}

Status Connection::Send(const FrameHeader& header) {
  if (!failure_.empty()) return Status::Ok();
  queue_.Append()->own_header = header;
  if (writable_) Flush();
  return Status::Ok();
}

void Connection::Complete(size_t bytes) {
  front_sent_ += bytes;
  while (!queue_.empty() && front_sent_ >= queue_.at(0).bytes()) {
    front_sent_ -= queue_.at(0).bytes();
    if (queue_.at(0).in_flight != nullptr) *queue_.at(0).in_flight = false;
    queue_.Pop();
  }
}

// As late as possible: sendmsg then finds the payload in the caches.
bool Connection::Seal(OutFrame* out) {
  if (out->sealed) return true;
  FrameHeader* const header = out->first();
  // Only a payload in the slot is ever encrypted.
  auto* const payload = const_cast<std::byte*>(out->payload);
  out->sealed = out_guard_->Seal(header, std::span(payload, header->bytes)).ok();
  return out->sealed;
}

// Takes on what one sendmsg sends.
void Connection::Refill() {
  size_t queued = 0;
  for (size_t i = 0; i < queue_.size(); ++i) queued += queue_.at(i).bytes();
  while (queue_.size() < kMostFramesAtOnce && queued < kMostBytesAtOnce) {
    OutFrame* const frame = queue_.Append();
    if (!sink_->NextFrame(frame)) return queue_.RemoveLast();
    queued += frame->bytes();
  }
}

void Connection::Flush() {
  while (failure_.empty()) {
    Refill();
    if (queue_.empty()) return;
    std::array<iovec, 2 * kMostFramesAtOnce> parts;
    size_t count = 0, total = 0, skip = front_sent_;
    const auto add = [&](const void* data, size_t bytes) {
      const size_t skipped = std::min(skip, bytes);
      skip -= skipped;
      if (skipped == bytes) return;
      parts[count++] = {.iov_base = static_cast<std::byte*>(const_cast<void*>(data)) + skipped,
                        .iov_len = bytes - skipped};
      total += bytes - skipped;
    };
    for (size_t i = 0; i < std::min(queue_.size(), kMostFramesAtOnce) && total < kMostBytesAtOnce;
         ++i) {
      OutFrame& out = queue_.at(i);
      if (!Seal(&out)) return Fail("libcrypto refuses AES-128-GCM");
      add(out.first(), sizeof(FrameHeader));
      add(out.payload, out.first()->bytes);
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == ENOBUFS) return;  // no event follows, so the next call tries again
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      writable_ = false;
      return;
    }
    if (sent < 0) return Fail(fmt::format("send: {}", ErrnoText(errno)));
    Complete(static_cast<size_t>(sent));
    if (static_cast<size_t>(sent) < total) {
      writable_ = false;
      return;
    }
  }
}

Status Connection::Wrong(const std::string& what) const {
  return InternalError(fmt::format("{} sent {}", name_, what));
}

Status Connection::HeaderArrived(int* frames) {
  header_ = incoming_;
  have_ = 0;
  if (!in_guard_->CheckHeader(header_)) {
    return Wrong("a header that fails its check (damaged, or not from this peer)");
  }
  if (std::string wrong = CheckFrame(header_); !wrong.empty()) return Wrong(wrong);
  if (header_.bytes == 0) return FrameArrived(frames);
  std::string wrong;
  payload_ = sink_->PlaceOf(header_, &wrong);
  return payload_ != nullptr ? Status::Ok() : Wrong(wrong);
}

Status Connection::FrameArrived(int* frames) {
  const std::span<std::byte> payload(payload_, payload_ == nullptr ? 0 : header_.bytes);
  payload_ = nullptr;
  have_ = 0;
  if (!in_guard_->CheckPayload(header_, payload)) {
    return Wrong(fmt::format("a slice of {} bytes that fails its check (damaged on the way)",
                             header_.bytes));
  }
  ++*frames;
  const std::string wrong = sink_->Arrived(header_);
  return wrong.empty() ? Status::Ok() : Wrong(wrong);
}

// What is read next: the rest of the payload, or of the next header.
std::span<std::byte> Connection::Place() {
  if (payload_ != nullptr) return {payload_ + have_, header_.bytes - have_};
  return std::as_writable_bytes(std::span(&incoming_, 1)).subspan(have_);
}

// `bytes` have arrived at Place().
Status Connection::Take(size_t bytes, int* frames) {
  const bool complete = bytes == Place().size();
  have_ += bytes;
  if (!complete) return Status::Ok();
  return payload_ != nullptr ? FrameArrived(frames) : HeaderArrived(frames);
}

Status Connection::TakeCopies(std::span<const std::byte> bytes, int* frames) {
  while (!bytes.empty()) {
    const std::span<std::byte> place = Place();
    const size_t count = std::min(place.size(), bytes.size());
    std::memcpy(place.data(), bytes.data(), count);
    if (Status status = Take(count, frames); !status.ok()) return status;
    bytes = bytes.subspan(count);
  }
  return Status::Ok();
}

Result<int> Connection::Receive() {
  int frames = 0;
  std::array<std::byte, sizeof(FrameHeader) + kReadAhead> ahead;
  while (readable() && frames < kReceiveBudget) {
    const std::span<std::byte> place = Place();
    const size_t wanted = place.size() + ahead.size();
    std::array<iovec, 2> parts = {iovec{.iov_base = place.data(), .iov_len = place.size()},
                                  iovec{.iov_base = ahead.data(), .iov_len = ahead.size()}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t got = recvmsg(fd_.get(), &message, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      readable_ = false;
      break;
    }
    if (got <= 0) {
      Fail(got == 0 ? "the connection is closed" : fmt::format("receive: {}", ErrnoText(errno)));
      break;
    }
    const auto bytes = static_cast<size_t>(got);
    if (bytes < wanted) readable_ = ended_;
    const size_t in_place = std::min(bytes, place.size());
    Status status = Take(in_place, &frames);
    if (status.ok()) {
      status = TakeCopies(std::span(ahead).first(bytes - in_place), &frames);
    }
    if (!status.ok()) return status;
  }
  return frames;
}

void Connection::DropUnsent() {
  if (queue_.of_caller()) Fail("a call failed");
}

void Connection::Close() {
  Fail("closed");  // so short that it needs no allocation
  dropped_slices_ = false;
  fd_.Reset();
}

bool Connection::Acknowledged() const {
  int bytes = 0;
  return !failure_.empty() || ioctl(fd_.get(), SIOCOUTQ, &bytes) != 0 || bytes == 0;
}

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
