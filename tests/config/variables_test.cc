// SPDX-License-Identifier: Apache-2.0
#include "config/variables.h"

#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <set>
#include <string>

namespace inccl::test {
namespace {

using Values = std::map<std::string, std::string>;

Result<Environment> Read(const Values& values) {
  return ReadEnvironment([&](const char* name) -> const char* {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  });
}

TEST(EnvTest, NothingSetGivesTheDefaults) {
  const Result<Environment> env = Read({});
  ASSERT_TRUE(env.ok());
  EXPECT_EQ(env->algo, "");
  EXPECT_EQ(env->channels, 1);
  EXPECT_EQ(env->slice_bytes, 131072);
  EXPECT_EQ(env->nt_store_bytes, 16777216);
  EXPECT_EQ(env->threads, 1);
  EXPECT_EQ(env->net_security, NetSecurity::kAuth);
  EXPECT_EQ(env->init_timeout_ms, 120000);
  EXPECT_EQ(env->op_timeout_ms, 600000);
  EXPECT_EQ(env->heartbeat_ms, 0);
  EXPECT_EQ(env->dead_timeout_ms, 10000);
  EXPECT_EQ(env->debug, LogLevel::kWarn);
  EXPECT_EQ(env->debug_subsys, kDefaultLogSubsystems);
  EXPECT_FALSE(env->reproducible);
  EXPECT_FALSE(env->abort_on_error);
  EXPECT_TRUE(env->status);
  EXPECT_EQ(env->port_range, (PortRange{0, 0}));
  EXPECT_EQ(env->link_gbps, 0);
  EXPECT_EQ(env->link_us, 0);
  EXPECT_FALSE(env->rank || env->size || env->job);
}

TEST(EnvTest, EveryVariableArrives) {
  const Result<Environment> env = Read({{"INCCL_ALGO", "ring,tree;allreduce:^tree"},
                                        {"INCCL_CHANNELS", "32"},
                                        {"INCCL_SLICE_BYTES", "4096"},
                                        {"INCCL_SLOT_BYTES_MAX", "1099511627776"},
                                        {"INCCL_TEST_NT_STORE_BYTES", "4294967297"},
                                        {"INCCL_THREADS", "64"},
                                        {"INCCL_TRANSPORT", "shm,loopback"},
                                        {"INCCL_UCX_TLS", "rc,sysv"},
                                        {"INCCL_IB_HCA", "=mlx5_0:1"},
                                        {"INCCL_IB_GID_INDEX", "3"},
                                        {"INCCL_IB_TC", "106"},
                                        {"INCCL_IB_TIMEOUT", "20"},
                                        {"INCCL_TEST_SIMD", "avx2"},
                                        {"INCCL_CODEC", "hbi:bits=4"},
                                        {"INCCL_NET_SECURITY", "none"},
                                        {"INCCL_SOCKETS_PER_PEER", "4"},
                                        {"INCCL_COMM_ID", "[::1]:4711"},
                                        {"INCCL_SECRET_FILE", "/s"},
                                        {"INCCL_SOCKET_IFNAME", "^lo"},
                                        {"INCCL_PORT_RANGE", "4700-4799"},
                                        {"INCCL_SOCKET_ALLOW", "10.0.0.0/8"},
                                        {"INCCL_HOSTID", "h"},
                                        {"INCCL_TEST_CONTROL_ALL_PAIRS", "7"},
                                        {"INCCL_DEBUG", "info"},
                                        {"INCCL_DEBUG_SUBSYS", "COLL,INIT"},
                                        {"INCCL_DEBUG_FILE", "/f"},
                                        {"INCCL_REPRODUCIBLE", "1"},
                                        {"INCCL_ABORT_ON_ERROR", "1"},
                                        {"INCCL_STATUS", "0"},
                                        {"INCCL_INIT_TIMEOUT_MS", "1"},
                                        {"INCCL_OP_TIMEOUT_MS", "2"},
                                        {"INCCL_TEST_HEARTBEAT_MS", "3"},
                                        {"INCCL_DEAD_TIMEOUT_MS", "86400000"},
                                        {"INCCL_TEST_LINK_GBPS", "12.5"},
                                        {"INCCL_TEST_LINK_US", "1e2"},
                                        {"INCCL_RANK", "0"},
                                        {"INCCL_SIZE", "4"},
                                        {"INCCL_JOB", "j"},
                                        {"INCCL_CONF_FILE", "/c"}});
  ASSERT_TRUE(env.ok()) << env.status().message();
  EXPECT_EQ(env->algo, "ring,tree;allreduce:^tree");
  EXPECT_EQ(env->channels, 32);
  EXPECT_EQ(env->slice_bytes, 4096);
  EXPECT_EQ(env->slot_bytes_max, int64_t{1} << 40);
  EXPECT_EQ(env->nt_store_bytes, 4294967297);
  EXPECT_EQ(env->threads, 64);
  EXPECT_EQ(env->transport, "shm,loopback");
  EXPECT_EQ(env->ucx_tls, "rc,sysv");
  EXPECT_EQ(env->ib_hca, "=mlx5_0:1");
  EXPECT_EQ(env->ib_gid_index, 3);
  EXPECT_EQ(env->ib_tc, 106);
  EXPECT_EQ(env->ib_timeout, 20);
  EXPECT_EQ(env->simd, "avx2");
  EXPECT_EQ(env->codec, "hbi:bits=4");
  EXPECT_EQ(env->net_security, NetSecurity::kNone);
  EXPECT_EQ(env->sockets_per_peer, 4);
  EXPECT_EQ(env->comm_id, "[::1]:4711");
  EXPECT_EQ(env->secret_file, "/s");
  EXPECT_EQ(env->socket_ifname, "^lo");
  EXPECT_EQ(env->port_range, (PortRange{4700, 4799}));
  EXPECT_EQ(env->socket_allow, "10.0.0.0/8");
  EXPECT_EQ(env->hostid, "h");
  EXPECT_EQ(env->control_all_pairs, 7);
  EXPECT_EQ(env->debug, LogLevel::kInfo);
  EXPECT_EQ(env->debug_subsys, static_cast<uint32_t>(LogSubsystem::kCollectives) |
                                   static_cast<uint32_t>(LogSubsystem::kInit));
  EXPECT_EQ(env->debug_file, "/f");
  EXPECT_TRUE(env->reproducible);
  EXPECT_TRUE(env->abort_on_error);
  EXPECT_FALSE(env->status);
  EXPECT_EQ(env->init_timeout_ms, 1);
  EXPECT_EQ(env->op_timeout_ms, 2);
  EXPECT_EQ(env->heartbeat_ms, 3);
  EXPECT_EQ(env->dead_timeout_ms, 86400000);
  EXPECT_EQ(env->link_gbps, 12.5);
  EXPECT_EQ(env->link_us, 100);
  EXPECT_EQ(env->rank, 0);
  EXPECT_EQ(env->size, 4);
  EXPECT_EQ(env->job, "j");
  EXPECT_EQ(env->conf_file, "/c");
}

TEST(EnvTest, ABadValueIsNamedWithItsVariable) {
  const std::pair<const char*, const char*> bad[] = {
      {"INCCL_CHANNELS", "0"},
      {"INCCL_CHANNELS", "33"},
      {"INCCL_CHANNELS", "two"},
      {"INCCL_CHANNELS", "2 2"},
      {"INCCL_CHANNELS", "-1"},
      {"INCCL_CHANNELS", "99999999999999999999"},
      {"INCCL_SLICE_BYTES", "4095"},
      {"INCCL_SLICE_BYTES", "4194305"},
      {"INCCL_SLICE_BYTES", "5M"},
      {"INCCL_SLICE_BYTES", "64kB"},
      {"INCCL_SLICE_BYTES", "K"},
      {"INCCL_SLICE_BYTES", "1.5M"},
      {"INCCL_SLOT_BYTES_MAX", "1025G"},
      {"INCCL_SLOT_BYTES_MAX", "9223372036854775807G"},
      {"INCCL_SLOT_BYTES_MAX", "9223372036854775808"},
      {"INCCL_THREADS", "1K"},
      {"INCCL_SOCKET_IFNAME", "eth0,^lo"},
      {"INCCL_SOCKET_IFNAME", "^eth0,=lo"},
      {"INCCL_SOCKET_IFNAME", "=^eth0"},
      {"INCCL_IB_HCA", "mlx5_0,^mlx5_1"},
      {"INCCL_THREADS", "0"},
      {"INCCL_THREADS", "65"},
      {"INCCL_TRANSPORT", "udp"},
      {"INCCL_TRANSPORT", "ucx,"},
      {"INCCL_UCX_TLS", "tcp sysv"},
      {"INCCL_UCX_TLS", "^tcp"},
      {"INCCL_IB_GID_INDEX", "256"},
      {"INCCL_IB_TC", "-1"},
      {"INCCL_IB_TIMEOUT", "0"},
      {"INCCL_TRANSPORT", "shm,"},
      {"INCCL_TRANSPORT", "shm,rdma"},
      {"INCCL_COMM_ID", "host"},
      {"INCCL_COMM_ID", ":4711"},
      {"INCCL_COMM_ID", "host:0"},
      {"INCCL_COMM_ID", "host:65536"},
      {"INCCL_NET_SECURITY", "tls"},
      {"INCCL_SOCKETS_PER_PEER", "33"},
      {"INCCL_PORT_RANGE", "0-4"},
      {"INCCL_PORT_RANGE", "5-4"},
      {"INCCL_PORT_RANGE", "1-65536"},
      {"INCCL_PORT_RANGE", "1-2-3"},
      {"INCCL_PORT_RANGE", "-"},
      {"INCCL_STATUS", "yes"},
      {"INCCL_DEBUG", "LOUD"},
      {"INCCL_DEBUG_SUBSYS", "INIT,NOISE"},
      {"INCCL_REPRODUCIBLE", "yes"},
      {"INCCL_ABORT_ON_ERROR", "2"},
      {"INCCL_INIT_TIMEOUT_MS", "0"},
      {"INCCL_OP_TIMEOUT_MS", "-5"},
      {"INCCL_TEST_HEARTBEAT_MS", ""},
      {"INCCL_DEAD_TIMEOUT_MS", "86400001"},
      {"INCCL_TEST_LINK_GBPS", "-1"},
      {"INCCL_TEST_LINK_GBPS", "nan"},
      {"INCCL_TEST_LINK_GBPS", "inf"},
      {"INCCL_TEST_LINK_US", "fast"},
      {"INCCL_RANK", "-1"},
      {"INCCL_SIZE", "0"},
  };
  for (const auto& [name, value] : bad) {
    const Result<Environment> env = Read({{name, value}});
    if (*value == '\0') {
      EXPECT_TRUE(env.ok()) << name << ": empty is not set";
      continue;
    }
    ASSERT_FALSE(env.ok()) << name << "=" << value;
    EXPECT_EQ(env.status().code(), Code::kInvalidArgument);
    EXPECT_NE(env.status().message().find(name), std::string::npos) << env.status().message();
    EXPECT_NE(env.status().message().find(value), std::string::npos) << env.status().message();
  }
}

// The table's text is what users read: both ends are taken, and nothing beyond.
TEST(EnvTest, IntegersHaveTheLimitsOfTheTable) {
  int found = 0;
  for (const VariableInfo& info : VariableTable()) {
    std::string values = info.values;
    if (const size_t power = values.find("2^62"); power != std::string::npos) {
      values.replace(power, 4, std::to_string(int64_t{1} << 62));
    }
    const size_t to = values.find(" to ");
    if (std::string(info.type) != "integer" || to == std::string::npos) continue;
    if (isdigit(values[to + 4]) == 0) continue;  // "size - 1"
    const size_t before = values.find_last_not_of("-0123456789", to - 1);
    const std::string first = values.substr(before == std::string::npos ? 0 : before + 1);
    const int64_t high = std::stoll(values.substr(to + 4));
    const int64_t low = values.find("; 0: ") != std::string::npos ? 0 : std::stoll(first);
    ASSERT_LT(low, high) << info.name;
    ++found;
    for (const int64_t good : {low, high}) {
      // Alone, some values conflict with others; then the text names both.
      const Status status = Read({{info.name, std::to_string(good)}}).status();
      EXPECT_EQ(status.message().find("is not in ["), std::string::npos) << status.message();
    }
    for (const int64_t wrong : {low - 1, high + 1}) {
      EXPECT_FALSE(Read({{info.name, std::to_string(wrong)}}).ok()) << info.name << "=" << wrong;
    }
  }
  EXPECT_GE(found, 10);
  EXPECT_EQ(Read({{"INCCL_PORT_RANGE", "4700-4700"}})->port_range, (PortRange{4700, 4700}));
  EXPECT_EQ(Read({{"INCCL_PORT_RANGE", "4700"}})->port_range, (PortRange{4700, 4700}));
  EXPECT_EQ(Read({{"INCCL_PORT_RANGE", "1-65535"}})->port_range, (PortRange{1, 65535}));
}

TEST(EnvTest, ABadValueIsNamedWithItsPlace) {
  const Result<Environment> env =
      ReadEnvironment([](const char* name) { return *name == 'I' ? "?" : nullptr; },
                      [](const char* name) { return "the place of " + std::string(name); });
  ASSERT_FALSE(env.ok());
  EXPECT_EQ(env.status().message(),
            "INCCL_CHANNELS (the place of INCCL_CHANNELS): \"?\" is not a whole number; it takes 1 "
            "to 32");
}

// As people write them.
TEST(EnvTest, CaseBlanksAndUnitsDoNotMatter) {
  const Result<Environment> env = Read({{"INCCL_ALGO", " Ring, TREE ; AllReduce : ^Tree "},
                                        {"INCCL_CHANNELS", "\t2 "},
                                        {"INCCL_SLICE_BYTES", "64K"},
                                        {"INCCL_SLOT_BYTES_MAX", " 2g"},
                                        {"INCCL_TEST_NT_STORE_BYTES", "1M"},
                                        {"INCCL_TRANSPORT", "SHM, Tcp"},
                                        {"INCCL_UCX_TLS", "RC,sysv"},
                                        {"INCCL_TEST_SIMD", "AVX2"},
                                        {"INCCL_CODEC", " HBI:Bits=4, rht=1"},
                                        {"INCCL_NET_SECURITY", "Encrypt"},
                                        {"INCCL_SOCKET_IFNAME", "^ docker0, ^Lo "},
                                        {"INCCL_SOCKET_ALLOW", "10.0.0.0/8, 2001:db8::/32"},
                                        {"INCCL_PORT_RANGE", "4700 - 4799"},
                                        {"INCCL_DEBUG_SUBSYS", "coll, init"},
                                        {"INCCL_REPRODUCIBLE", "1 "},
                                        {"INCCL_THREADS", "  "}});
  ASSERT_TRUE(env.ok()) << env.status().message();
  EXPECT_EQ(env->algo, "ring,tree;allreduce:^tree");
  EXPECT_EQ(env->channels, 2);
  EXPECT_EQ(env->slice_bytes, 65536);
  EXPECT_EQ(env->slot_bytes_max, int64_t{2} << 30);
  EXPECT_EQ(env->nt_store_bytes, 1 << 20);
  EXPECT_EQ(env->transport, "shm,tcp");
  EXPECT_EQ(env->ucx_tls, "rc,sysv");
  EXPECT_EQ(env->simd, "avx2");
  EXPECT_EQ(env->codec, "hbi:bits=4,rht=1");
  EXPECT_EQ(env->net_security, NetSecurity::kEncrypt);
  EXPECT_EQ(env->socket_ifname, "^docker0,^Lo");
  EXPECT_EQ(env->socket_allow, "10.0.0.0/8,2001:db8::/32");
  EXPECT_EQ(env->port_range, (PortRange{4700, 4799}));
  EXPECT_EQ(env->debug_subsys, static_cast<uint32_t>(LogSubsystem::kCollectives) |
                                   static_cast<uint32_t>(LogSubsystem::kInit));
  EXPECT_TRUE(env->reproducible);
  EXPECT_EQ(env->threads, 1) << "blanks are no value";
}

TEST(EnvTest, BlanksAreAPartOfTextsAndPaths) {
  const Result<Environment> env =
      Read({{"INCCL_HOSTID", " h "}, {"INCCL_DEBUG_FILE", "/a b, c "}, {"INCCL_JOB", "j "}});
  ASSERT_TRUE(env.ok()) << env.status().message();
  EXPECT_EQ(env->hostid, " h ");
  EXPECT_EQ(env->debug_file, "/a b, c ");
  EXPECT_EQ(env->job, "j ");
}

std::string Refusal(const std::map<std::string, std::string>& values) {
  const Result<Environment> env = Read(values);
  return env.ok() ? "accepted" : env.status().message();
}

TEST(EnvTest, ARefusalIsOneSentence) {
  const std::string transports = FindVariable("INCCL_TRANSPORT")->values;
  EXPECT_EQ(Refusal({{"INCCL_TRANSPORT", "udp"}}),
            "INCCL_TRANSPORT: \"udp\" is no transport of this version; it takes " + transports);
  EXPECT_EQ(Refusal({{"INCCL_TRANSPORT", "shm,udp"}}),
            "INCCL_TRANSPORT: \"shm,udp\" is a list with \"udp\", which is no transport of this "
            "version; it takes " +
                transports);
  EXPECT_EQ(Refusal({{"INCCL_DEBUG_SUBSYS", "NOISE"}}).substr(0, 50),
            "INCCL_DEBUG_SUBSYS: \"NOISE\" is no subsystem; it ta");
  EXPECT_EQ(Refusal({{"INCCL_DEBUG_SUBSYS", "^INIT,NOISE"}}).substr(0, 80),
            "INCCL_DEBUG_SUBSYS: \"^INIT,NOISE\" is a list with \"NOISE\", which is no subsystem;");
  EXPECT_EQ(Refusal({{"INCCL_COMM_ID", "10.0.0.1"}}).substr(0, 53),
            "INCCL_COMM_ID: \"10.0.0.1\" is no host and port; it tak");
  EXPECT_EQ(Refusal({{"INCCL_DEBUG_FILE", "/logs/rank%r.log"}}),
            "INCCL_DEBUG_FILE: \"/logs/rank%r.log\" is a name with \"%r\", but the file is opened "
            "before the process has a rank; it takes a path; %h: host name, %p: process id, %%: %");
  for (const std::string key : {"%x", "%H", "%", "%%%", "%p%x", "%%h%%%q"}) {
    EXPECT_EQ(
        Refusal({{"INCCL_DEBUG_FILE", key}}).find("INCCL_DEBUG_FILE: \"" + key + "\" is a name"),
        0u)
        << key;
  }
  for (const char* name : {"/f", "%h%p%%", "/logs/%%r-%p", "a%hr"}) {
    EXPECT_EQ(Refusal({{"INCCL_DEBUG_FILE", name}}), "accepted");
  }
}

TEST(EnvTest, UnauthenticatedPortsAreAskedFor) {
  for (const char* tls : {"tcp", "sysv,tcp", "tcp,sysv", ",tcp,", "all"}) {
    for (const char* security : {"", "auth"}) {
      const std::string text = Refusal({{"INCCL_UCX_TLS", tls}, {"INCCL_NET_SECURITY", security}});
      EXPECT_EQ(text.find("INCCL_UCX_TLS: \""), 0u) << text;
      EXPECT_NE(text.find("INCCL_NET_SECURITY=none"), std::string::npos) << text;
    }
    const Result<Environment> env = Read({{"INCCL_UCX_TLS", tls}, {"INCCL_NET_SECURITY", "none"}});
    ASSERT_TRUE(env.ok()) << env.status().message();
    EXPECT_EQ(env->ucx_tls, tls);
  }
  EXPECT_EQ(Refusal({{"INCCL_UCX_TLS", "sysv,posix,tcpx"}}), "accepted");
}

TEST(EnvTest, AMisspeltNameIsNearToItsOwn) {
  for (const auto& [wrong, meant] : {std::pair("INCCL_ALGORITHM", "INCCL_ALGO"),
                                     {"INCCL_CHANELS", "INCCL_CHANNELS"},
                                     {"NCCL_IB_HCA", "INCCL_IB_HCA"},
                                     {"INCCL_SIMD", "INCCL_TEST_SIMD"},
                                     {"INCCL_DEAD_TIMEOUT", "INCCL_DEAD_TIMEOUT_MS"},
                                     {"INCCL_DEBUGFILE", "INCCL_DEBUG_FILE"},
                                     {"INCCL_RNAK", "INCCL_RANK"},
                                     {"INCCL_DEBUG_SUBSYSTEMS", "INCCL_DEBUG_SUBSYS"}}) {
    EXPECT_EQ(DidYouMean(wrong), std::string("; did you mean ") + meant + "?") << wrong;
  }
  EXPECT_EQ(DidYouMean("INCCL_ALGO" + std::string(1000, 'X')), "");
  for (const char* other : {"INCCL_OTHER", "INCCL_", "", "PATH", "NCCL_PROTO", "INCCL_TELEPATHY"}) {
    EXPECT_EQ(DidYouMean(other), "") << other;
  }
}

TEST(EnvTest, UnknownNamesAreListed) {
  const char* const environment[] = {"PATH=/bin",         "INCCL_ALGO=ring",    "INCCL_CHANELS=2",
                                     "INCCL_TEST_SEED=1", "INCCL_LIBRARY=/x",   "NCCL_DEBUG=INFO",
                                     "INCCL_=",           "INCCL_ALGOS=INCCL_", nullptr};
  EXPECT_EQ(UnknownVariables(environment),
            (std::vector<std::string>{"INCCL_CHANELS", "INCCL_", "INCCL_ALGOS"}));
  EXPECT_TRUE(UnknownVariables(nullptr).empty());
}

TEST(EnvTest, TheTableIsComplete) {
  std::set<std::string> names;
  for (const VariableInfo& info : VariableTable()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name << " twice";
    EXPECT_STRNE(info.meaning, "");
    EXPECT_STRNE(info.values, "");
    EXPECT_STRNE(info.default_value, "");
    EXPECT_STRNE(info.type, "");
    EXPECT_EQ(FindVariable(info.name), &info);
  }
  EXPECT_EQ(names.size(), 40u);
  EXPECT_EQ(FindVariable("INCCL_ALG"), nullptr);
  EXPECT_EQ(FindVariable("INCCL_ALGOS"), nullptr);
}

}  // namespace
}  // namespace inccl::test
