// SPDX-License-Identifier: Apache-2.0
//
// The lane protocol seen from inside: what is checked before it is believed. Memory is on the heap,
// so that a sanitizer sees an access beyond it.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "support/seed.h"
#include "transport/mapped/mapped_transport.h"

namespace inccl::mapped {

// Moves both ends of a lane to where `ticket` slices have gone through it.
struct LaneTestAccess {
  static void Advance(uint64_t ticket, MappedSendLane* send, MappedRecvLane* recv) {
    const uint32_t depth = send->spec_.depth;
    for (uint64_t i = ticket - depth; i < ticket; ++i) {
      send->headers_[i % depth].seq.store(static_cast<uint32_t>(i + 1));
    }
    recv->credit_->released.store(ticket);
    recv->ticket_ = ticket;
    recv->index_ = static_cast<uint32_t>(ticket % depth);
    send->ticket_ = ticket;
    send->index_ = recv->index_;
    send->released_ = ticket;
    for (auto& consumer : send->consumers_) consumer.released = ticket;
  }
};

namespace {

emulated::StampedSendLane* Stamped(const std::unique_ptr<SendLane>& lane) {
  return dynamic_cast<emulated::StampedSendLane*>(lane.get());
}
emulated::StampedRecvLane* Stamped(const std::unique_ptr<RecvLane>& lane) {
  return dynamic_cast<emulated::StampedRecvLane*>(lane.get());
}

class HeapMemory final : public ArenaMemory {
 public:
  explicit HeapMemory(size_t bytes)
      : bytes_(bytes), data_(new (std::align_val_t{kPage}) Page[bytes / kPage]()) {}
  ~HeapMemory() override { ::operator delete[](data_, std::align_val_t{kPage}); }
  std::byte* data() const override { return reinterpret_cast<std::byte*>(data_); }
  size_t bytes() const override { return bytes_; }
  Status Commit(size_t offset, size_t bytes) override {
    if (offset + bytes > limit) return SystemError("out of pages");
    commits.emplace_back(offset, bytes);
    return Status::Ok();
  }
  size_t limit = SIZE_MAX;
  std::vector<std::pair<size_t, size_t>> commits;

 private:
  struct Page {
    std::byte bytes[kPage];
  };
  size_t bytes_;
  Page* data_;
};

constexpr size_t kArenaBytes = kDataOffset + 64 * kPage;

// Ranks 0 and 1 in one thread, with all their memory at hand.
class End final : public MappedTransport {
 public:
  static std::unique_ptr<End> Make(int rank, uint32_t slots_at_opening = UINT32_MAX) {
    auto memory = std::make_unique<HeapMemory>(kArenaBytes);
    HeapMemory* raw = memory.get();
    auto arena = Arena::Create(std::move(memory), rank, 2);
    EXPECT_TRUE(arena.ok());
    return std::unique_ptr<End>(new End(rank, std::move(*arena), raw, slots_at_opening));
  }
  void Attach(End* peer) {
    auto view = ArenaView::Create(peer->memory->data(), kArenaBytes, peer->rank(), 2);
    ASSERT_TRUE(view.ok()) << view.status().message();
    SetPeer(peer->rank(), std::move(*view), peer->wakeup.get());
  }
  ArenaHeader* header() const { return reinterpret_cast<ArenaHeader*>(memory->data()); }
  DirectoryEntry* entry(size_t i) const {
    return reinterpret_cast<DirectoryEntry*>(memory->data() + kDirectoryOffset) + i;
  }

  HeapMemory* memory;
  std::unique_ptr<WakeupArea> wakeup;

