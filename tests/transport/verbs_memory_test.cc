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
#include "memory/region.h"
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
    return ends_[0]->Register(data, bytes, {.access = Access::kReadWrite, .keep = keep});
  }
  // Registered by this test, beside what the transport has for itself.
  uint64_t Locked() const { return fake::Get().LockedBytes() - locked_; }
  // Sends from `data` and expects the bytes that are there now.
  void SendFrom(const MemoryHandle& handle, const std::byte* data, uint32_t bytes) {
    const Span slot = send_->TryAcquire().value();
    ASSERT_NE(slot.data, nullptr);
    std::memset(slot.data, 0xee, bytes);
    const RemoteAddress source = handle.At(data, bytes);
    ASSERT_NE(source.region, 0u);
    ASSERT_TRUE(send_->ReachableFrom(source.region));
    ASSERT_TRUE(send_->Publish({.bytes = bytes, .slice = 3, .source = source}).ok());
    Pump();
    RecvLane::Incoming incoming;
    ASSERT_TRUE(recv_->TryPeek(&incoming).value());
    EXPECT_EQ(incoming.header.bytes, bytes);
    EXPECT_NE(incoming.header.source.region, 0u);  // for the consumer: the input as it was
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
  SendFrom(handle, memory.data() + 1, kSlotBytes);
  SendFrom(handle, memory.data() + memory.size() - 7, 7);
  EXPECT_EQ(fake::Get().Count().gathered, 2u);
  EXPECT_EQ(fake::Get().Count().sends, 2u);  // still one work request a slice
  EXPECT_EQ(handle.At(memory.data(), memory.size() + 1).region, 0u);
  // A call finds what the application has registered, also a part.
  const MemoryHandle found = Register(memory.data() + 100, 50, false).value();
  EXPECT_EQ(found.region, handle.region);
  SendFrom(found, memory.data() + 101, 49);
  ends_[0]->Deregister(handle);
  EXPECT_EQ(Locked(), 0u);
  EXPECT_FALSE(send_->ReachableFrom(handle.region));
  EXPECT_FALSE(Register(memory.data(), memory.size(), false).ok());
}

TEST_F(VerbsMemoryTest, ASliceWithoutBytesHasNoPayload) {
  Open();
  std::vector<std::byte> memory(100);
  const MemoryHandle handle = Register(memory.data(), memory.size(), true).value();
  SendFrom(handle, memory.data(), 0);
  EXPECT_EQ(fake::Get().Count().gathered, 0u);
}

TEST_F(VerbsMemoryTest, WhatIsNotRegisteredIsRefused) {
  Open();
  std::vector<std::byte> memory(100);
  const MemoryHandle handle = Register(memory.data(), memory.size(), true).value();
  ASSERT_NE(send_->TryAcquire().value().data, nullptr);
  for (const RemoteAddress& source :
       {RemoteAddress{handle.region, 1}, RemoteAddress{handle.region, UINT64_MAX},
        RemoteAddress{handle.region + 1, 0}, RemoteAddress{1, 0}}) {
    EXPECT_EQ(send_->Publish({.bytes = 100, .source = source}).code(), Code::kInvalidUsage);
  }
  EXPECT_EQ(fake::Get().Count().sends, 0u);
}

// The memory must not change before the device has read it.
TEST_F(VerbsMemoryTest, ALaneIsDrainedWhenTheDeviceHasRead) {
  Open();
  std::vector<std::byte> memory(100);
  const MemoryHandle handle = Register(memory.data(), memory.size(), true).value();
  fake::Get().Hold(QueuePairOf(0), true);
  ASSERT_NE(send_->TryAcquire().value().data, nullptr);
  ASSERT_TRUE(send_->Publish({.bytes = 100, .source = handle.At(memory.data(), 100)}).ok());
  Pump();
  EXPECT_FALSE(send_->Drained().value());
  fake::Get().Hold(QueuePairOf(0), false);
  Pump();
  EXPECT_TRUE(send_->Drained().value());  // although the consumer has released nothing
}

