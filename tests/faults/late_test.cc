// SPDX-License-Identifier: Apache-2.0
//
// A rank that comes late, in every collective: the others end without it where they can, name it
// and no other rank where they cannot, and those that have left before it comes are no trouble to
// it.
#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <regex>
#include <set>
#include <thread>
#include <vector>

#include "faults/fault_test.h"
#include "faults/operation_cases.h"
#include "world/stacks.h"

namespace inccl::test {
namespace {

constexpr size_t kCount = 16 * 1024;  // fp32
constexpr const char* kManySlices =
    "4096";  // more than the lanes from the root to any rank have slots
constexpr const char* kOneSlice = "131072";
constexpr int kRoot = 0;              // of OperationRunner
constexpr double kDepartedFor = 0.4;  // longer than a rank waits for what a departed one has sent

// Plain and registered buffers; sends and receives have no collective order.
std::vector<Operation> Collectives() {
  std::vector<Operation> all;
  for (const Operation& operation : AllOperations()) {
    if (operation.compressed || operation.collective == std::string("sendrecv")) continue;
    if (!operation.registered) all.push_back(operation);
  }
  for (const char* collective : {"allreduce", "reduce_scatter", "allgather", "broadcast", "reduce",
                                 "alltoall", "gather", "scatter"}) {
    all.push_back({collective, nullptr, false, true});
  }
  return all;
}

constexpr const char* kTransports = INCCL_TEST_UCX != 0 ? "loopback,shm,ucx" : "loopback,shm";

struct Case {
  Operation operation;
  int nranks = 0, late = 0;
  const char* transport = "";

  std::string Name() const {
    return fmt::format("{} of {} ranks over {}, rank {} late", operation.Name(), nranks, transport,
                       late);
  }
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Operation& operation : Collectives()) {
    for (const int n : {3, 4}) {
      if (kSanitized && n != 3) continue;
      for (int late = 0; late < n; ++late) {
        // Zero copy needs a transport by which ranks import memory.
        const bool shm = operation.registered || (n + late) % 2 == 0;
        cases.push_back({operation, n, late, shm ? "shm" : "loopback"});
      }
    }
  }
  if (INCCL_TEST_UCX != 0) {
    for (const char* collective : {"allreduce", "allgather", "broadcast", "reduce"}) {
      for (int late = 0; late < 3; ++late)
        cases.push_back({{collective, "direct"}, 3, late, "ucx"});
    }
  }
  return cases;
}

// Ranks as threads, each of which destroys its communicator when its body ends.
class Threads {
 public:
  using Body = std::function<void(int rank, ccl_comm_t comm)>;

  Threads(const Case& c, const char* slice_bytes, const Body& body) {
    const ScopedEnv env(
        {{"INCCL_TRANSPORT", c.transport},
         {"INCCL_SLICE_BYTES", slice_bytes},
         {"INCCL_ALGO", c.operation.algorithm == nullptr ? "" : c.operation.algorithm}});
    std::vector<ccl_comm_t> comms(static_cast<size_t>(c.nranks));
    const ccl_result_t made = ccl_comm_init_all(comms.data(), c.nranks, nullptr);
    EXPECT_EQ(made, CCL_SUCCESS) << ccl_get_last_error(nullptr);
    for (int rank = 0; made == CCL_SUCCESS && rank < c.nranks; ++rank) {
      ccl_comm_t comm = comms[static_cast<size_t>(rank)];
      threads_.emplace_back([=] {
        body(rank, comm);
        EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
      });
    }
  }
  ~Threads() {
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::vector<std::thread> threads_;
};

struct Ending {
  ccl_result_t result = CCL_SUCCESS;
  std::string text;
};

// The ranks that the rank which has found the error names.
std::set<int> Named(const std::string& text) {
  const size_t told = text.rfind("reports: ");
  const std::string found = told == text.npos ? text : text.substr(told);
  std::set<int> named;
  const std::regex peer("(peer|rank) ([0-9]+)@");
  for (auto i = std::sregex_iterator(found.begin(), found.end(), peer); i != std::sregex_iterator();
       ++i) {
    named.insert(std::stoi((*i)[2]));
  }
  return named;
}

// Whether this rank's call can only end with the late one.
bool NeedsTheLate(const std::string& collective, int rank, int late) {
  if (collective == "broadcast" || collective == "scatter") return late == kRoot || rank == kRoot;
  if (collective == "reduce" || collective == "gather") return rank == kRoot;
  return true;
}

// The calls before are in order. Peers map registered memory while these run.
constexpr int kInOrder = 4;
void RunInOrder(OperationRunner* runner, int rank, ccl_comm_t comm) {
  for (int i = 0; i < kInOrder; ++i) {
    ASSERT_EQ(runner->Run(comm, static_cast<float>(i + 1)), CCL_SUCCESS)
        << ccl_get_last_error(comm);
    ASSERT_TRUE(runner->Right()) << "rank " << rank;
  }
}

class LateTest : public FaultTest {
 protected:
  // The limit is reached, but not by a rank that is kept from running.
  LateTest() : FaultTest(FaultLimits{.op_seconds = kOpSeconds}) {}

