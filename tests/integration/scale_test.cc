// SPDX-License-Identifier: Apache-2.0
//
// Many ranks as processes over TCP. With INCCL_TEST_RANKS ranks, of which INCCL_TEST_RANKS_PER_HOST
// (4) share a faked host, it also prints what control connections cost.
#include <dirent.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "world/clock.h"
#include "world/process_world.h"
#include "world/world.h"

namespace inccl::test {
namespace {

constexpr size_t kCount = 5000;

uint64_t Value(int rank, size_t i) {
  return (static_cast<uint64_t>(rank) + 1) * 0x9E3779B97F4A7C15u + i * i;
}

// Sums modulo 2^64, so any order is right.
bool SumIsRight(int nranks, ccl_comm_t comm, int rank, size_t count) {
  std::vector<uint64_t> data(count);
  for (size_t i = 0; i < count; ++i) data[i] = Value(rank, i);
  const ccl_result_t result =
      ccl_allreduce(data.data(), data.data(), count, CCL_UINT64, CCL_SUM, comm, nullptr);
  EXPECT_EQ(result, CCL_SUCCESS) << ccl_get_last_error(comm);
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    uint64_t sum = 0;
    for (int r = 0; r < nranks; ++r) sum += Value(r, i);
    wrong += data[i] != sum ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0u) << "of " << count << " at rank " << rank;
  return result == CCL_SUCCESS && wrong == 0;
}

bool AllToAllIsRight(int nranks, ccl_comm_t comm, int rank) {
  const auto n = static_cast<size_t>(nranks);
  constexpr size_t kEach = 3;
  std::vector<uint64_t> in(n * kEach), out(n * kEach);
  for (size_t i = 0; i < in.size(); ++i) in[i] = Value(rank, i);
  const ccl_result_t result = ccl_alltoall(in.data(), out.data(), kEach, CCL_UINT64, comm, nullptr);
  EXPECT_EQ(result, CCL_SUCCESS) << ccl_get_last_error(comm);
  size_t wrong = 0;
  for (size_t from = 0; from < n; ++from) {
    for (size_t i = 0; i < kEach; ++i) {
      const uint64_t expected =
          Value(static_cast<int>(from), static_cast<size_t>(rank) * kEach + i);
      wrong += out[from * kEach + i] != expected ? 1 : 0;
    }
  }
  EXPECT_EQ(wrong, 0u) << "at rank " << rank;
  return result == CCL_SUCCESS && wrong == 0;
}

// After an all-to-all each rank has a socket for control and one for data to every other, and some
// for itself; a rank's descriptors and the pipes of the world's own process are few beside them.
bool RaiseDescriptors(int nranks) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  const auto need = static_cast<rlim_t>(nranks) * 8 + 200;
  if (limit.rlim_max < need) return false;
  limit.rlim_cur = std::max(limit.rlim_cur, need);
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

// Connected sockets of a family: of AF_UNIX control connections, since all ranks are on one
// machine, and else data connections.
uint64_t Connections(int family) {
  uint64_t count = 0;
  DIR* const descriptors = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(descriptors)) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    const int fd = std::atoi(entry->d_name);
    count += getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
                     address.ss_family == family
                 ? 1
                 : 0;
  }
  closedir(descriptors);
  return count;
}

// Nanoseconds for which the threads of this process have run, without the calling one.
uint64_t OtherThreads() {
  uint64_t sum = 0;
  DIR* const tasks = opendir("/proc/self/task");
  while (const dirent* entry = readdir(tasks)) {
    const std::string id = entry->d_name;
    uint64_t ran = 0;
    if (id[0] == '.' || id == std::to_string(gettid())) continue;
    std::ifstream("/proc/self/task/" + id + "/schedstat") >> ran;
    sum += ran;
  }
  closedir(tasks);
  return sum;
}

uint64_t DataConnections() { return Connections(AF_INET) + Connections(AF_INET6); }

enum Counter { kControl, kIdleNanoseconds };
constexpr int kJoined = 1;
constexpr unsigned kIdleSeconds = 5;

// What a rank's control thread does while no call is made.
void MeasureIdle(const Side& side, double limit) {
  side.mine().counters[kControl] = Connections(AF_UNIX);
  side.mine().stage = kJoined;
  for (int rank = 0; rank < side.nranks(); ++rank) EXPECT_TRUE(side.Await(rank, kJoined, limit));
  sleep(1);
  const uint64_t before = OtherThreads();
  sleep(kIdleSeconds);
  side.mine().counters[kIdleNanoseconds] = OtherThreads() - before;
}

