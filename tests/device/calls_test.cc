// SPDX-License-Identifier: Apache-2.0
//
// Calls on memory of a device: they return when they are on the stream and run in its order; errors
// leave no stream behind that waits. The device is a fake whose memory the processor cannot touch.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "fakes/fake_device.h"
#include "inccl/ccl.h"
#include "world/clock.h"
#include "world/error_format.h"
#include "world/limits.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 3;

class DeviceCallsTest : public ::testing::Test {
 protected:
  DeviceCallsTest() {
    EXPECT_EQ(ccl_comm_init_all(comms_.data(), kRanks, nullptr), CCL_SUCCESS);
    for (void*& stream : streams_) stream = device_.MakeStream();
  }
  ~DeviceCallsTest() override {
    for (ccl_comm_t comm : comms_) EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
    EXPECT_EQ(device_.host_bytes, 0u) << "of the library, and not given back";
  }

  static ccl_stream_t Handle(void* stream) { return static_cast<ccl_stream_t>(stream); }
  ccl_comm_t comm(int rank) { return comms_[static_cast<size_t>(rank)]; }
  void* stream(int rank) { return streams_[static_cast<size_t>(rank)]; }

  float* Floats(size_t count, int device = 0) {
    return reinterpret_cast<float*>(device_.Allocate(count * sizeof(float), device));
  }

  ccl_result_t AllReduce(int rank, const float* send, float* recv, size_t count) {
    return ccl_allreduce(send, recv, count, CCL_FLOAT32, CCL_SUM, comm(rank), Handle(stream(rank)));
  }

  void SynchronizeAll() {
    for (void* stream : streams_) device_.Synchronize(stream);
  }

  FakeDevice device_{size_t{64} << 20};
  std::array<ccl_comm_t, kRanks> comms_{};
  std::array<void*, kRanks> streams_{};
};

// ---------------------------------------------------------------- a rank alone

TEST(DeviceCallsAloneTest, EveryCollectiveIsACopyOnTheDevice) {
  FakeDevice device(size_t{16} << 20);
  ccl_comm_t comm = nullptr;
  ASSERT_EQ(ccl_comm_init_all(&comm, 1, nullptr), CCL_SUCCESS);
  auto* const stream = static_cast<ccl_stream_t>(device.MakeStream());
  constexpr size_t kCount = 100'003;
  const auto bytes = kCount * sizeof(float);
  for (const bool two_devices : {false, true}) {
    auto* const in = reinterpret_cast<float*>(device.Allocate(bytes));
    auto* const out = reinterpret_cast<float*>(device.Allocate(bytes, two_devices ? 1 : 0));
    const uint64_t blocks = device.host_blocks;
    const std::vector<std::function<ccl_result_t()>> calls = {
        [&] { return ccl_allreduce(in, out, kCount, CCL_FLOAT32, CCL_SUM, comm, stream); },
        [&] { return ccl_allreduce(in, out, kCount, CCL_FLOAT32, CCL_AVG, comm, stream); },
        [&] { return ccl_reduce_scatter(in, out, kCount, CCL_FLOAT32, CCL_MAX, comm, stream); },
        [&] { return ccl_allgather(in, out, kCount, CCL_FLOAT32, comm, stream); },
        [&] { return ccl_broadcast(in, out, kCount, CCL_FLOAT32, 0, comm, stream); },
        [&] { return ccl_alltoall(in, out, kCount, CCL_FLOAT32, comm, stream); }};
    for (size_t call = 0; call < calls.size(); ++call) {
      for (size_t i = 0; i < kCount; ++i) {
        device.Reach(in)[i] = static_cast<float>(i + call);
        device.Reach(out)[i] = -1;
      }
      EXPECT_EQ(calls[call](), CCL_SUCCESS) << ccl_get_last_error(comm);
      device.Synchronize(stream);
      EXPECT_TRUE(std::equal(device.Reach(in), device.Reach(in) + kCount, device.Reach(out)))
          << "call " << call;
    }
    EXPECT_EQ(device.host_blocks, blocks) << "through memory of the host";
  }
  EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
}

// ---------------------------------------------------------------- calls on streams

