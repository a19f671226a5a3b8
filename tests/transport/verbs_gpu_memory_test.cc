// SPDX-License-Identifier: Apache-2.0
//
// Memory of GPUs over RDMA: the device sends from it in place without a look of the processor,
// where nothing is to protect the payload; else, and where a driver cannot do it, the reason is
// told.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "fakes/fake_device.h"
#include "memory/device_allocator.h"
#include "transport/tcp/tcp_connection.h"
#include "transport/verbs/verbs_device.h"
#include "transport/verbs/verbs_wire.h"
#include "transport/verbs_pair.h"

namespace inccl::test {
namespace {

constexpr size_t kBytes = 20000;
const VerbsOptions kOpen{.protection = tcp::Protection::kNone};

class VerbsGpuMemoryTest : public VerbsTest {
 protected:
  void Open(const VerbsOptions& of_0 = kOpen, const VerbsOptions& of_1 = kOpen) {
    Connect(of_0, of_1);
    OpenLane();
    fake::Get().ResetCounters();
    objects_ = fake::Get().OpenObjects();
  }
  void Close() {
    send_.reset();
    recv_.reset();
    ends_.clear();
  }
  // Memory that the processor cannot read.
  std::byte* Filled(std::byte* memory) {
    for (size_t i = 0; i < kBytes; ++i) {
      gpu_.Reach(memory)[i] = static_cast<std::byte>(i % 251);
    }
    return memory;
  }
  Result<MemoryHandle> Register(const std::byte* data, size_t bytes, bool keep) {
    return ends_[0]->exports()->Register(data, bytes, {.on_device = true, .keep = keep});
  }
  bool SendsFrom(const std::byte* data) const { return send_->SendsFrom(data, kSlotBytes, true); }
  Status Publish(const std::byte* data, uint32_t bytes, bool is_input = false) {
    EXPECT_NE(send_->TryAcquire().value().data, nullptr);
    return send_->PublishFrom({.bytes = bytes, .slice = 3, .is_input = is_input}, data, true);
  }
  void SendFrom(const std::byte* data, uint32_t bytes, bool is_input = false) {
    ASSERT_TRUE(Publish(data, bytes, is_input).ok());
    Pump();
    EXPECT_FALSE(ends_[0]->unsent());
    RecvLane::Incoming incoming;
    ASSERT_TRUE(recv_->TryPeek(&incoming).value());
    EXPECT_EQ(incoming.header.bytes, bytes);
    EXPECT_EQ(incoming.header.is_input, is_input);
    EXPECT_EQ(std::memcmp(incoming.payload, gpu_.Reach(data), bytes), 0);
    ASSERT_TRUE(recv_->Release().ok());
    Pump();
  }
  uint64_t Registered() const { return fake::Get().OpenObjects() - objects_; }
  // Calls use slots then.
  void ExpectRefused(const std::string& why) {
    std::byte* const memory = Filled(gpu_.Allocate(kBytes));
    const Result<MemoryHandle> refused = Register(memory, kBytes, true);
    ASSERT_FALSE(refused.ok());
    EXPECT_HAS_PART(refused.status().message(), why);
    EXPECT_FALSE(SendsFrom(memory));
    EXPECT_EQ(Registered(), 0u);
    SendOne(0);
    Pump();
    EXPECT_TRUE(ReceiveOne(0));
  }

  FakeDevice gpu_{size_t{1} << 22};

