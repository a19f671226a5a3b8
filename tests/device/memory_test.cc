// SPDX-License-Identifier: Apache-2.0
//
// Memory of a device from the library: whose it is, calls on it, what is refused, what others are
// told of it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "fakes/fake_device.h"
#include "inccl/ccl.h"
#include "inccl/ccl.hpp"
#include "memory/device_allocator.h"
#include "world/error_format.h"

namespace inccl::test {
namespace {

constexpr size_t kBytes = size_t{8} << 20;

void ExpectRefused(ccl_result_t result, ccl_result_t code, const char* text) {
  EXPECT_EQ(result, code);
  EXPECT_TRUE(Matches(ccl_get_last_error(nullptr), text)) << ccl_get_last_error(nullptr);
}

TEST(DeviceMemoryTest, CallsOnIt) {
  FakeDevice device(kBytes);
  std::array<ccl_comm_t, 2> comms{};
  const std::array<int, 2> devices = {0, 1};
  ASSERT_EQ(ccl_comm_init_all(comms.data(), 2, devices.data()), CCL_SUCCESS);
  std::array<void*, 2> memory{}, streams{};
  for (size_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(ccl_mem_alloc_device(&memory[rank], 1000 * sizeof(float), devices[rank]),
              CCL_SUCCESS);
    EXPECT_EQ(device.DeviceOf(memory[rank]), devices[rank]);
    std::fill_n(reinterpret_cast<float*>(device.Reach(memory[rank])), 1000, 3.0f);
    streams[rank] = device.MakeStream();
    EXPECT_EQ(ccl_allreduce(memory[rank], memory[rank], 1000, CCL_FLOAT32, CCL_SUM, comms[rank],
                            static_cast<ccl_stream_t>(streams[rank])),
              CCL_SUCCESS);
  }
  for (size_t rank = 0; rank < 2; ++rank) {
    device.Synchronize(streams[rank]);
    const auto* sums = reinterpret_cast<const float*>(device.Reach(memory[rank]));
    EXPECT_EQ(std::count(sums, sums + 1000, 6.0f), 1000);
    EXPECT_EQ(ccl_mem_free(memory[rank]), CCL_SUCCESS);
    ExpectRefused(ccl_mem_free(memory[rank]), CCL_INVALID_ARGUMENT, "ptr: .*freed");
    EXPECT_EQ(ccl_comm_destroy(comms[rank]), CCL_SUCCESS);
  }
}

TEST(DeviceMemoryTest, WhatIsWrongIsNamed) {
  FakeDevice device(kBytes);
  void* memory = &device;
  const auto alloc = [&](size_t size, int number) {
    return ccl_mem_alloc_device(&memory, size, number);
  };
  ExpectRefused(ccl_mem_alloc_device(nullptr, 1, 0), CCL_INVALID_ARGUMENT, "ptr: NULL");
  ExpectRefused(alloc(0, 0), CCL_INVALID_ARGUMENT, "size: 0 is not in");
  ExpectRefused(alloc(SIZE_MAX, 0), CCL_INVALID_ARGUMENT, "size: ");
  ExpectRefused(alloc(1, -1), CCL_INVALID_ARGUMENT, "device: -1 is not in .0, 2");
  ExpectRefused(alloc(1, FakeDevice::kDevices), CCL_INVALID_ARGUMENT, "device: 2 is not in .0, 2");
  EXPECT_EQ(memory, nullptr);
  ExpectRefused(alloc(kBytes, 1), CCL_UNHANDLED_CUDA_ERROR,
                "ccl_mem_alloc_device of 8388608 bytes on device 1: .*no memory left");
  EXPECT_EQ(memory, nullptr);
  // It is the library's, not the application's.
  std::byte* const other = device.Allocate(100);
  ExpectRefused(ccl_mem_free(other), CCL_INVALID_ARGUMENT, "ptr: ");
}

TEST(DeviceMemoryTest, WithoutADevice) {
  void* memory = nullptr;
  ExpectRefused(ccl_mem_alloc_device(&memory, 1, 0), CCL_INVALID_ARGUMENT,
                "device: 0: there is no");
}

TEST(DeviceMemoryTest, OwnedByAnObject) {
  FakeDevice device(kBytes);
  void* memory = nullptr;
  {
    api::Result<api::DeviceMemory<float>> made = api::DeviceMemory<float>::Allocate(100, 1);
    ASSERT_TRUE(made.ok());
    memory = made->data();
    EXPECT_EQ(made->size(), 100u);
    EXPECT_EQ(device.DeviceOf(memory), 1);
  }
  ExpectRefused(ccl_mem_free(memory), CCL_INVALID_ARGUMENT, "freed");
  EXPECT_FALSE(api::DeviceMemory<float>::Allocate(SIZE_MAX / 4, 0).ok());
}

class SharedPiecesTest : public ::testing::Test {
 protected:
  std::byte* Allocate(size_t bytes, int number = 0) {
    const Result<void*> made = pieces_.Allocate(&device_, number, bytes);
    return made.ok() ? static_cast<std::byte*>(*made) : nullptr;
  }