TEST_F(DeviceCallsTest, SendsAndReceivesInAGroup) {
  constexpr size_t kCount = 50'000;
  std::vector<float*> out, in;
  for (int rank = 0; rank < kRanks; ++rank) {
    out.push_back(Floats(kCount));
    in.push_back(Floats(kCount));
    std::fill_n(device_.Reach(out.back()), kCount, static_cast<float>(rank));
  }
  ASSERT_EQ(ccl_group_start(), CCL_SUCCESS);
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto i = static_cast<size_t>(rank);
    EXPECT_EQ(ccl_send(out[i], kCount, CCL_FLOAT32, (rank + 1) % kRanks, comm(rank),
                       Handle(stream(rank))),
              CCL_SUCCESS);
    EXPECT_EQ(ccl_recv(in[i], kCount, CCL_FLOAT32, (rank + kRanks - 1) % kRanks, comm(rank),
                       Handle(stream(rank))),
              CCL_SUCCESS);
  }
  ASSERT_EQ(ccl_group_end(), CCL_SUCCESS);
  SynchronizeAll();
  for (int rank = 0; rank < kRanks; ++rank) {
    const float* const got = device_.Reach(in[static_cast<size_t>(rank)]);
    const auto left = static_cast<float>((rank + kRanks - 1) % kRanks);
    EXPECT_EQ(std::count(got, got + kCount, left), static_cast<ptrdiff_t>(kCount)) << rank;
  }
}

TEST_F(DeviceCallsTest, AllToAllInPlace) {
  constexpr size_t kCount = 10'000;
  std::array<float*, kRanks> buffers{};
  for (int rank = 0; rank < kRanks; ++rank) {
    float*& buffer = buffers[static_cast<size_t>(rank)];
    buffer = Floats(kRanks * kCount);
    for (int to = 0; to < kRanks; ++to) {
      std::fill_n(device_.Reach(buffer) + static_cast<size_t>(to) * kCount, kCount,
                  static_cast<float>(10 * rank + to));
    }
  }
  ASSERT_EQ(ccl_group_start(), CCL_SUCCESS);
  for (int rank = 0; rank < kRanks; ++rank) {
    float* const buffer = buffers[static_cast<size_t>(rank)];
    EXPECT_EQ(ccl_alltoall(buffer, buffer, kCount, CCL_FLOAT32, comm(rank), Handle(stream(rank))),
              CCL_SUCCESS);
  }
  ASSERT_EQ(ccl_group_end(), CCL_SUCCESS);
  SynchronizeAll();
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int from = 0; from < kRanks; ++from) {
      const float* const got =
          device_.Reach(buffers[static_cast<size_t>(rank)]) + static_cast<size_t>(from) * kCount;
      EXPECT_EQ(std::count(got, got + kCount, static_cast<float>(10 * from + rank)),
                static_cast<ptrdiff_t>(kCount))
          << rank << " from " << from;
    }
  }
}

TEST_F(DeviceCallsTest, AFactorInMemoryOfTheDeviceIsReadWhenTheCallRuns) {
  std::array<float*, kRanks> x{};
  for (int rank = 0; rank < kRanks; ++rank) {
    x[static_cast<size_t>(rank)] = Floats(1000);
    std::fill_n(device_.Reach(x[static_cast<size_t>(rank)]), 1000, 1.0f);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    float* const factor = Floats(1);
    *device_.Reach(factor) = 5;
    ccl_redop_t op{};
    ASSERT_EQ(ccl_redop_create_premulsum(&op, factor, CCL_FLOAT32, CCL_SCALAR_DEVICE, comm(rank)),
              CCL_SUCCESS);
    device_.Launch(stream(rank), [this, factor] { *device_.Reach(factor) = 2; });
    float* const data = x[static_cast<size_t>(rank)];
    ASSERT_EQ(ccl_allreduce(data, data, 1000, CCL_FLOAT32, op, comm(rank), Handle(stream(rank))),
              CCL_SUCCESS);
    std::array<float, 4> here{};
    EXPECT_EQ(ccl_allreduce(here.data(), here.data(), 4, CCL_FLOAT32, op, comm(rank), nullptr),
              CCL_INVALID_ARGUMENT);
    EXPECT_TRUE(Matches(ccl_get_last_error(comm(rank)), "op: .*memory of device 0"));
    const std::array<ccl_vector_t, 2> vectors = {
        {{data, data, 10, nullptr}, {data + 10, data + 10, 990, nullptr}}};
    ASSERT_EQ(ccl_allreduce_fused(vectors.data(), 2, CCL_FLOAT32, op, nullptr, comm(rank),
                                  Handle(stream(rank))),
              CCL_SUCCESS);
  }
  SynchronizeAll();
  EXPECT_EQ(device_.Reach(x[0])[999], 4.0f * kRanks * kRanks);
}

// ---------------------------------------------------------------- the stream's order