 private:
  uint64_t objects_ = 0;
};

TEST_F(VerbsGpuMemoryTest, WhatTheApplicationRegistersIsSentInPlace) {
  Open();
  std::byte* const memory = Filled(gpu_.Allocate(kBytes));
  EXPECT_TRUE(ends_[0]->exports()->CanRegister(memory, kBytes, true).ok());
  EXPECT_FALSE(Register(memory, kBytes, false).ok());  // the caller did not ask
  const MemoryHandle handle = Register(memory + 1, kBytes - 1, true).value();
  EXPECT_FALSE(handle.writable);
  EXPECT_EQ(Registered(), 1u);
  EXPECT_FALSE(SendsFrom(memory));
  EXPECT_TRUE(SendsFrom(memory + kBytes - kSlotBytes));
  EXPECT_FALSE(SendsFrom(memory + kBytes - kSlotBytes + 1));
  SendFrom(memory + 1, kSlotBytes);
  SendFrom(memory + 5001, kSlotBytes, true);
  SendFrom(memory + kBytes - 7, 7);
  SendFrom(memory + 9, 0);
  EXPECT_EQ(fake::Get().Count().gathered, 3u);
  EXPECT_EQ(fake::Get().Count().sends, 4u);
  ends_[0]->exports()->Deregister(handle);
  EXPECT_EQ(Registered(), 0u);
  EXPECT_FALSE(SendsFrom(memory + 1));
}

// Freed memory goes back to the device: registering it has shown it to no process.
TEST_F(VerbsGpuMemoryTest, MemoryOfTheLibraryIsSentInPlaceUntilItIsFreed) {
  Open();
  for (const bool keep : {false, true}) {
    std::byte* const memory = Filled(
        static_cast<std::byte*>(DeviceAllocator::Instance().Allocate(&gpu_, 0, kBytes).value()));
    const MemoryHandle handle = Register(memory + 100, 50, keep).value();
    EXPECT_TRUE(SendsFrom(memory)) << "registered as a whole";
    SendFrom(memory + 3, kSlotBytes);
    EXPECT_EQ(Register(memory, kBytes, false).value().memory, handle.memory);
    EXPECT_EQ(Registered(), 1u);
    ASSERT_TRUE(DeviceAllocator::Instance().Free(memory));
    EXPECT_EQ(Registered(), 0u);
    EXPECT_FALSE(SendsFrom(memory));
    EXPECT_EQ(gpu_.BytesFrom(0, memory), 0u);
    EXPECT_EQ(gpu_.shared, 0u);
  }
  EXPECT_EQ(fake::Get().Count().stale, 0u);
}

TEST_F(VerbsGpuMemoryTest, MemoryThatIsFreedBeforeASliceIsPosted) {
  fake::Machine machine = fake::Get().StandardMachine();
  machine.max_qp_wr = 1;
  fake::Get().SetMachine(machine);
  Open();
  auto* const memory =
      static_cast<std::byte*>(DeviceAllocator::Instance().Allocate(&gpu_, 0, kBytes).value());
  ASSERT_TRUE(Register(memory, kBytes, false).ok());
  fake::Get().Hold(QueuePairOf(0), true);
  SendOne(0);  // takes the only work request
  ASSERT_TRUE(Publish(memory, kSlotBytes).ok());
  ASSERT_TRUE(DeviceAllocator::Instance().Free(memory));
  fake::Get().Hold(QueuePairOf(0), false);
  EXPECT_TRUE(ProgressOf(0, 1).ok());  // finds that it is gone
  EXPECT_TRUE(ends_[0]->unsent());
  const Status status = ProgressOf(0, 1);
  EXPECT_EQ(status.code(), Code::kInvalidUsage);
  EXPECT_HAS_PART(status.message(),
                  fmt::format("rank 0: verbs: fake0:1: {} bytes at {} of a GPU were freed while a "
                              "call was sending them",
                              kSlotBytes, fmt::ptr(memory)));
  EXPECT_EQ(status.message().find("peer"), std::string::npos) << status.message();
  EXPECT_TRUE(ProgressOf(1, 1).ok());
  EXPECT_TRUE(ReceiveOne(0));
  EXPECT_EQ(fake::Get().Count().stale, 0u);
  EXPECT_EQ(fake::Get().Count().gathered, 0u);
}

// A registration that ends while the device reads, and a driver that takes the pages away.
TEST_F(VerbsGpuMemoryTest, MemoryThatTheDeviceCannotReadIsNamed) {
  for (const bool freed : {true, false}) {
    SCOPED_TRACE(freed);
    Open();
    auto* const memory =
        static_cast<std::byte*>(DeviceAllocator::Instance().Allocate(&gpu_, 0, kBytes).value());
    ASSERT_TRUE(Register(memory, kBytes, false).ok());
    fake::Get().Hold(QueuePairOf(0), true);
    ASSERT_TRUE(Publish(memory, kSlotBytes).ok());
    if (freed) {
      ASSERT_TRUE(DeviceAllocator::Instance().Free(memory));
    } else {
      fake::Get().FailNextSend(IBV_WC_LOC_PROT_ERR, false);
    }
    fake::Get().Hold(QueuePairOf(0), false);
    const Status status = ProgressOf(0, 1);
    EXPECT_EQ(status.code(), freed ? Code::kInvalidUsage : Code::kSystemError);
    EXPECT_HAS_PART(status.message(),
                    fmt::format("{} bytes at {} of a GPU", kSlotBytes, fmt::ptr(memory)));
    EXPECT_HAS_PART(status.message(),
                    freed ? "were freed or deregistered" : "of memory registered from");
    EXPECT_EQ(status.message().find("peer"), std::string::npos) << status.message();
    if (!freed) {
      EXPECT_TRUE(DeviceAllocator::Instance().Free(memory));
    }
    Close();
  }
}

TEST_F(VerbsGpuMemoryTest, WhereAPayloadIsToBeProtectedItGoesThroughSlots) {
  Open({}, {});
  ExpectRefused("INCCL_NET_SECURITY=auth");
  EXPECT_HAS_PART(ends_[0]->exports()->CanRegister(&gpu_, 1, true).message(),
                  "INCCL_NET_SECURITY=auth");
}

TEST_F(VerbsGpuMemoryTest, AGpuWithoutDmaBufs) {
  Open();
  gpu_.dma_bufs = false;
  ExpectRefused("makes no dma-bufs");
}

TEST_F(VerbsGpuMemoryTest, ADriverWithoutDmaBufs) {
  fake::Machine machine = fake::Get().StandardMachine();
  machine.dma_bufs = false;
  fake::Get().SetMachine(machine);
  Open();
  ExpectRefused("fake0:1: its driver registers no dma-bufs: Operation not supported");
  EXPECT_HAS_PART((*ListVerbsPorts({}))[0].why_no_dma_bufs, "its driver registers no dma-bufs");
}

TEST_F(VerbsGpuMemoryTest, AnOldLibibverbs) {
  auto* const library = const_cast<verbs::Library*>(*verbs::Load());
  const auto kept = std::exchange(library->reg_dmabuf_mr, nullptr);
  ASSERT_NE(kept, nullptr);
  Open();
  ExpectRefused("fake0:1: libibverbs has no ibv_reg_dmabuf_mr");
  EXPECT_HAS_PART((*ListVerbsPorts({}))[0].why_no_dma_bufs, "libibverbs has no");
  library->reg_dmabuf_mr = kept;
  EXPECT_EQ((*ListVerbsPorts({}))[0].why_no_dma_bufs, "");
}

// The CRC is the header's own, so a header that says wrongly that its payload is not covered, or
// wrongly that it is, does not pass.
TEST_F(VerbsGpuMemoryTest, EveryFlippedBitOfTheHeaderIsFound) {
  std::byte* const memory = Filled(gpu_.Allocate(kBytes));
  for (uint32_t bit = 0; bit < 8 * offsetof(tcp::FrameHeader, tag); ++bit) {
    Open();
    ASSERT_TRUE(Register(memory, kBytes, true).ok());
    fake::Get().FlipNextWrite(bit / 8, static_cast<uint8_t>(1u << bit % 8));
    ASSERT_TRUE(Publish(memory, 100).ok());
    const Status status = ProgressOf(1, 1);
    EXPECT_EQ(status.code(), Code::kInternalError) << "bit " << bit;
    EXPECT_HAS_PART(status.message(), "rank 1: verbs: peer 0@host:71 sent ");
    Close();
  }
  // The same bit in the header of a slice whose payload is covered.
  Open();
  fake::Get().FlipNextWrite(offsetof(tcp::FrameHeader, credit_lane), verbs::kUnread);
  SendOne(0);
  EXPECT_HAS_PART(ProgressOf(1, 1).message(), "sent a damaged or forged slice");
}

// A peer must not talk a rank that protects its data out of the check.
TEST_F(VerbsGpuMemoryTest, ARankWithProtectionTakesNoUnprotectedPayload) {
  Open(kOpen, {});
  std::byte* const memory = Filled(gpu_.Allocate(kBytes));
  ASSERT_TRUE(Register(memory, kBytes, true).ok());
  ASSERT_TRUE(Publish(memory, 100).ok());
  EXPECT_HAS_PART(ProgressOf(1, 1).message(), "sent a damaged or forged slice");
}

// After a failed call the caller writes to its memory, and the device must not send that.
TEST_F(VerbsGpuMemoryTest, AFailedCallEndsRegistrations) {
  Open();
  std::byte* const memory = Filled(gpu_.Allocate(kBytes));
  ASSERT_TRUE(Register(memory, kBytes, true).ok());
  fake::Get().Hold(QueuePairOf(0), true);  // the network is slow
  ASSERT_TRUE(Publish(memory, kSlotBytes).ok());
  EXPECT_TRUE(ends_[0]->unsent());
  ends_[0]->DropUnsent();
  EXPECT_EQ(Registered(), 0u);
  fake::Get().Hold(QueuePairOf(0), false);
  Pump();
  EXPECT_EQ(fake::Get().Count().bytes, 0u);
  EXPECT_EQ(fake::Get().Count().stale, 0u);
}

}  // namespace
}  // namespace inccl::test
