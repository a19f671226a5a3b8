// SPDX-License-Identifier: Apache-2.0
//
// The control plane between threads, over sockets and in memory.
#include "transport/control/control.h"

#include <gtest/gtest.h>

#include "transport/bootstrap_world.h"

namespace inccl::test {
namespace {

struct Counter : ControlHandler {
  void OnMessage(int, uint8_t, std::span<const std::byte>) override { ++messages; }
  void OnPeerClosed(int, bool clean) override { clean ? ++cleans : ++failures; }
  std::atomic<int> messages{0}, cleans{0}, failures{0};
};

TEST(ControlTest, Smoke) {
  const Baseline baseline;
  Result<UniqueId> id = CreateUniqueId(TestEnvironment());
  ASSERT_TRUE(id.ok()) << id.status().message();
  std::vector<Result<Mesh>> meshes = JoinThreads(*id, 4);
  Counter counters[4];
  std::vector<std::unique_ptr<ControlPlane>> planes;
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(meshes[i].ok());
    auto plane = StartControl(*std::move(meshes[i]), &counters[i]);
    ASSERT_TRUE(plane.ok());
    planes.push_back(*std::move(plane));
  }
  for (auto& p : planes) p->Broadcast(7, {});
  for (auto& c : counters)
    while (c.messages < 3) usleep(100);
  for (int i = 0; i < 3; ++i) planes[i]->Close(SystemClock().Now() + kSecond);
  while (counters[3].cleans < 3) usleep(100);
  planes[3]->Close(SystemClock().Now() + kSecond);
  EXPECT_EQ(counters[3].cleans, 3);
}

}  // namespace
}  // namespace inccl::test
