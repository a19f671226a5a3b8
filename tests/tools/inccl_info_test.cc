// SPDX-License-Identifier: Apache-2.0
//
// Runs inccl-info and compares what it prints with what the library's own functions say.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "api/world.h"
#include "build_paths.h"
#include "collectives/schedule.h"
#include "compress/simd.h"
#include "config/variables.h"
#include "inccl/ccl.h"
#include "tools/run_program.h"
#include "topology/processors.h"
#include "topology/topology.h"
#include "verify/validate.h"

namespace inccl::test {
namespace {

using Json = nlohmann::json;

const std::string kProgram = INCCL_BINARY_DIR "/tools/inccl-info";

ProgramResult Info(const std::string& arguments, const std::string& before = ":") {
  return RunProgram(kProgram, arguments, before);
}

Json InfoJson(const std::string& arguments, const std::string& before = ":", int status = 0) {
  const ProgramResult result = Info(arguments + " --json", before);
  EXPECT_EQ(result.status, status) << result.err;
  Json json = Json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(json.is_discarded()) << result.out;
  return json;
}

Json Variable(const Json& environment, const std::string& name) {
  for (const Json& variable : environment["variables"]) {
    if (variable["name"] == name) return variable;
  }
  ADD_FAILURE() << "no " << name;
  return {};
}

TEST(InfoTest, Build) {
  const Json build = InfoJson("--only build")["build"];
  EXPECT_EQ(build["version_code"], CCL_VERSION_CODE);
  EXPECT_EQ(build["sanitizers"].is_null(), !kSanitized);
  EXPECT_EQ(build["hwloc"].is_null(), HwlocVersion().empty());
  EXPECT_NE(Info("--version").out.find(build["version"].get<std::string>()), std::string::npos);
}

TEST(InfoTest, Simd) {
  const Json simd = InfoJson("--only simd")["simd"];
  EXPECT_EQ(simd["in_use"], SimdTargetName());
  EXPECT_EQ(simd["possible_here"], Json(SimdTargets()));
  EXPECT_EQ(simd["built_in"], Json(SimdTargetsBuilt()));
  const std::vector<std::string> built = SimdTargetsBuilt();
  for (const std::string& target : SimdTargets()) {
    EXPECT_NE(std::find(built.begin(), built.end(), target), built.end()) << target;
  }
  EXPECT_EQ(InfoJson("--only simd", "export INCCL_TEST_SIMD=scalar")["simd"]["in_use"], "scalar");
}

TEST(InfoTest, Topology) {
  Json topology = InfoJson("--only topology")["topology"];
  EXPECT_EQ(topology["source"], ReadTopology().source);
  EXPECT_EQ(topology["allowed"], FormatCpuList(AllowedCpus()));
  EXPECT_EQ(topology["usable_cores"], UsableCores());
  EXPECT_EQ(topology["numa_nodes"].size(), ReadTopology().nodes.size());
  const int last = AllowedCpus().back();
  topology = InfoJson("--only topology",
                      "taskset -pc " + std::to_string(last) + " $BASHPID >/dev/null")["topology"];
  EXPECT_EQ(topology["allowed"], std::to_string(last));
  EXPECT_EQ(topology["usable_cores"], 1);
}

TEST(InfoTest, LimitsAreThoseOfTheProcess) {
  const Json limits = InfoJson("--only limits", "ulimit -Sn 99; ulimit -Hn 100")["limits"];
  EXPECT_EQ(limits["nofile"]["soft"], 99);
  EXPECT_EQ(limits["nofile"]["hard"], 100);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  EXPECT_EQ(limits["memlock"]["soft"],
            limit.rlim_cur == RLIM_INFINITY ? Json("unlimited") : Json(limit.rlim_cur));
}

Json Transport(const Json& all, const std::string& name) {
  for (const Json& transport : all["transports"]) {
    if (transport["name"] == name) return transport;
  }
  ADD_FAILURE() << "no " << name;
  return {};
}

TEST(InfoTest, TransportsAreTried) {
  Json all = InfoJson("--only transports");
  EXPECT_EQ(Transport(all, "shm")["works"], true) << all.dump(2);
  EXPECT_EQ(Transport(all, "loopback")["works"], true) << all.dump(2);
  EXPECT_GE(Transport(all, "shm")["max_slot_bytes"], 4 << 20);
  all = InfoJson("--only transports", "ulimit -f 1000");
  EXPECT_EQ(Transport(all, "shm")["works"], false);
  EXPECT_NE(Transport(all, "shm")["why_not"].get<std::string>().find("ulimit -f"),
            std::string::npos);
  EXPECT_EQ(Transport(all, "loopback")["works"], true);
  EXPECT_EQ(Transport(all, "ucx")["works"], INCCL_TEST_UCX != 0) << all.dump(2);
  EXPECT_EQ(Transport(all, "tcp")["works"], true) << all.dump(2);
  if (kSanitized) return;  // sanitizers need address space themselves
  all = InfoJson("--only transports", "ulimit -v 1000000");
  EXPECT_EQ(Transport(all, "loopback")["works"], false);
  EXPECT_NE(Transport(all, "loopback")["why_not"].get<std::string>().find("address space"),
            std::string::npos);
}

#if INCCL_TEST_VERBS
TEST(InfoTest, PortsOfRdmaDevices) {
  const std::string stand_in =
      "export INCCL_TEST_IBVERBS=" INCCL_BINARY_DIR "/tests/fakes/libfake_verbs.so";
  Json verbs = Transport(InfoJson("--only transports", stand_in), "verbs");
  EXPECT_EQ(verbs["works"], true) << verbs.dump(2);
  ASSERT_EQ(verbs["ports"].size(), 1u);
  const Json port = verbs["ports"][0];
  EXPECT_EQ(port["port"], "fake0:1");
  EXPECT_EQ(port["state"], "ACTIVE");
  EXPECT_EQ(port["link"], "Ethernet");
  EXPECT_EQ(port["mtu"], 1024);
  EXPECT_EQ(port["gid_index"], 3);
  EXPECT_EQ(port["gid"], "::ffff:192.0.2.1");
  EXPECT_TRUE(port["why_not"].is_null());
  EXPECT_EQ(port["gpu_memory_why_not"], "INCCL_NET_SECURITY=auth, not none");
  verbs = Transport(InfoJson("--only transports", stand_in + " INCCL_NET_SECURITY=none"), "verbs");
  EXPECT_TRUE(verbs["ports"][0]["gpu_memory_why_not"].is_null());
  verbs = Transport(InfoJson("--only transports", stand_in + " INCCL_IB_HCA=mlx5"), "verbs");
  EXPECT_EQ(verbs["works"], false);
  EXPECT_EQ(verbs["ports"][0]["why_not"], "excluded by INCCL_IB_HCA=mlx5");
}
#endif

TEST(InfoEnvironmentTest, IsTheTable) {
  const Json environment = InfoJson("--only environment", "unset ${!INCCL_*}")["environment"];
  ASSERT_EQ(environment["variables"].size(), VariableTable().size());
  for (size_t i = 0; i < VariableTable().size(); ++i) {
    const VariableInfo& info = VariableTable()[i];
    const Json& variable = environment["variables"][i];
    EXPECT_EQ(variable["name"], info.name);
    EXPECT_EQ(variable["type"], info.type);
    EXPECT_EQ(variable["meaning"], info.meaning);
    EXPECT_EQ(variable["values"], info.values);
    EXPECT_EQ(variable["default"], info.default_value);
    EXPECT_EQ(variable["environment_only"], info.environment_only);
    EXPECT_EQ(variable["source"], "default");
    EXPECT_TRUE(variable["value"].is_null());
    EXPECT_TRUE(variable["error"].is_null());
  }
  EXPECT_TRUE(environment["error"].is_null());
}

class InfoFileTest : public ::testing::Test {
 protected:
  InfoFileTest() {
    std::string name = ::testing::TempDir() + "inccl-info-XXXXXX";
    directory_ = mkdtemp(name.data());
    file_ = directory_ + "/inccl.conf";
    before_ = "unset INCCL_CONF_FILE; export XDG_CONFIG_HOME=" + directory_;
  }
  ~InfoFileTest() override { std::filesystem::remove_all(directory_); }
  void Write(const std::string& text) const {
    std::ofstream(file_) << text;
    chmod(file_.c_str(), 0644);  // whatever the umask of who runs this
  }

