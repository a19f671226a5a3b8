// SPDX-License-Identifier: Apache-2.0
//
// Memory that processes open of each other, by libinccl_cuda.so over the fake of CUDA's driver: in
// one process, on two devices, and between two, of which the other one is forked before CUDA starts
// here and does what it is told.
#include <cuda.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device/device.h"
#include "device/runtime.h"
#include "device/sharing_peer.h"
#include "inccl/ccl.h"
#include "memory/device_allocator.h"
#include "support/seed.h"
#include "world/error_format.h"

namespace inccl::test {
namespace {

class CudaSharingTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (CudaHasStarted()) return;
    peer_ = new Peer;
    ASSERT_NE(CudaDevice(), nullptr);
  }
  static void TearDownTestSuite() { delete peer_; }
  void SetUp() override {
    if (peer_ == nullptr) GTEST_SKIP() << kNeedsOwnProcess;
  }

  ~CudaSharingTest() override {
    if (peer_ == nullptr) return;
    EXPECT_EQ(Fake("fake_cuda_opened"), 0) << "something is still open here";
    EXPECT_EQ(peer_->Opened(), 0) << "something is still open there";
    for (std::byte* memory : made_) device_->FreeOn(device_->DeviceOf(memory), memory);
    CUcontext context = nullptr;
    EXPECT_EQ(DRIVER(cuCtxGetCurrent)(&context), CUDA_SUCCESS);
    EXPECT_EQ(context, nullptr) << "the thread's device is another one";
  }

  std::byte* Allocate(int device, size_t bytes) {
    const Result<std::byte*> made = device_->AllocateOn(device, bytes);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? made_.emplace_back(*made) : nullptr;
  }
  DeviceShare Share(const std::byte* memory, size_t bytes = 1) {
    const Result<DeviceShare> share = device_->Share(memory, bytes);
    EXPECT_TRUE(share.ok()) << share.status().message();
    return share.ok() ? *share : DeviceShare{};
  }
  void Fill(std::byte* memory, size_t bytes, int value) {
    const std::vector<char> all(bytes, static_cast<char>(value));
    EXPECT_TRUE(device_->Copy(memory, all.data(), bytes).ok());
  }
  int At(const std::byte* memory) {
    char value = 0;
    EXPECT_TRUE(device_->Copy(&value, memory, 1).ok());
    return value;
  }
  static void ExpectRefused(const Status& status, Code code, const char* text) {
    EXPECT_EQ(status.code(), code);
    EXPECT_TRUE(Matches(status.message(), text)) << status.message();
  }
  static void ExpectRefused(const Answer& answer, Code code, const char* text) {
    EXPECT_EQ(answer.code, code);
    EXPECT_TRUE(Matches(answer.message, text)) << answer.message;
  }

  static Peer* peer_;
  Device* const device_ = peer_ == nullptr ? nullptr : CudaDevice();
  std::vector<std::byte*> made_;
};
Peer* CudaSharingTest::peer_ = nullptr;