 private:
  End(int rank, std::unique_ptr<Arena> arena, HeapMemory* raw, uint32_t slots_at_opening)
      : End(rank, std::move(arena), raw, slots_at_opening, std::make_unique<WakeupArea>()) {}
  End(int rank, std::unique_ptr<Arena> arena, HeapMemory* raw, uint32_t slots_at_opening,
      std::unique_ptr<WakeupArea> area)
      : MappedTransport("test", rank, 2, std::move(arena), area.get(), FutexScope::kProcess,
                        1 << 20, slots_at_opening),
        memory(raw),
        wakeup(std::move(area)) {}
};

class MappedTest : public ::testing::Test {
 protected:
  MappedTest() : zero_(End::Make(0)), one_(End::Make(1)) {
    zero_->Attach(one_.get());
    one_->Attach(zero_.get());
  }
  static LaneSpec Spec(uint32_t slot_bytes = 100, int depth = 2) {
    LaneSpec spec;
    spec.producer = 0;
    spec.consumers = {1};
    spec.slot_bytes = slot_bytes;
    spec.depth = static_cast<uint16_t>(depth);
    return spec;
  }
  void Open(const LaneSpec& spec) {
    send_ = *zero_->OpenSend(spec);
    recv_ = *one_->OpenRecv(spec);
  }
  SlotHeader* slot(size_t i) const {
    return reinterpret_cast<SlotHeader*>(zero_->memory->data() + zero_->entry(0)->offset) + i;
  }
  CreditBlock* credit() const {
    return reinterpret_cast<CreditBlock*>(one_->memory->data() + one_->entry(0)->offset);
  }
  void Send(uint32_t slice) {
    ASSERT_NE(send_->TryAcquire()->data, nullptr);
    ASSERT_TRUE(send_->Publish(SliceHeader{0, slice, 0}).ok());
  }
  // The error names the peer.
  static void ExpectDefect(const Status& status, int peer) {
    EXPECT_EQ(status.code(), Code::kInternalError) << status.message();
    EXPECT_NE(status.message().find("peer rank " + std::to_string(peer)), std::string::npos)
        << status.message();
  }

