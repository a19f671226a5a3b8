// SPDX-License-Identifier: Apache-2.0
//
// Zero copy between ranks whose devices reach each other's memory: peers read memory of
// ccl_mem_alloc_device without slots. Results are those of calls on memory of the host, byte for
// byte, whichever ranks have such memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "device/collective_table.h"
#include "device/comparison.h"
#include "device/device_world.h"
#include "fakes/fake_kernels.h"
#include "support/seed.h"
#include "world/algorithms.h"
#include "world/limits.h"
#include "world/world.h"

namespace inccl::test {
namespace {

constexpr size_t kCount = 9001;  // several slices for every rank, and a part of one

struct Way {
  int nranks = 3;
  const char* transport = "loopback";
  int sharing = 3;
  bool kernels = true;
  bool two_devices = false;
  bool opening = true;
  const char* algorithm = "direct";

  bool all_export() const { return sharing == nranks && opening; }
};

class Ranks {
 public:
  Ranks(const Way& way, Rng* rng)
      : environment_({{"INCCL_SLICE_BYTES", "4096"},
                      {"INCCL_ALGO", WhereItExists(way.algorithm).c_str()},
                      {"INCCL_TRANSPORT", way.transport}}),
        world_(way.nranks, way.two_devices),
        comparison_(&world_, rng, kCount, way.sharing) {
    world_.device().opening = way.opening;
    if (way.kernels) world_.device().SetKernels(&FakeKernels());
  }
  DeviceWorld& world() { return world_; }
  FakeDevice& device() { return world_.device(); }
  // Returns how much of it crossed between device and host.
  uint64_t Run(const Collective& c, bool in_place) {
    const uint64_t copies = device().host_copies;
    comparison_.Run(c, nullptr, in_place, kCount);
    return device().host_copies - copies;
  }

