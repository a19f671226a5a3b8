// SPDX-License-Identifier: Apache-2.0
//
// Calls on memory of a fake device over fake RDMA devices, which read it in place. Results are
// those of calls on memory of the host.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"
#include "device/collective_table.h"
#include "device/comparison.h"
#include "device/device_world.h"
#include "fakes/fake_kernels.h"
#include "fakes/verbs/fake_verbs.h"
#include "support/seed.h"
#include "world/algorithms.h"
#include "world/world.h"

namespace inccl::test {
namespace {

constexpr size_t kCount = 9001;
constexpr int kRanks = 3;

class VerbsDeviceCallsTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    fake_verbs::Machine machine = fake_verbs::Get().StandardMachine();
    machine.in_thread = GetParam();
    machine.seed = TestSeed();
    fake_verbs::Get().SetMachine(machine);
  }
  void TearDown() override {
    EXPECT_EQ(fake_verbs::Get().OpenObjects(), 0u);
    fake_verbs::Get().SetMachine({});  // tests after these do not choose RDMA
  }
};

// What a rank sends of its input, it sends from the device where nothing is to protect it.
TEST_P(VerbsDeviceCallsTest, EveryCollective) {
  Rng rng(TestSeed());
  for (const char* security : {"none", "auth"}) {
    for (const char* algorithm : {"direct", "ring"}) {
      for (const bool kernels : {true, false}) {
        const ScopedEnv environment({{"INCCL_SLICE_BYTES", "4096"},
                                     {"INCCL_ALGO", WhereItExists(algorithm).c_str()},
                                     {"INCCL_NET_SECURITY", security},
                                     {"INCCL_TRANSPORT", "verbs"}});
        DeviceWorld world(kRanks);
        if (kernels) world.device().SetKernels(&FakeKernels());
        Comparison comparison(&world, &rng, kCount, kRanks);
        const bool open = std::strcmp(security, "none") == 0;
        const bool direct = std::strcmp(algorithm, "direct") == 0;
        for (const Collective& c : kCollectives) {
          const std::string name = c.name;
          SCOPED_TRACE(fmt::format("{}, {}, {}{}", name, algorithm, security,
                                   kernels ? "" : ", no kernels"));
          // These find memory of the library by themselves, with the direct algorithm.
          const bool finds = name.starts_with("allreduce") || name == "reduce_scatter" ||
                             name == "allgather" || name == "broadcast";
          for (const bool overlaps : {false, c.in_place != InPlace::kNo}) {
            fake_verbs::Get().ResetCounters();
            comparison.Run(c, nullptr, overlaps, kCount);
            const fake_verbs::Counters count = fake_verbs::Get().Count();
            EXPECT_EQ(count.stale, 0u);
            if (finds || !open || !direct) {
              EXPECT_EQ(count.gathered > 0, open && direct);
            }
          }
          if (HasFailure()) return;
        }
        EXPECT_EQ(world.device().shared, 0u) << "no process is shown a handle";
      }
    }
  }
}

// Memory of the application, of one rank; the others have none registered. What stands on the
// stream before the call makes the input, and what stands behind it may overwrite the input.
TEST_P(VerbsDeviceCallsTest, WhatTheApplicationRegistersIsSentInPlace) {
  const ScopedEnv environment({{"INCCL_SLICE_BYTES", "4096"},
                               {"INCCL_NET_SECURITY", "none"},
                               {"INCCL_TRANSPORT", "verbs"}});
  DeviceWorld world(kRanks);
  std::vector<float*> buffers;
  for (int rank = 0; rank < kRanks; ++rank) buffers.push_back(world.Floats(2 * kCount));
  void* handle = nullptr;
  ASSERT_EQ(ccl_comm_register(world.comm(1), buffers[1], kCount * sizeof(float), &handle),
            CCL_SUCCESS);
  ASSERT_NE(handle, nullptr);
  uint64_t host_copies[2] = {};
  for (int round = 0; round < 4; ++round) {
    if (round == 2) {
      EXPECT_EQ(ccl_comm_deregister(world.comm(1), handle), CCL_SUCCESS);
    }
    const auto fill = [&](int rank, float value) {
      float* const input = world.device().Reach(buffers[static_cast<size_t>(rank)]);
      world.device().Launch(world.stream(rank), [input, value] {
        usleep(1000);
        std::fill_n(input, kCount, value);
      });
    };
    fake_verbs::Get().ResetCounters();
    const uint64_t before = world.device().host_copies;
    world.ForAll([&](int rank) {
      float* const mine = buffers[static_cast<size_t>(rank)];
      fill(rank, static_cast<float>(round + rank));
      const ccl_result_t result = ccl_allreduce(mine, mine + kCount, kCount, CCL_FLOAT32, CCL_SUM,
                                                world.comm(rank), world.handle(rank));
      fill(rank, -1.0f);
      return result;
    });
    world.Synchronize();
    EXPECT_EQ(fake_verbs::Get().Count().gathered > 0, round < 2);
    host_copies[round / 2] = world.device().host_copies - before;
    for (const float* const buffer : buffers) {
      const float* const result = world.device().Reach(buffer) + kCount;
      ASSERT_EQ(std::count(result, result + kCount, static_cast<float>(3 * round + 3)),
                static_cast<ptrdiff_t>(kCount))
          << "round " << round;
    }
  }
  EXPECT_LT(host_copies[0], host_copies[1]) << "what is sent in place is not copied to the host";
}

// All streams go on, every rank learns of it, and one of them names the peer and the reason. What
// the caller does with the memory next is not sent.
TEST_P(VerbsDeviceCallsTest, AConnectionThatFailsEndsTheCallOnEveryRank) {
  const ScopedEnv environment({{"INCCL_SLICE_BYTES", "4096"},
                               {"INCCL_NET_SECURITY", "none"},
                               {"INCCL_TRANSPORT", "verbs"}});
  DeviceWorld world(kRanks);
  std::vector<float*> buffers;
  for (int rank = 0; rank < kRanks; ++rank) buffers.push_back(world.SharedFloats(2 * kCount));
  const auto call = [&] {
    world.ForAll([&](int rank) {
      float* const mine = buffers[static_cast<size_t>(rank)];
      const ccl_result_t result = ccl_allreduce(mine, mine + kCount, kCount, CCL_FLOAT32, CCL_MAX,
                                                world.comm(rank), world.handle(rank));
      world.device().Launch(world.stream(rank), [input = world.device().Reach(mine), rank] {
        std::fill_n(input, kCount, static_cast<float>(rank));
      });
      return result;
    });
    world.Synchronize();
  };
  call();
  EXPECT_GT(fake_verbs::Get().Count().gathered, 0u);
  fake_verbs::Get().FailNextSend(IBV_WC_RETRY_EXC_ERR, false);
  call();
  std::string all;
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(world.AsyncError(rank), CCL_REMOTE_ERROR);
    all += world.ErrorOf(rank) + "\n";
  }
  EXPECT_NE(all.find("is lost: transport retry counter exceeded"), std::string::npos) << all;
  EXPECT_NE(all.find("verbs: peer "), std::string::npos) << all;
  EXPECT_EQ(fake_verbs::Get().Count().stale, 0u);
}

INSTANTIATE_TEST_SUITE_P(Over, VerbsDeviceCallsTest, ::testing::Bool(), [](const auto& of) {
  return of.param ? "devices_with_a_thread" : "devices_at_once";
});

}  // namespace
}  // namespace inccl::test
