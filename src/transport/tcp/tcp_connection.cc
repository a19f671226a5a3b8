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

void Connection::Fail(std::string why) {
  if (!failure_.empty()) return;
  failure_ = std::move(why);
  for (; queued_ > 0; --queued_) {
    if (queue_[front_].in_flight != nullptr) {
      *queue_[front_].in_flight = false;
      dropped_slices_ = true;
    }
    front_ = (front_ + 1) % queue_.size();
  }
}

void Connection::Reserve() {
  if (queued_ == queue_.size()) {
    std::vector<Out> larger(std::max(kFirstQueue, 2 * queue_.size()));
    for (size_t i = 0; i < queued_; ++i) larger[i] = queue_[(front_ + i) % queue_.size()];
    queue_ = std::move(larger);
    front_ = 0;
  }
}

Connection::Out* Connection::Append() {
  Out* const out = &queue_[(front_ + queued_++) % queue_.size()];
  *out = {};
  return out;
}

Status Connection::Send(std::byte* frame, bool* in_flight) {
  return SendFrom(frame, frame + sizeof(FrameHeader), in_flight);
}

Status Connection::SendFrom(std::byte* frame, const std::byte* payload, bool* in_flight) {
  if (!failure_.empty()) {  // the lanes report the loss of the peer
    dropped_slices_ = true;
    return Status::Ok();
  }
  Reserve();
  Out* const out = Append();
  out->header = reinterpret_cast<FrameHeader*>(frame);
  out->payload = payload;
  out->in_flight = in_flight;
  *in_flight = true;
  if (writable_) Flush();
  return Status::Ok();
}

Status Connection::Send(const FrameHeader& header) {
  if (!failure_.empty()) return Status::Ok();
  Reserve();
  Out* const out = Append();
  out->own_header = header;
  if (writable_) Flush();
  return Status::Ok();
}

void Connection::Complete(size_t bytes) {
  front_sent_ += bytes;
  while (queued_ > 0 && front_sent_ >= queue_[front_].bytes()) {
    front_sent_ -= queue_[front_].bytes();
    if (queue_[front_].in_flight != nullptr) *queue_[front_].in_flight = false;
    front_ = (front_ + 1) % queue_.size();
    --queued_;
  }
}

// As late as possible: sendmsg then finds the payload in the caches.
bool Connection::Seal(Out* out) {
  if (out->sealed) return true;
  FrameHeader* const header = out->first();
  // Only a payload in the slot is ever encrypted.
  auto* const payload = const_cast<std::byte*>(out->payload);
  out->sealed = out_guard_->Seal(header, std::span(payload, header->bytes)).ok();
  return out->sealed;
}

void Connection::Flush() {
  while (unsent()) {
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
    for (size_t i = 0; i < std::min(queued_, kMostFramesAtOnce) && total < kMostBytesAtOnce; ++i) {
      Out& out = queue_[(front_ + i) % queue_.size()];
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
  for (size_t i = 0; i < queued_; ++i) {
    if (queue_[(front_ + i) % queue_.size()].of_caller()) return Fail("a call failed");
  }
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

}  // namespace inccl::tcp
