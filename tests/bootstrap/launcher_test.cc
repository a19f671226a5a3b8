// SPDX-License-Identifier: Apache-2.0
//
// What launchers say, and which of them is believed; interfaces; secret files.
#include "bootstrap/launcher.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/bootstrap_world.h"
#include "bootstrap/host.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/socket.h"

namespace inccl::test {
namespace {

using Values = std::map<std::string, std::string>;

Result<Launcher> Find(const Values& values) {
  return FindLauncher([&](const char* name) -> const char* {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  });
}

const Values kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "3"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                         {"PMIX_NAMESPACE", "67436545"}};
const Values kSlurm = {
    {"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "99"}, {"SLURM_STEP_ID", "0"}};
const Values kTorch = {{"RANK", "0"},
                       {"WORLD_SIZE", "2"},
                       {"LOCAL_WORLD_SIZE", "2"},
                       {"MASTER_ADDR", "127.0.0.1"},
                       {"MASTER_PORT", "29500"}};
const Values kPmi = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_JOBID", "j1"}};
// All that mpiexec.hydra of MPICH 4.0.2 sets: nothing in it names the job.
const Values kHydra = {{"PMI_RANK", "1"},        {"PMI_SIZE", "2"},
                       {"PMI_FD", "8"},          {"MPI_LOCALNRANKS", "2"},
                       {"MPI_LOCALRANKID", "1"}, {"HYDI_CONTROL_FD", "7"}};
const Values kOwn = {{"INCCL_RANK", "5"}, {"INCCL_SIZE", "6"}, {"INCCL_JOB", "j"}};

Values Merge(Values a, const Values& b) {
  a.insert(b.begin(), b.end());
  return a;
}

void ExpectFound(const Values& values, const char* kind, int rank, int nranks) {
  const Result<Launcher> launcher = Find(values);
  ASSERT_TRUE(launcher.ok()) << launcher.status().message();
  EXPECT_EQ(launcher->kind, kind);
  EXPECT_EQ(launcher->rank, rank);
  EXPECT_EQ(launcher->nranks, nranks);
}

TEST(LauncherTest, EachIsUnderstood) {
  ExpectFound(kOpenMpi, "Open MPI", 1, 3);
  ExpectFound(kSlurm, "Slurm", 2, 4);
  ExpectFound(kTorch, "RANK and WORLD_SIZE", 0, 2);
  ExpectFound(Merge(kTorch, {{"TORCHELASTIC_RUN_ID", "r"}}), "torchrun", 0, 2);
  ExpectFound(kPmi, "PMI", 1, 2);
  ExpectFound(kOwn, "INCCL_RANK", 5, 6);
  ExpectFound(Merge(kSlurm, {{"SLURM_STEP_NUM_TASKS", "3"}}), "Slurm", 2, 3);
}

TEST(LauncherTest, TheInnermostIsBelieved) {
  ExpectFound(Merge(kOpenMpi, kSlurm), "Open MPI", 1, 3);  // mpirun in an allocation
  ExpectFound(Merge(kTorch, kSlurm), "RANK and WORLD_SIZE", 0, 2);
  ExpectFound(Merge(kPmi, kSlurm), "PMI", 1, 2);
  ExpectFound(Merge(kOpenMpi, kTorch), "Open MPI", 1, 3);
  ExpectFound(Merge(Merge(kOpenMpi, kTorch), {{"TORCHELASTIC_RUN_ID", "r"}}), "torchrun", 0, 2);
  ExpectFound(Merge(kOpenMpi, kOwn), "INCCL_RANK", 5, 6);
}

TEST(LauncherTest, JobsAreToldApartAndRanksAreNot) {
  const auto job = [](Values values, const Values& change) {
    for (const auto& [name, value] : change) values[name] = value;
    const Result<Launcher> launcher = Find(values);
    return launcher.ok() ? launcher->job + "|" + launcher->secret : launcher.status().message();
  };
  EXPECT_EQ(job(kOpenMpi, {}), job(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"}}));
  EXPECT_NE(job(kOpenMpi, {}), job(kOpenMpi, {{"PMIX_NAMESPACE", "67436546"}}));
  EXPECT_NE(job(kOpenMpi, {}), job(kOpenMpi, {{"OMPI_MCA_orte_precondition_transports", "k"}}));
  EXPECT_NE(job(kOpenMpi, {}), job(kOpenMpi, {{"INCCL_JOB", "x"}}));
  EXPECT_NE(job(kSlurm, {}), job(kSlurm, {{"SLURM_STEP_ID", "1"}}));
  EXPECT_EQ(job(kSlurm, {}), job(kSlurm, {{"SLURM_PROCID", "1"}}));
  EXPECT_NE(job(kTorch, {}), job(kTorch, {{"MASTER_PORT", "29501"}}));
  EXPECT_NE(job(kTorch, {}), job(kTorch, {{"TORCHELASTIC_RESTART_COUNT", "1"}}));
  EXPECT_EQ(job(kTorch, {}), job(kTorch, {{"RANK", "1"}}));
}

TEST(LauncherTest, ErrorsNameTheVariables) {
  const auto error = [](Values values, const Values& change, const std::string& without = "") {
    for (const auto& [name, value] : change) values[name] = value;
    values.erase(without);
    const Result<Launcher> launcher = Find(values);
    EXPECT_FALSE(launcher.ok());
    EXPECT_EQ(launcher.status().code(), Code::kInvalidUsage);
    return launcher.status().message();
  };
  const std::string none = error({}, {});
  for (const char* name : {"INCCL_RANK", "INCCL_SIZE", "INCCL_JOB", "OMPI_COMM_WORLD_RANK",
                           "PMI_RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURM_PROCID"}) {
    EXPECT_CONTAINS(none, name);
  }
  EXPECT_CONTAINS(error(kOpenMpi, {}, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE is not set");
  EXPECT_CONTAINS(error(kOpenMpi, {}, "PMIX_NAMESPACE"), "PMIX_NAMESPACE");
  EXPECT_CONTAINS(error(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "x"}}), "\"x\" is not a number");
  EXPECT_CONTAINS(error(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "3"}}), "rank 3 of 3");
  EXPECT_CONTAINS(error({{"INCCL_RANK", "1"}}, {}), "INCCL_SIZE is not set");
  EXPECT_CONTAINS(error({{"INCCL_SIZE", "1"}}, {}), "INCCL_RANK is not set");
  EXPECT_CONTAINS(error({{"INCCL_RANK", "-1"}, {"INCCL_SIZE", "1"}}, {}), "INCCL_RANK");
  EXPECT_CONTAINS(error(kTorch, {}, "MASTER_PORT"), "MASTER_PORT");
  EXPECT_CONTAINS(error(kPmi, {}, "PMI_JOBID"), "INCCL_JOB");
  EXPECT_CONTAINS(error(kOpenMpi, {}, "PMIX_NAMESPACE"), "INCCL_JOB");
  // Steps of one Slurm job are jobs of their own.
  EXPECT_CONTAINS(error(kSlurm, {}, "SLURM_STEP_ID"), "SLURM_STEP_ID");
  // A batch script has SLURM_PROCID, and perhaps no number of tasks.
  EXPECT_CONTAINS(error(kSlurm, {}, "SLURM_STEP_ID"), "starts its ranks with srun");
  EXPECT_CONTAINS(error({{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "99"}}, {}), "with srun");
  EXPECT_CONTAINS(error(kSlurm, {}, "SLURM_JOB_ID"), "INCCL_JOB");
  EXPECT_CONTAINS(error(kSlurm, {}, "SLURM_NTASKS"), "SLURM_STEP_NUM_TASKS is not set");
}

TEST(LauncherTest, RanksStartedByHandNeedAJobName) {
  const Result<Launcher> launcher = Find({{"INCCL_RANK", "0"}, {"INCCL_SIZE", "2"}});
  ASSERT_FALSE(launcher.ok()) << "it would join any other program of this user";
  EXPECT_EQ(launcher.status().code(), Code::kInvalidUsage);
  EXPECT_CONTAINS(launcher.status().message(), "INCCL_JOB is not set");
  EXPECT_FALSE(Find({{"INCCL_RANK", "0"}, {"INCCL_SIZE", "2"}, {"INCCL_JOB", ""}}).ok());
}

TEST(LauncherTest, AJobNameStandsInForAnyLaunchers) {
  const std::pair<Values, std::vector<std::string>> launchers[] = {
      {kOpenMpi, {"PMIX_NAMESPACE"}},
      {kPmi, {"PMI_JOBID"}},
      {kHydra, {}},
      {kTorch, {"MASTER_ADDR", "MASTER_PORT"}},
      {kSlurm, {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
  };
  for (auto [values, identity] : launchers) {
    for (const std::string& name : identity) values.erase(name);
    EXPECT_FALSE(Find(values).ok()) << "two jobs could not be told apart";
    values["INCCL_JOB"] = "hk";
    const Result<Launcher> launcher = Find(values);
    ASSERT_TRUE(launcher.ok()) << launcher.status().message();
    values["INCCL_JOB"] = "other";
    const Result<Launcher> other = Find(values);
    ASSERT_TRUE(other.ok()) << other.status().message();
    EXPECT_NE(launcher->job, other->job);
  }
}

// The job that each of `count` ranks finds whose grandparent has the name of Hydra's proxy.
std::vector<std::string> JobsBelowAProxy(int count) {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Processes processes;
  const pid_t proxy = processes.Start([&] {
    prctl(PR_SET_NAME, "hydra_pmi_proxy");
    Processes ranks;
    std::vector<pid_t> pids;
    for (int i = 0; i < count; ++i) {
      pids.push_back(ranks.Start([&] {
        prctl(PR_SET_NAME, "wrap) R 1 (er");  // a script that starts the program
        Processes program;
        const int status = program.Wait(program.Start([&] {
          const Result<Launcher> launcher = Find(kHydra);
          std::string job = launcher.ok() ? launcher->job : launcher.status().message();
          job.resize(200);
          return write(ends[1], job.data(), job.size()) == 200 && launcher.ok() ? 0 : 1;
        }));
        return status == 0 ? 0 : 1;
      }));
    }
    int failed = 0;
    for (const pid_t pid : pids) failed += ranks.Wait(pid) == 0 ? 0 : 1;
    return failed;
  });
  EXPECT_EQ(processes.Wait(proxy), 0);
  close(ends[1]);
  std::vector<std::string> jobs;
  for (std::string job(200, 0); read(ends[0], job.data(), 200) == 200;) jobs.push_back(job);
  close(ends[0]);
  return jobs;
}

TEST(LauncherTest, HydrasProxyIsTheJob) {
  const std::vector<std::string> one = JobsBelowAProxy(3), two = JobsBelowAProxy(3);
  ASSERT_EQ(one.size(), 3u);
  ASSERT_EQ(two.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(one[static_cast<size_t>(i)], one[0]);
    EXPECT_EQ(two[static_cast<size_t>(i)], two[0]);
  }
  EXPECT_NE(one[0], two[0]) << "two jobs of one user on one host";
}

TEST(LauncherTest, RanksOnOtherHostsAreNoted) {
  for (const Values& values :
       {Merge({{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}, kOpenMpi),
        Merge({{"LOCAL_WORLD_SIZE", "1"}}, kTorch), Merge({{"MPI_LOCALNRANKS", "1"}}, kPmi),
        Merge({{"SLURM_NNODES", "2"}}, kSlurm), Merge({{"SLURM_NNODES", "2"}}, kPmi)}) {
    const Result<Launcher> launcher = Find(values);
    ASSERT_TRUE(launcher.ok()) << launcher.status().message();
    EXPECT_CONTAINS(launcher->elsewhere, "ranks are on ");
  }
  // Hydra in an allocation says itself how many of its ranks are here.
  EXPECT_EQ(Find(Merge({{"SLURM_NNODES", "2"}, {"INCCL_JOB", "j"}}, kHydra))->elsewhere, "");
  for (const Values& values : {kOpenMpi, kTorch, kPmi, kSlurm}) {
    EXPECT_EQ(Find(values)->elsewhere, "");
  }
}

TEST(InterfacesTest, ResolvesAddresses) {
  const UniqueIdAddress v4 = bootstrap::ResolveAddress("192.0.2.7:4711", {}).value();
  EXPECT_EQ(bootstrap::SocketAddress::Tcp(v4).ToString(), "192.0.2.7:4711");
  const UniqueIdAddress v6 = bootstrap::ResolveAddress("[2001:db8::7]:80", {}).value();
  EXPECT_EQ(bootstrap::SocketAddress::Tcp(v6).ToString(), "[2001:db8::7]:80");
  for (const char* wrong : {"256.0.2.7:1", "[2001:db8::7:80"}) {
    const Result<UniqueIdAddress> none = bootstrap::ResolveAddress(wrong, {});
    ASSERT_FALSE(none.ok()) << wrong;
    EXPECT_EQ(none.status().code(), Code::kInvalidUsage);
    EXPECT_CONTAINS(none.status().message(), wrong);
  }
}

TEST(InterfacesTest, TheGrammarOfTheVariable) {
  using bootstrap::MatchesInterface;
  EXPECT_TRUE(MatchesInterface("eth", "eth0"));
  EXPECT_TRUE(MatchesInterface("ib,eth", "eth0"));
  EXPECT_FALSE(MatchesInterface("eth1", "eth0"));
  EXPECT_TRUE(MatchesInterface("=eth0,eth1", "eth1"));
  EXPECT_FALSE(MatchesInterface("=eth", "eth0"));
  EXPECT_TRUE(MatchesInterface("^docker", "eth0"));
  EXPECT_FALSE(MatchesInterface("^docker,lo", "docker0"));
  EXPECT_FALSE(MatchesInterface("^=lo", "lo"));
  EXPECT_TRUE(MatchesInterface("^=lo", "lo1"));
  EXPECT_FALSE(MatchesInterface(",", "lo"));
  // The sign may stand again before each name.
  EXPECT_FALSE(MatchesInterface("^docker0,^lo", "lo"));
  EXPECT_FALSE(MatchesInterface("^docker0,^lo", "docker0"));
  EXPECT_TRUE(MatchesInterface("^docker0,^lo", "eth0"));
  EXPECT_TRUE(MatchesInterface("=eth0,=eth1", "eth1"));
  EXPECT_FALSE(MatchesInterface("^=lo,^=eth0", "eth0"));
}

TEST(InterfacesTest, ChoosesAddresses) {
  const Result<std::vector<UniqueIdAddress>> lo = bootstrap::ChooseAddresses("=lo");
  ASSERT_TRUE(lo.ok()) << lo.status().message();
  const uint32_t loopback = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(std::memcmp((*lo)[0].address.data(), &loopback, 4), 0);
  for (const UniqueIdAddress& address : *lo) EXPECT_TRUE(bootstrap::IsLoopback(address));
  // Without a pattern: an interface that other machines may reach, if there is one.
  const Result<std::vector<UniqueIdAddress>> unset = bootstrap::ChooseAddresses("");
  ASSERT_TRUE(unset.ok());
  ASSERT_FALSE(unset->empty());
  const Result<std::vector<UniqueIdAddress>> others =
      bootstrap::ChooseAddresses("^lo,docker,virbr");
  EXPECT_EQ(bootstrap::IsLoopback((*unset)[0]), !others.ok());
  EXPECT_LE(unset->size(), bootstrap::kMostListenAddresses);
  if (others.ok()) {  // those of one interface
    for (const UniqueIdAddress& address : *others) {
      EXPECT_EQ(std::count(unset->begin(), unset->end(), address), 1);
    }
  }
  const Result<std::vector<UniqueIdAddress>> none = bootstrap::ChooseAddresses("nosuch");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), Code::kInvalidUsage);
  EXPECT_CONTAINS(none.status().message(), "nosuch");
  EXPECT_CONTAINS(none.status().message(), "lo");
}

TEST(InterfacesTest, ALinkOfUnknownRate) {
  EXPECT_EQ(bootstrap::LinkMbps("=lo"), 0u);
  EXPECT_EQ(bootstrap::LinkMbps("nosuch"), 0u);
}

TEST(HostTest, HostIdsFollowTheOverride) {
  using bootstrap::HostId;
  const Result<uint64_t> here = HostId(""), again = HostId(""), a = HostId("a"), a2 = HostId("a"),
                         b = HostId("b");
  ASSERT_TRUE(here.ok() && again.ok() && a.ok() && a2.ok() && b.ok());
  EXPECT_EQ(*here, *again);
  EXPECT_EQ(*a, *a2);
  EXPECT_NE(*a, *b);
  EXPECT_NE(*a, *here);
  EXPECT_EQ(*bootstrap::MachineId("a"), *here);
  EXPECT_EQ(*bootstrap::MachineId("machine:a"), *HostId("machine:a"));
}

TEST(HostTest, SecretFilesMustBePrivate) {
  const std::string path = ::testing::TempDir() + "inccl-secret-" + std::to_string(getpid());
  std::ofstream(path) << "sixteen or more bytes";
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  const Result<bootstrap::Secret> good = bootstrap::ReadSecretFile(path);
  ASSERT_TRUE(good.ok()) << good.status().message();
  EXPECT_EQ(good->size(), 21u);
  for (const mode_t mode : {0640u, 0604u, 0620u}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    const Result<bootstrap::Secret> open = bootstrap::ReadSecretFile(path);
    ASSERT_FALSE(open.ok());
    EXPECT_EQ(open.status().code(), Code::kInvalidUsage);
    EXPECT_CONTAINS(open.status().message(), path);
    EXPECT_CONTAINS(open.status().message(), "0600");
  }
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  std::ofstream(path, std::ios::trunc).flush();
  EXPECT_CONTAINS(bootstrap::ReadSecretFile(path).status().message(), "0 bytes");
  std::ofstream(path) << std::string(5000, 'x');
  EXPECT_CONTAINS(bootstrap::ReadSecretFile(path).status().message(), "longer");
  std::remove(path.c_str());
  EXPECT_CONTAINS(bootstrap::ReadSecretFile(path).status().message(), path);
  EXPECT_CONTAINS(bootstrap::ReadSecretFile("/dev/zero").status().message(), "regular");
}

}  // namespace
}  // namespace inccl::test
