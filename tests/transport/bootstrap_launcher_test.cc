// SPDX-License-Identifier: Apache-2.0
//
// What launchers say, and which of them is believed; interfaces; secret files.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <string>

#include "transport/bootstrap/host.h"
#include "transport/bootstrap/interfaces.h"
#include "transport/bootstrap/launcher.h"
#include "transport/bootstrap_world.h"

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
  ExpectFound({{"INCCL_RANK", "5"}, {"INCCL_SIZE", "6"}}, "INCCL_RANK", 5, 6);
  ExpectFound(Merge(kSlurm, {{"SLURM_STEP_NUM_TASKS", "3"}}), "Slurm", 2, 3);
}

TEST(LauncherTest, TheInnermostIsBelieved) {
  ExpectFound(Merge(kOpenMpi, kSlurm), "Open MPI", 1, 3);  // mpirun in an allocation
  ExpectFound(Merge(kTorch, kSlurm), "RANK and WORLD_SIZE", 0, 2);
  ExpectFound(Merge(kPmi, kSlurm), "PMI", 1, 2);
  ExpectFound(Merge(kOpenMpi, kTorch), "Open MPI", 1, 3);
  ExpectFound(Merge(Merge(kOpenMpi, kTorch), {{"TORCHELASTIC_RUN_ID", "r"}}), "torchrun", 0, 2);
  ExpectFound(Merge(kOpenMpi, {{"INCCL_RANK", "0"}, {"INCCL_SIZE", "1"}}), "INCCL_RANK", 0, 1);
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
  EXPECT_CONTAINS(error(kSlurm, {}, "SLURM_NTASKS"), "SLURM_STEP_NUM_TASKS is not set");
}

TEST(LauncherTest, SeveralHostsAreRefusedInWords) {
  for (const Values& values :
       {Merge({{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}, kOpenMpi),
        Merge({{"LOCAL_WORLD_SIZE", "1"}}, kTorch), Merge({{"MPI_LOCALNRANKS", "1"}}, kPmi),
        Merge({{"SLURM_NNODES", "2"}}, kSlurm)}) {
    const Result<Launcher> launcher = Find(values);
    ASSERT_FALSE(launcher.ok());
    EXPECT_EQ(launcher.status().code(), Code::kInvalidUsage);
    EXPECT_CONTAINS(launcher.status().message(), "by environment on one host only");
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
}

TEST(InterfacesTest, ChoosesAddresses) {
  const Result<std::vector<UniqueIdAddress>> unset = bootstrap::ChooseAddresses("");
  ASSERT_TRUE(unset.ok());
  ASSERT_EQ(unset->size(), 1u);
  const uint32_t loopback = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(std::memcmp((*unset)[0].address.data(), &loopback, 4), 0);
  const Result<std::vector<UniqueIdAddress>> lo = bootstrap::ChooseAddresses("=lo");
  ASSERT_TRUE(lo.ok()) << lo.status().message();
  EXPECT_EQ((*lo)[0].address, (*unset)[0].address);
  const Result<std::vector<UniqueIdAddress>> none = bootstrap::ChooseAddresses("nosuch");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), Code::kInvalidUsage);
  EXPECT_CONTAINS(none.status().message(), "nosuch");
  EXPECT_CONTAINS(none.status().message(), "lo");
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
}

TEST(HostTest, SecretFilesMustBePrivate) {
  const std::string path = ::testing::TempDir() + "inccl-secret-" + std::to_string(getpid());
  std::ofstream(path) << "s3cret";
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  const Result<std::vector<std::byte>> good = bootstrap::ReadSecretFile(path);
  ASSERT_TRUE(good.ok()) << good.status().message();
  EXPECT_EQ(good->size(), 6u);
  for (const mode_t mode : {0640u, 0604u, 0620u}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    const Result<std::vector<std::byte>> open = bootstrap::ReadSecretFile(path);
    ASSERT_FALSE(open.ok());
    EXPECT_EQ(open.status().code(), Code::kInvalidUsage);
    EXPECT_CONTAINS(open.status().message(), path);
    EXPECT_CONTAINS(open.status().message(), "0600");
  }
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  std::ofstream(path, std::ios::trunc).flush();
  EXPECT_CONTAINS(bootstrap::ReadSecretFile(path).status().message(), "empty");
  std::ofstream(path) << std::string(5000, 'x');
  EXPECT_CONTAINS(bootstrap::ReadSecretFile(path).status().message(), "longer");
  std::remove(path.c_str());
  EXPECT_CONTAINS(bootstrap::ReadSecretFile(path).status().message(), path);
  EXPECT_CONTAINS(bootstrap::ReadSecretFile("/dev/zero").status().message(), "regular");
}

}  // namespace
}  // namespace inccl::test
