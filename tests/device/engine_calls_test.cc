// SPDX-License-Identifier: Apache-2.0
//
// What runs a call on memory of a device slice by slice: the bytes of results are those of the same
// call on memory of the host, over one device and two, whether the device reaches slots or not.
// The device is a fake whose memory the processor cannot touch, without kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "device/collective_table.h"
#include "device/comparison.h"
#include "device/device_world.h"
#include "support/seed.h"
#include "world/algorithms.h"
#include "world/world.h"

namespace inccl::test {
namespace {

const std::vector<std::string> kNone = {""};

struct Way {
  int nranks = 3;
  bool registering = true;
  bool two_devices = false;
  const char* algorithm = "";  // any
  const char* slice_bytes = "16384";
  const char* transport = "loopback";
};

void CompareAll(const Way& way, const std::vector<std::string>& codecs,
                const std::vector<size_t>& counts) {
  SCOPED_TRACE(std::to_string(way.nranks) + " ranks, algorithm \"" + way.algorithm + "\", " +
               way.transport + (way.registering ? "" : ", slots not reached") +
               (way.two_devices ? ", two devices" : ""));
  const ScopedEnv environment({{"INCCL_SLICE_BYTES", way.slice_bytes},
                               {"INCCL_ALGO", WhereItExists(way.algorithm).c_str()},
                               {"INCCL_TRANSPORT", way.transport}});
  DeviceWorld world(way.nranks, way.two_devices);
  world.device().registering = way.registering;
  Rng rng(TestSeed());
  Comparison comparison(&world, &rng, counts.back());
  for (const std::string& codec : codecs) {
    const Compression with(codec);
    for (const Collective& c : kCollectives) {
      if (!codec.empty() && !c.compresses) continue;
      for (const size_t count : counts) {
        for (const bool in_place : {false, true}) {
          if (in_place && c.in_place == InPlace::kNo) continue;
          SCOPED_TRACE(std::string(c.name) + " " + codec + (in_place ? " in place " : " ") +
                       std::to_string(count));
          comparison.Run(c, with.get(), in_place, count);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
  if (codecs == kNone) {
    EXPECT_EQ(world.device().registered > 0, way.registering);
  }
  EXPECT_GT(world.device().copies, 0u) << "nothing of it went through queues";
}

TEST(EngineCallsTest, PlainElements) {
  CompareAll({}, kNone, {1, 777, 50'001});
  CompareAll({.registering = false}, kNone, {1, 50'001});
  CompareAll({.nranks = 4, .two_devices = true}, kNone, {30'000});
  CompareAll({.nranks = 2, .transport = "shm"}, kNone, {777, 30'001});
  // The kernel sends from memory of the host alone, and a device reaches no slots there.
  CompareAll({.nranks = 2, .registering = false, .transport = "tcp"}, kNone, {30'001});
}

TEST(EngineCallsTest, PlainElementsByEveryAlgorithm) {
  for (const char* algorithm : {"ring", "tree", "recursive_doubling", "direct"}) {
    CompareAll({.nranks = 4, .algorithm = algorithm}, kNone, {513, 20'001});
  }
}

TEST(EngineCallsTest, CompressedElements) {
  const std::vector<std::string> codecs = {
      "hbi:bits=6,min_bytes=0", "hbi:k=7,min_bytes=0", "bf16", "mxfp8", "lossless", "qsgd:q=8"};
  CompareAll({}, codecs, {777, 20'001});
  CompareAll({.nranks = 2, .registering = false, .two_devices = true}, codecs, {20'001});
}

TEST(EngineCallsTest, SlicesAreLargerWhereAllRanksHaveADevice) {
  const auto copies_of_a_broadcast = [](size_t mib) {
    DeviceWorld world(2, false, size_t{128} << 20);
    std::vector<float*> x;
    const size_t count = mib << 18;
    for (int rank = 0; rank < 2; ++rank) x.push_back(world.Floats(count));
    world.ForAll([&](int rank) {
      return ccl_broadcast(x[static_cast<size_t>(rank)], x[static_cast<size_t>(rank)], count,
                           CCL_FLOAT32, 0, world.comm(rank), world.handle(rank));
    });
    world.Synchronize();
    return world.device().copies.load();
  };
  EXPECT_EQ(copies_of_a_broadcast(2), 4u);  // two slices, from the device and to it
  EXPECT_EQ(copies_of_a_broadcast(15), 30u);
  const ScopedEnv environment({{"INCCL_SLICE_BYTES", "131072"}});
  EXPECT_EQ(copies_of_a_broadcast(1), 16u);
}

TEST(EngineCallsTest, WarmCallsAllocateAndRegisterNothing) {
  DeviceWorld world(3);
  constexpr size_t kCount = 400'000;
  std::vector<float*> x;
  for (int rank = 0; rank < 3; ++rank) x.push_back(world.Floats(kCount));
  const Compression with("hbi:bits=6,min_bytes=0");
  uint64_t blocks = 0, registered = 0;
  for (int round = 0; round < 6; ++round) {
    for (const ccl_compression_t* compression :
         {static_cast<const ccl_compression_t*>(nullptr), with.get()}) {
      world.ForAll([&](int rank) {
        float* const data = x[static_cast<size_t>(rank)];
        return kCollectives[0].call(data, data, kCount, compression, world.comm(rank),
                                    world.handle(rank));
      });
      world.Synchronize();
    }
    if (round == 2) {
      blocks = world.device().host_blocks;
      registered = world.device().registered;
    }
  }
  EXPECT_EQ(world.device().host_blocks, blocks);
  EXPECT_EQ(world.device().registered, registered);
}

// Ranks of one thread: without the group the first would keep the stream from the second.
TEST(EngineCallsTest, AGroupOfSeveralRanksOnOneStream) {
  constexpr int kRanks = 3, kRounds = 5;
  constexpr size_t kCount = 20'000;
  DeviceWorld world(kRanks);
  std::vector<float*> x;
  for (int rank = 0; rank < kRanks; ++rank) x.push_back(world.Floats(kCount));
  void* const stream = world.stream(0);
  std::atomic<int> wrong{0};
  for (int round = 0; round < kRounds; ++round) {
    world.device().Launch(stream, [&, round] {
      for (float* data : x) {
        std::fill_n(world.device().Reach(data), kCount, static_cast<float>(round + 1));
      }
    });
    ASSERT_EQ(ccl_group_start(), CCL_SUCCESS);
    for (int rank = 0; rank < kRanks; ++rank) {
      float* const data = x[static_cast<size_t>(rank)];
      EXPECT_EQ(ccl_allreduce(data, data, kCount, CCL_FLOAT32, CCL_SUM, world.comm(rank),
                              world.handle(0)),
                CCL_SUCCESS);
    }
    ASSERT_EQ(ccl_group_end(), CCL_SUCCESS);
    world.device().Launch(stream, [&, round] {
      for (float* data : x) {
        const float* const got = world.device().Reach(data);
        const auto sum = static_cast<float>(kRanks * (round + 1));
        if (std::count(got, got + kCount, sum) != static_cast<ptrdiff_t>(kCount)) ++wrong;
      }
    });
  }
  world.device().Synchronize(stream);
  EXPECT_EQ(wrong, 0);
}

TEST(EngineCallsTest, ManyMoreRanksThanCores) {
  constexpr int kRanks = 12;
  DeviceWorld world(kRanks);
  constexpr size_t kCount = 10'001;
  std::vector<float*> x;
  for (int rank = 0; rank < kRanks; ++rank) {
    x.push_back(world.Floats(kCount));
    std::fill_n(world.device().Reach(x.back()), kCount, 1.0f);
  }
  for (int round = 0; round < 3; ++round) {
    world.ForAll([&](int rank) {
      float* const data = x[static_cast<size_t>(rank)];
      return ccl_allreduce(data, data, kCount, CCL_FLOAT32, CCL_SUM, world.comm(rank),
                           world.handle(rank));
    });
  }
  world.Synchronize();
  for (float* data : x) EXPECT_EQ(world.device().Reach(data)[kCount - 1], 12.0f * 12 * 12);
}

// Peers with memory of ccl_mem_alloc want results written straight there.
TEST(EngineCallsTest, RanksOnMemoryOfTheHostAndOfTheDevice) {
  const ScopedEnv environment({{"INCCL_TRANSPORT", "shm"}});
  constexpr int kRanks = 3;
  constexpr size_t kCount = size_t{3} << 20;
  DeviceWorld world(kRanks, false, size_t{128} << 20);
  void* registered = nullptr;
  ASSERT_EQ(ccl_mem_alloc(&registered, kCount * sizeof(float)), CCL_SUCCESS);
  auto* const host = static_cast<float*>(registered);
  std::vector<float*> x = {nullptr, world.Floats(kCount), world.Floats(kCount)};
  float expected = 1;
  std::fill_n(host, kCount, expected);
  for (int rank = 1; rank < kRanks; ++rank) {
    std::fill_n(world.device().Reach(x[static_cast<size_t>(rank)]), kCount, expected);
  }
  for (int round = 0; round < 5; ++round) {
    for (int rank = 1; rank < kRanks; ++rank) {
      float* const data = x[static_cast<size_t>(rank)];
      ASSERT_EQ(ccl_allreduce(data, data, kCount, CCL_FLOAT32, CCL_SUM, world.comm(rank),
                              world.handle(rank)),
                CCL_SUCCESS);
    }
    ASSERT_EQ(ccl_allreduce(host, host, kCount, CCL_FLOAT32, CCL_SUM, world.comm(0), nullptr),
              CCL_SUCCESS);
    expected *= kRanks;
    EXPECT_EQ(std::count(host, host + kCount, expected), static_cast<ptrdiff_t>(kCount));
  }
  world.Synchronize();
  for (int rank = 1; rank < kRanks; ++rank) {
    const float* const got = world.device().Reach(x[static_cast<size_t>(rank)]);
    EXPECT_EQ(std::count(got, got + kCount, expected), static_cast<ptrdiff_t>(kCount)) << rank;
  }
  EXPECT_EQ(ccl_mem_free(registered), CCL_SUCCESS);
}

// Behind an emulated link the device reaches slots as well.
TEST(EngineCallsTest, OverAnEmulatedLink) {
  const ScopedEnv environment({{"INCCL_TEST_LINK_GBPS", "50"}});
  CompareAll({.nranks = 2}, {"", "hbi:bits=6,min_bytes=0"}, {30'001});
}

}  // namespace
}  // namespace inccl::test