TEST_F(DeviceCallsTest, CallsReturnAtOnceAndRunInTheOrderOfTheirStreams) {
  constexpr size_t kCount = 30'000;
  constexpr int kRounds = 10;
  std::atomic<bool> open{false};
  std::array<float*, kRanks> x{}, y{};
  std::atomic<int> wrong{0};
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto i = static_cast<size_t>(rank);
    x[i] = Floats(kCount);
    y[i] = Floats(kCount);
    device_.Launch(stream(rank), [&] {
      while (!open) std::this_thread::yield();
    });
    for (int round = 0; round < kRounds; ++round) {
      device_.Launch(stream(rank), [this, i, round, x] {
        std::fill_n(device_.Reach(x[i]), kCount, static_cast<float>(round + 1));
      });
      ASSERT_EQ(AllReduce(rank, x[i], y[i], kCount), CCL_SUCCESS);
      device_.Launch(stream(rank), [this, i, round, y, &wrong] {
        const float* const got = device_.Reach(y[i]);
        if (std::count(got, got + kCount, static_cast<float>(kRanks * (round + 1))) != kCount) {
          ++wrong;
        }
      });
    }
  }
  // All calls have returned, and none has begun.
  EXPECT_EQ(device_.Reach(y[0])[0], 0.0f);
  open = true;
  SynchronizeAll();
  EXPECT_EQ(wrong, 0);
}

TEST_F(DeviceCallsTest, GroupsAndTheLegacyStream) {
  constexpr size_t kCount = 20'000;
  std::array<float*, kRanks> x{};
  for (size_t i = 0; i < kRanks; ++i) {
    x[i] = Floats(kCount);
    std::fill_n(device_.Reach(x[i]), kCount, 1.0f);
  }
  for (int round = 0; round < 5; ++round) {
    ASSERT_EQ(ccl_group_start(), CCL_SUCCESS);
    for (int rank = 0; rank < kRanks; ++rank) {
      float* const data = x[static_cast<size_t>(rank)];
      EXPECT_EQ(
          ccl_allreduce(data, data, kCount, CCL_FLOAT32, CCL_SUM, comm(rank), Handle(stream(rank))),
          CCL_SUCCESS);
    }
    ASSERT_EQ(ccl_group_end(), CCL_SUCCESS);
  }
  // NULL is a stream as well: the call comes after what was put there before.
  std::array<ccl_comm_t, 1> alone{};
  ASSERT_EQ(ccl_comm_init_all(alone.data(), 1, nullptr), CCL_SUCCESS);
  float* const mine = Floats(kCount);
  device_.Launch(nullptr, [&] { std::fill_n(device_.Reach(mine), kCount, 3.0f); });
  float* const result = Floats(kCount);
  EXPECT_EQ(ccl_allreduce(mine, result, kCount, CCL_FLOAT32, CCL_SUM, alone[0], nullptr),
            CCL_SUCCESS);
  device_.Synchronize(nullptr);
  EXPECT_EQ(device_.Reach(result)[kCount - 1], 3.0f);
  EXPECT_EQ(ccl_comm_destroy(alone[0]), CCL_SUCCESS);
  SynchronizeAll();
  EXPECT_EQ(device_.Reach(x[2])[kCount - 1], 243.0f);
}

// ---------------------------------------------------------------- what is refused

TEST_F(DeviceCallsTest, MemoryAndStreamMustGoTogether) {
  std::vector<float> host(100);
  float* const there = Floats(100);
  ccl_stream_t own = nullptr;
  ASSERT_EQ(ccl_stream_create(&own), CCL_SUCCESS);
  const auto refused = [&](const float* send, float* recv, ccl_stream_t stream, const char* why) {
    EXPECT_EQ(ccl_allreduce(send, recv, 100, CCL_FLOAT32, CCL_SUM, comm(0), stream),
              CCL_INVALID_ARGUMENT);
    const std::string text = ccl_get_last_error(comm(0));
    EXPECT_TRUE(Matches(text, why)) << text;
    EXPECT_TRUE(Matches(text, "rank 0/3")) << text;
  };
  refused(host.data(), there, nullptr, "send is memory of the host, recv memory of device 0");
  refused(Floats(100, 1), host.data(), Handle(stream(0)),
          "send is memory of device 1, recv memory of the host");
  refused(there, there, own, "stream: of ccl_stream_create, but");
  refused(host.data(), host.data(), Handle(stream(0)), "stream: not of ccl_stream_create");
  int nothing = 0;
  refused(there, there, reinterpret_cast<ccl_stream_t>(&nothing), "stream: .* is none");
  device_.capturing = true;
  refused(there, there, Handle(stream(0)), "captured");
  device_.capturing = false;
  EXPECT_EQ(ccl_stream_destroy(own), CCL_SUCCESS);
  // Nothing of it has had an effect.
  for (int rank = 0; rank < kRanks; ++rank) {
    float* const data = Floats(10);
    EXPECT_EQ(AllReduce(rank, data, data, 10), CCL_SUCCESS);
  }
  SynchronizeAll();
}

