// SPDX-License-Identifier: Apache-2.0
//
// A stream that is being captured into a graph takes no call: told at once, of every kind of call
// and inside a group, and nothing is left behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "device/collective_table.h"
#include "device/device_world.h"
#include "world/error_format.h"

namespace inccl::test {
namespace {

constexpr size_t kCount = 1000;

class DeviceCaptureTest : public ::testing::Test {
 protected:
  DeviceCaptureTest() {
    for (int rank = 0; rank < world_.nranks(); ++rank) data_.push_back(world_.Floats(kCount));
  }

  void Refused(ccl_result_t result) {
    EXPECT_EQ(result, CCL_INVALID_ARGUMENT);
    EXPECT_TRUE(Matches(world_.ErrorOf(1), "rank 1/3: stream: .*captured")) << world_.ErrorOf(1);
  }
  // Of rank 1.
  void EveryKindIsRefused() {
    const Compression hbi("hbi:bits=6,min_bytes=0");
    constexpr const ccl_compression_t* none = nullptr;
    for (const ccl_compression_t* compression : {hbi.get(), none}) {
      for (const Collective& c : kCollectives) {
        SCOPED_TRACE(c.name);
        if (compression != nullptr && !c.compresses) continue;
        Refused(
            c.call(data_[1], data_[1] + 500, 100, compression, world_.comm(1), world_.handle(1)));
      }
    }
    Refused(ccl_send(data_[1], 10, CCL_FLOAT32, 0, world_.comm(1), world_.handle(1)));
    Refused(ccl_recv(data_[1], 10, CCL_FLOAT32, 0, world_.comm(1), world_.handle(1)));
  }
  ccl_result_t AllReduce(int rank) {
    float* const data = data_[static_cast<size_t>(rank)];
    return ccl_allreduce(data, data, kCount, CCL_FLOAT32, CCL_SUM, world_.comm(rank),
                         world_.handle(rank));
  }
  // No place of the stream was taken, and no communicator has failed.
  void AllGoesOn() {
    world_.device().capturing = false;
    for (float* data : data_) std::fill_n(world_.device().Reach(data), kCount, 2.0f);
    for (int rank = 0; rank < world_.nranks(); ++rank) {
      ccl_result_t error = CCL_INTERNAL_ERROR;
      EXPECT_EQ(ccl_comm_get_async_error(world_.comm(rank), &error), CCL_SUCCESS);
      EXPECT_EQ(error, CCL_SUCCESS) << world_.ErrorOf(rank);
    }
    world_.ForAll([&](int rank) { return AllReduce(rank); });
    world_.Synchronize();
    for (float* data : data_) EXPECT_EQ(world_.device().Reach(data)[kCount - 1], 6.0f);
  }

  DeviceWorld world_{3};
  std::vector<float*> data_;
};

TEST_F(DeviceCaptureTest, SingleCalls) {
  world_.device().capturing = true;
  EveryKindIsRefused();
  AllGoesOn();
}

TEST_F(DeviceCaptureTest, CallsInAGroup) {
  // Also those that were right before it are not begun.
  ASSERT_EQ(ccl_group_start(), CCL_SUCCESS);
  EXPECT_EQ(AllReduce(0), CCL_SUCCESS);
  world_.device().capturing = true;
  EveryKindIsRefused();
  EXPECT_EQ(ccl_group_end(), CCL_INVALID_ARGUMENT);
  EXPECT_TRUE(Matches(ccl_get_last_error(nullptr), "rank 1/3: stream: .*captured"));
  AllGoesOn();
}

TEST_F(DeviceCaptureTest, BetweenCallsThatRun) {
  world_.ForAll([&](int rank) { return AllReduce(rank); });
  world_.device().capturing = true;
  EveryKindIsRefused();
  world_.Synchronize();
  AllGoesOn();
}

}  // namespace
}  // namespace inccl::test
