// SPDX-License-Identifier: Apache-2.0
//
// What a peer may do to a rank over a data connection: the peer is a socket of this test, which
// builds its frames itself.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "support/seed.h"
#include "transport/tcp/tcp_transport.h"

namespace inccl {
namespace {

using bootstrap::Aead;
using bootstrap::Key;
using bootstrap::Mac;
using tcp::FrameGuard;
using tcp::FrameHeader;
using tcp::FrameKind;
using tcp::Protection;

constexpr uint32_t kSlotBytes = 4096;
constexpr uint16_t kDepth = 3;

Key KeyOf(int number) {
  Mac bytes{};
  bytes[0] = static_cast<std::byte>(number);
  return Key(bytes);
}

LaneSpec SpecOf(int producer, int consumer) {
  return {.producer = producer, .consumers = {consumer}, .slot_bytes = kSlotBytes, .depth = kDepth};
}

std::vector<std::byte> Pattern(size_t bytes, int seed) {
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 7 + i / 256 + seed);
  return out;
}

// Rank 0 of 2 under test, and the peer's end of its connection.
class TcpPeer : public ::testing::TestWithParam<Protection> {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    peer_.Reset(ends[1]);
    end_ = TcpTransport::Create(0, 2, GetParam()).value();
    std::vector<TcpSocket> sockets;
    sockets.push_back({UniqueFd(ends[0]), KeyOf(1), KeyOf(2)});
    AddSockets(&sockets);
    ASSERT_TRUE(end_->Attach(1, std::move(sockets)).ok());
    out_.emplace(FrameGuard::Create(GetParam(), KeyOf(2), Aead::Use::kSeal).value());
    in_.emplace(FrameGuard::Create(GetParam(), KeyOf(1), Aead::Use::kOpen).value());
  }
  // Further connections of rank 0.
  virtual void AddSockets(std::vector<TcpSocket>* /*sockets*/) {}

