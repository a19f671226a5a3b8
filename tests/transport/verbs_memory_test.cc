// SPDX-License-Identifier: Apache-2.0
//
// Registered memory over RDMA: the device sends from it in place, and a registration ends with
// Deregister, with ccl_mem_free and with a failed call, so no later send reads memory that the
// caller uses for something else.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "memory/host_allocator.h"
#include "transport/verbs_pair.h"

namespace inccl::test {
namespace {

constexpr size_t kBytes = size_t{1} << 20;

std::byte* Allocate() {
  return static_cast<std::byte*>(HostAllocator::Instance().Allocate(kBytes).value());
}
void Free(std::byte* memory) { ASSERT_TRUE(HostAllocator::Instance().Free(memory).ok()); }

class VerbsMemoryTest : public VerbsTest {
 protected:
  void Open() {
    Connect();
    OpenLane();
    fake::Get().ResetCounters();
    locked_ = fake::Get().LockedBytes();
  }
  Result<MemoryHandle> Register(const std::byte* data, size_t bytes, bool keep) {
    return ends_[0]->exports()->Register(data, bytes, {.access = Access::kReadWrite, .keep = keep});
  }
  // Registered by this test, beside what the transport has for itself.
  uint64_t Locked() const { return fake::Get().LockedBytes() - locked_; }
  bool SendsFrom(const std::byte* data) const { return send_->SendsFrom(data, kSlotBytes, false); }
  // Sends from `data` and expects the bytes that are there now.
  void SendFrom(const std::byte* data, uint32_t bytes, bool is_input = false) {
    const Span slot = send_->TryAcquire().value();
    ASSERT_NE(slot.data, nullptr);
    std::memset(slot.data, 0xee, bytes);
    ASSERT_TRUE(
        send_->PublishFrom({.bytes = bytes, .slice = 3, .is_input = is_input}, data, false).ok());
    Pump();
    EXPECT_FALSE(ends_[0]->unsent());
    RecvLane::Incoming incoming;
    ASSERT_TRUE(recv_->TryPeek(&incoming).value());
    EXPECT_EQ(incoming.header.bytes, bytes);
    EXPECT_EQ(incoming.header.is_input, is_input);
    EXPECT_EQ(incoming.target, nullptr);
    EXPECT_EQ(std::memcmp(incoming.payload, data, bytes), 0);
    ASSERT_TRUE(recv_->Release().ok());
    Pump();
  }

