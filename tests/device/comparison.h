// SPDX-License-Identifier: Apache-2.0
//
// The same call on memory of the host and on that of a fake device: the bytes of all buffers are
// the same afterwards.
#ifndef INCCL_TESTS_DEVICE_COMPARISON_H_
#define INCCL_TESTS_DEVICE_COMPARISON_H_

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "device/collective_table.h"
#include "device/device_world.h"
#include "inccl/ccl.h"

namespace inccl::test {

// All ranks' buffers are filled alike on the host and on the device, then called with alike.
class Comparison {
 public:
  // `sharing`: this many of the ranks have memory of ccl_mem_alloc_device.
  Comparison(DeviceWorld* world, Rng* rng, size_t most, int sharing = 0)
      : world_(world), rng_(rng) {
    for (int rank = 0; rank < world->nranks(); ++rank) {
      const size_t count = 2 * world->Count() * most;
      const int device = world->DeviceOf(rank);
      there_.push_back(rank < sharing ? world->SharedFloats(count, device)
                                      : world->Floats(count, device));
    }
  }

  void Run(const Collective& c, const ccl_compression_t* with, bool in_place, size_t count) {
    const size_t elements = 2 * world_->Count() * count;
    std::vector<std::vector<float>> host(world_->Count(), std::vector<float>(elements));
    FakeDevice& device = world_->device();
    for (size_t rank = 0; rank < host.size(); ++rank) {
      for (float& x : host[rank]) x = static_cast<float>(rng_->Below(2001)) - 1000.0f;
      std::memcpy(device.Reach(there_[rank]), host[rank].data(), elements * sizeof(float));
    }
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_->nranks(); ++rank) {
      threads.emplace_back([&, rank] {
        const auto [send, recv] = Places(c, in_place, rank, world_->nranks(), count);
        float* const mine = host[static_cast<size_t>(rank)].data();
        EXPECT_EQ(c.call(mine + send, mine + recv, count, with, world_->comm(rank), nullptr),
                  CCL_SUCCESS)
            << ccl_get_last_error(world_->comm(rank));
      });
    }
    for (std::thread& thread : threads) thread.join();
    // All ranks from one thread: calls on a device return when they are on the stream.
    for (int rank = 0; rank < world_->nranks(); ++rank) {
      const auto [send, recv] = Places(c, in_place, rank, world_->nranks(), count);
      float* const mine = there_[static_cast<size_t>(rank)];
      ASSERT_EQ(
          c.call(mine + send, mine + recv, count, with, world_->comm(rank), world_->handle(rank)),
          CCL_SUCCESS)
          << ccl_get_last_error(world_->comm(rank));
    }
    world_->Synchronize();
    for (size_t rank = 0; rank < host.size(); ++rank) {
      EXPECT_EQ(
          std::memcmp(device.Reach(there_[rank]), host[rank].data(), elements * sizeof(float)), 0)
          << "rank " << rank << ", " << world_->ErrorOf(static_cast<int>(rank));
    }
  }

 private:
  DeviceWorld* const world_;
  Rng* const rng_;
  std::vector<float*> there_;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_DEVICE_COMPARISON_H_
