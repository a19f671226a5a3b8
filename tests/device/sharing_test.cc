// SPDX-License-Identifier: Apache-2.0
//
// Memory of a device that others open: what the fake device makes of it, on which tests of calls
// rely.
#include <gtest/gtest.h>

#include "engine/device_engine.h"
#include "fakes/fake_device.h"
#include "transport/loopback/loopback.h"

namespace inccl::test {
namespace {

constexpr size_t kBytes = size_t{1} << 20;

TEST(FakeSharingTest, WholeAllocations) {
  FakeDevice device(kBytes);
  std::byte* const own = device.Allocate(1000);
  Result<std::byte*> made = device.AllocateOn(1, 3000);
  ASSERT_TRUE(made.ok());
  Result<DeviceShare> first = device.Share(own + 100, 900);
  Result<DeviceShare> second = device.Share(*made + 2999, 1);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->data, own);
  EXPECT_EQ(first->bytes, 1000u);
  EXPECT_EQ(second->data, *made);
  EXPECT_EQ(second->bytes, 3000u);
  EXPECT_NE(first->id, second->id);
  EXPECT_EQ(device.Share(own, 1)->id, first->id);
  EXPECT_EQ(device.shared, 3u);
  EXPECT_FALSE(device.Share(own + 100, 901).ok());
  EXPECT_FALSE(device.Share(own + 1000, 0).ok());
  EXPECT_FALSE(device.Share(&device, 1).ok());
  device.sharing = false;
  EXPECT_FALSE(device.Share(own, 1).ok());
  EXPECT_EQ(device.shared, 3u);
}

TEST(FakeSharingTest, OpenAndFreed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  FakeDevice device(kBytes);
  std::byte* const memory = *device.AllocateOn(0, 1000);
  const DeviceShare share = *device.Share(memory, 1000);
  for (int number : {0, 1, 1}) EXPECT_EQ(*device.Open(number, share.handle), memory);
  EXPECT_EQ(device.opened, 3u);
  // A queue of the other device takes it as its own.
  std::unique_ptr<DeviceQueue> queue = *device.NewQueue(1);
  std::byte* const there = *device.AllocateOn(1, 1000);
  *device.Reach(memory) = std::byte{7};
  EXPECT_TRUE(queue->Copy(there, memory, 1000).ok());
  queue.reset();
  EXPECT_EQ(*device.Reach(there), std::byte{7});
  EXPECT_DEATH(device.FreeOn(0, memory), "freed that is open");
  for (int number : {0, 1, 1}) device.Close(number, memory);
  EXPECT_EQ(device.opened, 0u);
  EXPECT_DEATH(device.Close(1, memory), "not open");
  device.FreeOn(0, memory);
  EXPECT_FALSE(device.Open(0, share.handle).ok());
  // Another allocation at the same place is another one.
  ASSERT_EQ(*device.AllocateOn(0, 990), memory);
  EXPECT_FALSE(device.Open(0, share.handle).ok());
  const DeviceShare again = *device.Share(memory, 1);
  EXPECT_NE(again.id, share.id);
  device.opening = false;
  EXPECT_FALSE(device.Open(0, again.handle).ok());
  device.opening = true;
  DeviceShare::Handle other = again.handle;
  other[0] ^= std::byte{1};
  EXPECT_FALSE(device.Open(0, other).ok());
  EXPECT_EQ(device.opened, 0u);
}

// A defective peer exports more than there is.
TEST(SharingTest, NoMoreIsOpenedThanThereIs) {
  FakeDevice device(size_t{1} << 20);
  const Result<DeviceShare> share = device.Share(device.Allocate(5000), 5000);
  ASSERT_TRUE(share.ok());
  const auto ends = MakeLoopback(1);
  {
    ImportedRegions regions(&device, 0, ends[0].get());
    EXPECT_EQ(regions.Open(share->handle, share->bytes + 1), nullptr);
    EXPECT_FALSE(regions.any());
    EXPECT_EQ(device.opened, 0u);
    EXPECT_EQ(regions.Open(share->handle, share->bytes), share->data);
    EXPECT_TRUE(regions.Holds(share->data + share->bytes - 1, 1));
    EXPECT_FALSE(regions.Holds(share->data + share->bytes - 1, 2));
    EXPECT_EQ(device.opened, 1u);
  }
  EXPECT_EQ(device.opened, 0u);
}

}  // namespace
}  // namespace inccl::test