  // The bytes of a frame of the peer.
  std::vector<std::byte> Frame(FrameHeader header, std::vector<std::byte> payload = {}) {
    header.bytes = static_cast<uint32_t>(payload.size());
    EXPECT_TRUE(out_->Seal(&header, payload).ok());
    std::vector<std::byte> frame(sizeof header + payload.size());
    std::memcpy(frame.data(), &header, sizeof header);
    if (!payload.empty()) std::memcpy(frame.data() + sizeof header, payload.data(), payload.size());
    return frame;
  }
  std::vector<std::byte> SliceFrame(uint32_t lane, uint64_t seq, std::vector<std::byte> payload) {
    FrameHeader header;
    header.kind = FrameKind::kSlice;
    header.lane = lane;
    header.seq = seq;
    header.slice = static_cast<uint32_t>(seq) + 100;
    header.signature = 42;
    return Frame(header, std::move(payload));
  }
  FrameHeader Grant(uint32_t lane, const LaneSpec& spec) {
    FrameHeader header;
    header.kind = FrameKind::kGrant;
    header.lane = lane;
    header.slice = spec.slot_bytes;
    header.signature = spec.Key();
    header.seq = spec.depth;
    return header;
  }
  FrameHeader Credit(uint32_t lane, uint64_t credit) {
    FrameHeader header;
    header.kind = FrameKind::kCredit;
    header.credit_lane = lane;
    header.credit = credit;
    return header;
  }
  void Send(const std::vector<std::byte>& bytes) {
    ASSERT_EQ(send(peer_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // The next frame that rank 0 has sent.
  FrameHeader Received(std::vector<std::byte>* payload = nullptr) {
    FrameHeader header;
    EXPECT_EQ(recv(peer_.get(), &header, sizeof header, MSG_WAITALL), ssize_t{sizeof header});
    EXPECT_TRUE(in_->CheckHeader(header));
    std::vector<std::byte> bytes(header.bytes);
    if (header.bytes > 0) {
      EXPECT_EQ(recv(peer_.get(), bytes.data(), bytes.size(), MSG_WAITALL),
                static_cast<ssize_t>(bytes.size()));
    }
    EXPECT_TRUE(in_->CheckPayload(header, bytes));
    if (payload != nullptr) *payload = bytes;
    return header;
  }
  Status Progress() {
    Result<int> events = end_->Progress(++now_);
    return events.ok() ? Status::Ok() : events.status();
  }
  // Progress must report that the peer sent `what`.
  void ExpectRefused(const std::string& what) {
    Status status;
    for (int i = 0; i < 3 && status.ok(); ++i) status = Progress();
    EXPECT_EQ(status.code(), Code::kInternalError);
    EXPECT_NE(status.message().find("rank 0: tcp: peer rank 1 sent"), std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  }
  std::unique_ptr<RecvLane> OpenRecv() {
    std::unique_ptr<RecvLane> lane = end_->OpenRecv(SpecOf(1, 0)).value();
    const FrameHeader grant = Received();
    EXPECT_EQ(grant.kind, FrameKind::kGrant);
    EXPECT_EQ(grant.lane, 1u);
    EXPECT_EQ(grant.signature, SpecOf(1, 0).Key());
    EXPECT_EQ(grant.seq, kDepth);
    return lane;
  }
  static void ExpectSlice(RecvLane* lane, uint64_t seq, const std::vector<std::byte>& payload) {
    RecvLane::Incoming incoming;
    ASSERT_TRUE(lane->TryPeek(&incoming).value());
    EXPECT_EQ(incoming.header.slice, seq + 100);
    EXPECT_EQ(incoming.header.signature, 42u);
    ASSERT_EQ(incoming.header.bytes, payload.size());
    EXPECT_TRUE(std::equal(payload.begin(), payload.end(), incoming.payload));
  }

  UniqueFd peer_;
  std::unique_ptr<TcpTransport> end_;
  std::optional<FrameGuard> out_, in_;
  Time now_ = 0;
};

TEST_P(TcpPeer, SlicesArriveInPortionsOfAnySize) {
  std::unique_ptr<RecvLane> lane = OpenRecv();
  std::vector<std::byte> stream;
  const std::vector<size_t> sizes = {1, 0, kSlotBytes};
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::vector<std::byte> frame =
        SliceFrame(1, i + 1, Pattern(sizes[i], static_cast<int>(i)));
    stream.insert(stream.end(), frame.begin(), frame.end());
  }
  Rng rng(test::TestSeed());
  for (size_t at = 0; at < stream.size();) {
    const size_t portion = std::min<size_t>(stream.size() - at, 1 + rng.Below(at < 300 ? 3 : 900));
    Send({stream.begin() + static_cast<ptrdiff_t>(at),
          stream.begin() + static_cast<ptrdiff_t>(at + portion)});
    at += portion;
    ASSERT_TRUE(Progress().ok());
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    ExpectSlice(lane.get(), i + 1, Pattern(sizes[i], static_cast<int>(i)));
    ASSERT_TRUE(lane->Release().ok());
  }
  RecvLane::Incoming incoming;
  EXPECT_FALSE(lane->TryPeek(&incoming).value());
}

TEST_P(TcpPeer, ReleasedSlotsAreGrantedAgain) {
  std::unique_ptr<RecvLane> lane = OpenRecv();
  for (uint64_t seq = 1; seq <= kDepth; ++seq) Send(SliceFrame(1, seq, Pattern(10, 1)));
  ASSERT_TRUE(Progress().ok());
  RecvLane::Incoming incoming;
  ASSERT_TRUE(lane->TryPeek(&incoming).value());
  ASSERT_TRUE(lane->Release().ok());
  ASSERT_TRUE(Progress().ok());  // it may ride on a slice
  end_->wakeup_source()->Arm();  // but the rank sleeps
  ASSERT_TRUE(Progress().ok());
  const FrameHeader credit = Received();
  EXPECT_EQ(credit.kind, FrameKind::kCredit);
  EXPECT_EQ(credit.credit_lane, 1u);
  EXPECT_EQ(credit.credit, kDepth + 1u);
}

TEST_P(TcpPeer, CreditsRideOnSlices) {
  std::unique_ptr<RecvLane> recv = OpenRecv();
  std::unique_ptr<SendLane> send = end_->OpenSend(SpecOf(0, 1)).value();
  EXPECT_EQ(send->TryAcquire().value().data, nullptr);  // nothing is granted yet
  Send(Frame(Grant(1, SpecOf(0, 1))));
  Send(SliceFrame(1, 1, Pattern(100, 3)));
  ASSERT_TRUE(Progress().ok());
  ExpectSlice(recv.get(), 1, Pattern(100, 3));
  ASSERT_TRUE(recv->Release().ok());
  const Span slot = send->TryAcquire().value();
  ASSERT_NE(slot.data, nullptr);
  const std::vector<std::byte> payload = Pattern(777, 5);
  std::memcpy(slot.data, payload.data(), payload.size());
  ASSERT_TRUE(send->Publish({.bytes = 777, .slice = 9, .signature = 11}).ok());
  std::vector<std::byte> got;
  const FrameHeader slice = Received(&got);
  EXPECT_EQ(slice.kind, FrameKind::kSlice);
  EXPECT_EQ(slice.seq, 1u);
  EXPECT_EQ(slice.slice, 9u);
  EXPECT_EQ(slice.signature, 11u);
  EXPECT_EQ(got, payload);
  EXPECT_EQ(slice.credit_lane, 1u);
  EXPECT_EQ(slice.credit, kDepth + 1u);
  EXPECT_FALSE(end_->unsent());
  EXPECT_FALSE(send->Drained().value());
  Send(Frame(Credit(1, kDepth + 1)));
  ASSERT_TRUE(Progress().ok());
  EXPECT_TRUE(send->Drained().value());
}

// Slices that are larger than what the socket holds, from memory of the caller and from slots in
// turn. The peer reads them in portions of any size.
TEST_P(TcpPeer, PayloadsOfTheCallerTravelWithTheirHeaders) {
  constexpr uint32_t kLarge = 1 << 20;
  LaneSpec spec = SpecOf(0, 1);
  spec.slot_bytes = kLarge;
  std::unique_ptr<SendLane> lane = end_->OpenSend(spec).value();
  Send(Frame(Grant(1, spec)));
  ASSERT_TRUE(Progress().ok());
  const bool from_caller = GetParam() != Protection::kEncrypt;
  std::vector<std::vector<std::byte>> payloads;
  for (int i = 0; i < kDepth; ++i) payloads.push_back(Pattern(kLarge - 77 * i, i));
  for (const std::vector<std::byte>& payload : payloads) {
    const Span slot = lane->TryAcquire().value();
    ASSERT_NE(slot.data, nullptr);
    const SliceHeader header{.bytes = static_cast<uint32_t>(payload.size()), .signature = 11};
    ASSERT_EQ(lane->SendsFrom(payload.data(), payload.size(), false), from_caller);
    EXPECT_FALSE(lane->SendsFrom(payload.data(), 100, false)) << "copying is faster";
    if (from_caller && &payload != &payloads[1]) {
      ASSERT_TRUE(lane->PublishFrom(header, payload.data(), false).ok());
    } else {
      std::memcpy(slot.data, payload.data(), payload.size());
      ASSERT_TRUE(lane->Publish(header).ok());
    }
  }
  EXPECT_TRUE(end_->unsent());
  std::vector<std::byte> stream;
  Rng rng(test::TestSeed());
  size_t wanted = 0;
  for (const auto& payload : payloads) wanted += sizeof(FrameHeader) + payload.size();
  while (stream.size() < wanted) {
    std::vector<std::byte> portion(1 + rng.Below(300000));
    const ssize_t got = recv(peer_.get(), portion.data(), portion.size(), MSG_DONTWAIT);
    if (got > 0) stream.insert(stream.end(), portion.begin(), portion.begin() + got);
    end_->wakeup_source()->Arm();
    ASSERT_TRUE(Progress().ok());
  }
  EXPECT_FALSE(end_->unsent());
  size_t at = 0;
  for (std::vector<std::byte>& payload : payloads) {
    FrameHeader header;
    std::memcpy(&header, stream.data() + at, sizeof header);
    ASSERT_EQ(header.bytes, payload.size());
    ASSERT_TRUE(in_->CheckHeader(header));
    const std::span<std::byte> arrived(stream.data() + at + sizeof header, header.bytes);
    ASSERT_TRUE(in_->CheckPayload(header, arrived));
    EXPECT_TRUE(std::equal(arrived.begin(), arrived.end(), payload.begin()));
    at += sizeof header + payload.size();
  }
}

// After a failed call the caller's memory may be gone: nothing of it is read or sent any more, and
// no other slice takes the place of what is missing.
TEST_P(TcpPeer, DroppedPayloadsAreNotRead) {
  constexpr uint32_t kLarge = 4 << 20;
  if (GetParam() == Protection::kEncrypt) return;  // never sends from there
  LaneSpec spec = SpecOf(0, 1);
  spec.slot_bytes = kLarge;
  std::unique_ptr<SendLane> lane = end_->OpenSend(spec).value();
  Send(Frame(Grant(1, spec)));
  ASSERT_TRUE(Progress().ok());
  void* const memory =
      mmap(nullptr, kLarge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_NE(lane->TryAcquire().value().data, nullptr);
  ASSERT_TRUE(
      lane->PublishFrom({.bytes = kLarge}, static_cast<const std::byte*>(memory), false).ok());
  ASSERT_NE(lane->TryAcquire().value().data, nullptr);
  ASSERT_TRUE(lane->Publish({.bytes = 8}).ok());
  ASSERT_TRUE(end_->unsent());
  end_->DropUnsent();
  ASSERT_EQ(mprotect(memory, kLarge, PROT_NONE), 0);
  size_t arrived = 0;
  std::vector<std::byte> portion(1 << 20);
  for (int i = 0; i < 50; ++i) {
    const ssize_t got = recv(peer_.get(), portion.data(), portion.size(), MSG_DONTWAIT);
    arrived += got > 0 ? static_cast<size_t>(got) : 0;
    end_->wakeup_source()->Arm();
    (void)Progress();
  }
  EXPECT_LT(arrived, size_t{kLarge});
  now_ += 10 * kSecond;
  const Status lost = Progress();
  EXPECT_EQ(lost.code(), Code::kRemoteError);
  EXPECT_NE(lost.message().find("peer rank 1 is lost: a call failed"), std::string::npos)
      << lost.message();
  munmap(memory, kLarge);
}

TEST_P(TcpPeer, SlicesThatAreNotDueAreRefused) {
  struct Case {
    const char* what;
    std::function<std::vector<std::byte>()> bytes;
  };
  const std::vector<Case> cases = {
      {"a slice of lane number 2, of 1", [&] { return SliceFrame(2, 1, Pattern(8, 0)); }},
      {"slice number 2 of", [&] { return SliceFrame(1, 2, Pattern(8, 0)); }},
      {"slice number 0 of", [&] { return SliceFrame(1, 0, {}); }},
      {"a slice of 4097 bytes", [&] { return SliceFrame(1, 1, Pattern(kSlotBytes + 1, 0)); }},
      {"a malformed frame of kind 2", [&] { return SliceFrame(0, 1, Pattern(8, 0)); }},
      {"a malformed frame of kind 9",
       [&] {
         FrameHeader header;
         header.kind = static_cast<FrameKind>(9);
         return Frame(header);
       }},
      {"a frame of version 7",
       [&] {
         FrameHeader header;
         header.version = 7;
         return Frame(header);
       }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    SetUp();
    std::unique_ptr<RecvLane> lane = OpenRecv();
    Send(c.bytes());
    ExpectRefused(c.what);
    RecvLane::Incoming incoming;
    EXPECT_FALSE(lane->TryPeek(&incoming).value());
  }
}

TEST_P(TcpPeer, ASliceWithoutCreditIsRefused) {
  std::unique_ptr<RecvLane> lane = OpenRecv();
  for (uint64_t seq = 1; seq <= kDepth; ++seq) Send(SliceFrame(1, seq, Pattern(16, 0)));
  ASSERT_TRUE(Progress().ok());
  Send(SliceFrame(1, kDepth + 1, Pattern(16, 9)));
  ExpectRefused("without credit");
  ExpectSlice(lane.get(), 1, Pattern(16, 0));  // what was there is untouched
}

TEST_P(TcpPeer, GrantsAndCreditsThatMakeNoSenseAreRefused) {
  const LaneSpec spec = SpecOf(0, 1);
  const auto other_depth = [&] {
    FrameHeader grant = Grant(1, spec);
    grant.seq = kDepth + 1;
    return grant;
  };
  struct Case {
    const char* what;
    std::vector<FrameHeader> frames;
  };
  FrameHeader no_slots = Grant(1, spec);
  no_slots.seq = 0;
  const std::vector<Case> cases = {
      {"grant number 2 instead of 1", {Grant(2, spec)}},
      {"two grants of lane", {Grant(1, spec), Grant(2, spec)}},
      {"a grant of 0 slots", {no_slots}},
      {"a grant of 4 slots of 4096 bytes", {other_depth()}},
      {"a credit of lane number 1, of 0", {Credit(1, 4)}},
      {"a credit of 3 slices after 3, of 0 published", {Grant(1, spec), Credit(1, kDepth)}},
      {"a credit of 4 slices after 3, of 0 published", {Grant(1, spec), Credit(1, kDepth + 1)}},
      {"a credit of 18446744073709551615 slices", {Grant(1, spec), Credit(1, UINT64_MAX)}},
  };
  for (const bool opened : {true, false}) {
    for (const Case& c : cases) {
      SCOPED_TRACE(c.what);
      SetUp();
      std::unique_ptr<SendLane> lane;
      if (opened) lane = end_->OpenSend(spec).value();
      for (const FrameHeader& frame : c.frames) Send(Frame(frame));
      if (!opened && std::string(c.what) == "a grant of 4 slots of 4096 bytes") {
        ASSERT_TRUE(Progress().ok());  // found when the lane is opened
        EXPECT_NE(end_->OpenSend(spec).status().message().find(c.what), std::string::npos);
        continue;
      }
      ExpectRefused(opened || c.frames.size() < 2 ||
                            std::string(c.what).find("grant") != std::string::npos
                        ? c.what
                        : "a credit of lane number 1, of 1");
    }
  }
}

// Without keys only damage to a payload is found, and fields that make no sense.
TEST_P(TcpPeer, EveryFlippedBitIsFound) {
  std::unique_ptr<RecvLane> lane = OpenRecv();
  const std::vector<std::byte> frame = SliceFrame(1, 1, Pattern(24, 0));
  const size_t first = GetParam() == Protection::kNone ? sizeof(FrameHeader) : 0;
  for (size_t bit = 8 * first; bit < 8 * frame.size(); ++bit) {
    SetUp();
    lane = OpenRecv();
    std::vector<std::byte> bytes = SliceFrame(1, 1, Pattern(24, 0));
    ASSERT_EQ(bytes, frame);
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    bytes.resize(bytes.size() + 2 * kSlotBytes);  // for a length that has grown
    Send(bytes);
    Status status;
    for (int i = 0; i < 3 && status.ok(); ++i) status = Progress();
    EXPECT_EQ(status.code(), Code::kInternalError) << "bit " << bit;
    RecvLane::Incoming incoming;
    EXPECT_FALSE(lane->TryPeek(&incoming).value()) << "bit " << bit;
  }
}

TEST_P(TcpPeer, FramesThatAreRepeatedOrMovedAreRefused) {
  // Without tags over headers alone, the number of the slice is what is found.
  const char* const found = GetParam() == Protection::kAuth ? "fails its check" : "slice number";
  std::unique_ptr<RecvLane> lane = OpenRecv();
  const std::vector<std::byte> first = SliceFrame(1, 1, Pattern(8, 1));
  const std::vector<std::byte> second = SliceFrame(1, 2, Pattern(8, 2));
  Send(first);
  ASSERT_TRUE(Progress().ok());
  ExpectSlice(lane.get(), 1, Pattern(8, 1));
  Send(first);
  ExpectRefused(found);
  SetUp();
  lane = OpenRecv();
  Send(second);  // of another connection with equal keys, in another order
  ExpectRefused(found);
}

TEST_P(TcpPeer, WhatArrivedBeforeTheEndIsRead) {
  std::unique_ptr<RecvLane> lane = OpenRecv();
  Send(SliceFrame(1, 1, Pattern(kSlotBytes, 4)));
  const std::vector<std::byte> half = SliceFrame(1, 2, Pattern(100, 0));
  Send({half.begin(), half.begin() + 80});
  peer_.Reset();
  ASSERT_TRUE(Progress().ok());
  ExpectSlice(lane.get(), 1, Pattern(kSlotBytes, 4));
  ASSERT_TRUE(lane->Release().ok());
  RecvLane::Incoming incoming;
  ASSERT_TRUE(Progress().ok());
  EXPECT_FALSE(lane->TryPeek(&incoming).value());  // the control connection may know more
  now_ += 2 * kSecond;
  ASSERT_TRUE(Progress().ok());
  const Status lost = lane->TryPeek(&incoming).status();
  EXPECT_EQ(lost.code(), Code::kRemoteError);
  EXPECT_NE(lost.message().find("peer rank 1 is lost"), std::string::npos) << lost.message();
  EXPECT_FALSE(end_->unsent());  // nothing waits for a peer that is gone
}

TEST_P(TcpPeer, APeerThatDoesNotReadDoesNotBlock) {
  std::unique_ptr<SendLane> lane =
      end_->OpenSend({.producer = 0, .consumers = {1}, .slot_bytes = 4 << 20, .depth = 2}).value();
  Send(Frame(Grant(1, lane->spec())));
  ASSERT_TRUE(Progress().ok());
  for (int i = 0; i < 2; ++i) {
    ASSERT_NE(lane->TryAcquire().value().data, nullptr);
    ASSERT_TRUE(lane->Publish({.bytes = 4 << 20}).ok());
  }
  EXPECT_TRUE(end_->unsent());
  std::vector<int> ranks;
  end_->AppendUnsent(&ranks);
  EXPECT_EQ(ranks, std::vector<int>{1});
  EXPECT_EQ(lane->TryAcquire().value().data, nullptr);
  end_->Quiesce(SystemClock().Now() + kMillisecond);
  EXPECT_FALSE(end_->unsent());
}

// The peer's machine has none of what still waits here, so no call may succeed that published it.
TEST_P(TcpPeer, SlicesThatAreLostWithTheConnectionAreAnError) {
  std::unique_ptr<SendLane> lane =
      end_->OpenSend({.producer = 0, .consumers = {1}, .slot_bytes = 4 << 20, .depth = 2}).value();
  Send(Frame(Grant(1, lane->spec())));
  ASSERT_TRUE(Progress().ok());
  ASSERT_NE(lane->TryAcquire().value().data, nullptr);
  ASSERT_TRUE(lane->Publish({.bytes = 4 << 20}).ok());
  EXPECT_FALSE(end_->delivered());
  peer_.Reset();
  ASSERT_TRUE(Progress().ok());  // the control connection may know more
  EXPECT_TRUE(end_->unsent());
  EXPECT_FALSE(end_->delivered());
  now_ += 2 * kSecond;
  const Status lost = Progress();
  EXPECT_EQ(lost.code(), Code::kRemoteError);
  EXPECT_NE(lost.message().find("peer rank 1 is lost"), std::string::npos) << lost.message();
}

// The same where publishing a slice finds out that the connection has ended, or comes after that.
TEST_P(TcpPeer, SlicesForALostConnectionAreAnError) {
  std::unique_ptr<SendLane> lane = end_->OpenSend(SpecOf(0, 1)).value();
  Send(Frame(Grant(1, lane->spec())));
  ASSERT_TRUE(Progress().ok());
  peer_.Reset();
  ASSERT_NE(lane->TryAcquire().value().data, nullptr);
  ASSERT_TRUE(lane->Publish({.bytes = 8}).ok());
  EXPECT_TRUE(end_->unsent());
  ASSERT_TRUE(Progress().ok());
  EXPECT_TRUE(end_->unsent());
  now_ += 2 * kSecond;
  EXPECT_EQ(Progress().code(), Code::kRemoteError);
}

TEST_P(TcpPeer, SlicesAfterTheLossOfTheConnectionAreAnError) {
  std::unique_ptr<SendLane> lane = end_->OpenSend(SpecOf(0, 1)).value();
  Send(Frame(Grant(1, lane->spec())));
  ASSERT_TRUE(Progress().ok());
  peer_.Reset();
  ASSERT_TRUE(Progress().ok());
  EXPECT_FALSE(end_->unsent());
  ASSERT_NE(lane->TryAcquire().value().data, nullptr);
  ASSERT_TRUE(lane->Publish({.bytes = 8}).ok());
  EXPECT_TRUE(end_->unsent());
  now_ += 2 * kSecond;
  EXPECT_EQ(Progress().code(), Code::kRemoteError);
}

// What a socket's kernel has taken is on its way, and not delivered.
TEST_P(TcpPeer, DeliveredIsWhatThePeerHas) {
  std::unique_ptr<SendLane> lane = end_->OpenSend(SpecOf(0, 1)).value();
  Send(Frame(Grant(1, lane->spec())));
  ASSERT_TRUE(Progress().ok());
  EXPECT_TRUE(end_->delivered());
  ASSERT_NE(lane->TryAcquire().value().data, nullptr);
  ASSERT_TRUE(lane->Publish({.bytes = kSlotBytes}).ok());
  EXPECT_FALSE(end_->unsent());
  EXPECT_FALSE(end_->delivered());
  (void)Received();  // such a socket has no buffer at the other end
  EXPECT_TRUE(end_->delivered());
}

// The same with a second connection, whose frames may overtake those of the first.
class TcpPeerOfTwo : public TcpPeer {
 protected:
  void AddSockets(std::vector<TcpSocket>* sockets) override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    other_peer_.Reset(ends[1]);
    sockets->push_back({UniqueFd(ends[0]), KeyOf(3), KeyOf(4)});
    other_out_.emplace(FrameGuard::Create(GetParam(), KeyOf(4), Aead::Use::kSeal).value());
    other_in_.emplace(FrameGuard::Create(GetParam(), KeyOf(3), Aead::Use::kOpen).value());
  }
  // From here on, Frame, Send and Received are those of the other connection.
  void Swap() {
    std::swap(peer_, other_peer_);
    std::swap(out_, other_out_);
    std::swap(in_, other_in_);
  }
  void SendOnOther(uint64_t seq, std::vector<std::byte> payload) {
    Swap();
    Send(SliceFrame(1, seq, std::move(payload)));
    Swap();
  }

  UniqueFd other_peer_;
  std::optional<FrameGuard> other_out_, other_in_;
};

TEST_P(TcpPeerOfTwo, SlicesOfALaneComeInOrder) {
  std::unique_ptr<RecvLane> lane = OpenRecv();
  RecvLane::Incoming incoming;
  SendOnOther(2, Pattern(64, 2));
  SendOnOther(3, {});
  ASSERT_TRUE(Progress().ok());
  EXPECT_FALSE(lane->TryPeek(&incoming).value()) << "the first slice is not there";
  Send(SliceFrame(1, 1, Pattern(kSlotBytes, 1)));
  ASSERT_TRUE(Progress().ok());
  ExpectSlice(lane.get(), 1, Pattern(kSlotBytes, 1));
  ASSERT_TRUE(lane->Release().ok());
  ExpectSlice(lane.get(), 2, Pattern(64, 2));
  ASSERT_TRUE(lane->Release().ok());
  ExpectSlice(lane.get(), 3, {});
  ASSERT_TRUE(lane->Release().ok());
  EXPECT_FALSE(lane->TryPeek(&incoming).value());
}

TEST_P(TcpPeerOfTwo, ASliceThatComesTwiceOrWithoutCreditIsRefused) {
  std::unique_ptr<RecvLane> lane = OpenRecv();
  SendOnOther(2, Pattern(64, 2));
  ASSERT_TRUE(Progress().ok());
  Send(SliceFrame(1, 2, Pattern(64, 2)));
  ExpectRefused("slice number 2");
  for (const uint64_t seq : {uint64_t{0}, uint64_t{kDepth + 1}, UINT64_MAX}) {
    SetUp();
    lane = OpenRecv();
    Send(SliceFrame(1, seq, Pattern(64, 2)));
    ExpectRefused(seq == 0 ? "slice number 0" : "without credit");
  }
  SetUp();
  lane = OpenRecv();
  Send(SliceFrame(1, 1, Pattern(64, 1)));
  ASSERT_TRUE(Progress().ok());
  Send(SliceFrame(1, 1, {}));
  ExpectRefused("slice number 1");
}

// A connection that stalls does not hold up what others can carry.
TEST_P(TcpPeerOfTwo, TheOtherConnectionCarriesWhatOneDoesNotTake) {
  constexpr uint16_t kManySlots = 200;  // more than the first socket takes
  LaneSpec spec = SpecOf(0, 1);
  spec.depth = kManySlots;
  std::unique_ptr<SendLane> lane = end_->OpenSend(spec).value();
  Send(Frame(Grant(1, spec)));
  ASSERT_TRUE(Progress().ok());
  for (int i = 0; i < kManySlots; ++i) {
    const Span slot = lane->TryAcquire().value();
    ASSERT_NE(slot.data, nullptr) << i;
    const std::vector<std::byte> payload = Pattern(kSlotBytes, i);
    std::memcpy(slot.data, payload.data(), payload.size());
    ASSERT_TRUE(lane->Publish({.bytes = kSlotBytes}).ok());
  }
  std::vector<bool> seen(kManySlots);
  size_t by_first = 0, by_other = 0;
  const auto read = [&](size_t* count) {
    pollfd ready{peer_.get(), POLLIN, 0};
    while (poll(&ready, 1, 0) == 1) {
      std::vector<std::byte> payload;
      const FrameHeader header = Received(&payload);
      ASSERT_TRUE(header.seq >= 1 && header.seq <= kManySlots && !seen[header.seq - 1]);
      seen[header.seq - 1] = true;
      EXPECT_EQ(payload, Pattern(kSlotBytes, static_cast<int>(header.seq) - 1)) << header.seq;
      ++*count;
      ASSERT_TRUE(Progress().ok());
    }
  };
  Swap();
  read(&by_other);
  EXPECT_GT(by_other, 0u) << "while nobody reads the first";
  Swap();
  read(&by_first);
  EXPECT_GT(by_first, 0u);
  EXPECT_EQ(by_first + by_other, kManySlots);
  EXPECT_FALSE(end_->unsent());
}

TEST_P(TcpPeerOfTwo, AnOlderCreditThatComesLateTakesNothingBack) {
  std::unique_ptr<SendLane> lane = end_->OpenSend(SpecOf(0, 1)).value();
  Send(Frame(Grant(1, lane->spec())));
  ASSERT_TRUE(Progress().ok());
  const auto publish = [&](int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_NE(lane->TryAcquire().value().data, nullptr) << i;
      ASSERT_TRUE(lane->Publish({.bytes = 8}).ok());
    }
  };
  publish(kDepth);
  EXPECT_EQ(lane->TryAcquire().value().data, nullptr);
  Swap();
  Send(Frame(Credit(1, 2 * kDepth)));
  Swap();
  ASSERT_TRUE(Progress().ok());
  Send(Frame(Credit(1, kDepth + 1)));
  ASSERT_TRUE(Progress().ok());
  publish(kDepth);
  EXPECT_EQ(lane->TryAcquire().value().data, nullptr);
}

TEST_P(TcpPeerOfTwo, TheLossOfOneIsTheLossOfThePeer) {
  std::unique_ptr<SendLane> lane = end_->OpenSend(SpecOf(0, 1)).value();
  Send(Frame(Grant(1, lane->spec())));
  ASSERT_TRUE(Progress().ok());
  other_peer_.Reset();
  ASSERT_TRUE(Progress().ok());
  ASSERT_NE(lane->TryAcquire().value().data, nullptr);
  ASSERT_TRUE(lane->Publish({.bytes = 8}).ok());
  now_ += 2 * kSecond;
  (void)Progress();
  ASSERT_NE(lane->TryAcquire().value().data, nullptr);
  EXPECT_EQ(lane->Publish({.bytes = 8}).code(), Code::kRemoteError);
}

// Memory follows from the slices that are there at a time, not from the depth.
TEST_P(TcpPeer, ASliceTakesTheFirstFreeSlot) {
  std::unique_ptr<RecvLane> lane = OpenRecv();
  RecvLane::Incoming incoming;
  const std::byte* first = nullptr;
  for (uint64_t seq = 1; seq <= 3 * kDepth; ++seq) {
    Send(SliceFrame(1, seq, Pattern(100, static_cast<int>(seq))));
    ASSERT_TRUE(Progress().ok());
    ASSERT_TRUE(lane->TryPeek(&incoming).value());
    if (first == nullptr) first = incoming.payload;
    EXPECT_EQ(incoming.payload, first);
    ExpectSlice(lane.get(), seq, Pattern(100, static_cast<int>(seq)));
    ASSERT_TRUE(lane->Release().ok());
  }
}

INSTANTIATE_TEST_SUITE_P(All, TcpPeerOfTwo,
                         ::testing::Values(Protection::kNone, Protection::kAuth,
                                           Protection::kEncrypt),
                         [](const auto& param) { return std::string(tcp::Name(param.param)); });
INSTANTIATE_TEST_SUITE_P(All, TcpPeer,
                         ::testing::Values(Protection::kNone, Protection::kAuth,
                                           Protection::kEncrypt),
                         [](const auto& param) { return std::string(tcp::Name(param.param)); });

}  // namespace
}  // namespace inccl