  std::string directory_, file_, before_;
};

TEST_F(InfoFileTest, ValuesAndWhereTheyComeFrom) {
  Write("# mine\nINCCL_CHANNELS=3\nINCCL_ALGO=tree\nINCCL_OTHER=1\n");
  const Json environment = InfoJson(
      "--only environment", before_ + "; export INCCL_ALGO=ring INCCL_CHANELS=2")["environment"];
  EXPECT_EQ(Variable(environment, "INCCL_CHANNELS")["value"], "3");
  EXPECT_EQ(Variable(environment, "INCCL_CHANNELS")["source"], file_ + ":2");
  EXPECT_EQ(Variable(environment, "INCCL_ALGO")["value"], "ring");
  EXPECT_EQ(Variable(environment, "INCCL_ALGO")["source"], "environment");
  EXPECT_EQ(Variable(environment, "INCCL_CODEC")["source"], "default");
  EXPECT_EQ(environment["files"][0]["path"], file_);
  EXPECT_EQ(environment["files"][0]["state"], "read");
  EXPECT_EQ(environment["files"][1]["path"], "/etc/inccl.conf");
  EXPECT_EQ(environment["warnings"], Json({file_ + ":4: INCCL_OTHER is no variable of this library",
                                           "INCCL_CHANELS is set, but is no variable of this "
                                           "library; did you mean INCCL_CHANNELS?"}));
}

TEST_F(InfoFileTest, ABadConfigurationIsShownAndTold) {
  Write("INCCL_CHANNELS=many\nINCCL_TEST_LINK_US=soon\n");
  const ProgramResult result = Info("--json", before_);
  EXPECT_EQ(result.status, 1);
  const std::string wrong =
      "INCCL_CHANNELS (" + file_ + ":1): \"many\" is not a whole number; it takes 1 to 32";
  EXPECT_EQ(result.err, "inccl-info: " + wrong + "\n");
  const Json environment = Json::parse(result.out)["environment"];
  EXPECT_EQ(environment["error"], wrong);
  EXPECT_EQ(Variable(environment, "INCCL_CHANNELS")["error"], wrong);
  EXPECT_NE(Variable(environment, "INCCL_TEST_LINK_US")["error"].get<std::string>().find("soon"),
            std::string::npos);
  EXPECT_TRUE(Variable(environment, "INCCL_ALGO")["error"].is_null());
  Write("nonsense");
  EXPECT_EQ(Info("", before_).err,
            "inccl-info: " + file_ + ":1: \"nonsense\" is not of the form NAME=value\n");
  // What only a communicator checks.
  const ProgramResult codec = Info("--only build", "export INCCL_CODEC=zip");
  EXPECT_EQ(codec.status, 1);
  EXPECT_NE(codec.err.find("INCCL_CODEC (environment): "), std::string::npos) << codec.err;
}

TEST_F(InfoFileTest, AnythingCanBePrinted) {
  const std::string before = "export INCCL_HOSTID=$'a\\xff\\x1b[2Jb'";
  EXPECT_NE(Info("--only environment", before).out.find("\\x1b[2Jb"), std::string::npos);
  const Json environment = InfoJson("--only environment", before)["environment"];
  EXPECT_EQ(Variable(environment, "INCCL_HOSTID")["value"], "a\xEF\xBF\xBD\x1b[2Jb");
}

// Neither the user's files nor UCX, which reads files and variables of the user and loads modules
// that they name, may steer a program that runs with another user's rights.
TEST_F(InfoFileTest, UserFilesDoNotCountWithAnotherUsersRights) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make a program of another user";
  if (kSanitized) GTEST_SKIP() << "sanitizers do not start in such programs";
  Write("INCCL_CHANNELS=3\n");
  const std::string copy = directory_ + "/info";
  std::filesystem::copy_file(kProgram, copy);
  ASSERT_EQ(chown(copy.c_str(), 65534, 65534), 0);
  ASSERT_EQ(chmod(copy.c_str(), 04755), 0);
  std::filesystem::permissions(directory_, std::filesystem::perms::all);
  const std::string arguments = "--only environment,transports --json";
  const ProgramResult other =
      RunProgram(copy, arguments, before_ + "; export INCCL_ALGO=ring HOME=" + directory_);
  const ProgramResult own = RunProgram(kProgram, arguments, before_);
  ASSERT_EQ(own.status, 0) << own.err;
  ASSERT_EQ(other.status, 0) << other.err;
  EXPECT_EQ(Variable(Json::parse(own.out)["environment"], "INCCL_CHANNELS")["value"], "3");
  const Json environment = Json::parse(other.out)["environment"];
  if (Variable(environment, "INCCL_ALGO")["source"] == "environment") {
    GTEST_SKIP() << "set-user-id programs are off here (nosuid)";
  }
  EXPECT_TRUE(Variable(environment, "INCCL_CHANNELS")["value"].is_null());
  ASSERT_EQ(environment["files"].size(), 1u);
  EXPECT_EQ(environment["files"][0]["path"], "/etc/inccl.conf");
  EXPECT_EQ(Transport(Json::parse(own.out), "ucx")["works"], INCCL_TEST_UCX != 0);
  const Json ucx = Transport(Json::parse(other.out), "ucx");
  EXPECT_EQ(ucx["works"], false);
  if (INCCL_TEST_UCX == 0) return;
  EXPECT_NE(ucx["why_not"].get<std::string>().find("another user's rights"), std::string::npos)
      << ucx.dump();
}

// `inccl-info --environment-markdown` writes the tables of the documents: the users' and the
// tests'.
TEST(InfoDocumentTest, TheDocumentsHaveTheTables) {
  const ProgramResult table = Info("--environment-markdown");
  ASSERT_EQ(table.status, 0);
  for (const VariableInfo& info : VariableTable()) {
    EXPECT_NE(table.out.find("| `" + std::string(info.name) + "`"), std::string::npos);
  }
  const size_t middle = table.out.find("\n\n") + 1;
  const auto expect = [](const char* name, const std::string& printed) {
    const std::string document = FileContent(std::string(INCCL_SOURCE_DIR "/") + name);
    const size_t begin = document.find("\n| variable | type"), end = document.find("|\n\n", begin);
    ASSERT_NE(begin, std::string::npos);
    ASSERT_NE(end, std::string::npos);
    EXPECT_EQ(document.substr(begin + 1, end + 2 - begin - 1), printed)
        << "put the output of inccl-info --environment-markdown into " << name;
  };
  expect("docs/environment.md", table.out.substr(0, middle));
  expect("CONTRIBUTING.md", table.out.substr(middle + 1));
}

TEST(InfoDumpTest, PrintsTheLibrarysSchedules) {
  std::vector<Schedule> schedules;
  std::string text;
  for (int rank = 0; rank < 4; ++rank) {
    Result<Schedule> schedule =
        MakeSchedule({{.collective = Collective::kReduceScatter, .nranks = 4, .rank = rank},
                      Algorithm::kRing,
                      2});
    ASSERT_TRUE(schedule.ok());
    text += (rank == 0 ? "" : "\n") + DumpText(*schedule);
    schedules.push_back(*std::move(schedule));
  }
  const std::string arguments = "--dump ring 4 --collective Reduce_Scatter --channels 2";
  EXPECT_EQ(Info(arguments).out, text);
  EXPECT_EQ(Info(arguments + " --rank 2").out, DumpText(schedules[2]));
  EXPECT_EQ(Info(arguments + " --dot").out, DumpDot(schedules));
  const Json json = InfoJson(arguments);
  EXPECT_EQ(json["steps"], Validate(schedules)->steps);
  ASSERT_EQ(json["schedules"].size(), 4u);
  EXPECT_EQ(json["schedules"][3]["text"], DumpText(schedules[3]));
}

TEST(InfoDumpTest, EveryScheduleThereIs) {
  for (int c = 0; c < kCollectiveKinds; ++c) {
    for (int a = 0; a < kAlgorithms; ++a) {
      const auto collective = static_cast<Collective>(c);
      const auto algorithm = static_cast<Algorithm>(a);
      constexpr uint64_t kTwoHosts[] = {1, 1, 2, 2, 2};
      const HostMap two_hosts(kTwoHosts);
      for (const HostMap* const hosts : {&two_hosts, static_cast<const HostMap*>(nullptr)}) {
        const ProgramResult result =
            Info(std::string("--dump ") + Name(algorithm) + " 5 --collective " + Name(collective) +
                 (hosts == nullptr ? "" : " --hosts 2,3"));
        const bool there = HasSchedule(collective, algorithm, 5, hosts);
        EXPECT_EQ(result.status, there ? 0 : 2) << Name(collective) << " " << Name(algorithm);
        EXPECT_EQ(result.out.empty(), !there);
        EXPECT_EQ(result.err.empty(), there) << result.err;
      }
    }
  }
}

TEST(InfoCommandLineTest, MistakesAreNamed) {
  const std::pair<const char*, const char*> mistakes[] = {
      {"--bogus", "--bogus"},
      {"word", "word"},
      {"--only build,weather", "weather"},
      {"--dump ring", "--dump"},
      {"--dump rign 4", "\"rign\" is none of ring,"},
      {"--dump ring 257", "257"},
      {"--dump ring 1", "1 ranks"},
      {"--dump ring x", "\"x\""},
      {"--dump ring 4 --hosts 2/2,", "hosts \"2/2,\" are not numbers of ranks, 4 together"},
      {"--dump ring 4 --hosts 2,3", "hosts \"2,3\" are not numbers of ranks, 4 together"},
      {"--dump ring 4 --hosts 2,1", "4 together"},
      {"--dump ring 4 --hosts 4,0", "4 together"},
      {"--dump ring 4 --hosts 2,", "4 together"},
      {"--explain allreduce 1K 4 --hosts 99999999999,x", "4 together"},
      {"--dump ring 4 --rank 4", "rank 4 is not in [0, 4)"},
      {"--dump ring 4 --root 4", "root 4"},
      {"--dump ring 4 --collective sum", "\"sum\" is none of allreduce,"},
      {"--dump tree 4 --collective allgather", "allgather"},
      {"--dump ring 4 --channels 33", "33"},
      {"--dot", "--dump"},
      {"--codec none", "--explain"},
      {"--explain allreduce 1M", "--explain"},
      {"--explain allreduce 1X 4", "\"1X\""},
      {"--explain allreduce x1 4", "\"x1\""},
      {"--explain allreduce 999999999999999999999 4", "999999999999999999999"},
      {"--explain allreduce 200000G 4", "200000G"},
      {"--explain allreduce 1M 257", "257"},
      {"--explain allreduce 1M 0", "0 ranks"},
      {"--explain allreduce 10 2", "10 bytes are no whole number of float32"},
      {"--explain allreduce 1M 4 --type float31", "\"float31\" is none of int8,"},
      {"--explain allreduce 1M 4 --op plus", "\"plus\" is none of sum,"},
      {"--explain broadcast 1M 4 --root 4", "root 4"},
      {"--explain broadcast 1M 4 --compressed", "broadcast"},
      {"--explain allreduce 1M 4 --dump ring 4", "--dump"},
  };
  for (const auto& [arguments, words] : mistakes) {
    const ProgramResult result = Info(arguments);
    EXPECT_EQ(result.status, 2) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
    EXPECT_NE(result.err.find(words), std::string::npos) << arguments << ": " << result.err;
  }
  for (const auto& [arguments, words] : {std::pair("--codec zip", "config->codec: "),
                                         std::pair("--algo rign", "config->algorithm: "),
                                         std::pair("--algo allreduce:ring", "reproducible")}) {
    const ProgramResult result =
        Info(std::string("--explain allreduce 1M 4 ") + arguments, "export INCCL_REPRODUCIBLE=1");
    EXPECT_EQ(result.status, 1) << arguments;
    EXPECT_NE(result.err.find(words), std::string::npos) << arguments << ": " << result.err;
  }
}

}  // namespace
}  // namespace inccl::test
