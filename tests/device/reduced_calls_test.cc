// SPDX-License-Identifier: Apache-2.0
//
// Calls with reducers or on several vectors, on memory of a device, run on host copies, with the
// same results.
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

TEST(FusedCallsTest, AreStaged) {
  constexpr size_t kCounts[] = {700, 1, 2299};
  for (const int nranks : {1, 3}) {
    DeviceWorld world(nranks);
    std::vector<std::vector<float>> host(world.Count(), std::vector<float>(3000));
    std::vector<std::vector<ccl_vector_t>> vectors(world.Count());
    std::vector<ccl_residual_t> residuals(world.Count());
    for (size_t rank = 0; rank < world.Count(); ++rank) {
      ASSERT_EQ(ccl_residual_create(&residuals[rank], kCounts[2], nullptr), CCL_SUCCESS);
      for (size_t i = 0; i < host[rank].size(); ++i) {
        host[rank][i] = static_cast<float>((i * 7919 + rank * 31) % 1009) - 500;
      }
      size_t first = 0;
      for (const size_t count : kCounts) {
        float* const there = world.Floats(count);
        std::memcpy(world.device().Reach(there), &host[rank][first], count * sizeof(float));
        vectors[rank].push_back({there, there, count, nullptr});
        first += count;
      }
      vectors[rank][2].residual = residuals[rank];
    }
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.step = 3;
    ASSERT_EQ(ccl_group_start(), CCL_SUCCESS);
    for (size_t rank = 0; rank < world.Count(); ++rank) {
      EXPECT_EQ(ccl_allreduce_compressed(host[rank].data(), host[rank].data(), host[rank].size(),
                                         CCL_FLOAT32, CCL_SUM, &how,
                                         world.comm(static_cast<int>(rank)), nullptr),
                CCL_SUCCESS);
    }
    ASSERT_EQ(ccl_group_end(), CCL_SUCCESS) << ccl_get_last_error(nullptr);
    for (size_t rank = 0; rank < world.Count(); ++rank) {
      const int r = static_cast<int>(rank);
      EXPECT_EQ(ccl_allreduce_fused(vectors[rank].data(), vectors[rank].size(), CCL_FLOAT32,
                                    CCL_SUM, &how, world.comm(r), world.handle(r)),
                CCL_SUCCESS);
    }
    world.Synchronize();
    for (size_t rank = 0; rank < world.Count(); ++rank) {
      size_t first = 0;
      for (const ccl_vector_t& vector : vectors[rank]) {
        EXPECT_EQ(std::memcmp(world.device().Reach(static_cast<float*>(vector.recv)),
                              &host[rank][first], vector.count * sizeof(float)),
                  0)
            << "rank " << rank << ", " << world.ErrorOf(static_cast<int>(rank));
        first += vector.count;
      }
      std::vector<float> left(kCounts[2]);
      EXPECT_EQ(ccl_residual_export(residuals[rank], left.data(), left.size()), CCL_SUCCESS);
      EXPECT_EQ(left == std::vector<float>(kCounts[2]), nranks == 1);
      EXPECT_EQ(ccl_residual_destroy(residuals[rank]), CCL_SUCCESS);
    }
  }
}

}  // namespace
}  // namespace inccl::test