  std::unique_ptr<End> zero_, one_;
  std::unique_ptr<SendLane> send_;
  std::unique_ptr<RecvLane> recv_;
  RecvLane::Incoming incoming_;
};

TEST(LayoutTest, StridesAndSizes) {
  EXPECT_EQ(SlotStride(1), 64u);
  EXPECT_EQ(SlotStride(64), 64u);
  EXPECT_EQ(SlotStride(65), 128u);
  EXPECT_EQ(SlotStride(4032), 4032u);
  EXPECT_EQ(SlotStride(4033), 4096u);
  EXPECT_EQ(SlotStride(4097), 8192u);
  EXPECT_EQ(SlotStride(131072), 131072u);
  EXPECT_EQ(SlotStride(UINT32_MAX), size_t{1} << 32) << "no overflow";
  EXPECT_EQ(CreditBytes(1), 64u);
  EXPECT_EQ(CreditBytes(7), 64u);
  EXPECT_EQ(CreditBytes(8), 128u);
}

TEST(ArenaTest, AllocatesAlignedAndCommitsWhatItUses) {
  auto memory = std::make_unique<HeapMemory>(kArenaBytes);
  HeapMemory* raw = memory.get();
  auto arena = std::move(*Arena::Create(std::move(memory), 3, 8));
  const uint64_t before = arena->memory_bytes();
  const uint64_t a = *arena->Allocate(100, 64);
  const uint64_t b = *arena->Allocate(10000, kPage);
  const uint64_t c = *arena->Allocate(1, 64);
  EXPECT_EQ(a % 64, 0u);
  EXPECT_EQ(b % kPage, 0u);
  EXPECT_GE(a, kDataOffset);
  EXPECT_GE(b, a + 100);
  EXPECT_GE(c, b + 10000);
  EXPECT_EQ(arena->memory_bytes() - before, RoundUp(c + 1, kPage) - kDataOffset);
  size_t end = kDataOffset;  // page by page without a gap, each once
  for (const auto& [offset, bytes] : raw->commits) {
    if (offset < kDataOffset) continue;
    EXPECT_EQ(offset, end);
    end = offset + bytes;
  }
  EXPECT_EQ(end, RoundUp(c + 1, kPage));
}

TEST(ArenaTest, ExhaustionIsAnErrorThatNamesSizes) {
  auto memory = std::make_unique<HeapMemory>(kArenaBytes);
  HeapMemory* raw = memory.get();
  auto arena = std::move(*Arena::Create(std::move(memory), 3, 8));
  const Status full = arena->Allocate(kArenaBytes, 64).status();
  EXPECT_EQ(full.code(), Code::kSystemError);
  EXPECT_NE(full.message().find("rank 3"), std::string::npos) << full.message();
  EXPECT_NE(full.message().find(std::to_string(kArenaBytes)), std::string::npos) << full.message();
  EXPECT_EQ(arena->Allocate(SIZE_MAX - 10, 64).status().code(), Code::kSystemError) << "overflow";
  raw->limit = kDataOffset + kPage;
  EXPECT_TRUE(arena->Allocate(100, 64).ok());
  const Status refused = arena->Allocate(2 * kPage, 64).status();
  EXPECT_EQ(refused.code(), Code::kSystemError);
  EXPECT_NE(refused.message().find("8192"), std::string::npos) << refused.message();
  EXPECT_TRUE(arena->Allocate(100, 64).ok()) << "what is committed can still be used";
  EXPECT_EQ(Arena::Create(std::make_unique<HeapMemory>(kDataOffset), 0, 1).status().code(),
            Code::kInvalidArgument);
}

TEST(ArenaTest, TheDirectoryHasAnEnd) {
  auto arena = std::move(*Arena::Create(std::make_unique<HeapMemory>(kArenaBytes), 0, 2));
  DirectoryEntry entry{};
  for (uint32_t i = 0; i < kDirectoryEntries; ++i) ASSERT_TRUE(arena->Announce(entry).ok());
  EXPECT_EQ(arena->Announce(entry).code(), Code::kSystemError);
}

TEST_F(MappedTest, ViewChecksTheHeader) {
  const auto code = [&] {
    return ArenaView::Create(one_->memory->data(), kArenaBytes, 1, 2).status().code();
  };
  EXPECT_EQ(code(), Code::kOk);
  EXPECT_FALSE(ArenaView::Create(one_->memory->data(), kArenaBytes, 0, 2).ok()) << "rank";
  EXPECT_FALSE(ArenaView::Create(one_->memory->data(), kArenaBytes, 1, 3).ok()) << "nranks";
  EXPECT_FALSE(ArenaView::Create(one_->memory->data(), kArenaBytes - kPage, 1, 2).ok()) << "size";
  EXPECT_FALSE(ArenaView::Create(one_->memory->data(), 0, 1, 2).ok()) << "size";
  one_->header()->version ^= 1;
  EXPECT_EQ(code(), Code::kInternalError);
  one_->header()->version ^= 1;
  one_->header()->magic ^= 1;
  EXPECT_EQ(code(), Code::kInternalError);
}

TEST_F(MappedTest, BadDirectoryEntriesAreRefused) {
  const std::vector<std::pair<const char*, void (*)(End*)>> damages = {
      {"kind", [](End* end) { end->entry(0)->kind = 3; }},
      {"consumer", [](End* end) { end->entry(0)->consumer = 0; }},
      {"unaligned", [](End* end) { end->entry(0)->offset += 8; }},
      {"before the data", [](End* end) { end->entry(0)->offset = 64; }},
      {"beyond the end", [](End* end) { end->entry(0)->offset = kArenaBytes; }},
      {"far beyond the end", [](End* end) { end->entry(0)->offset = ~uint64_t{63}; }},
      {"not committed", [](End* end) { end->entry(0)->offset += 8 * kPage; }},
      {"no slots", [](End* end) { end->entry(0)->depth = 0; }},
      {"too many slots", [](End* end) { end->entry(0)->depth = 65535; }},
      {"far too many slots", [](End* end) { end->entry(0)->depth = UINT32_MAX; }},
      {"large slots", [](End* end) { end->entry(0)->slot_bytes = UINT32_MAX; }},
      {"other shape", [](End* end) { end->entry(0)->slot_bytes -= 64; }},
      {"too many entries", [](End* end) { end->header()->entries = kDirectoryEntries + 1; }},
  };
  for (const auto& [name, damage] : damages) {
    SCOPED_TRACE(name);
    auto zero = End::Make(0), one = End::Make(1);
    one->Attach(zero.get());
    zero->Attach(one.get());
    auto send = *zero->OpenSend(Spec());
    auto recv = *one->OpenRecv(Spec());
    damage(zero.get());
    const Status status = recv->TryPeek(&incoming_).status();
    ExpectDefect(status, 0);
    ExpectDefect(recv->TryPeek(&incoming_).status(), 0);
  }
  Open(Spec());
  one_->entry(0)->offset = kArenaBytes - 8;
  Send(0);
  Send(1);
  ExpectDefect(send_->TryAcquire().status(), 1);
}

// The last place that fits is taken, the next one is not: lengths, not only offsets, are checked,
// and nothing but the place is wrong.
TEST_F(MappedTest, WhatSticksOutOfCommittedMemoryIsRefused) {
  const LaneSpec spec = Spec(kPage, 9);
  const auto wired = [&](int64_t headers_at, int64_t credit_at) {
    auto zero = End::Make(0, 0), one = End::Make(1, 0);
    one->Attach(zero.get());
    zero->Attach(one.get());
    auto send = *zero->OpenSend(spec);
    auto recv = *one->OpenRecv(spec);
    const auto move = [](const End& end, int64_t at) {
      if (at == INT64_MIN) return;
      end.entry(0)->offset = end.header()->committed + static_cast<uint64_t>(at);
    };
    move(*one, credit_at);  // before the producer looks
    for (uint32_t i = 0; i < spec.depth; ++i) {
      const Status acquired = send->TryAcquire().status();
      if (!acquired.ok()) return acquired;
      EXPECT_TRUE(send->Publish(SliceHeader{0, i, 0}).ok());
    }
    move(*zero, headers_at);
    Status status = recv->TryPeek(&incoming_).status();
    return status.ok() ? send->TryAcquire().status() : status;
  };
  const auto headers = static_cast<int64_t>(HeadersBytes(spec.depth));
  const auto credit = static_cast<int64_t>(CreditBytes(spec.depth));
  EXPECT_TRUE(wired(INT64_MIN, INT64_MIN).ok());
  // The end of the memory holds zeros here: headers of no slices, a credit of none.
  EXPECT_TRUE(wired(-headers, -credit).ok());
  for (const int64_t at : {-headers + 64, int64_t{-64}, int64_t{0}, int64_t{64}}) {
    SCOPED_TRACE(at);
    ExpectDefect(wired(at, INT64_MIN), 0);
  }
  for (const int64_t at : {-credit + 64, int64_t{0}, int64_t{64}}) {
    SCOPED_TRACE(at);
    ExpectDefect(wired(INT64_MIN, at), 1);
  }
}

TEST_F(MappedTest, RegionsThatStickOutOfCommittedMemoryAreRefused) {
  auto arena = std::move(*Arena::Create(std::make_unique<HeapMemory>(kArenaBytes), 0, 2));
  ASSERT_TRUE(arena->Regions(0).ok());
  auto* const header = reinterpret_cast<ArenaHeader*>(arena->At(0));
  const auto view = std::move(*ArenaView::Create(arena->At(0), kArenaBytes, 0, 2));
  ASSERT_TRUE(view->RegionsAfter(nullptr).ok());
  const uint64_t block = RoundUp(RegionBlockBytes(2), kPage), first = header->table;
  EXPECT_EQ(header->committed, first + block) << "it is the last thing in there";
  for (const uint64_t at : {first + kPage, first + block, first + block + kPage, first + 64,
                            uint64_t{kDirectoryOffset}}) {
    SCOPED_TRACE(at);
    header->table = at;
    ExpectDefect(view->RegionsAfter(nullptr).status(), 0);
  }
  header->table = first;
  RegionBlock* const there = *arena->Regions(0);
  EXPECT_EQ(*view->RegionsAfter(there), nullptr);
  there->next = first + kPage;
  ExpectDefect(view->RegionsAfter(there).status(), 0);
}

TEST_F(MappedTest, ADirectoryDoesNotShrink) {
  Open(Spec());
  ASSERT_FALSE(*recv_->TryPeek(&incoming_));
  LaneSpec other = Spec();
  other.channel = 1;
  auto late = *one_->OpenRecv(other);
  zero_->header()->entries = 0;
  ExpectDefect(late->TryPeek(&incoming_).status(), 0);
}

TEST_F(MappedTest, ASliceLargerThanItsSlotIsRefused) {
  Open(Spec(100));
  Send(0);
  slot(0)->bytes = 101;
  ExpectDefect(recv_->TryPeek(&incoming_).status(), 0);
  SliceHeader header;
  Time departure = 0;
  ExpectDefect(Stamped(recv_)->PeekAhead(0, &header, &departure).status(), 0);
}

TEST_F(MappedTest, APayloadOutsideTheArenaIsRefused) {
  const uint64_t committed = one_->memory->bytes();
  for (const uint64_t offset :
       {uint64_t{0}, uint64_t{kDirectoryOffset}, uint64_t{kDataOffset - 64},
        uint64_t{kDataOffset + 1}, uint64_t{kDataOffset + kPage - 64}, committed, ~uint64_t{63}}) {
    SCOPED_TRACE(offset);
    auto zero = End::Make(0), one = End::Make(1);
    one->Attach(zero.get());
    zero->Attach(one.get());
    auto send = *zero->OpenSend(Spec());
    auto recv = *one->OpenRecv(Spec());
    ASSERT_NE(send->TryAcquire()->data, nullptr);
    ASSERT_TRUE(send->Publish(SliceHeader{100, 0, 0}).ok());
    reinterpret_cast<SlotHeader*>(zero->memory->data() + zero->entry(0)->offset)->source_offset =
        offset;
    ExpectDefect(recv->TryPeek(&incoming_).status(), 0);
  }
}

// Without slots made in advance: a lane has as many as have been in use at once.
TEST_F(MappedTest, ALaneMakesASlotWhenAllAreInUse) {
  constexpr int kDepth = 4;
  auto zero = End::Make(0, 0), one = End::Make(1, 0);
  one->Attach(zero.get());
  zero->Attach(one.get());
  auto send = *zero->OpenSend(Spec(kPage, kDepth));
  auto recv = *one->OpenRecv(Spec(kPage, kDepth));
  const uint64_t opened = zero->memory_bytes();
  std::vector<std::byte*> held;
  const auto publish = [&](uint32_t slice) {
    const Span slot = *send->TryAcquire();
    if (slot.data == nullptr) return false;
    EXPECT_EQ(std::count(held.begin(), held.end(), slot.data), 0) << "a peer may still read it";
    held.push_back(slot.data);
    std::memset(slot.data, static_cast<int>(slice), kPage);
    EXPECT_TRUE(send->Publish(SliceHeader{kPage, slice, 0}).ok());
    return true;
  };
  uint32_t taken = 0;
  const auto take = [&] {
    ASSERT_TRUE(*recv->TryPeek(&incoming_));
    EXPECT_EQ(incoming_.header.slice, taken);
    EXPECT_EQ(incoming_.payload[0], static_cast<std::byte>(taken));
    EXPECT_EQ(incoming_.payload[kPage - 1], static_cast<std::byte>(taken));
    ASSERT_TRUE(recv->Release().ok());
    held.erase(held.begin());
    ++taken;
  };
  uint32_t slice = 0;
  for (; slice < 20; ++slice) {
    ASSERT_TRUE(publish(slice));
    take();
    EXPECT_EQ(zero->memory_bytes(), opened + kPage) << "one slot is enough";
  }
  Rng rng(test::TestSeed());
  size_t most = 1;
  for (int i = 0; i < 300; ++i) {
    if (rng.Below(2) == 0) {
      const bool full = held.size() == kDepth;
      EXPECT_EQ(publish(slice), !full);
      slice += full ? 0 : 1;
    } else if (!held.empty()) {
      take();
    }
    most = std::max(most, held.size());
    EXPECT_EQ(zero->memory_bytes(), opened + most * kPage);
  }
  EXPECT_EQ(most, size_t{kDepth});
}

// Without memory for another slot the lane goes on with those that it has, which come back.
TEST_F(MappedTest, ALaneWithoutMemoryForMoreSlotsUsesThoseItHas) {
  constexpr int kDepth = 4;
  for (const uint32_t slots : {2u, 3u}) {
    SCOPED_TRACE(slots);
    auto zero = End::Make(0, 0), one = End::Make(1, 0);
    one->Attach(zero.get());
    zero->Attach(one.get());
    auto send = *zero->OpenSend(Spec(kPage, kDepth));
    auto recv = *one->OpenRecv(Spec(kPage, kDepth));
    zero->memory->limit = kDataOffset + kPage * (1 + slots);  // the headers take the first page
    std::vector<int> holders;
    uint32_t sent = 0, received = 0;
    for (int round = 0; round < 3; ++round) {
      Span slot;
      while (true) {
        const Result<Span> acquired = send->TryAcquire();
        ASSERT_TRUE(acquired.ok()) << acquired.status().message();
        slot = *acquired;
        if (slot.data == nullptr) break;
        holders.clear();
        send->AppendHolders(false, &holders);
        EXPECT_TRUE(holders.empty());
        std::memset(slot.data, static_cast<int>(++sent), kPage);
        ASSERT_TRUE(send->Publish(SliceHeader{kPage, sent, 0}).ok());
      }
      EXPECT_EQ(sent - received, slots);
      holders.clear();
      send->AppendHolders(false, &holders);
      EXPECT_EQ(holders, std::vector<int>{1}) << "the lane waits for it";
      while (received < sent) {
        ASSERT_TRUE(*recv->TryPeek(&incoming_));
        EXPECT_EQ(incoming_.header.slice, ++received);
        EXPECT_EQ(incoming_.payload[kPage - 1], static_cast<std::byte>(received));
        ASSERT_TRUE(recv->Release().ok());
      }
    }
  }
}

// With fewer, ranks that all send before they receive would wait for each other.
TEST_F(MappedTest, ALaneWithoutMemoryForHalfOfItsSlotsSaysSo) {
  for (const uint32_t slots : {0u, 1u}) {
    SCOPED_TRACE(slots);
    auto zero = End::Make(0, 0), one = End::Make(1, 0);
    one->Attach(zero.get());
    zero->Attach(one.get());
    auto send = *zero->OpenSend(Spec(kPage, 4));
    for (uint32_t i = 0; i < slots; ++i) {
      ASSERT_NE(send->TryAcquire()->data, nullptr);
      ASSERT_TRUE(send->Publish(SliceHeader{}).ok());
    }
    zero->memory->limit = 0;
    const Status status = send->TryAcquire().status();
    EXPECT_EQ(status.code(), Code::kSystemError);
    EXPECT_NE(status.message().find("rank 0: a lane needs 4096 bytes"), std::string::npos)
        << status.message();
    zero->memory->limit = SIZE_MAX;
    EXPECT_NE(send->TryAcquire()->data, nullptr) << "it tries again";
  }
}

TEST_F(MappedTest, AHeaderIsReadOnce) {
  Open(Spec(100));
  ASSERT_NE(send_->TryAcquire()->data, nullptr);
  ASSERT_TRUE(send_->Publish(SliceHeader{60, 5, 77}).ok());
  ASSERT_TRUE(*recv_->TryPeek(&incoming_));
  slot(0)->bytes = UINT32_MAX;
  slot(0)->signature = 1;
  slot(0)->seq = 99;
  ASSERT_TRUE(*recv_->TryPeek(&incoming_));
  EXPECT_EQ(incoming_.header.bytes, 60u);
  EXPECT_EQ(incoming_.header.signature, 77u);
}

TEST_F(MappedTest, AWrongSequenceNumberIsRefused) {
  for (const uint32_t seq : {2u, 3u, UINT32_MAX}) {
    SCOPED_TRACE(seq);
    if (send_ == nullptr) Open(Spec());
    slot(0)->seq = seq;
    ExpectDefect(recv_->TryPeek(&incoming_).status(), 0);
  }
}

TEST_F(MappedTest, WrongCreditsAreRefused) {
  Open(Spec());
  Send(0);
  Send(1);
  credit()->released = 3;  // more than was published
  ExpectDefect(send_->TryAcquire().status(), 1);
  credit()->released = 1;
  Send(2);
  credit()->released = 0;  // less than before
  ExpectDefect(send_->TryAcquire().status(), 1);
}

TEST_F(MappedTest, StampsBelongToTheirSlots) {
  Open(Spec(100, 3));
  SliceHeader header;
  Time departure = 0;
  EXPECT_FALSE(*Stamped(recv_)->PeekAhead(0, &header, &departure));
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Stamped(send_)->CreditDeparture(), 0);
    ASSERT_NE(send_->TryAcquire()->data, nullptr);
    ASSERT_TRUE(Stamped(send_)->PublishStamped(SliceHeader{i, i, 0}, 1000 + Time{i}).ok());
  }
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(*Stamped(recv_)->PeekAhead(i, &header, &departure));
    EXPECT_EQ(header.slice, i);
    EXPECT_EQ(departure, 1000 + Time{i});
  }
  EXPECT_FALSE(*Stamped(recv_)->PeekAhead(3, &header, &departure));
  EXPECT_EQ(Stamped(recv_)->ReleaseStamped(5).code(), Code::kInvalidUsage);
  for (Time i = 0; i < 3; ++i) {
    ASSERT_TRUE(*recv_->TryPeek(&incoming_));
    ASSERT_TRUE(Stamped(recv_)->ReleaseStamped(2000 + i).ok());
  }
  for (Time i = 0; i < 3; ++i) {
    ASSERT_NE(send_->TryAcquire()->data, nullptr);
    EXPECT_EQ(Stamped(send_)->CreditDeparture(), 2000 + i);
    ASSERT_TRUE(send_->Publish(SliceHeader{}).ok());
  }
}