void RunRanks(int nranks, int ranks_per_host) {
  if (!RaiseDescriptors(nranks)) GTEST_SKIP() << "too few descriptors for " << nranks << " ranks";
  ProcessWorld world({.nranks = nranks, .deadline_seconds = 300.0 * kSlowness},
                     [nranks, ranks_per_host](const Side& side) {
                       setenv("INCCL_TRANSPORT", "tcp", 1);
                       if (ranks_per_host > 0) {
                         const std::string host = std::to_string(side.rank() / ranks_per_host);
                         setenv("INCCL_HOSTID", host.c_str(), 1);
                       }
                       ccl_comm_t comm = nullptr;
                       const double began = Seconds();
                       if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
                       side.mine().seconds = Seconds() - began;
                       if (ranks_per_host > 0) MeasureIdle(side, 100.0 * kSlowness);
                       bool right = true;
                       for (const size_t count : {size_t{1}, kCount}) {
                         right = right && SumIsRight(nranks, comm, side.rank(), count);
                       }
                       right = right && AllToAllIsRight(nranks, comm, side.rank());
                       if (!right) return 11;
                       return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
                     });
  world.ExpectAllExited();
  double slowest = 0, busy = 0;
  uint64_t connections = 0;
  for (int rank = 0; rank < nranks; ++rank) {
    Report& report = world.report(rank);
    slowest = std::max(slowest, report.seconds.load());
    connections = std::max(connections, report.counters[kControl].load());
    busy += 1e-9 * static_cast<double>(report.counters[kIdleNanoseconds]) / kIdleSeconds / nranks;
  }
  ::testing::Test::RecordProperty("join_ms", static_cast<int>(slowest * 1000));
  fmt::print("{} ranks joined within {:.2f} s\n", nranks, slowest);
  if (ranks_per_host == 0) return;
  fmt::print("{} control connections per rank; signs of life take {:.3f} % of a processor\n",
             connections, 100 * busy);
}

// INCCL_TEST_RANKS: tools/check.sh --long runs 256.
TEST(ScaleTest, ManyProcessesOverTcp) {
  const char* const ranks = std::getenv("INCCL_TEST_RANKS");
  if (ranks == nullptr) return RunRanks(kSanitized ? 17 : 64, 0);
  const char* const per_host = std::getenv("INCCL_TEST_RANKS_PER_HOST");
  RunRanks(std::atoi(ranks), per_host != nullptr ? std::atoi(per_host) : 4);
}

// In a communicator of more ranks than INCCL_TEST_CONTROL_ALL_PAIRS a pair connects when a call
// needs it, also if the rank that accepts comes later.
TEST(ScaleTest, ConnectionsGrowWithThePeersInUse) {
  const char* const ranks = std::getenv("INCCL_TEST_RANKS");
  const int nranks = ranks != nullptr ? std::atoi(ranks) : kSanitized ? 17 : 40;
  if (!RaiseDescriptors(nranks)) GTEST_SKIP() << "too few descriptors for " << nranks << " ranks";
  const std::string all_pairs = std::to_string(std::min(64, nranks - 1));
  for (const auto& [algorithm, most] : {std::pair{"ring", 2u}, std::pair{"tree", 4u}}) {
    SCOPED_TRACE(algorithm);
    const ScopedEnv env({{"INCCL_TRANSPORT", "tcp"},
                         {"INCCL_ALGO", algorithm},
                         {"INCCL_TEST_CONTROL_ALL_PAIRS", all_pairs.c_str()}});
    ProcessWorld world({.nranks = nranks, .deadline_seconds = 300.0 * kSlowness},
                       [nranks, peers = most](const Side& side) {
                         setenv("INCCL_HOSTID", std::to_string(side.rank() / 4).c_str(), 1);
                         ccl_comm_t comm = nullptr;
                         if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
                         // Those of the rendezvous end soon.
                         for (int i = 0; i < 500 && DataConnections() > 0; ++i) usleep(10000);
                         EXPECT_EQ(DataConnections(), 0u);
                         side.mine().stage = kJoined;
                         for (int rank = 0; rank < nranks; ++rank) {
                           EXPECT_TRUE(side.Await(rank, kJoined, 100.0 * kSlowness));
                         }
                         if (side.rank() == 0) sleep(1);
                         const double began = Seconds();
                         if (!SumIsRight(nranks, comm, side.rank(), kCount)) return 11;
                         side.mine().seconds = Seconds() - began;
                         const uint64_t connections = DataConnections();
                         EXPECT_GE(connections, 1u);
                         EXPECT_LE(connections, peers);
                         if (!SumIsRight(nranks, comm, side.rank(), kCount)) return 12;
                         EXPECT_LE(DataConnections(), connections);  // a neighbour may have left
                         return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 13;
                       });
    world.ExpectAllExited();
    fmt::print("{} ranks, {}: the first call took rank 0 {:.3f} s\n", nranks, algorithm,
               world.report(0).seconds.load());
  }
}

}  // namespace
}  // namespace inccl::test