TEST_F(CudaSharingTest, WholeAllocationsAreShared) {
  std::byte* const first = Allocate(0, 10'000);
  std::byte* const second = Allocate(1, 3'000'000);
  const DeviceShare share = Share(first + 9'000, 1'000);
  EXPECT_EQ(share.data, first);
  EXPECT_EQ(share.bytes, 10'000u);
  EXPECT_NE(share.id, 0u);
  const DeviceShare again = Share(first);
  EXPECT_EQ(again.id, share.id);
  EXPECT_EQ(again.handle, share.handle);
  const DeviceShare other = Share(second + 2'999'999);
  EXPECT_EQ(other.data, second);
  EXPECT_NE(other.id, share.id);
  ExpectRefused(device_->Share(first + 9'000, 1'001).status(), Code::kInvalidArgument,
                "1001 bytes at .* are not of one allocation, which has 1000");
  ExpectRefused(device_->Share(&share, 1).status(), Code::kInvalidArgument,
                "no memory of a device");
  Fake("fake_cuda_share", 0);
  std::byte* const pooled = Allocate(0, 1'000);
  Fake("fake_cuda_share", 1);
  ExpectRefused(device_->Share(pooled, 1).status(), Code::kInvalidUsage,
                "cannot be shared: it is not of cudaMalloc");
}

// But for one that wants the same.
TEST_F(CudaSharingTest, NobodyWaitsForAnothersOpening) {
  Answer shared[2];
  for (Answer& one : shared) {
    one = peer_->Do({.what = Order::What::kShare, .device = 1, .bytes = 4096});
    ASSERT_EQ(one.code, Code::kOk) << one.message;
  }
  std::byte *first = nullptr, *same = nullptr, *other = nullptr;
  std::thread again;
  WhileHeld(
      "cuIpcOpenMemHandle", [&] { first = *device_->Open(1, shared[0].share.handle); },
      [&] {
        again = std::thread([&] { same = *device_->Open(1, shared[0].share.handle); });
        other = *device_->Open(1, shared[1].share.handle);
      });
  again.join();
  EXPECT_EQ(same, first) << "opened once, for both";
  EXPECT_NE(other, first);
  for (std::byte* memory : {first, same, other}) device_->Close(1, memory);
  EXPECT_EQ(Fake("fake_cuda_opened"), 0);
  for (const Answer& one : shared) {
    peer_->Do({.what = Order::What::kFree, .device = 1, .memory = one.share.data});
  }
}

// Whole pages, which begin where the file begins.
TEST_F(CudaSharingTest, OtherDevicesReadMemoryByDmaBufs) {
  std::byte* const memory = Allocate(1, 10'000);
  Fill(memory, 10'000, 7);
  for (const size_t from : {0, 1, 5'000}) {
    const size_t bytes = 4'999;
    const Result<DmaBuf> buffer = device_->DmaBufOf(memory + from, bytes);
    ASSERT_TRUE(buffer.ok()) << buffer.status().message();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data) % 4096, 0u);
    EXPECT_EQ(buffer->bytes % 4096, 0u);
    EXPECT_LE(buffer->data, memory + from);
    EXPECT_GE(buffer->data + buffer->bytes, memory + from + bytes);
    EXPECT_LT(buffer->bytes, bytes + 2 * 4096);
    EXPECT_EQ(buffer->offset, 0u);
    std::vector<char> seen(bytes);
    EXPECT_EQ(pread(buffer->file.get(), seen.data(), bytes, memory + from - buffer->data),
              static_cast<ssize_t>(bytes));
    EXPECT_EQ(seen, std::vector<char>(bytes, 7));
  }
  Fake("fake_cuda_share", 0);
  std::byte* const pooled = Allocate(1, 10'000);
  Fake("fake_cuda_share", 1);
  ExpectRefused(device_->DmaBufOf(pooled, 1).status(), Code::kUnhandledCudaError,
                "cuMemGetHandleForAddressRange: ");
  ExpectRefused(device_->DmaBufOf(&pooled, 1).status(), Code::kInvalidArgument,
                "no memory of a device");
}

TEST_F(CudaSharingTest, InOneProcessItIsWhereItIs) {
  std::byte* const memory = Allocate(0, 10'000);
  const DeviceShare share = Share(memory);
  for (int device : {0, 0, 1, 1}) {
    const Result<std::byte*> opened = device_->Open(device, share.handle);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    EXPECT_EQ(*opened, memory);
  }
  // Kernels of the other device reach it.
  std::thread([] {
    CUcontext zero = nullptr, one = nullptr;
    EXPECT_EQ(DRIVER(cuDevicePrimaryCtxRetain)(&zero, 0), CUDA_SUCCESS);
    EXPECT_EQ(DRIVER(cuDevicePrimaryCtxRetain)(&one, 1), CUDA_SUCCESS);
    EXPECT_EQ(DRIVER(cuCtxSetCurrent)(one), CUDA_SUCCESS);
    EXPECT_EQ(DRIVER(cuCtxEnablePeerAccess)(zero, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  }).join();
  for (int device : {0, 0, 1, 1}) device_->Close(device, memory);
  Fill(memory, 10'000, 5);
  EXPECT_EQ(At(memory + 9'999), 5);
  std::byte* const there = Allocate(1, 1'000);
  const DeviceShare far = Share(there);
  Fake("fake_cuda_peers", 0);
  ExpectRefused(device_->Open(0, far.handle).status(), Code::kInvalidUsage,
                "device 0 does not reach memory of device 1");
  EXPECT_TRUE(device_->Open(1, far.handle).ok());
  Fake("fake_cuda_peers", 1);
}

TEST_F(CudaSharingTest, FreedIsNoMore) {
  const Result<std::byte*> memory = device_->AllocateOn(0, 123'456);
  ASSERT_TRUE(memory.ok());
  const DeviceShare share = Share(*memory);
  device_->FreeOn(0, *memory);
  ExpectRefused(device_->Open(0, share.handle).status(), Code::kInvalidUsage, "has been freed");
  ExpectRefused(peer_->Open(0, share.handle), Code::kUnhandledCudaError, "cuIpcOpenMemHandle: ");
  // What now has its place is another one.
  ASSERT_EQ(Allocate(0, 123'456), *memory);
  const DeviceShare next = Share(*memory);
  EXPECT_NE(next.id, share.id);
  EXPECT_NE(next.handle, share.handle);
  ExpectRefused(device_->Open(0, share.handle).status(), Code::kInvalidUsage, "has been freed");
  EXPECT_TRUE(device_->Open(0, next.handle).ok());
}

TEST_F(CudaSharingTest, AnotherProcessWritesAndReads) {
  constexpr size_t kBytes = 50'000;
  Allocate(0, 1'536);  // so that the next begins within a page
  std::byte* const memory = Allocate(0, kBytes);
  std::byte* const beside = Allocate(0, kBytes);
  Fill(memory, kBytes, 3);
  Fill(beside, kBytes, 4);
  const Answer opened = peer_->Open(0, Share(memory).handle);
  ASSERT_EQ(opened.code, Code::kOk) << opened.message;
  EXPECT_EQ(opened.value, 0) << "it is no memory of the device";
  EXPECT_EQ(peer_->First(opened.memory), 3);
  EXPECT_EQ(peer_->First(opened.memory + kBytes - 1), 3);
  EXPECT_EQ(peer_->Do({.what = Order::What::kTouch, .memory = opened.memory}).value, EFAULT);
  const Answer filled = peer_->Do(
      {.what = Order::What::kFill, .memory = opened.memory + 1, .bytes = kBytes - 1, .value = 7});
  EXPECT_EQ(filled.code, Code::kOk) << filled.message;
  EXPECT_EQ(At(memory), 3);
  EXPECT_EQ(At(memory + 1), 7);
  EXPECT_EQ(At(memory + kBytes - 1), 7);
  EXPECT_EQ(At(beside), 4);
  // Another piece is open at the same time, and is another one.
  const Answer second = peer_->Open(0, Share(beside).handle);
  ASSERT_EQ(second.code, Code::kOk) << second.message;
  EXPECT_EQ(peer_->First(second.memory), 4);
  EXPECT_EQ(peer_->Opened(), 2);
  peer_->Close(0, opened.memory);
  EXPECT_EQ(peer_->First(second.memory), 4);
  peer_->Close(0, second.memory);
}

TEST_F(CudaSharingTest, OpensAreCounted) {
  std::byte* const memory = Allocate(0, 5'000);
  Fill(memory, 5'000, 9);
  const DeviceShare share = Share(memory);
  const Answer first = peer_->Open(0, share.handle), second = peer_->Open(0, share.handle);
  ASSERT_EQ(first.code, Code::kOk) << first.message;
  ASSERT_EQ(second.code, Code::kOk) << second.message;
  EXPECT_EQ(second.memory, first.memory);
  EXPECT_EQ(peer_->Opened(), 1);
  // On another device it is open once more.
  const Answer other = peer_->Open(1, share.handle);
  ASSERT_EQ(other.code, Code::kOk) << other.message;
  EXPECT_EQ(peer_->Opened(), 2);
  peer_->Close(0, first.memory);
  for (int i = 0; i < 3; ++i) peer_->Close(1, first.memory);  // not open there
  EXPECT_EQ(peer_->Opened(), 2);
  EXPECT_EQ(peer_->First(first.memory), 9);
  peer_->Close(0, first.memory);
  EXPECT_EQ(peer_->Opened(), 1);
  EXPECT_EQ(peer_->First(other.memory), 9);
  peer_->Close(1, other.memory);
  // And again.
  const Answer third = peer_->Open(0, share.handle);
  ASSERT_EQ(third.code, Code::kOk) << third.message;
  EXPECT_EQ(peer_->First(third.memory), 9);
  peer_->Close(0, third.memory);
}

TEST_F(CudaSharingTest, MemoryOfAnotherProcessIsOpenedHere) {
  const Answer made = peer_->Do({.what = Order::What::kShare, .device = 1, .bytes = 70'000});
  ASSERT_EQ(made.code, Code::kOk) << made.message;
  EXPECT_EQ(made.share.bytes, 70'000u);
  EXPECT_EQ(
      peer_
          ->Do(
              {.what = Order::What::kFill, .memory = made.share.data, .bytes = 70'000, .value = 21})
          .code,
      Code::kOk);
  for (int device : {0, 1}) {
    const Result<std::byte*> opened = device_->Open(device, made.share.handle);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    EXPECT_EQ(device_->DeviceOf(*opened), 1);
    EXPECT_EQ(At(*opened + 69'999), 21);
    // It is not ours to give.
    EXPECT_FALSE(device_->Share(*opened, 1).ok());
    // Streams take it like any other.
    std::byte* const copy = Allocate(device, 70'000);
    Result<std::unique_ptr<DeviceQueue>> queue = device_->NewQueue(device);
    ASSERT_TRUE(queue.ok()) << queue.status().message();
    EXPECT_TRUE((*queue)->Copy(copy, *opened, 70'000).ok());
    queue->reset();
    EXPECT_EQ(At(copy + 69'999), 21);
    device_->Close(device, *opened);
  }
  Fake("fake_cuda_peers", 0);
  ExpectRefused(device_->Open(0, made.share.handle).status(), Code::kInvalidUsage,
                "device 0 does not reach memory of device 1");
  Fake("fake_cuda_peers", 1);
  peer_->Do({.what = Order::What::kFree, .device = 1, .memory = made.share.data});
}

// CUDA does not allow it, so the fake has to notice.
TEST_F(CudaSharingTest, TheFakeSeesWhatIsFreedWhileItIsOpen) {
  const Result<std::byte*> memory = device_->AllocateOn(0, 1'000);
  ASSERT_TRUE(memory.ok());
  const Answer opened = peer_->Open(0, Share(*memory).handle);
  ASSERT_EQ(opened.code, Code::kOk) << opened.message;
  const int before = Fake("fake_cuda_free_opened", 1);
  device_->FreeOn(0, *memory);
  EXPECT_EQ(Fake("fake_cuda_free_opened", 0), before + 1);
  peer_->Close(0, opened.memory);
}

TEST_F(CudaSharingTest, WhatIsNoHandleIsRefused) {
  std::byte* const memory = Allocate(0, 1'000);
  const DeviceShare share = Share(memory);
  const Answer foreign = peer_->Do({.what = Order::What::kShare, .device = 0, .bytes = 1'000});
  ASSERT_EQ(foreign.code, Code::kOk) << foreign.message;
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 100; ++i) {
    DeviceShare::Handle handle;
    for (std::byte& byte : handle) byte = static_cast<std::byte>(random());
    if (i == 0) handle = {};
    ExpectRefused(device_->Open(i % 2, handle).status(), Code::kInvalidArgument,
                  "the handle .* is none, or of another version");
  }
  // Layout of a handle: 4 bytes of its kind, the number of the allocation, 8 bytes of the process,
  // 16 of the device, CUDA's handle.
  DeviceShare::Handle other = share.handle;
  other[0] ^= std::byte{1};
  ExpectRefused(device_->Open(0, other).status(), Code::kInvalidArgument, "of another version");
  other = share.handle;
  other[7] ^= std::byte{1};
  ExpectRefused(device_->Open(0, other).status(), Code::kInvalidArgument,
                "number 16777[0-9]*, is none");
  other = share.handle;
  other[8] ^= std::byte{1};  // of another process then, whose memory is here
  ExpectRefused(device_->Open(0, other).status(), Code::kUnhandledCudaError,
                "cuIpcOpenMemHandle: ");
  other = foreign.share.handle;
  other[16] ^= std::byte{1};
  ExpectRefused(device_->Open(0, other).status(), Code::kInvalidUsage,
                "on device GPU-[0-9a-f]*-.*, which this process does not see");
  other = foreign.share.handle;
  for (size_t i = 32; i < other.size(); ++i) other[i] = static_cast<std::byte>(random());
  for (int i = 0; i < 2; ++i) {
    ExpectRefused(device_->Open(0, other).status(), Code::kUnhandledCudaError,
                  "cuIpcOpenMemHandle: ");
  }
  const Result<std::byte*> right = device_->Open(0, foreign.share.handle);
  ASSERT_TRUE(right.ok()) << right.status().message();
  EXPECT_EQ(device_->DeviceOf(*right), 0);
  device_->Close(0, *right);
  ExpectRefused(device_->Open(2, share.handle).status(), Code::kInternalError,
                "device 2 is not in .0, 2.");
  device_->Close(0, memory);  // of none: nothing happens
  EXPECT_TRUE(device_->Open(0, share.handle).ok());
  peer_->Do({.what = Order::What::kFree, .device = 0, .memory = foreign.share.data});
}

// As a rank would: a capture elsewhere is not disturbed, and nothing waits for the thread's stream.
TEST_F(CudaSharingTest, ACaptureLives) {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  ASSERT_EQ(DRIVER(cuDevicePrimaryCtxRetain)(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(DRIVER(cuCtxPushCurrent)(context), CUDA_SUCCESS);
  ASSERT_EQ(DRIVER(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  std::byte* const memory = Allocate(0, 1'000);
  const Answer foreign = peer_->Do({.what = Order::What::kShare, .device = 0, .bytes = 1'000});
  ASSERT_EQ(DRIVER(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_TRUE(device_->Open(1, Share(memory).handle).ok());
  const Result<std::byte*> opened = device_->Open(0, foreign.share.handle);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  device_->Close(0, *opened);
  EXPECT_EQ(DRIVER(cuStreamEndCapture)(stream, &graph), CUDA_SUCCESS) << "invalidated";
  EXPECT_EQ(DRIVER(cuStreamDestroy)(stream), CUDA_SUCCESS);
  EXPECT_EQ(DRIVER(cuCtxPopCurrent)(&context), CUDA_SUCCESS);
  peer_->Do({.what = Order::What::kFree, .device = 0, .memory = foreign.share.data});
}

// Memory of ccl_mem_alloc_device that a peer has open is freed and taken again.
TEST_F(CudaSharingTest, FreedPiecesAreKept) {
  SetDevice(device_);
  void* memory = nullptr;
  ASSERT_EQ(ccl_mem_alloc_device(&memory, 1'000, 0), CCL_SUCCESS) << ccl_get_last_error(nullptr);
  EXPECT_EQ(DeviceAllocator::Instance().Find(memory, 1'000).id, 0u) << "shares a block with others";
  EXPECT_EQ(ccl_mem_free(memory), CCL_SUCCESS);
  ASSERT_EQ(ccl_mem_alloc_device(&memory, 3'000'000, 0), CCL_SUCCESS)
      << ccl_get_last_error(nullptr);
  const DeviceShare share = DeviceAllocator::Instance().Find(memory, 3'000'000);
  EXPECT_EQ(share.bytes, size_t{4} << 20) << "shares a block with others";
  EXPECT_EQ(device_->BytesFrom(0, share.data + 256), share.bytes - 256);
  const Answer opened = peer_->Open(0, share.handle);
  ASSERT_EQ(opened.code, Code::kOk) << opened.message;
  EXPECT_EQ(ccl_mem_free(memory), CCL_SUCCESS);
  void* again = nullptr;
  ASSERT_EQ(ccl_mem_alloc_device(&again, 4'000'000, 0), CCL_SUCCESS) << ccl_get_last_error(nullptr);
  EXPECT_EQ(again, memory);
  EXPECT_EQ(DeviceAllocator::Instance().Find(again, 1).handle, share.handle);
  Fill(static_cast<std::byte*>(again), 4'000'000, 31);
  EXPECT_EQ(peer_->First(opened.memory + 3'999'999), 31);
  peer_->Close(0, opened.memory);
  EXPECT_EQ(ccl_mem_free(again), CCL_SUCCESS);
  SetDevice(nullptr);
}

}  // namespace
}  // namespace inccl::test
