// SPDX-License-Identifier: Apache-2.0
//
// Communicators over RDMA between threads, with a stand-in for libibverbs: whole collectives, and
// what the selection of transports says where RDMA cannot be used.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "fakes/verbs/fake_verbs.h"
#include "init/thread_transports.h"
#include "init/transport_selection.h"

namespace inccl::test {
namespace {

#define EXPECT_HAS_PART(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

class VerbsSelectionTest : public ::testing::Test {
 protected:
  void SetUp() override { fake_verbs::Get().SetMachine(fake_verbs::Get().StandardMachine()); }
  // Without devices, tests after these do not choose RDMA.
  void TearDown() override { fake_verbs::Get().SetMachine({}); }
  static Result<std::vector<std::unique_ptr<Transport>>> Make(const Environment& environment) {
    return MakeThreadTransports(3, environment);
  }
};

TEST_F(VerbsSelectionTest, ThreadsOfOneProcess) {
  Environment environment;
  environment.transport = "verbs";
  EXPECT_STREQ((*Make(environment))[2]->caps().name, "verbs");
  EXPECT_EQ(fake_verbs::Get().OpenObjects(), 0u);
}

TEST_F(VerbsSelectionTest, TheVariablesArrive) {
  Environment environment;
  environment.transport = "verbs";
  environment.ib_tc = 104;
  environment.ib_timeout = 20;
  environment.ib_gid_index = 1;
  {
    const auto made = Make(environment);
    ASSERT_TRUE(made.ok()) << made.status().message();
    const fake_verbs::Connection one = fake_verbs::Get().Connections().front();
    EXPECT_EQ(one.to_receive.ah_attr.grh.traffic_class, 104);
    EXPECT_EQ(one.to_receive.ah_attr.grh.sgid_index, 1);
    EXPECT_EQ(one.to_send.timeout, 20);
  }
  environment.ib_hca = "^fake0";
  EXPECT_HAS_PART(
      Make(environment).status().message(),
      "INCCL_TRANSPORT=verbs: verbs: no usable port: fake0:1: excluded by INCCL_IB_HCA");
}

TEST_F(VerbsSelectionTest, ReasonsAndTheNextOfTheList) {
  Environment environment;
  environment.transport = "verbs,tcp";
  environment.socket_ifname = "lo";
  EXPECT_STREQ((*Make(environment))[0]->caps().name, "verbs");
  environment.net_security = NetSecurity::kEncrypt;
  EXPECT_STREQ((*Make(environment))[0]->caps().name, "tcp");
  environment.net_security = NetSecurity::kAuth;
  fake_verbs::Get().SetPortState("fake0", 1, IBV_PORT_DOWN);
  EXPECT_STREQ((*Make(environment))[0]->caps().name, "tcp");
  environment.transport = "verbs";
  EXPECT_HAS_PART(Make(environment).status().message(), "fake0:1: the port is DOWN");
}

// Three ranks need 32 slots of 128 KiB for a two-shot call.
TEST_F(VerbsSelectionTest, TheLimitOfLockedMemoryShowsAtInit) {
  Environment environment;
  environment.transport = "verbs";
  fake_verbs::Get().SetLockableBytes(4 << 20);
  const Status status = Make(environment).status();
  EXPECT_HAS_PART(status.message(), "registration of 4096 KiB");
  EXPECT_HAS_PART(status.message(), "RLIMIT_MEMLOCK");
  fake_verbs::Get().SetLockableBytes(64 << 20);
  EXPECT_TRUE(Make(environment).ok());
}

}  // namespace
}  // namespace inccl::test
