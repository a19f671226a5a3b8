// SPDX-License-Identifier: Apache-2.0
//
// Options come from the call's config, then the environment; every value is checked, and what all
// ranks must agree on is in the agreement.
#include "init/options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace inccl::test {
namespace {

class OptionsTest : public ::testing::Test {
 protected:
  OptionsTest() { Set("INCCL_CONF_FILE", "/dev/null"); }
  ~OptionsTest() override {
    for (const auto& [name, value] : former_) {
      if (value.first) {
        setenv(name.c_str(), value.second.c_str(), 1);
      } else {
        unsetenv(name.c_str());
      }
    }
  }
  void Set(const char* name, const char* value) {
    const char* const former = getenv(name);
    former_.try_emplace(name, former != nullptr, former == nullptr ? "" : former);
    setenv(name, value, 1);
  }
  static ccl_config_t Default() { return CCL_CONFIG_INIT; }
  static InitOptions Resolved(const ccl_config_t& config = Default()) {
    Result<InitOptions> options = ResolveOptions(&config);
    EXPECT_TRUE(options.ok()) << options.status().message();
    return options.ok() ? *std::move(options) : InitOptions{};
  }
  static void ExpectWrong(const ccl_config_t& config, const std::string& text) {
    const Status status = ResolveOptions(&config).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  }

