// SPDX-License-Identifier: Apache-2.0
#include "control/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "control/control.h"

namespace inccl::control {
namespace {

using bootstrap::kTagBytes;

// More than any shortest path has; a frame may go in a circle while ranks do not know the same
// ranks to be gone.
constexpr uint8_t kMostHops = 64;
constexpr size_t kEnvelopeBytes = 17;
constexpr size_t kSealedAs = 16;  // the envelope without its hops
// Limit of a channel's messages that wait to be acknowledged; a rank cannot close a connection that
// it does not have.
constexpr size_t kMostWaitingBytes = 2 * kMaxControlBody;
constexpr size_t kMostSentAgain = 256 * 1024;  // at a time
constexpr Time kLongestPause = 30 * kSecond;
// Ranks often leave together.
constexpr Time kReportLag = 20 * kMillisecond;

void AppendU32(uint32_t value, std::vector<std::byte>* bytes) {
  for (int i = 0; i < 4; ++i) bytes->push_back(static_cast<std::byte>(value >> (8 * i)));
}

void AppendU64(uint64_t value, std::vector<std::byte>* bytes) {
  AppendU32(static_cast<uint32_t>(value), bytes);
  AppendU32(static_cast<uint32_t>(value >> 32), bytes);
}

void AppendBytes(std::span<const std::byte> more, std::vector<std::byte>* bytes) {
  bytes->insert(bytes->end(), more.begin(), more.end());
}

bool IsMessage(uint8_t kind) { return kind >= 1 && kind <= kMostControlKind; }

}  // namespace

Router::Router(Terms terms, Emit emit)
    : terms_(std::move(terms)),
      emit_(std::move(emit)),
      ends_(static_cast<size_t>(terms_.nranks), End::kNone),
      heard_(static_cast<size_t>(terms_.nranks)) {
  for (int rank = 0; rank < terms_.nranks; ++rank) {
    if (IsNeighbour(rank)) neighbours_.push_back(rank);
  }
}

Router::Channel& Router::ChannelTo(int rank) {
  if (const auto found = channels_.find(rank); found != channels_.end()) return found->second;
  const auto direction = [&](const bootstrap::Key& secret, int from, int to) {
    return bootstrap::Hkdf(secret.bytes(), terms_.communicator,
                           fmt::format("inccl control {} to {}", from, to));
  };
  const Result<bootstrap::Key> secret = terms_.key->Agree(terms_.keys[static_cast<size_t>(rank)]);
  if (!secret.ok()) throw std::bad_alloc();
  const Result<bootstrap::Key> out = direction(*secret, terms_.rank, rank);
  const Result<bootstrap::Key> in = direction(*secret, rank, terms_.rank);
  if (!out.ok() || !in.ok()) throw std::bad_alloc();
  Result<bootstrap::StreamCipher> cipher = bootstrap::StreamCipher::Create(*out, *in);
  if (!cipher.ok()) throw std::bad_alloc();
  Channel& channel = channels_[rank];
  channel.cipher = *std::move(cipher);
  return channel;
}

int Router::NextHop(int to) {
  if (hops_.empty()) {
    std::vector<bool> gone;
    for (const End end : ends_) gone.push_back(end != End::kNone);
    hops_ = terms_.graph.NextHops(terms_.rank, gone);
  }
  return hops_[static_cast<size_t>(to)];
}

void Router::Send(int to, uint8_t kind, std::span<const std::byte> body, Time now) {
  if (!Alive(to) || NextHop(to) < 0) return;
  Channel& channel = ChannelTo(to);
  const size_t bytes = kEnvelopeBytes + 1 + body.size() + kTagBytes;
  if (!channel.cipher) throw std::bad_alloc();
  if (channel.waiting_bytes + bytes > kMostWaitingBytes) {
    if (!std::exchange(channel.full, true)) {
      Log(LogLevel::kWarn, LogSubsystem::kControl,
          "rank {}: control messages to rank {} are lost: it does not answer", terms_.rank, to);
    }
    return;
  }
  std::vector<std::byte> frame;
  frame.reserve(bytes);
  AppendU32(static_cast<uint32_t>(to), &frame);
  AppendU32(static_cast<uint32_t>(terms_.rank), &frame);
  AppendU64(channel.sent + 1, &frame);
  frame.push_back(std::byte{0});
  frame.push_back(static_cast<std::byte>(kind));
  AppendBytes(body, &frame);
  frame.resize(bytes);
  channel.waiting.emplace_back();  // before the nonce is used up
  const std::span<std::byte> sealed = std::span(frame).subspan(kEnvelopeBytes);
  if (!channel.cipher->seal.Seal(std::span(frame).first(kSealedAs),
                                 sealed.first(sealed.size() - kTagBytes),
                                 sealed.last<kTagBytes>())) {
    channel.waiting.pop_back();
    channel.cipher.reset();
    throw std::bad_alloc();
  }
  ++channel.sent;
  if (channel.waiting.size() == 1) {
    channel.pause = terms_.resend_after;
    channel.again_at = now + channel.pause;
  }
  channel.waiting.back() = std::move(frame);
  channel.waiting_bytes += bytes;
  ++unacknowledged_;
  if (const int next = NextHop(to); next >= 0) emit_(next, kRouted, channel.waiting.back());
}

void Router::SendAgain(Channel* channel, int to, Time now) {
  channel->pause = std::min(2 * channel->pause, kLongestPause);
  channel->again_at = now + channel->pause;
  const int next = NextHop(to);
  size_t bytes = 0;
  for (const std::vector<std::byte>& frame : channel->waiting) {
    if (next < 0 || (bytes += frame.size()) > kMostSentAgain + frame.size()) return;
    emit_(next, kRouted, frame);
  }
}

void Router::Forget(Channel* channel, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    channel->waiting_bytes -= channel->waiting.front().size();
    channel->waiting.pop_front();
  }
  unacknowledged_ -= count;
  if (channel->waiting.empty()) channel->again_at = kNever;
}

