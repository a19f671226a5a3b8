// SPDX-License-Identifier: Apache-2.0
//
// Memory of a device from the library: whose it is, calls on it, what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "inccl/ccl.h"
#include "inccl/ccl.hpp"
#include "support/fake_device.h"
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

}  // namespace
}  // namespace inccl::test