TEST_F(DeviceCallsTest, DevicesOfCommunicators) {
  int number = -2;
  EXPECT_EQ(ccl_comm_device(comm(1), &number), CCL_SUCCESS);
  EXPECT_EQ(number, device_.Current());
  std::array<ccl_comm_t, 2> two{};
  const std::array<int, 2> wrong = {0, FakeDevice::kDevices}, right = {0, 1}, none = {-1, 0};
  EXPECT_EQ(ccl_comm_init_all(two.data(), 2, none.data()), CCL_INVALID_ARGUMENT);
  EXPECT_TRUE(Matches(ccl_get_last_error(nullptr), "devices\\[0\\]: -1 .*0, 2"));
  EXPECT_EQ(ccl_comm_init_all(two.data(), 2, wrong.data()), CCL_INVALID_ARGUMENT);
  EXPECT_TRUE(Matches(ccl_get_last_error(nullptr), "devices\\[1\\]: 2 .*0, 2"));
  ASSERT_EQ(ccl_comm_init_all(two.data(), 2, right.data()), CCL_SUCCESS);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(ccl_comm_device(two[i], &number), CCL_SUCCESS);
    EXPECT_EQ(number, right[i]);
    EXPECT_EQ(ccl_comm_destroy(two[i]), CCL_SUCCESS);
  }
}

// ---------------------------------------------------------------- errors

TEST_F(DeviceCallsTest, ACopyThatFailsIsAnErrorOfAllRanksAndNoStreamIsLeftWaiting) {
  std::array<float*, kRanks> x{};
  for (float*& data : x) data = Floats(100'000);
  device_.copies_until_failure = 4;  // after the inputs of all three, and one result
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(AllReduce(rank, x[static_cast<size_t>(rank)], x[static_cast<size_t>(rank)], 100'000),
              CCL_SUCCESS);
  }
  SynchronizeAll();
  device_.copies_until_failure = -1;
  int failed = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    ccl_result_t error = CCL_SUCCESS;
    const double limit = Seconds() + 10.0 * kSlowness;
    while (error == CCL_SUCCESS && Seconds() < limit) {
      EXPECT_EQ(ccl_comm_get_async_error(comm(rank), &error), CCL_SUCCESS);
    }
    if (error == CCL_UNHANDLED_CUDA_ERROR) ++failed;
    EXPECT_NE(error, CCL_SUCCESS) << rank;
    // The error stays, and the stream goes on.
    EXPECT_NE(AllReduce(rank, x[0], x[0], 10), CCL_SUCCESS);
  }
  EXPECT_GT(failed, 0);
  SynchronizeAll();
}

// Its calls were right, so all ranks are told.
TEST_F(DeviceCallsTest, AGroupThatAStreamRefusesIsAnErrorOfAllRanks) {
  float* const data = Floats(1000);
  ASSERT_EQ(ccl_group_start(), CCL_SUCCESS);
  EXPECT_EQ(AllReduce(0, data, data, 1000), CCL_SUCCESS);
  device_.capturing = true;
  EXPECT_EQ(ccl_group_end(), CCL_INVALID_USAGE);
  device_.capturing = false;
  float* const other = Floats(1000);
  (void)AllReduce(1, other, other, 1000);  // it may have been told before
  SynchronizeAll();
  ccl_result_t error = CCL_SUCCESS;
  EXPECT_EQ(ccl_comm_get_async_error(comm(1), &error), CCL_SUCCESS);
  EXPECT_NE(error, CCL_SUCCESS);
}

TEST_F(DeviceCallsTest, AbortEndsWhatWaitsForItsStream) {
  std::atomic<bool> open{false};
  float* const data = Floats(1000);
  device_.Launch(stream(0), [&] {
    while (!open) std::this_thread::yield();
  });
  ASSERT_EQ(AllReduce(0, data, data, 1000), CCL_SUCCESS);
  const double start = Seconds();
  EXPECT_EQ(ccl_comm_abort(comms_[0]), CCL_SUCCESS);
  EXPECT_LT(Seconds() - start, 1.0 + SlackSeconds());
  comms_[0] = nullptr;
  open = true;
  device_.Synchronize(stream(0));  // it passes
}

}  // namespace
}  // namespace inccl::test
