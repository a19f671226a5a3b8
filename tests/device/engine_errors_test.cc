// SPDX-License-Identifier: Apache-2.0
//
// Calls on memory of a device that go wrong: a copy fails, at every place; a device hangs; a
// communicator is aborted. All ranks are told, no stream is left waiting, and when a stream goes on
// nothing touches the call's memory any more.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "device/collective_table.h"
#include "device/device_world.h"
#include "world/clock.h"
#include "world/error_format.h"
#include "world/limits.h"
#include "world/world.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 3;
constexpr float kMark = -7;

// Each rank's buffer of a call, which gets marked by a kernel behind it on the stream.
class Buffers {
 public:
  Buffers(DeviceWorld* world, size_t count) : world_(world), count_(count) {
    for (int rank = 0; rank < world->nranks(); ++rank) {
      data_.push_back(world->Floats(count));
      std::fill_n(world->device().Reach(data_.back()), count, 1.0f);
    }
  }
  float* operator[](int rank) const { return data_[static_cast<size_t>(rank)]; }
  void MarkBehind(int rank) {
    world_->device().Launch(world_->stream(rank), [this, rank] {
      std::fill_n(world_->device().Reach((*this)[rank]), count_, kMark);
      ++marked_;
    });
  }
  int marked() const { return marked_; }
  // Only when all queues of the library have ended.
  void ExpectMarks() const {
    for (float* data : data_) {
      const float* const now = world_->device().Reach(data);
      EXPECT_EQ(std::count(now, now + count_, kMark), static_cast<ptrdiff_t>(count_));
    }
  }

 private:
  DeviceWorld* const world_;
  const size_t count_;
  std::vector<float*> data_;
  std::atomic<int> marked_{0};
};

void DestroyAll(DeviceWorld* world) {
  for (int rank = 0; rank < world->nranks(); ++rank) {
    EXPECT_EQ(ccl_comm_destroy(world->comm(rank)), CCL_SUCCESS);
    world->comm(rank) = nullptr;
  }
}

// False: no copy has failed, as there are not so many.
bool FailAt(int copies, const ccl_compression_t* with) {
  SCOPED_TRACE("after " + std::to_string(copies) + " copies");
  DeviceWorld world(kRanks, false, size_t{8} << 20);
  constexpr size_t kCount = 10'001;
  Buffers x(&world, kCount);
  world.device().copy_delay_us = 100;
  world.device().copies_until_failure = copies;
  for (int rank = 0; rank < kRanks; ++rank) {
    // A rank may have been told by another already.
    (void)kCollectives[0].call(x[rank], x[rank], kCount, with, world.comm(rank),
                               world.handle(rank));
    x.MarkBehind(rank);
  }
  world.Synchronize();
  EXPECT_EQ(x.marked(), kRanks);
  const bool failed = world.device().copies_until_failure < 0;
  int of_a_device = 0;
  for (int rank = 0; failed && rank < kRanks; ++rank) {
    const ccl_result_t error = world.AsyncError(rank);
    EXPECT_NE(error, CCL_SUCCESS) << rank;
    if (error == CCL_UNHANDLED_CUDA_ERROR) ++of_a_device;
    EXPECT_NE(ccl_allreduce(x[rank], x[rank], 1, CCL_FLOAT32, CCL_SUM, world.comm(rank),
                            world.handle(rank)),
              CCL_SUCCESS);
    const std::string text = world.ErrorOf(rank);
    EXPECT_TRUE(Matches(text, "does not copy any more")) << text;
  }
  if (failed) {
    EXPECT_GT(of_a_device, 0);
  }
  DestroyAll(&world);
  x.ExpectMarks();
  return failed;
}

TEST(EngineErrorsTest, ACopyFailsAtEveryPlace) {
  const ScopedEnv environment({{"INCCL_SLICE_BYTES", "8192"}});
  for (const char* codec : {"", "hbi:bits=6,min_bytes=0"}) {
    const Compression with(codec);
    int copies = 0;
    while (FailAt(copies, with.get()) && !::testing::Test::HasFailure()) ++copies;
    EXPECT_GT(copies, 3 * kRanks) << codec;
  }
}

// What is under way on the device is waited for, and only then the stream goes on.
TEST(EngineErrorsTest, AbortWaitsForWhatTheDeviceIsDoing) {
  DeviceWorld world(kRanks);
  constexpr size_t kCount = 100'000;
  Buffers x(&world, kCount);
  world.device().HoldQueues(true);
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(ccl_allreduce(x[rank], x[rank], kCount, CCL_FLOAT32, CCL_SUM, world.comm(rank),
                            world.handle(rank)),
              CCL_SUCCESS);
    x.MarkBehind(rank);
  }
  while (world.device().held < kRanks) std::this_thread::yield();
  std::vector<std::thread> aborts;
  for (int rank = 0; rank < kRanks; ++rank) {
    aborts.emplace_back([&, rank] { EXPECT_EQ(ccl_comm_abort(world.comm(rank)), CCL_SUCCESS); });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(x.marked(), 0) << "a stream went on before the call's copies were done";
  world.device().HoldQueues(false);
  for (std::thread& abort : aborts) abort.join();
  for (int rank = 0; rank < kRanks; ++rank) world.comm(rank) = nullptr;
  world.Synchronize();
  x.ExpectMarks();
}