TEST_F(MappedTest, NumbersWrapAround) {
  const int depth = 3;
  Open(Spec(100, depth));
  ASSERT_FALSE(*recv_->TryPeek(&incoming_));
  const uint64_t start = (uint64_t{1} << 32) - 7;
  LaneTestAccess::Advance(start, static_cast<MappedSendLane*>(send_.get()),
                          static_cast<MappedRecvLane*>(recv_.get()));
  for (uint32_t i = 0; i < 20; ++i) {
    ASSERT_FALSE(*recv_->TryPeek(&incoming_)) << i;
    for (int j = 0; j < depth; ++j) Send(i * 10);
    ASSERT_EQ(send_->TryAcquire()->data, nullptr);
    for (int j = 0; j < depth; ++j) {
      const Result<bool> there = recv_->TryPeek(&incoming_);
      ASSERT_TRUE(there.ok()) << there.status().message();
      ASSERT_TRUE(*there);
      EXPECT_EQ(incoming_.header.slice, i * 10);
      ASSERT_TRUE(recv_->Release().ok());
    }
  }
}

// A peer that writes anything anywhere can make calls fail; it cannot make us read elsewhere.
TEST_F(MappedTest, ScribblesAreErrorsAtWorst) {
  Rng rng(test::TestSeed());
  int errors = 0, slices = 0;
  for (int round = 0; round < 400; ++round) {
    auto zero = End::Make(0), one = End::Make(1);
    zero->Attach(one.get());
    one->Attach(zero.get());
    auto send = *zero->OpenSend(Spec(5000, 3));
    auto recv = *one->OpenRecv(Spec(5000, 3));
    for (int i = 0; i < 30; ++i) {
      if (send->TryAcquire().ok() && send->TryAcquire()->data != nullptr) {
        EXPECT_TRUE(send->Publish(SliceHeader{static_cast<uint32_t>(rng.Below(5001)), 0, 0}).ok());
      }
      if (rng.Below(3) == 0) {
        // A word of the header, an entry, a slot's header or a credit.
        End* victim = rng.Below(2) == 0 ? zero.get() : one.get();
        const uint64_t places[] = {32, kDirectoryOffset, victim->entry(0)->offset};
        uint64_t offset = places[rng.Below(3)] + rng.Below(16) * 4;
        if (offset > kArenaBytes - 4) offset = kArenaBytes - 4;
        const auto value = static_cast<uint32_t>(rng.Next() >> rng.Below(64));
        std::memcpy(victim->memory->data() + offset, &value, sizeof(value));
      }
      RecvLane::Incoming incoming;
      const Result<bool> there = recv->TryPeek(&incoming);
      if (!there.ok()) {
        ++errors;
      } else if (*there) {
        ++slices;
        ASSERT_LE(incoming.header.bytes, 5000u);
        unsigned sum = 0;
        for (uint32_t at = 0; at < incoming.header.bytes; ++at) {
          sum += static_cast<unsigned>(incoming.payload[at]);
        }
        EXPECT_LE(sum, 255u * 5000);
        if (rng.Below(4) != 0) {
          EXPECT_TRUE(recv->Release().ok());
        }
      }
    }
  }
  EXPECT_GT(errors, 100);
  EXPECT_GT(slices, 100);
}