 private:
  const ScopedEnv environment_;
  DeviceWorld world_;
  Comparison comparison_;
};

// Collectives with zero copy; the others go through slots, or through the host.
bool HasZeroCopy(const std::string& name) {
  return name.starts_with("allreduce") || name == "reduce_scatter" || name == "allgather" ||
         name == "broadcast";
}

TEST(RegisteredDeviceBuffersTest, EveryCollective) {
  Rng rng(TestSeed());
  const Way ways[] = {{.nranks = 2, .sharing = 2},
                      {},
                      {.nranks = 4, .sharing = 4, .two_devices = true},
                      {.transport = "shm"},
                      {.kernels = false},
                      {.sharing = 2},
                      {.sharing = 1, .kernels = false},
                      {.opening = false},
                      {.transport = "shm", .sharing = 2, .two_devices = true},
                      {.algorithm = "ring"}};
  for (const Way& way : ways) {
#if defined(__SANITIZE_THREAD__)
    // Ranks of one process have shared memory in several places: what orders them there is not
    // seen.
    if (std::strcmp(way.transport, "shm") == 0) continue;
#endif
    Ranks ranks(way, &rng);
    for (const Collective& c : kCollectives) {
      SCOPED_TRACE(fmt::format(
          "{}: {} ranks, {} export, {}, {}{}{}{}", c.name, way.nranks, way.sharing, way.algorithm,
          way.transport, way.kernels ? "" : ", no kernels", way.two_devices ? ", two devices" : "",
          way.opening ? "" : ", no peer reaches it"));
      // Peers reach it at their next look: the first calls may still go through slots.
      for (int round = 0; round < 2; ++round) ranks.Run(c, false);
      const bool in_place = c.in_place != InPlace::kNo;
      const uint64_t out_of_place = ranks.Run(c, false), copies = ranks.Run(c, in_place);
      const bool moves =
          std::strcmp(c.name, "allgather") == 0 || std::strcmp(c.name, "broadcast") == 0;
      if ((way.kernels || moves) && way.all_export() && HasZeroCopy(c.name) &&
          std::strcmp(way.algorithm, "direct") == 0) {
        EXPECT_EQ(out_of_place, 0u);
        EXPECT_EQ(copies, 0u);
      } else if (!HasZeroCopy(c.name) || std::strcmp(c.name, "broadcast") != 0) {
        EXPECT_GT(out_of_place, 0u);  // in a broadcast the root's export is enough
      }
      if (::testing::Test::HasFailure()) return;
    }
    EXPECT_EQ(ranks.device().opened > 0, way.opening && std::strcmp(way.algorithm, "direct") == 0);
  }
}

// A rank with memory of the host among others that export memory of a device.
TEST(RegisteredDeviceBuffersTest, OneRankIsOnTheHost) {
  Rng rng(TestSeed());
  Ranks ranks({}, &rng);
  DeviceWorld& world = ranks.world();
  for (const Collective& c : kCollectives) ranks.Run(c, false);  // all is open now
  std::vector<float*> there;
  for (int rank = 0; rank < 2; ++rank) there.push_back(world.SharedFloats(2 * kCount));
  std::vector<float> here(2 * kCount), sum(kCount, 0.0f);
  for (int round = 0; round < 4; ++round) {
    sum.assign(kCount, 0.0f);
    for (int rank = 0; rank < 3; ++rank) {
      float* const mine =
          rank < 2 ? world.device().Reach(there[static_cast<size_t>(rank)]) : here.data();
      for (size_t i = 0; i < kCount; ++i) {
        mine[i] = static_cast<float>(rng.Below(2001)) - 1000.0f;
        sum[i] += mine[i];
      }
    }
    std::thread host([&] {
      EXPECT_EQ(ccl_allreduce(here.data(), here.data() + kCount, kCount, CCL_FLOAT32, CCL_SUM,
                              world.comm(2), nullptr),
                CCL_SUCCESS)
          << ccl_get_last_error(world.comm(2));
    });
    for (int rank = 0; rank < 2; ++rank) {
      float* const mine = there[static_cast<size_t>(rank)];
      EXPECT_EQ(ccl_allreduce(mine, mine + kCount, kCount, CCL_FLOAT32, CCL_SUM, world.comm(rank),
                              world.handle(rank)),
                CCL_SUCCESS);
    }
    host.join();
    world.Synchronize();
    for (int rank = 0; rank < 3; ++rank) {
      const float* const mine =
          rank < 2 ? world.device().Reach(there[static_cast<size_t>(rank)]) : here.data();
      ASSERT_EQ(std::memcmp(mine + kCount, sum.data(), kCount * sizeof(float)), 0)
          << "rank " << rank << ", round " << round;
    }
  }
}

// A call on memory of the host that has begun before a peer exports its first region.
TEST(RegisteredDeviceBuffersTest, FirstExportedToARankOnTheHost) {
  Rng rng(TestSeed());
  Ranks ranks({.nranks = 2, .sharing = 2}, &rng);
  DeviceWorld& world = ranks.world();
  constexpr size_t kMany = kSanitized ? 1 << 16 : 1 << 20;
  const std::vector<float*> small = {world.SharedFloats(16), world.SharedFloats(16)};
  world.ForAll([&](int rank) {
    float* const mine = small[static_cast<size_t>(rank)];
    return ccl_allreduce(mine, mine, 16, CCL_FLOAT32, CCL_SUM, world.comm(rank),
                         world.handle(rank));
  });
  world.Synchronize();
  float* const there = world.SharedFloats(kMany);
  std::fill_n(world.device().Reach(there), kMany, 2.0f);
  std::vector<float> here(kMany, 3.0f);
  std::thread host([&] {
    EXPECT_EQ(ccl_allreduce(here.data(), here.data(), kMany, CCL_FLOAT32, CCL_SUM, world.comm(1),
                            nullptr),
              CCL_SUCCESS)
        << ccl_get_last_error(world.comm(1));
  });
  EXPECT_EQ(
      ccl_allreduce(there, there, kMany, CCL_FLOAT32, CCL_SUM, world.comm(0), world.handle(0)),
      CCL_SUCCESS);
  host.join();
  world.Synchronize();
  EXPECT_EQ(std::count(here.begin(), here.end(), 5.0f), static_cast<ptrdiff_t>(kMany));
  const float* const result = world.device().Reach(there);
  EXPECT_EQ(std::count(result, result + kMany, 5.0f), static_cast<ptrdiff_t>(kMany));
}

// A rank imports regions for its first device only; its calls on another one go through slots.
TEST(RegisteredDeviceBuffersTest, ARankTurnsToAnotherDevice) {
  Rng rng(TestSeed());
  Ranks ranks({.nranks = 2, .sharing = 2}, &rng);
  DeviceWorld& world = ranks.world();
  for (int device = 0; device < 2; ++device) {
    const std::vector<float*> mine = {world.SharedFloats(kCount, device),
                                      world.SharedFloats(kCount)};
    for (int round = 1; round < 5; ++round) {
      for (float* const buffer : mine) std::fill_n(world.device().Reach(buffer), kCount, 1.0f);
      world.ForAll([&](int rank) {
        float* const buffer = mine[static_cast<size_t>(rank)];
        return ccl_allreduce(buffer, buffer, kCount, CCL_FLOAT32, CCL_SUM, world.comm(rank),
                             world.handle(rank));
      });
      world.Synchronize();
      for (const float* const buffer : mine) {
        const float* const result = world.device().Reach(buffer);
        ASSERT_EQ(std::count(result, result + kCount, 2.0f), static_cast<ptrdiff_t>(kCount))
            << "device " << device << ", round " << round;
      }
    }
  }
}

// A call allocates no pinned memory, however many of the ranks export theirs: an allocation may
// wait for the streams that wait for the call.
TEST(RegisteredDeviceBuffersTest, NothingIsAllocatedWithinCalls) {
  for (const bool kernels : {true, false}) {
    for (const int sharing : {0, 3, 4}) {
      const ScopedEnv environment({{"INCCL_SLICE_BYTES", "262144"}, {"INCCL_ALGO", "direct"}});
      DeviceWorld world(4, false, size_t{256} << 20);
      if (kernels) world.device().SetKernels(&FakeKernels());
      constexpr size_t kMany = 1 << 19;
      std::vector<float*> large, small;
      for (int rank = 0; rank < 4; ++rank) {
        large.push_back(rank < sharing ? world.SharedFloats(2 * kMany) : world.Floats(2 * kMany));
        small.push_back(world.Floats(64));
      }
      const auto all_reduce = [&](const std::vector<float*>& buffers, size_t count) {
        world.ForAll([&](int rank) {
          float* const mine = buffers[static_cast<size_t>(rank)];
          return ccl_allreduce(mine, mine + count, count, CCL_FLOAT32, CCL_SUM, world.comm(rank),
                               world.handle(rank));
        });
        world.Synchronize();
      };
      all_reduce(small, 32);
      const uint64_t blocks = world.device().host_blocks;
      for (int round = 0; round < (kSanitized ? 2 : 4); ++round) all_reduce(large, kMany);
      EXPECT_EQ(world.device().host_blocks, blocks)
          << sharing << " export, " << (kernels ? "with kernels" : "without");
    }
  }
}

// More pieces than a rank can export at a time, one after the other.
TEST(RegisteredDeviceBuffersTest, ManyPieces) {
  Rng rng(TestSeed());
  Ranks ranks({.nranks = 2, .sharing = 2}, &rng);
  DeviceWorld& world = ranks.world();
  std::vector<std::vector<float*>> pieces(2);
  for (int piece = 0; piece < 40; ++piece) {
    for (auto& mine : pieces) mine.push_back(world.SharedFloats(kCount));
  }
  for (int round = 0; round < 120; ++round) {
    const auto piece = static_cast<size_t>(rng.Below(40));
    for (auto& mine : pieces) {
      float* const data = world.device().Reach(mine[piece]);
      for (size_t i = 0; i < kCount; ++i) data[i] = static_cast<float>(i + piece);
    }
    world.ForAll([&](int rank) {
      float* const mine = pieces[static_cast<size_t>(rank)][piece];
      return ccl_allreduce(mine, mine, kCount, CCL_FLOAT32, CCL_SUM, world.comm(rank),
                           world.handle(rank));
    });
    world.Synchronize();
    for (auto& mine : pieces) {
      const float* const data = world.device().Reach(mine[piece]);
      for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(data[i], 2 * static_cast<float>(i + piece));
    }
  }
}

// As many as there are, registered: peers have them open before the first call on each, and keep
// them.
TEST(RegisteredDeviceBuffersTest, ManyRegisteredPieces) {
  Rng rng(TestSeed());
  Ranks ranks({.nranks = 2, .sharing = 2}, &rng);
  DeviceWorld& world = ranks.world();
  constexpr size_t kPieces = 40;
  std::vector<std::vector<float*>> pieces(2);
  for (auto& mine : pieces) {
    for (size_t piece = 0; piece < kPieces; ++piece) mine.push_back(world.SharedFloats(kCount));
  }
  const auto all_reduce = [&](size_t piece, size_t count) {
    world.ForAll([&](int rank) {
      float* const mine = pieces[static_cast<size_t>(rank)][piece];
      return ccl_allreduce(mine, mine, count, CCL_FLOAT32, CCL_SUM, world.comm(rank),
                           world.handle(rank));
    });
    world.Synchronize();
  };
  all_reduce(0, 16);  // the ranks have a device from now on
  for (int rank = 0; rank < 2; ++rank) {
    for (float* const piece : pieces[static_cast<size_t>(rank)]) {
      void* handle = nullptr;
      ASSERT_EQ(ccl_comm_register(world.comm(rank), piece, kCount * sizeof(float), &handle),
                CCL_SUCCESS);
      EXPECT_NE(handle, nullptr);
    }
    void* handle = &rng;
    float* const ordinary = world.Floats(kCount);
    ASSERT_EQ(ccl_comm_register(world.comm(rank), ordinary, kCount * sizeof(float), &handle),
              CCL_SUCCESS);
    EXPECT_EQ(handle, nullptr) << "not of ccl_mem_alloc_device";
  }
  for (int round = 0; round < 2; ++round) all_reduce(0, 16);  // peers look
  for (int round = 0; round < 2; ++round) {
    for (size_t piece = 0; piece < kPieces; ++piece) {
      for (auto& mine : pieces) std::fill_n(world.device().Reach(mine[piece]), kCount, 3.0f);
      const uint64_t copies = world.device().host_copies;
      all_reduce(piece, kCount);
      ASSERT_EQ(world.device().host_copies, copies) << "piece " << piece << ", round " << round;
      for (auto& mine : pieces) {
        const float* const result = world.device().Reach(mine[piece]);
        ASSERT_EQ(std::count(result, result + kCount, 6.0f), static_cast<ptrdiff_t>(kCount));
      }
    }
  }
}

// What one rank cannot copy is an error on all of them, and their streams go on.
TEST(RegisteredDeviceBuffersTest, AnErrorOfOneIsAnErrorOfAll) {
  Rng rng(TestSeed());
  for (const char* name : {"allgather", "broadcast"}) {
    Ranks ranks({}, &rng);
    DeviceWorld& world = ranks.world();
    const Collective& c =
        *std::find_if(std::begin(kCollectives), std::end(kCollectives),
                      [&](const Collective& each) { return std::strcmp(each.name, name) == 0; });
    for (int round = 0; round < 3; ++round) ranks.Run(c, false);
    ranks.device().copies_until_failure = static_cast<int>(rng.Below(4));
    std::vector<float*> memory;
    for (int rank = 0; rank < 3; ++rank) memory.push_back(world.SharedFloats(4 * kCount));
    for (int rank = 0; rank < 3; ++rank) {
      float* const mine = memory[static_cast<size_t>(rank)];
      // The error of one before may be there already.
      static_cast<void>(
          c.call(mine, mine + kCount, kCount, nullptr, world.comm(rank), world.handle(rank)));
    }
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_NE(world.AsyncError(rank), CCL_SUCCESS) << name << ", rank " << rank;
    }
    world.Synchronize();
  }
}

}  // namespace
}  // namespace inccl::test