TEST_F(VerbsMemoryTest, FreedMemoryLeavesNoStaleKey) {
  Open();
  for (const bool keep : {false, true}) {
    SCOPED_TRACE(keep);
    std::byte* const first = Allocate();
    std::memset(first, 1, kBytes);
    const MemoryHandle old = Register(first, kBytes, keep).value();
    EXPECT_EQ(Locked(), kBytes);
    SendFrom(old, first + 5, kSlotBytes);
    Free(first);
    EXPECT_EQ(Locked(), 0u);  // at once, not when other memory takes its place
    EXPECT_FALSE(send_->ReachableFrom(old.region));
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
      SendFrom(renewed, first + 5, kSlotBytes);
      ends_[0]->Deregister(renewed);
      munmap(first, kBytes);
    } else {
      std::memset(again, 2, kBytes);
      const MemoryHandle renewed = Register(again, kBytes, keep).value();
      EXPECT_NE(renewed.region, old.region);
      SendFrom(renewed, again + 5, kSlotBytes);
      ends_[0]->Deregister(old);  // has ended: it does not end the new one
      EXPECT_EQ(Locked(), kBytes);
      Free(again);
    }
    EXPECT_EQ(Locked(), 0u);
  }
  EXPECT_EQ(fake::Get().Count().stale, 0u);
}

TEST_F(VerbsMemoryTest, CallsKeepWhatTheyUsedLast) {
  Open();
  std::vector<std::byte*> pieces;
  for (int i = 0; i < 40; ++i) {
    pieces.push_back(Allocate());
    EXPECT_TRUE(Register(pieces.back(), kBytes, false).ok());
  }
  EXPECT_EQ(Locked(), 32 * kBytes);
  const MemoryHandle last = Register(pieces.back(), kBytes, false).value();
  EXPECT_EQ(Locked(), 32 * kBytes);
  SendFrom(last, pieces.back(), 100);
  for (std::byte* const piece : pieces) Free(piece);
  EXPECT_EQ(Locked(), 0u);
}

TEST_F(VerbsMemoryTest, TheLimitOfLockedMemoryLeavesSlots) {
  Open();
  std::byte* const memory = Allocate();
  fake::Get().SetLockableBytes(fake::Get().LockedBytes());
  const Result<MemoryHandle> refused = Register(memory, kBytes, false);
  EXPECT_FALSE(refused.ok());
  EXPECT_CONTAINS(refused.status().message(), "RLIMIT_MEMLOCK");
  EXPECT_FALSE(Register(memory, kBytes, false).ok());
  SendOne(0);
  Pump();
  EXPECT_TRUE(ReceiveOne(0));
  Free(memory);
}

// Another transport's id means one memory at a time. If it is a device's now, which this transport
// cannot send, it means none here.
TEST_F(VerbsMemoryTest, AnIdThatMeansOtherMemoryNowIsForgotten) {
  Open();
  std::byte* const first = Allocate();
  std::byte* const second = Allocate();
  constexpr uint32_t kId = 7;
  const auto handle = [](const std::byte* data) {
    return MemoryHandle{.region = kId,
                        .begin = data,
                        .end = data + kBytes,
                        .memory = FindRegion(data, kBytes, false).value().generation};
  };
  ends_[0]->Adopt(handle(first), false);
  SendFrom(handle(first), first, 100);
  std::memset(second, 2, kBytes);
  ends_[0]->Adopt(handle(second), false);
  SendFrom(handle(second), second, 100);
  EXPECT_EQ(Locked(), kBytes);
  std::vector<std::byte> of_device(100);
  ends_[0]->Adopt({.region = kId,
                   .on_device = true,
                   .begin = of_device.data(),
                   .end = of_device.data() + of_device.size(),
                   .memory = uint64_t{1} << 63 | 1},
                  false);
  EXPECT_FALSE(send_->ReachableFrom(kId));
  EXPECT_EQ(Locked(), 0u);
  Free(first);
  Free(second);
}

// After a failed call the caller writes to its memory, and the device must not send that.
TEST_F(VerbsMemoryTest, AFailedCallEndsRegistrationsAndConnections) {
  Open();
  std::vector<std::byte> memory(kSlotBytes, std::byte{1});
  const MemoryHandle handle = Register(memory.data(), memory.size(), true).value();
  fake::Get().Hold(QueuePairOf(0), true);  // the network is slow
  ASSERT_NE(send_->TryAcquire().value().data, nullptr);
  ASSERT_TRUE(
      send_->Publish({.bytes = kSlotBytes, .source = handle.At(memory.data(), kSlotBytes)}).ok());
  EXPECT_TRUE(ends_[0]->RevokeAccess(handle).ok());
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