TEST(WakeupEventTest, ARingAfterArmEndsTheWait) {
  WakeupArea area{};
  FutexWakeupEvent wakeup(&area, FutexScope::kProcess);
  for (int i = 0; i < 100; ++i) {
    const uint32_t token = wakeup.Arm();
    wakeup.Signal();
    wakeup.Wait(token, kNever);
    EXPECT_EQ(area.sleeping, 0u);
  }
}

TEST(WakeupEventTest, APeerRingsOnlyWhoSleeps) {
  WakeupArea area{};
  FutexWakeupEvent wakeup(&area, FutexScope::kHost);
  RingIfSleeping(&area, FutexScope::kHost, -1);
  EXPECT_EQ(area.counter, 0u);
  const uint32_t token = wakeup.Arm();
  RingIfSleeping(&area, FutexScope::kHost, -1);
  RingIfSleeping(&area, FutexScope::kHost, -1);
  EXPECT_EQ(area.counter, 1u);
  wakeup.Wait(token, kNever);
  wakeup.Arm();
  wakeup.Disarm();
  RingIfSleeping(&area, FutexScope::kHost, -1);
  EXPECT_EQ(area.counter, 1u);
}

TEST(WakeupEventTest, WaitEndsAtItsTimeout) {
  WakeupArea area{};
  FutexWakeupEvent wakeup(&area, FutexScope::kProcess);
  const Time start = SystemClock().Now();
  for (const Time timeout : {Time{-5}, Time{0}, Time{1}, 2 * kMillisecond}) {
    wakeup.Wait(wakeup.Arm(), timeout);
    EXPECT_EQ(area.sleeping, 0u);
  }
  EXPECT_GE(SystemClock().Now() - start, 2 * kMillisecond);
}

TEST(WakeupEventTest, RingFromAnotherThread) {
  WakeupArea area{};
  FutexWakeupEvent wakeup(&area, FutexScope::kProcess);
  std::atomic<int> flag = 0;
  std::thread ringer([&] {
    for (int i = 1; i <= 2000; ++i) {
      flag.store(i, std::memory_order_relaxed);
      wakeup.Signal();
      while (flag.load() == i) std::this_thread::yield();
    }
  });
  for (int i = 1; i <= 2000; ++i) {
    while (true) {
      const uint32_t token = wakeup.Arm();
      if (flag.load(std::memory_order_relaxed) == i) break;
      wakeup.Wait(token, kNever);
    }
    wakeup.Disarm();
    flag = -i;
  }
  ringer.join();
}

}  // namespace
}  // namespace inccl::mapped
