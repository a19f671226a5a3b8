// SPDX-License-Identifier: Apache-2.0
//
// INCCL_PORT_RANGE and INCCL_SOCKET_ALLOW between hosts (network namespaces).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "world/hosts.h"
#include "world/process_world.h"
#include "world/world.h"

namespace inccl::test {
namespace {

constexpr int kFirst = 4700, kLast = 4703;

class PortsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = Hosts::Missing(); !missing.empty()) GTEST_SKIP() << missing;
  }

 private:
  const ScopedEnv interface_{{{"INCCL_SOCKET_IFNAME", "e0"}}};
};

// The local ports of this host's connections, as the kernel lists them.
int ConnectionsInRange() {
  constexpr unsigned kEstablished = 1;
  int count = 0;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state;
      words >> number >> local >> remote >> state;
      const auto port = std::stoul(local.substr(local.find(':') + 1), nullptr, 16);
      if (std::stoul(state, nullptr, 16) != kEstablished) continue;
      EXPECT_TRUE(port >= kFirst && port <= kLast) << line;
      ++count;
    }
  }
  return count;
}

int Join(const Side& side) {
  ccl_comm_t comm = nullptr;
  if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
  std::vector<float> data(1000, 1);
  if (ccl_allreduce(data.data(), data.data(), data.size(), CCL_FLOAT32, CCL_SUM, comm, nullptr) !=
      CCL_SUCCESS) {
    return 11;
  }
  // Rank 0 accepts from both others: a control and a data connection each.
  if (side.rank() == 0 && ConnectionsInRange() != 4) return 14;
  side.mine().stage = 1;
  for (int rank = 0; rank < side.nranks(); ++rank) {
    if (!side.Await(rank, 1)) return 12;
  }
  return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 13;
}

TEST_F(PortsTest, RanksListenInTheRange) {
  const ScopedEnv env({{"INCCL_PORT_RANGE", fmt::format("{}-{}", kFirst, kLast).c_str()}});
  Hosts hosts({.count = 3});
  ProcessWorld world({.nranks = 3, .enter = hosts.Ranks(1)}, Join);
  world.Wait();
  world.ExpectAllExited();
}

TEST_F(PortsTest, ARangeThatIsTooSmallIsNamed) {
  const ScopedEnv env({{"INCCL_PORT_RANGE", "4700-4700"}});
  Hosts hosts({.count = 1});
  // The rendezvous waits for ranks that never come.
  ProcessWorld world({.nranks = 1, .baseline = false, .enter = hosts.Ranks(1)},
                     [](const Side& side) {
                       ccl_comm_t comm = nullptr;
                       return side.Init(&comm, CCL_CONFIG_INIT) == CCL_SYSTEM_ERROR ? 0 : 10;
                     });
  world.Wait();
  world.ExpectAllExited();
  EXPECT_NE(
      std::string(world.report(0).text).find("INCCL_PORT_RANGE=4700-4700: each of these ports of "),
      std::string::npos)
      << world.report(0).text;
}

TEST_F(PortsTest, OtherHostsAreRefusedUnlessTheListHasThem) {
  for (const bool admitted : {true, false}) {
    const ScopedEnv env(
        {{"INCCL_SOCKET_ALLOW", admitted ? "10.77.0.0/24,fd77::/64" : "192.0.2.0/24"},
         {"INCCL_INIT_TIMEOUT_MS", admitted ? "60000" : "1500"}});
    Hosts hosts({.count = 2});
    ProcessWorld world({.nranks = 2, .enter = hosts.Ranks(1)}, [admitted](const Side& side) {
      ccl_comm_t comm = nullptr;
      const ccl_result_t result = side.Init(&comm, CCL_CONFIG_INIT);
      if ((result == CCL_SUCCESS) != admitted) return 10;
      return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 11;
    });
    world.Wait();
    world.ExpectAllExited();
    if (admitted) continue;
    EXPECT_NE(world.Wait()[0].output.find("refused a connection from "), std::string::npos);
    EXPECT_NE(world.Wait()[0].output.find("INCCL_SOCKET_ALLOW does not admit it"),
              std::string::npos)
        << world.Wait()[0].output;
  }
}

TEST(SocketAllowVariableTest, AWrongListIsNamedWithItsPlace) {
  const ScopedEnv env({{"INCCL_SOCKET_ALLOW", "10.0.0.0/8,everybody"}});
  ccl_unique_id_t id;
  EXPECT_EQ(ccl_get_unique_id(&id), CCL_INVALID_ARGUMENT);
  EXPECT_STREQ(ccl_get_last_error(nullptr),
               "INCCL_SOCKET_ALLOW (environment): \"everybody\" is no network like 10.0.0.0/8 or "
               "2001:db8::/32");
}

}  // namespace
}  // namespace inccl::test
