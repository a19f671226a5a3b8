// SPDX-License-Identifier: Apache-2.0
//
// Ranks under launchers that are installed: what they say of a job is enough to join, and two jobs
// at once stay apart.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <set>
#include <sstream>
#include <string>

#include "bootstrap/bootstrap_world.h"

namespace inccl::test {
namespace {

// A rank: this program, started by a launcher.
TEST(MpiexecTest, DISABLED_Rank) {
  const Result<Launcher> launcher = FindLauncher(std::getenv);
  ASSERT_TRUE(launcher.ok()) << launcher.status().message();
  const Result<Mesh> mesh =
      JoinWithLauncher(*launcher, 0, Options(launcher->rank, launcher->nranks));
  ASSERT_TRUE(mesh.ok()) << mesh.status().message();
  // One write, so that lines of several ranks stay whole.
  std::ostringstream line;
  line << "joined " << launcher->kind[0] << " " << mesh->rank << "/" << mesh->nranks << " "
       << mesh->nonce_hash << "\n";
  std::cout << line.str() << std::flush;
}

// A rank that joins three communicators by the launcher's store, as ranks of several hosts do.
TEST(MpiexecTest, DISABLED_StoreRank) {
  const Result<Launcher> launcher = FindLauncher(std::getenv);
  ASSERT_TRUE(launcher.ok()) << launcher.status().message();
  LauncherStore* const store = FindLauncherStore(*launcher, std::getenv);
  ASSERT_NE(store, nullptr);
  std::ostringstream line;
  line << "joined " << launcher->kind[0] << " " << launcher->rank << "/" << launcher->nranks << " ";
  std::set<uint64_t> hashes;
  for (uint32_t index = 0; index < 3; ++index) {
    const Result<Mesh> mesh = JoinByStore(store, *launcher, index, TestEnvironment(),
                                          Options(launcher->rank, launcher->nranks));
    ASSERT_TRUE(mesh.ok()) << mesh.status().message();
    EXPECT_EQ(mesh->rank, launcher->rank);
    EXPECT_TRUE(hashes.insert(mesh->nonce_hash).second) << "two communicators share a value";
    line << mesh->nonce_hash << "+";
  }
  line << "\n";
  std::cout << line.str() << std::flush;
}

bool Installed(const std::string& program) {
  return std::system(("command -v " + program + " > /dev/null 2>&1").c_str()) == 0;
}

// Two jobs at once. `before`: the launcher, and what is to be in its environment.
void ExpectTwoJobs(const std::string& before, char kind, const std::string& test = "Rank") {
  // sh stays between the launcher and the program, as a user's script does. Each job has files of
  // its own: two mpiruns of Open MPI may fail where both make the same folder.
  const std::string command = "dir=$(mktemp -d); env -u GTEST_OUTPUT TMPDIR=$dir " + before +
                              " sh -c '\"" +
                              std::filesystem::read_symlink("/proc/self/exe").string() +
                              "\" --gtest_filter=*DISABLED_" + test +
                              " --gtest_also_run_disabled_tests; exit $?' 2>&1; "
                              "code=$?; rm -rf \"$dir\"; exit $code";
  FILE* const jobs[2] = {popen(command.c_str(), "r"), popen(command.c_str(), "r")};
  std::set<std::string> communicators;
  for (FILE* const job : jobs) {
    ASSERT_NE(job, nullptr);
    std::string output;
    for (int c = fgetc(job); c != EOF; c = fgetc(job)) output += static_cast<char>(c);
    EXPECT_EQ(pclose(job), 0) << command << "\n" << output;
    std::set<std::string> ranks, hashes;
    std::istringstream lines(output);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string joined, found, rank, hash;
      if (!(words >> joined >> found >> rank >> hash) || joined != "joined") continue;
      EXPECT_EQ(found, std::string(1, kind));
      ranks.insert(rank);
      hashes.insert(hash);
    }
    EXPECT_EQ(ranks, (std::set<std::string>{"0/3", "1/3", "2/3"})) << output;
    ASSERT_EQ(hashes.size(), 1u) << output;
    communicators.insert(*hashes.begin());
  }
  EXPECT_EQ(communicators.size(), 2u) << "the jobs have mixed";
}

TEST(MpiexecTest, Hydra) {
  if (!Installed("mpiexec.hydra")) GTEST_SKIP() << "MPICH is not installed";
  ExpectTwoJobs("mpiexec.hydra -n 3", 'P');
}

TEST(MpiexecTest, StoreOfHydra) {
  if (!Installed("mpiexec.hydra")) GTEST_SKIP() << "MPICH is not installed";
  ExpectTwoJobs("mpiexec.hydra -n 3", 'P', "StoreRank");
}

constexpr const char* kOpenMpi =
    "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun.openmpi --oversubscribe "
    "-np 3";

TEST(MpiexecTest, OpenMpi) {
  if (!Installed("mpirun.openmpi")) GTEST_SKIP() << "Open MPI is not installed";
  ExpectTwoJobs(kOpenMpi, 'O');
}

TEST(MpiexecTest, StoreOfOpenMpi) {
  if (!Installed("mpirun.openmpi")) GTEST_SKIP() << "Open MPI is not installed";
  ExpectTwoJobs(kOpenMpi, 'O', "StoreRank");
}

}  // namespace
}  // namespace inccl::test