TEST(EngineErrorsTest, ADeviceThatHangsIsATimeoutOfItsRank) {
  const ScopedEnv environment({{"INCCL_OP_TIMEOUT_MS", "300"}});
  DeviceWorld world(2);
  constexpr size_t kCount = 1000;
  Buffers x(&world, kCount);
  world.device().HoldQueues(true);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(ccl_allreduce(x[rank], x[rank], kCount, CCL_FLOAT32, CCL_SUM, world.comm(rank),
                            world.handle(rank)),
              CCL_SUCCESS);
    x.MarkBehind(rank);
  }
  // While the device still hangs.
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(world.AsyncError(rank), CCL_TIMEOUT);
    EXPECT_NE(ccl_allreduce(x[rank], x[rank], 1, CCL_FLOAT32, CCL_SUM, world.comm(rank),
                            world.handle(rank)),
              CCL_SUCCESS);
    const std::string text = world.ErrorOf(rank);
    EXPECT_TRUE(Matches(text, "rank ./2 in op 1 .*waiting for this rank's device")) << text;
  }
  EXPECT_EQ(x.marked(), 0);
  world.device().HoldQueues(false);
  world.Synchronize();
  DestroyAll(&world);
  x.ExpectMarks();
}

// The last of those that share a turn of a stream lets it go on, whatever has become of them.
TEST(EngineErrorsTest, AGroupOnOneStreamThatFails) {
  for (const bool aborted : {false, true}) {
    DeviceWorld world(kRanks);
    constexpr size_t kCount = 50'000;
    Buffers x(&world, kCount);
    std::atomic<bool> open{!aborted};
    world.device().Launch(world.stream(0), [&] {
      while (!open) std::this_thread::yield();
    });
    world.device().copies_until_failure = aborted ? -1 : 4;
    ASSERT_EQ(ccl_group_start(), CCL_SUCCESS);
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(ccl_allreduce(x[rank], x[rank], kCount, CCL_FLOAT32, CCL_SUM, world.comm(rank),
                              world.handle(0)),
                CCL_SUCCESS);
    }
    ASSERT_EQ(ccl_group_end(), CCL_SUCCESS);
    std::atomic<bool> passed{false};
    world.device().Launch(world.stream(0), [&] { passed = true; });
    if (aborted) {  // before its turn
      EXPECT_EQ(ccl_comm_abort(world.comm(1)), CCL_SUCCESS);
      world.comm(1) = nullptr;
      EXPECT_FALSE(passed);
      open = true;
    }
    world.device().Synchronize(world.stream(0));
    EXPECT_TRUE(passed);
    for (int rank : {0, 2}) EXPECT_NE(world.AsyncError(rank), CCL_SUCCESS);
  }
}

// With preserve_input nothing of a buffer in place is written before all is well.
TEST(EngineErrorsTest, PreservedInputs) {
  FakeDevice device(size_t{8} << 20);
  ccl_unique_id_t id;
  ASSERT_EQ(ccl_get_unique_id(&id), CCL_SUCCESS);
  std::vector<ccl_comm_t> comms(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ccl_config_t config = CCL_CONFIG_INIT;
      config.preserve_input = 1;
      EXPECT_EQ(ccl_comm_init_rank_config(&comms[static_cast<size_t>(rank)], 2, id, rank, &config),
                CCL_SUCCESS);
    });
  }
  for (std::thread& thread : threads) thread.join();
  constexpr size_t kCount = 100'000;
  std::vector<float*> x;
  std::vector<void*> streams;
  for (size_t rank = 0; rank < 2; ++rank) {
    x.push_back(reinterpret_cast<float*>(device.Allocate(kCount * sizeof(float))));
    std::fill_n(device.Reach(x[rank]), kCount, 3.0f);
    streams.push_back(device.MakeStream());
  }
  for (const int copies : {-1, 2}) {  // the second time a result cannot be copied back
    device.copies_until_failure = copies;
    for (size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(ccl_allreduce(x[rank], x[rank], kCount, CCL_FLOAT32, CCL_SUM, comms[rank],
                              static_cast<ccl_stream_t>(streams[rank])),
                CCL_SUCCESS);
    }
    for (void* stream : streams) device.Synchronize(stream);
  }
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ccl_comm_destroy(comms[rank]), CCL_SUCCESS);
    const float* const got = device.Reach(x[rank]);
    // Of the rank whose copies have not failed the call was done.
    const float value = got[0];
    EXPECT_TRUE(value == 6.0f || value == 12.0f) << value;
    EXPECT_EQ(std::count(got, got + kCount, value), static_cast<ptrdiff_t>(kCount)) << rank;
  }
}

// A rank that waits for a peer, not for its device, says so.
TEST(EngineErrorsTest, ARankWhosePeerDoesNotCallNamesIt) {
  const ScopedEnv environment({{"INCCL_OP_TIMEOUT_MS", "300"}});
  DeviceWorld world(2);
  Buffers x(&world, 1000);
  ASSERT_EQ(ccl_allreduce(x[0], x[0], 1000, CCL_FLOAT32, CCL_SUM, world.comm(0), world.handle(0)),
            CCL_SUCCESS);
  EXPECT_EQ(world.AsyncError(0), CCL_TIMEOUT);
  EXPECT_NE(ccl_allreduce(x[0], x[0], 1, CCL_FLOAT32, CCL_SUM, world.comm(0), world.handle(0)),
            CCL_SUCCESS);
  const std::string text = world.ErrorOf(0);
  EXPECT_TRUE(Matches(text, "waiting for peer 1@")) << text;
  world.Synchronize();
}

}  // namespace
}  // namespace inccl::test
