// SPDX-License-Identifier: Apache-2.0
//
// Calls with reducers on memory of a device run on host copies, with the same results.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "device/device_world.h"

namespace inccl::test {
namespace {

TEST(ReducedCallsTest, AreStaged) {
  constexpr size_t kCount = 3000;
  for (const int nranks : {1, 3}) {
    DeviceWorld world(nranks);
    ccl_reducer_t reducer = nullptr;
    ASSERT_EQ(ccl_reducer_create(&reducer, "topk:k=0.1|bf16"), CCL_SUCCESS);
    std::vector<ccl_reducer_state_t> states(2 * world.Count());
    std::vector<float*> there(world.Count());
    std::vector<std::vector<float>> host(world.Count(), std::vector<float>(kCount));
    for (size_t rank = 0; rank < world.Count(); ++rank) {
      for (size_t i = 0; i < kCount; ++i) {
        host[rank][i] = static_cast<float>((i * 7919 + rank * 31) % 1009) - 500;
      }
      there[rank] = world.Floats(kCount);
      std::memcpy(world.device().Reach(there[rank]), host[rank].data(), kCount * sizeof(float));
    }
    for (ccl_reducer_state_t& state : states) {
      ASSERT_EQ(ccl_reducer_state_create(&state, reducer, 30, 100, CCL_FLOAT32), CCL_SUCCESS);
    }
    EXPECT_EQ(ccl_reducer_destroy(reducer), CCL_SUCCESS);
    for (int step = 0; step < 2; ++step) {
      ASSERT_EQ(ccl_group_start(), CCL_SUCCESS);
      for (size_t rank = 0; rank < world.Count(); ++rank) {
        EXPECT_EQ(
            ccl_allreduce_reduced(host[rank].data(), host[rank].data(), states[2 * rank], CCL_SUM,
                                  nullptr, world.comm(static_cast<int>(rank)), nullptr),
            CCL_SUCCESS);
      }
      ASSERT_EQ(ccl_group_end(), CCL_SUCCESS) << ccl_get_last_error(nullptr);
      for (size_t rank = 0; rank < world.Count(); ++rank) {
        const int r = static_cast<int>(rank);
        EXPECT_EQ(ccl_allreduce_reduced(there[rank], there[rank], states[2 * rank + 1], CCL_SUM,
                                        nullptr, world.comm(r), world.handle(r)),
                  CCL_SUCCESS);
      }
      world.Synchronize();
      for (size_t rank = 0; rank < world.Count(); ++rank) {
        EXPECT_EQ(std::memcmp(world.device().Reach(there[rank]), host[rank].data(),
                              kCount * sizeof(float)),
                  0)
            << "rank " << rank << ", " << world.ErrorOf(static_cast<int>(rank));
      }
    }
    for (ccl_reducer_state_t state : states) {
      EXPECT_EQ(ccl_reducer_state_destroy(state), CCL_SUCCESS);
    }
  }
}

}  // namespace
}  // namespace inccl::test