  // All cases, as many at a time as wait beside each other without harm.
  static void ForAll(
      const std::function<void(const Case&, std::vector<std::unique_ptr<Threads>>*)>& start) {
    constexpr size_t kAtOnce = 100;
    const Watchdog watchdog(120.0 * kSlowness);
    std::vector<std::unique_ptr<Threads>> running;
    for (const Case& c : Cases()) {
      start(c, &running);
      if (running.size() >= kAtOnce) running.clear();
    }
  }
};

struct Endings {
  explicit Endings(const Case& which) : c(which), of(static_cast<size_t>(which.nranks)) {}
  const Case c;
  std::vector<Ending> of;
  std::atomic<int> ended{0};
};

void RunLast(Endings* endings, OperationRunner* runner, int rank, ccl_comm_t comm) {
  Ending& mine = endings->of[static_cast<size_t>(rank)];
  mine.result = runner->Run(comm, 1);
  mine.text = ccl_get_last_error(comm);
  ++endings->ended;
}

void CallLate(Endings* endings, int rank, ccl_comm_t comm) {
  const Case& c = endings->c;
  OperationRunner runner(c.operation, rank, c.nranks, kCount);
  RunInOrder(&runner, rank, comm);
  if (rank == c.late) {  // alive, until all others have ended
    while (endings->ended < c.nranks - 1) usleep(2000);
  }
  RunLast(endings, &runner, rank, comm);
}

// Those that need the late rank, and others perhaps, get this error, which names that rank alone.
void CheckEndings(const Endings& endings, ccl_result_t error, const std::string& why) {
  const Case& c = endings.c;
  SCOPED_TRACE(c.Name());
  int failed = 0;
  for (int rank = 0; rank < c.nranks; ++rank) {
    const Ending& ending = endings.of[static_cast<size_t>(rank)];
    const bool needs = rank != c.late && NeedsTheLate(c.operation.collective, rank, c.late);
    EXPECT_FALSE(needs && ending.result == CCL_SUCCESS) << "rank " << rank;
    if (ending.result == CCL_SUCCESS) continue;
    ++failed;
    EXPECT_EQ(ending.result, error) << "rank " << rank << ": " << ending.text;
    EXPECT_EQ(Named(ending.text), std::set<int>{c.late}) << "rank " << rank << ": " << ending.text;
    EXPECT_TRUE(Matches(ending.text, why)) << "rank " << rank << ": " << ending.text;
  }
  EXPECT_GT(failed, 0);
}

TEST_F(LateTest, Row12_TheLateRankAndOnlyItIsNamed) {
  ForRow("12", kTransports);
  std::vector<std::unique_ptr<Endings>> all;
  ForAll([&](const Case& c, auto* running) {
    all.push_back(std::make_unique<Endings>(c));
    running->push_back(std::make_unique<Threads>(
        c, kManySlices, [endings = all.back().get()](int rank, ccl_comm_t comm) {
          CallLate(endings, rank, comm);
        }));
  });
  for (const auto& endings : all) {
    CheckEndings(*endings, CCL_TIMEOUT,
                 fmt::format("alive, outside the library after op {}", kInOrder));
  }
}

TEST_F(LateTest, Row12_ARankThatLeavesWithoutTakingPartIsNamed) {
  ForRow("12", kTransports);
  std::vector<std::unique_ptr<Endings>> all;
  ForAll([&](const Case& c, auto* running) {
    all.push_back(std::make_unique<Endings>(c));
    running->push_back(std::make_unique<Threads>(
        c, kManySlices, [endings = all.back().get()](int rank, ccl_comm_t comm) {
          OperationRunner runner(endings->c.operation, rank, endings->c.nranks, kCount);
          RunInOrder(&runner, rank, comm);
          if (rank != endings->c.late) RunLast(endings, &runner, rank, comm);
        }));
  });
  for (const auto& endings : all) {
    CheckEndings(*endings, CCL_REMOTE_ERROR, "closed its communicator without taking part");
  }
}

// A rank that has done its part leaves, whatever the others still have to do.
TEST_F(LateTest, Row12_RanksThatHaveLeftDoNotFailTheLateOne) {
  ForRow("12", kTransports);
  ForAll([&](const Case& c, auto* running) {
    running->push_back(std::make_unique<Threads>(c, kOneSlice, [c](int rank, ccl_comm_t comm) {
      OperationRunner runner(c.operation, rank, c.nranks, kCount);
      RunInOrder(&runner, rank, comm);
      if (rank == c.late) usleep(static_cast<useconds_t>(kDepartedFor * 1e6));
      const ccl_result_t result = runner.Run(comm, 3);
      EXPECT_EQ(result, CCL_SUCCESS) << c.Name() << ": " << ccl_get_last_error(comm);
      EXPECT_TRUE(result != CCL_SUCCESS || runner.Right()) << c.Name() << ", rank " << rank;
    }));
  });
}

}  // namespace
}  // namespace inccl::test