void Router::Broadcast(uint8_t kind, std::span<const std::byte> body) {
  std::vector<std::byte> frame;
  frame.reserve(13 + body.size());
  AppendU32(static_cast<uint32_t>(terms_.rank), &frame);
  AppendU64(floods_ + 1, &frame);
  frame.push_back(static_cast<std::byte>(kind));
  AppendBytes(body, &frame);
  ++floods_;
  EmitToAll(kFlood, frame, -1, -1);
}

void Router::EmitToAll(uint8_t kind, std::span<const std::byte> body, int but_a, int but_b) {
  for (const int neighbour : neighbours_) {
    if (neighbour != but_a && neighbour != but_b && Alive(neighbour)) emit_(neighbour, kind, body);
  }
}

bool Router::OnFrame(int neighbour, uint8_t kind, std::span<const std::byte> body, Time now,
                     Message* message) {
  switch (kind) {
    case kRouted:
    case kAck: return OnEnvelope(kind, body, now, message);
    case kFlood: return OnFlood(neighbour, body, message);
    case kReport: return OnReport(body, now);
    default: return false;
  }
}

bool Router::OnEnvelope(uint8_t kind, std::span<const std::byte> body, Time now, Message* message) {
  ByteReader reader(body);
  uint32_t to = 0, from = 0;
  Envelope envelope;
  const auto nranks = static_cast<uint32_t>(terms_.nranks);
  if (!reader.U32(&to) || !reader.U32(&from) || !reader.U64(&envelope.number) ||
      !reader.U8(&envelope.hops) || to >= nranks || from >= nranks || to == from) {
    return false;
  }
  if (kind == kAck ? reader.remaining() != 0 : reader.remaining() < 1 + kTagBytes) return false;
  envelope.to = static_cast<int>(to);
  envelope.from = static_cast<int>(from);
  if (envelope.to != terms_.rank) {
    PassOn(kind, envelope, body);
  } else if (Alive(envelope.from) && !IsNeighbour(envelope.from)) {
    kind == kAck ? OnAck(envelope, now) : OnRouted(envelope, body, message);
  }
  return true;
}

void Router::PassOn(uint8_t kind, const Envelope& envelope, std::span<const std::byte> body) {
  const int next = Alive(envelope.to) && envelope.hops < kMostHops ? NextHop(envelope.to) : -1;
  if (next < 0) return;  // its origin sends it again, if that may help
  opened_.assign(body.begin(), body.end());
  opened_[kSealedAs] = static_cast<std::byte>(envelope.hops + 1);
  emit_(next, kind, opened_);
}

void Router::OnRouted(const Envelope& envelope, std::span<const std::byte> body, Message* message) {
  Channel& channel = ChannelTo(envelope.from);
  if (envelope.number == channel.received + 1 && channel.cipher) {
    opened_.assign(body.begin() + kEnvelopeBytes, body.end());
    const std::span<std::byte> sealed(opened_);
    const std::span<std::byte> plain = sealed.first(sealed.size() - kTagBytes);
    if (!channel.cipher->open.Open(body.first(kSealedAs), plain, sealed.last<kTagBytes>())) return;
    ++channel.received;
    if (const auto kind = std::to_integer<uint8_t>(plain[0]); IsMessage(kind)) {
      *message = {.from = envelope.from, .kind = kind, .body = plain.subspan(1)};
    }
  }
  if (envelope.number > channel.received) return;  // an earlier one is missing
  std::vector<std::byte> ack;
  ack.reserve(kEnvelopeBytes);
  AppendU32(static_cast<uint32_t>(envelope.from), &ack);
  AppendU32(static_cast<uint32_t>(terms_.rank), &ack);
  AppendU64(channel.received, &ack);
  ack.push_back(std::byte{0});
  if (const int next = NextHop(envelope.from); next >= 0) emit_(next, kAck, ack);
}

void Router::OnAck(const Envelope& envelope, Time now) {
  const auto found = channels_.find(envelope.from);
  if (found == channels_.end()) return;
  Channel& channel = found->second;
  const uint64_t first = channel.sent - channel.waiting.size() + 1;
  if (envelope.number < first || envelope.number > channel.sent) return;
  Forget(&channel, static_cast<size_t>(envelope.number - first + 1));
  if (channel.waiting.empty()) return;
  channel.pause = terms_.resend_after;
  channel.again_at = now + channel.pause;
}

