// SPDX-License-Identifier: Apache-2.0
//
// Copies of device memory for calls that run on the host, while other threads prepare larger calls.
#include "communicator/staging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "collectives/call.h"
#include "fakes/fake_device.h"

namespace inccl::test {
namespace {

// A device during whose next copy something else happens.
class InterruptedDevice final : public FakeDevice {
 public:
  using FakeDevice::FakeDevice;
  Status Copy(void* to, const void* from, size_t bytes) override {
    if (const auto interrupt = std::exchange(during_copy, nullptr)) interrupt();
    return FakeDevice::Copy(to, from, bytes);
  }
  std::function<void()> during_copy;
};

Call OnDevice(std::byte* send, std::byte* recv, uint64_t count) {
  Call call;
  call.count = count;
  call.send = send;
  call.recv = recv;
  call.on_device = true;
  call.device = 0;
  return call;
}

TEST(StagingTest, ALargerCallMayBePreparedMeanwhile) {
  constexpr uint64_t kCount = 1000, kMore = uint64_t{4} << 20;
  InterruptedDevice device(size_t{64} << 20);
  const Result<std::byte*> memory = device.AllocateOn(0, (2 * kCount + 1) * sizeof(float));
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  const auto at = [&](uint64_t element) { return *memory + element * sizeof(float); };
  auto* const elements = reinterpret_cast<float*>(device.Reach(*memory));
  std::fill_n(elements, 2 * kCount, 3.0f);
  elements[2 * kCount] = 0.5f;

  Staging staging(0, 1);
  Call call = OnDevice(at(0), at(kCount), kCount);
  call.scalar_at = at(2 * kCount);
  const Call larger = OnDevice(at(0), at(0), kMore);  // only its size matters here
  device.during_copy = [&] { staging.Prepare(std::span(&larger, 1)); };
  const std::span<const Call> calls(&call, 1);
  const Result<std::vector<Call>> staged = staging.CopyIn(calls);
  ASSERT_TRUE(staged.ok()) << staged.status().message();
  const Call& here = staged->front();
  EXPECT_FALSE(here.on_device);
  EXPECT_EQ(here.scalar_at, nullptr);
  float scalar = 0;
  std::memcpy(&scalar, here.scalar.data(), sizeof scalar);
  EXPECT_EQ(scalar, 0.5f);
  const auto* const input = static_cast<const float*>(here.send);
  EXPECT_EQ(std::count(input, input + kCount, 3.0f), kCount);

  device.during_copy = [&] { staging.Prepare(std::span(&larger, 1)); };
  std::fill_n(static_cast<float*>(here.recv), kCount, 7.0f);
  ASSERT_TRUE(staging.CopyOut(calls).ok());
  EXPECT_EQ(std::count(elements + kCount, elements + 2 * kCount, 7.0f), kCount);
  EXPECT_EQ(std::count(elements, elements + kCount, 3.0f), kCount);
  device.FreeOn(0, *memory);
}

}  // namespace
}  // namespace inccl::test