 private:
  uint64_t locked_ = 0;
};

TEST_F(VerbsMemoryTest, AnyHostMemoryIsSentFromInPlace) {
  Open();
  std::vector<std::byte> memory(20000);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i % 251);
  EXPECT_FALSE(Register(memory.data(), memory.size(), false).ok());  // the caller did not ask
  const MemoryHandle handle = Register(memory.data(), memory.size(), true).value();
  EXPECT_FALSE(handle.writable);
  EXPECT_EQ(Locked(), memory.size());
  EXPECT_TRUE(SendsFrom(memory.data() + memory.size() - kSlotBytes));
  EXPECT_FALSE(SendsFrom(memory.data() + memory.size() - kSlotBytes + 1));
  EXPECT_FALSE(send_->SendsFrom(memory.data(), 100, false));  // sooner copied
  SendFrom(memory.data() + 1, kSlotBytes, true);
  SendFrom(memory.data() + memory.size() - 7, 7);
  EXPECT_EQ(fake::Get().Count().gathered, 2u);
  EXPECT_EQ(fake::Get().Count().sends, 2u);  // still one work request a slice
  // A call finds what the application has registered, also a part.
  const MemoryHandle found = Register(memory.data() + 100, 50, false).value();
  EXPECT_EQ(found.memory, handle.memory);
  EXPECT_EQ(Locked(), memory.size());
  ends_[0]->exports()->Deregister(handle);
  EXPECT_EQ(Locked(), 0u);
  EXPECT_FALSE(SendsFrom(memory.data()));
  EXPECT_FALSE(Register(memory.data(), memory.size(), false).ok());
}

TEST_F(VerbsMemoryTest, ASliceWithoutBytesHasNoPayload) {
  Open();
  std::vector<std::byte> memory(100);
  ASSERT_TRUE(Register(memory.data(), memory.size(), true).ok());
  SendFrom(memory.data(), 0);
  EXPECT_EQ(fake::Get().Count().gathered, 0u);
}

TEST_F(VerbsMemoryTest, WhatIsNotRegisteredIsCopied) {
  Open();
  std::vector<std::byte> memory(300, std::byte{7});
  ASSERT_TRUE(Register(memory.data() + 1, 98, true).ok());
  for (const size_t begin : {0, 2, 99}) SendFrom(memory.data() + begin, 98);
  EXPECT_EQ(fake::Get().Count().sends, 3u);
  EXPECT_EQ(fake::Get().Count().gathered, 0u);
}

// What another thread may do between SendsFrom and PublishFrom, or while the slice waits for room.
TEST_F(VerbsMemoryTest, ARegistrationThatEndsBeforeTheSliceIsPostedIsNotUsed) {
  enum class End { kReplaced, kFreed };
  for (const End way : {End::kReplaced, End::kFreed}) {
    for (const bool queued : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, queued {}", static_cast<int>(way), queued));
      lanes_.clear();
      send_.reset();
      recv_.reset();
      ends_.clear();
      fake::Machine machine = fake::Get().StandardMachine();
      machine.max_qp_wr = 2;
      fake::Get().SetMachine(machine);
      Open();
      std::byte* const memory = Allocate();
      std::memset(memory, 1, kBytes);
      const auto end_registration = [&] {
        if (way == End::kFreed) {
          Free(memory);
          // The caller's again; at once, because a test must not read what is not there.
          ASSERT_EQ(mmap(memory, kBytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
                    memory);
          std::memset(memory, 1, kBytes);
        } else {
          ASSERT_TRUE(HostAllocator::Instance()
                          .RevokeAccess(memory, memory + kBytes, HostAllocator::Contents::kKept)
                          .ok());
        }
      };
      ASSERT_TRUE(Register(memory, kBytes, false).ok());
      ASSERT_TRUE(SendsFrom(memory));
      fake::Get().Hold(QueuePairOf(0), queued);
      if (queued) {  // the work requests are all taken
        SendOne(0);
        SendOne(1);
      }
      ASSERT_NE(send_->TryAcquire().value().data, nullptr);
      if (!queued) end_registration();
      ASSERT_TRUE(send_->PublishFrom({.bytes = kSlotBytes, .slice = 2}, memory, false).ok());
      if (queued) {
        EXPECT_TRUE(ends_[0]->unsent());
        end_registration();
      }
      fake::Get().Hold(QueuePairOf(0), false);
      Pump();
      if (queued) {
        EXPECT_TRUE(ReceiveOne(0));
        EXPECT_TRUE(ReceiveOne(1));
      }
      RecvLane::Incoming incoming;
      ASSERT_TRUE(recv_->TryPeek(&incoming).value());
      EXPECT_EQ(incoming.header.slice, 2u);
      EXPECT_EQ(std::memcmp(incoming.payload, memory, kSlotBytes), 0);
      EXPECT_FALSE(ends_[0]->unsent());
      EXPECT_EQ(fake::Get().Count().stale, 0u);
      EXPECT_EQ(fake::Get().Count().gathered, 0u);
      if (way == End::kReplaced) {
        Free(memory);
      } else {
        munmap(memory, kBytes);
      }
    }
  }
}

// The memory must not change before the device has read it.
TEST_F(VerbsMemoryTest, ASliceIsUnsentUntilTheDeviceHasReadIt) {
  Open();
  std::vector<std::byte> memory(100);
  ASSERT_TRUE(Register(memory.data(), memory.size(), true).ok());
  fake::Get().Hold(QueuePairOf(0), true);
  SendOne(0);
  Pump();
  EXPECT_FALSE(ends_[0]->unsent());  // the device has it in the slot
  ASSERT_NE(send_->TryAcquire().value().data, nullptr);
  ASSERT_TRUE(send_->PublishFrom({.bytes = 100}, memory.data(), false).ok());
  Pump();
  EXPECT_TRUE(ends_[0]->unsent());
  fake::Get().Hold(QueuePairOf(0), false);
  Pump();
  EXPECT_FALSE(ends_[0]->unsent());  // although the consumer has released nothing
}

TEST_F(VerbsMemoryTest, FreedMemoryLeavesNoStaleKey) {
  Open();
  for (const bool keep : {false, true}) {
    SCOPED_TRACE(keep);
    std::byte* const first = Allocate();
    std::memset(first, 1, kBytes);
    const MemoryHandle old = Register(first, kBytes, keep).value();
    EXPECT_EQ(Locked(), kBytes);
    SendFrom(first + 5, kSlotBytes);
    Free(first);
    EXPECT_EQ(Locked(), 0u);  // at once, not when other memory takes its place
    EXPECT_FALSE(SendsFrom(first + 5));
    // Other pages at the same address.
    std::byte* again = Allocate();
    if (again != first) {
      Free(again);
      ASSERT_EQ(mmap(first, kBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
                first);
      std::memset(first, 2, kBytes);
      EXPECT_FALSE(Register(first, kBytes, false).ok());
      const MemoryHandle renewed = Register(first, kBytes, true).value();
      SendFrom(first + 5, kSlotBytes);
      ends_[0]->exports()->Deregister(renewed);
      munmap(first, kBytes);
    } else {
      std::memset(again, 2, kBytes);
      const MemoryHandle renewed = Register(again, kBytes, keep).value();
      EXPECT_NE(renewed.memory, old.memory);
      SendFrom(again + 5, kSlotBytes);
      ends_[0]->exports()->Deregister(old);  // has ended: it does not end the new one
      EXPECT_EQ(Locked(), kBytes);
      Free(again);
    }
    EXPECT_EQ(Locked(), 0u);
  }
  EXPECT_EQ(fake::Get().Count().stale, 0u);
}

// A call of another communicator on the same memory has failed.
TEST_F(VerbsMemoryTest, PagesThatAreReplacedAreNotSent) {
  Open();
  std::byte* const memory = Allocate();
  ASSERT_TRUE(Register(memory, kBytes, false).ok());
  fake::Get().Hold(QueuePairOf(0), true);
  ASSERT_NE(send_->TryAcquire().value().data, nullptr);
  ASSERT_TRUE(send_->PublishFrom({.bytes = kSlotBytes, .slice = 3}, memory, false).ok());
  ASSERT_TRUE(HostAllocator::Instance()
                  .RevokeAccess(memory, memory + kBytes, HostAllocator::Contents::kKept)
                  .ok());
  EXPECT_FALSE(SendsFrom(memory));
  fake::Get().Hold(QueuePairOf(0), false);
  Pump();
  EXPECT_EQ(fake::Get().Count().stale, 0u);  // what was under way goes on
  EXPECT_FALSE(ends_[0]->unsent());
  EXPECT_EQ(Locked(), kBytes);
  EXPECT_FALSE(Register(memory, kBytes, false).ok());
  EXPECT_EQ(Locked(), 0u);
  Free(memory);
}

TEST_F(VerbsMemoryTest, CallsKeepWhatTheyUsedLast) {
  Open();
  std::vector<std::byte*> pieces;
  for (int i = 0; i < 40; ++i) {
    pieces.push_back(Allocate());
    EXPECT_TRUE(Register(pieces.back(), kBytes, false).ok());
  }
  EXPECT_EQ(Locked(), 32 * kBytes);
  EXPECT_TRUE(Register(pieces.back(), kBytes, false).ok());
  EXPECT_EQ(Locked(), 32 * kBytes);
  EXPECT_FALSE(SendsFrom(pieces.front()));
  SendFrom(pieces.back(), 100);
  for (std::byte* const piece : pieces) Free(piece);
  EXPECT_EQ(Locked(), 0u);
}

TEST_F(VerbsMemoryTest, TheLimitOfLockedMemoryLeavesSlots) {
  Open();
  std::byte* const memory = Allocate();
  fake::Get().SetLockableBytes(fake::Get().LockedBytes());
  const Result<MemoryHandle> refused = Register(memory, kBytes, false);
  EXPECT_FALSE(refused.ok());
  EXPECT_HAS_PART(refused.status().message(), "RLIMIT_MEMLOCK");
  EXPECT_FALSE(Register(memory, kBytes, false).ok());
  SendOne(0);
  Pump();
  EXPECT_TRUE(ReceiveOne(0));
  Free(memory);
}

// The error names this rank and its memory; no peer is to blame.
TEST_F(VerbsMemoryTest, MemoryThatTheDeviceCannotReadIsNamed) {
  std::vector<std::byte> memory(3 * kSlotBytes, std::byte{1});
  const std::byte* const sent = memory.data() + kSlotBytes;
  for (const bool ended : {true, false}) {
    SCOPED_TRACE(ended);
    Open();
    const MemoryHandle handle = Register(memory.data(), memory.size(), true).value();
    fake::Get().Hold(QueuePairOf(0), true);
    ASSERT_NE(send_->TryAcquire().value().data, nullptr);
    ASSERT_TRUE(send_->PublishFrom({.bytes = kSlotBytes, .slice = 3}, sent, false).ok());
    if (ended) {
      ends_[0]->exports()->Deregister(handle);
    } else {
      fake::Get().FailNextSend(IBV_WC_LOC_PROT_ERR, false);
    }
    fake::Get().Hold(QueuePairOf(0), false);
    EXPECT_EQ(fake::Get().Count().stale, ended ? 1u : 0u);
    const Status status = ProgressOf(0, 1);
    const std::string what = fmt::format("{} bytes at {}", kSlotBytes, fmt::ptr(sent));
    EXPECT_EQ(status.code(), ended ? Code::kInvalidUsage : Code::kSystemError);
    EXPECT_HAS_PART(status.message(),
                    "rank 0: verbs: fake0:1: " +
                        (ended ? what + " were freed or deregistered while a call was sending them"
                               : fmt::format("it cannot read {}, of memory registered from {} to "
                                             "{}, which a call sends in place",
                                             what, fmt::ptr(memory.data()),
                                             fmt::ptr(memory.data() + memory.size()))));
    EXPECT_HAS_PART(status.message(), "local protection error");
    EXPECT_EQ(status.message().find("peer"), std::string::npos) << status.message();
    EXPECT_TRUE(ends_[0]->unsent());  // the call must not end as if its slices were sent
    send_.reset();
    recv_.reset();
    ends_.clear();
  }
}

// After a failed call the caller writes to its memory, and the device must not send that.
TEST_F(VerbsMemoryTest, AFailedCallEndsRegistrationsAndConnections) {
  Open();
  std::vector<std::byte> memory(kSlotBytes, std::byte{1});
  ASSERT_TRUE(Register(memory.data(), memory.size(), true).ok());
  ends_[0]->DropUnsent();  // no device reads the memory
  EXPECT_EQ(Locked(), kSlotBytes);
  fake::Get().Hold(QueuePairOf(0), true);  // the network is slow
  ASSERT_NE(send_->TryAcquire().value().data, nullptr);
  ASSERT_TRUE(send_->PublishFrom({.bytes = kSlotBytes}, memory.data(), false).ok());
  ends_[0]->DropUnsent();
  EXPECT_EQ(Locked(), 0u);
  for (const fake::Connection& connection : fake::Get().Connections()) {
    EXPECT_EQ(connection.state, connection.number == QueuePairOf(0) ? IBV_QPS_ERR : IBV_QPS_RTS);
  }
  std::memset(memory.data(), 2, memory.size());
  fake::Get().Hold(QueuePairOf(0), false);
  Pump();
  EXPECT_EQ(fake::Get().Count().bytes, 0u);
  EXPECT_EQ(fake::Get().Count().stale, 0u);
  RecvLane::Incoming incoming;
  EXPECT_FALSE(recv_->TryPeek(&incoming).value());
}

}  // namespace
}  // namespace inccl::test