  FakeDevice device_{kBytes};
  DeviceAllocator& pieces_ = DeviceAllocator::Instance();
};

TEST_F(SharedPiecesTest, AreFound) {
  int here = 0;
  EXPECT_EQ(pieces_.Find(&here, 1).id, 0u);
  std::byte* const first = Allocate(1000);
  std::byte* const second = Allocate(5000, 1);
  const DeviceShare share = pieces_.Find(first + 10, 990);
  EXPECT_NE(share.id, 0u);
  EXPECT_EQ(share.data, first);
  EXPECT_GE(share.bytes, 1000u);
  EXPECT_EQ(*device_.Open(1, share.handle), first);
  device_.Close(1, first);
  const DeviceShare other = pieces_.Find(second, 5000);
  EXPECT_EQ(other.data, second);
  EXPECT_NE(other.id, share.id);
  // Asked once per piece.
  for (size_t i = 0; i < 1000; i += 100) EXPECT_EQ(pieces_.Find(first + i, 100).id, share.id);
  EXPECT_EQ(device_.shared, 2u);
  EXPECT_EQ(pieces_.Find(&here, 1).id, 0u);
  EXPECT_EQ(pieces_.Find(first, share.bytes).id, share.id);
  EXPECT_EQ(pieces_.Find(first, share.bytes + 1).id, 0u);
  EXPECT_EQ(pieces_.Find(first + 10, share.bytes).id, 0u);
  EXPECT_EQ(pieces_.Find(first + share.bytes, 0).id, 0u);
  EXPECT_EQ(pieces_.Find(device_.Allocate(100), 100).id, 0u) << "it is the application's";
  EXPECT_EQ(device_.shared, 2u);
  EXPECT_TRUE(pieces_.Free(first));
  EXPECT_EQ(pieces_.Find(first, 1).id, 0u);
  EXPECT_FALSE(pieces_.Free(first));
  EXPECT_TRUE(pieces_.Free(second));
}

TEST_F(SharedPiecesTest, MayBeAsSmallAsTheDeviceShares) {
  std::byte* const smallest = Allocate(device_.ShareGranularity());
  EXPECT_NE(pieces_.Find(smallest, 1).id, 0u);
  EXPECT_TRUE(pieces_.Free(smallest));
}

TEST_F(SharedPiecesTest, AreNoneWhereTheDeviceSharesNothing) {
  device_.sharing = false;
  std::byte* const memory = Allocate(1000);
  EXPECT_EQ(pieces_.Find(memory, 1).id, 0u);
  device_.sharing = true;
  EXPECT_EQ(pieces_.Find(memory, 1).id, 0u) << "asked twice";
  EXPECT_TRUE(pieces_.Free(memory));
  EXPECT_EQ(device_.waits, 0u);
  // It was freed, so another has its place.
  EXPECT_EQ(Allocate(1000), memory);
  EXPECT_NE(pieces_.Find(memory, 1).id, 0u);
}

TEST_F(SharedPiecesTest, AreKeptAndTakenAgain) {
  std::byte* const small = Allocate(1 << 16);
  std::byte* const large = Allocate(1 << 17);
  std::byte* const there = Allocate(1 << 16, 1);
  std::byte* const unseen = Allocate(1 << 16);
  const uint64_t id = pieces_.Find(small, 1).id;
  const uint64_t large_id = pieces_.Find(large, 1).id;
  const DeviceShare open = pieces_.Find(there, 1);
  EXPECT_EQ(*device_.Open(0, open.handle), there);
  for (std::byte* piece : {small, large, there, unseen}) EXPECT_TRUE(pieces_.Free(piece));
  EXPECT_EQ(device_.waits, 3u);  // the fourth is freed
  EXPECT_EQ(pieces_.Find(small, 1).id, 0u);
  EXPECT_FALSE(pieces_.Free(small));
  // Of another device, too small, or more than twice as large: none of them.
  std::byte* const tiny = Allocate((1 << 15) - 256);
  std::byte* const huge = Allocate((1 << 17) + 1);
  for (std::byte* made : {tiny, huge}) {
    EXPECT_NE(made, nullptr);
    EXPECT_TRUE(made != small && made != large && made != there);
  }
  // The smallest that is large enough.
  EXPECT_EQ(Allocate((1 << 16) - 255), small);
  EXPECT_EQ(pieces_.Find(small + 1, 1).id, id);
  EXPECT_EQ(Allocate(1 << 16), large);
  EXPECT_EQ(pieces_.Find(large + 1, 1).id, large_id);
  EXPECT_EQ(Allocate(1 << 16), unseen);
  // A peer that has it open has the new piece.
  EXPECT_EQ(Allocate(1 << 15, 1), there);
  EXPECT_EQ(pieces_.Find(there, 1).id, open.id);
  EXPECT_EQ(device_.shared, 3u);
  device_.Close(0, there);
}

TEST_F(SharedPiecesTest, AreNamedWhereTheyLack) {
  std::byte* const piece = Allocate(kBytes / 2);
  EXPECT_NE(pieces_.Find(piece, 1).id, 0u);
  EXPECT_TRUE(pieces_.Free(piece));
  const Result<void*> made = pieces_.Allocate(&device_, 0, kBytes / 2 + 1);
  ASSERT_FALSE(made.ok());
  EXPECT_TRUE(Matches(made.status().message(), "no memory left .4194304 bytes .* are kept"))
      << made.status().message();
  EXPECT_EQ(Allocate(1000), piece) << "however much larger, where there is nothing else";
}

TEST_F(SharedPiecesTest, AreTheParentsAfterAFork) {
  std::byte* const memory = Allocate(1000);
  std::byte* const kept = Allocate(1000);
  std::byte* const unseen = Allocate(1000);
  EXPECT_NE(pieces_.Find(memory, 1).id, 0u);
  EXPECT_NE(pieces_.Find(kept, 1).id, 0u);
  EXPECT_TRUE(pieces_.Free(kept));
  const pid_t child = fork();
  if (child == 0) {
    const bool none = pieces_.Find(memory, 1).id == 0 && pieces_.Free(memory) &&
                      !pieces_.Free(memory) && Allocate(1000) != kept;
    const uint64_t waits = device_.waits;
    const bool untouched = pieces_.Free(unseen) && device_.Share(unseen, 1).ok() && waits == 1;
    _exit(none && untouched ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NE(pieces_.Find(memory, 1).id, 0u);
  EXPECT_EQ(Allocate(1000), kept);
}

TEST_F(SharedPiecesTest, AreFoundByManyThreads) {
  std::vector<std::byte*> memory(4);
  for (std::byte*& piece : memory) piece = Allocate(1000);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (size_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (size_t round = 0; round < 200; ++round) {
        std::byte* const piece = memory[(i + round) % memory.size()];
        wrong += pieces_.Find(piece + round, 1).data != piece;
        std::byte* const own = Allocate(20'000);
        wrong += pieces_.Find(own, 1).data != own;
        wrong += !pieces_.Free(own);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(device_.shared, memory.size() + threads.size());
}

}  // namespace
}  // namespace inccl::test