 private:
  std::map<std::string, std::pair<bool, std::string>> former_;
};

// Both ends of every range, and one beyond.
TEST_F(OptionsTest, LimitsOfTheConfig) {
  using Field = int ccl_config_t::*;
  constexpr int kDay = 24 * 3600 * 1000;
  const std::vector<std::tuple<const char*, Field, int, int>> ranges = {
      {"blocking", &ccl_config_t::blocking, 0, 1},
      {"preserve_input", &ccl_config_t::preserve_input, 0, 1},
      {"reproducible", &ccl_config_t::reproducible, 0, 1},
      {"channels", &ccl_config_t::channels, 0, 32},
      {"init_timeout_ms", &ccl_config_t::init_timeout_ms, 0, kDay},
      {"op_timeout_ms", &ccl_config_t::op_timeout_ms, 0, kDay},
      {"dead_ms", &ccl_config_t::dead_ms, -1, kDay}};
  for (const auto& [name, field, least, most] : ranges) {
    SCOPED_TRACE(name);
    ccl_config_t config = Default();
    for (const int good : {least, most}) {
      config.*field = good;
      Resolved(config);
    }
    for (const int wrong : {least - 1, most + 1}) {
      config.*field = wrong;
      ExpectWrong(config, std::string("config->") + name + ": " + std::to_string(wrong));
    }
  }
  ccl_config_t config = Default();
  config.heartbeat_ms = -1;
  ExpectWrong(config, "config->heartbeat_ms: -1");
  const std::string longest(128, 'n'), longer(129, 'n');
  config = Default();
  config.name = longest.c_str();
  EXPECT_EQ(Resolved(config).comm.name, longest);
  config.name = longer.c_str();
  ExpectWrong(config, "config->name: longer than 128 bytes");
  config = Default();
  for (const size_t wrong : {sizeof(size_t) - 1, size_t{4097}}) {
    config.size = wrong;
    ExpectWrong(config, "config->size: " + std::to_string(wrong));
  }
}

// A caller that was compiled with a shorter config has the defaults of what is behind its end.
TEST_F(OptionsTest, ConfigsOfOtherSizes) {
  ccl_config_t config = Default();
  config.channels = 7;
  config.size = sizeof(size_t);
  EXPECT_EQ(Resolved(config).comm.channels, 1);
  struct {
    ccl_config_t config;
    char more[100];
  } longer = {Default(), {1, 2, 3}};
  longer.config.channels = 7;
  longer.config.size = sizeof longer;
  EXPECT_EQ(Resolved(longer.config).comm.channels, 7);
  EXPECT_TRUE(ResolveOptions(nullptr).ok());
}

// A peer must miss three heartbeats before it counts as dead.
TEST_F(OptionsTest, HeartbeatsFitTheLimitOfSilence) {
  ccl_config_t config = Default();
  config.heartbeat_ms = 500;
  config.dead_ms = 1500;
  const ControlOptions control = Resolved(config).control;
  EXPECT_EQ(control.heartbeat, 500 * kMillisecond);
  EXPECT_EQ(control.dead_after, 1500 * kMillisecond);
  config.dead_ms = 1499;
  ExpectWrong(config, "dead_ms (INCCL_DEAD_TIMEOUT_MS): 1499, must be at least 3 times");
  config.dead_ms = -1;
  EXPECT_EQ(Resolved(config).control.dead_after, kNever);
  // Where no one sets the interval it follows the limit.
  config.heartbeat_ms = 0;
  EXPECT_EQ(Resolved(config).control.heartbeat, kSecond);
  for (const auto& [dead_ms, heartbeat_ms] :
       {std::pair(3, 1), {25, 2}, {1500, 150}, {10000, 1000}, {600000, 1000}}) {
    config.dead_ms = dead_ms;
    EXPECT_EQ(Resolved(config).control.heartbeat, heartbeat_ms * kMillisecond) << dead_ms;
  }
  config.dead_ms = 2;
  ExpectWrong(config,
              "dead_ms (INCCL_DEAD_TIMEOUT_MS): 2, must be at least 3 times heartbeat_ms, 1");
  config.heartbeat_ms = 500;
  Set("INCCL_DEAD_TIMEOUT_MS", "0");
  EXPECT_EQ(Resolved().control.dead_after, kNever);
  config.dead_ms = 1500;
  EXPECT_EQ(Resolved(config).control.dead_after, 1500 * kMillisecond)
      << "the config's value counts";
}

TEST_F(OptionsTest, TheConfigTakesPrecedenceOverTheEnvironment) {
  Set("INCCL_CHANNELS", "3");
  Set("INCCL_ALGO", "ring");
  Set("INCCL_CODEC", "bf16");
  Set("INCCL_INIT_TIMEOUT_MS", "11");
  Set("INCCL_OP_TIMEOUT_MS", "12");
  Set("INCCL_TEST_HEARTBEAT_MS", "13");
  Set("INCCL_DEAD_TIMEOUT_MS", "140");
  const InitOptions of_environment = Resolved();
  EXPECT_EQ(of_environment.comm.channels, 3);
  EXPECT_EQ(of_environment.comm.algorithms.text(), "ring");
  EXPECT_EQ(of_environment.comm.default_codec->spec(), "bf16");
  EXPECT_EQ(of_environment.init_timeout_ms, 11);
  EXPECT_EQ(of_environment.comm.op_timeout, 12 * kMillisecond);
  EXPECT_EQ(of_environment.control.heartbeat, 13 * kMillisecond);
  EXPECT_EQ(of_environment.control.dead_after, 140 * kMillisecond);
  ccl_config_t config = Default();
  config.channels = 4;
  config.algorithm = "tree";
  config.codec = "fp16";
  config.init_timeout_ms = 21;
  config.op_timeout_ms = 22;
  config.heartbeat_ms = 23;
  config.dead_ms = 240;
  const InitOptions of_config = Resolved(config);
  EXPECT_EQ(of_config.comm.channels, 4);
  EXPECT_EQ(of_config.comm.algorithms.text(), "tree");
  EXPECT_EQ(of_config.comm.default_codec->spec(), "fp16");
  EXPECT_EQ(of_config.init_timeout_ms, 21);
  EXPECT_EQ(of_config.comm.op_timeout, 22 * kMillisecond);
  EXPECT_EQ(of_config.control.heartbeat, 23 * kMillisecond);
  EXPECT_EQ(of_config.control.dead_after, 240 * kMillisecond);
  config.algorithm = "nothing";
  ExpectWrong(config, "config->algorithm");
  config.algorithm = nullptr;
  config.codec = "nothing";
  ExpectWrong(config, "config->codec");
  Set("INCCL_ALGO", "nothing");
  config.codec = nullptr;
  ExpectWrong(config, "INCCL_ALGO (environment)");
}

TEST_F(OptionsTest, RanksMayWriteTheSameAlgorithmsDifferently) {
  Set("INCCL_ALGO", "ring,tree");
  const std::string here = Resolved().agreement;
  Set("INCCL_ALGO", " Ring, tree");
  EXPECT_EQ(Resolved().agreement, here);
  ccl_config_t config = Default();
  config.algorithm = "RING,Tree";
  EXPECT_EQ(Resolved(config).agreement, here);
}

// Ranks that differ in one of these must not go on; ranks may differ in the others.
TEST_F(OptionsTest, TheAgreementHasWhatAllRanksMustAgreeOn) {
  const std::string here = Resolved().agreement;
  const std::vector<std::pair<const char*, const char*>> agreed = {
      {"INCCL_ALGO", "ring"},
      {"INCCL_CHANNELS", "2"},
      {"INCCL_SLICE_BYTES", "65536"},
      {"INCCL_SLOT_BYTES_MAX", "65536"},
      {"INCCL_REPRODUCIBLE", "1"},
      {"INCCL_CODEC", "bf16"},
      {"INCCL_TEST_LINK_GBPS", "10"},
      {"INCCL_TEST_LINK_US", "10"},
      {"INCCL_TRANSPORT", "tcp"},
      {"INCCL_UCX_TLS", "posix"},
      {"INCCL_NET_SECURITY", "encrypt"},
      {"INCCL_SOCKETS_PER_PEER", "2"},
      {"INCCL_TEST_CONTROL_ALL_PAIRS", "2"},
      {"INCCL_TEST_HEARTBEAT_MS", "999"},
      {"INCCL_DEAD_TIMEOUT_MS", "9999"},
  };
  const std::vector<std::pair<const char*, const char*>> own = {{"INCCL_THREADS", "2"},
                                                                {"INCCL_TEST_NT_STORE_BYTES", "1"},
                                                                {"INCCL_INIT_TIMEOUT_MS", "99"},
                                                                {"INCCL_OP_TIMEOUT_MS", "9"},
                                                                {"INCCL_IB_TC", "3"},
                                                                {"INCCL_STATUS", "0"},
                                                                {"INCCL_HOSTID", "x"},
                                                                {"INCCL_ABORT_ON_ERROR", "1"}};
  for (const auto& [name, value] : agreed) {
    Set(name, value);
    EXPECT_NE(Resolved().agreement, here) << name;
    unsetenv(name);
  }
  for (const auto& [name, value] : own) {
    Set(name, value);
    EXPECT_EQ(Resolved().agreement, here) << name;
    unsetenv(name);
  }
  ccl_config_t config = Default();
  config.name = "mine";
  config.blocking = 0;
  config.preserve_input = 1;
  EXPECT_EQ(Resolved(config).agreement, here);
  config.reproducible = 1;
  EXPECT_NE(Resolved(config).agreement, here);
}

TEST_F(OptionsTest, NamesAreFitForATerminal) {
  ccl_config_t config = Default();
  config.name = "\x1b[2J";
  EXPECT_EQ(Resolved(config).comm.name, "\\x1b[2J");
}

}  // namespace
}  // namespace inccl::test