bool Router::OnFlood(int neighbour, std::span<const std::byte> body, Message* message) {
  ByteReader reader(body);
  uint32_t origin = 0;
  uint64_t number = 0;
  uint8_t kind = 0;
  if (!reader.U32(&origin) || !reader.U64(&number) || !reader.U8(&kind) ||
      origin >= static_cast<uint32_t>(terms_.nranks) || !IsMessage(kind)) {
    return false;
  }
  const auto from = static_cast<int>(origin);
  if (from == terms_.rank || !Alive(from)) return true;
  if (from != neighbour && IsNeighbour(from)) return true;
  uint64_t& heard = heard_[origin];
  if (number <= heard) return true;
  if (number != heard + 1) return false;
  ++heard;
  *message = {.from = from, .kind = kind, .body = body.last(reader.remaining())};
  EmitToAll(kFlood, body, neighbour, from);
  return true;
}

bool Router::OnReport(std::span<const std::byte> body, Time now) {
  ByteReader reader(body);
  std::vector<Gone> news;
  while (reader.remaining() > 0) {
    uint32_t rank = 0, silence_ms = 0;
    uint8_t end = 0;
    if (!reader.U32(&rank) || !reader.U8(&end) || !reader.U32(&silence_ms) ||
        rank >= static_cast<uint32_t>(terms_.nranks) || end < static_cast<uint8_t>(End::kLeft) ||
        end > static_cast<uint8_t>(End::kSilent)) {
      return false;
    }
    const auto subject = static_cast<int>(rank);
    if (subject == terms_.rank || IsNeighbour(subject) || !Alive(subject)) continue;
    news.push_back({.rank = subject,
                    .end = static_cast<End>(end),
                    .silence = static_cast<Time>(silence_ms) * kMillisecond});
  }
  if (!reader.ok()) return false;
  bool new_ones = false;
  for (const Gone& gone : news) {
    if (!Alive(gone.rank)) continue;  // twice in this report
    gone_.push_back(gone);
    MarkGone(gone, now);
    new_ones = true;
  }
  if (new_ones) FollowGone(now);
  return true;
}

void Router::OnNeighbourGone(int neighbour, End end, Time silence, Time now) {
  if (!Alive(neighbour)) return;
  MarkGone({.rank = neighbour, .end = end, .silence = silence}, now);
  FollowGone(now);
}

void Router::MarkGone(const Gone& gone, Time now) {
  ends_[static_cast<size_t>(gone.rank)] = gone.end;
  hops_.clear();
  if (const auto found = channels_.find(gone.rank); found != channels_.end()) {
    Forget(&found->second, found->second.waiting.size());
    channels_.erase(found);
  }
  to_report_.push_back(gone);
  report_at_ = std::min(report_at_, now + kReportLag);
  if (gone.end != End::kLeft) lost_ = true;
}

void Router::FollowGone(Time now) {
  const bool urgent = std::any_of(to_report_.begin(), to_report_.end(),
                                  [](const Gone& gone) { return gone.end != End::kLeft; });
  if (urgent) SendReports();
  if (lost_) FindCutOff();
  for (auto& [to, channel] : channels_) {
    if (channel.waiting.empty()) continue;
    if (NextHop(to) < 0) {  // nor will there be a path again
      Forget(&channel, channel.waiting.size());
      continue;
    }
    // What was on its way through those ranks may be lost.
    channel.pause = terms_.resend_after;
    SendAgain(&channel, to, now);
  }
}

void Router::FindCutOff() {
  for (int rank = 0; rank < terms_.nranks; ++rank) {
    if (rank == terms_.rank || !Alive(rank) || NextHop(rank) >= 0) continue;
    ends_[static_cast<size_t>(rank)] = End::kCutOff;
    gone_.push_back({.rank = rank, .end = End::kCutOff});
    if (const auto found = channels_.find(rank); found != channels_.end()) {
      Forget(&found->second, found->second.waiting.size());
      channels_.erase(found);
    }
  }
}

std::optional<Router::Gone> Router::NextGone() {
  if (gone_.empty()) return std::nullopt;
  const Gone next = gone_.front();
  gone_.pop_front();
  return next;
}

void Router::SendReports() {
  report_at_ = kNever;
  if (to_report_.empty()) return;
  std::vector<std::byte> body;
  for (const Gone& gone : to_report_) {
    AppendU32(static_cast<uint32_t>(gone.rank), &body);
    body.push_back(static_cast<std::byte>(gone.end));
    AppendU32(static_cast<uint32_t>(std::min<Time>(gone.silence / kMillisecond, UINT32_MAX)),
              &body);
  }
  EmitToAll(kReport, body, -1, -1);
  to_report_.clear();
}

void Router::OnTime(Time now) {
  if (now >= report_at_) SendReports();
  for (auto& [to, channel] : channels_) {
    if (now >= channel.again_at) SendAgain(&channel, to, now);
  }
}

}  // namespace inccl::control
