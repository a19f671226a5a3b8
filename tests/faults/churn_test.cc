// SPDX-License-Identifier: Apache-2.0
//
// Processes on four hosts that live through many rounds. In each round some make a communicator,
// the others join it while it works, at the end or between its ranks, and all run random operations
// with known results; some are killed, stopped or cut off; the others shrink and go on. Results of
// all completed operations are verified, members agree on who they are, and at the end the
// processes hold what they held after their first rounds.
//
// INCCL_TEST_ROUNDS: how many rounds (tools/check.sh --long has more); INCCL_TEST_SEED replays.
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "api/random_operations.h"
#include "base/rng.h"
#include "faults/fault_test.h"
#include "support/seed.h"
#include "world/hosts.h"
#include "world/stacks.h"

namespace inccl::test {
namespace {

constexpr int kHosts = 4, kPerHost = 2, kWorkers = kHosts * kPerHost;
constexpr uint64_t kBefore = 20,
                   kAfter = 30;  // operations of a communicator before and after a fault
constexpr int kAtOnce = 5;       // operations between two looks at whether to end
constexpr double kDead = 1.5 * kSlowness;
constexpr double kLate = 60.0 * kSlowness;  // a round that takes longer hangs
constexpr uint64_t kMostLate = 3;           // processes that join by growth
constexpr int kGrowthMs = 3000 * kSlowness;
constexpr uint64_t kSettled = 4;  // rounds after which a process has used all that it uses

enum class Fault : uint8_t {
  kNone,
  kShortStop,
  kShortPartition,
  kKill,
  kKillTwo,           // the second one while the others shrink
  kKillAndStop,       // the second one while the others shrink
  kKillJoining,       // before the communicator is made, or while it grows
  kStop,              // goes on when the round is over for the others
  kPartition,         // of a host
  kPartitionAndKill,  // one of another host, before or after the others have noticed the partition
  kFaults
};
const char* Name(Fault fault) {
  constexpr const char* kNames[] = {"none",      "short stop",        "short partition", "kill",
                                    "kill two",  "kill and stop",     "kill joining",    "stop",
                                    "partition", "partition and kill"};
  return kNames[static_cast<size_t>(fault)];
}
bool Stops(Fault fault) { return fault == Fault::kStop || fault == Fault::kKillAndStop; }
bool Parts(Fault fault) { return fault == Fault::kPartition || fault == Fault::kPartitionAndKill; }

// A worker's state, in memory that all processes share. What a round's outcome is, the worker
// writes before `done`.
struct Worker {
  std::atomic<uint64_t> done{0};        // rounds
  std::atomic<uint64_t> operations{0};  // verified, of this round
  std::atomic<uint64_t> total{0};       // of all rounds
  std::atomic<bool> joined{false};      // in this round
  std::atomic<int> shrinks{0};
  std::atomic<uint64_t> members{0};  // a bit per worker: of the last communicator, if it ended well
  std::atomic<size_t> fds{0}, threads{0}, kib{0};  // after this round
  char text[1500]{};                               // of the last error
};

struct Shared {
  std::atomic<uint64_t> round{0};      // that the workers may begin
  std::atomic<uint64_t> last{0};       // the last round in which all faults have happened
  std::atomic<uint64_t> id_of{0};      // the round of `id`
  std::atomic<uint64_t> growth_of{0};  // the round of `growth_id`
  std::atomic<bool> over{false};
  uint64_t seed = 0;
  ccl_unique_id_t id, growth_id;
  std::array<int, kWorkers> order{};   // workers by rank in the first communicator
  int first = kWorkers;                // how many of them make it; the others join
  std::array<int, kWorkers> places{};  // by that rank: the rank when all are there
  Worker workers[kWorkers];            // NOLINT(modernize-avoid-c-arrays): atomics do not move
};

const OperationLimits& Limits() {
  static const OperationLimits limits = {
      .most_bytes = 128 << 10,
      .codecs = {"hbi:bits=6", "hbi:bits=4,code=entropy", "bf16", "lossless"}};
  return limits;
}

void Nap() { usleep(300); }

// A process's residual, which outlives its communicators: nothing of what it is given gets lost.
class Feedback {
 public:
  explicit Feedback(int me) : me_(me) {
    EXPECT_EQ(ccl_residual_create(&residual_, kCount, nullptr), CCL_SUCCESS);
    EXPECT_EQ(ccl_codec_create(&codec_, "hbi:ag=exact,bits=4"), CCL_SUCCESS);
  }
  ~Feedback() {
    ccl_residual_destroy(residual_);
    ccl_codec_destroy(codec_);
  }
  Feedback(const Feedback&) = delete;
  Feedback& operator=(const Feedback&) = delete;

  // A new communicator, whatever has become of the last one.
  void BeginRound() {
    kept_ = Left();
    tried_.clear();
    steps_ = 0;
  }

  // A compressed sum, and whether inputs and former residuals are result and new residuals.
  ccl_result_t Step(ccl_comm_t comm, uint64_t seed) {
    Rng rng(Mix64(seed + steps_) ^ Mix64(static_cast<uint64_t>(me_)));
    std::vector<float> in(kCount), out(kCount);
    for (float& x : in) x = static_cast<float>(rng.Uniform() - 0.5);
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.codec = codec_;
    how.residual = residual_;
    ccl_result_t result = ccl_allreduce_compressed(in.data(), out.data(), kCount, CCL_FLOAT32,
                                                   CCL_SUM, &how, comm, nullptr);
    if (result != CCL_SUCCESS) {
      EXPECT_EQ(Left(), kept_);
      return result;
    }
    tried_ = Left();
    std::vector<double> sums(kCount);
    for (size_t i = 0; i < kCount; ++i) sums[i] = static_cast<double>(in[i]) + kept_[i] - tried_[i];
    result = ccl_allreduce(sums.data(), sums.data(), kCount, CCL_FLOAT64, CCL_SUM, comm, nullptr);
    if (result != CCL_SUCCESS) return result;
    for (size_t i = 0; i < kCount; ++i) {
      EXPECT_NEAR(sums[i], out[i], 1e-4) << i;
      if (::testing::Test::HasFailure()) break;
    }
    Keep();
    return CCL_SUCCESS;
  }

  // After a shrink: the step in which the other one has failed counts on all members or on none.
  ccl_result_t GoOn(ccl_comm_t smaller) {
    EXPECT_EQ(ccl_residual_rollback(residual_, smaller), CCL_SUCCESS);
    if (!tried_.empty() && Left() == tried_) Keep();
    EXPECT_EQ(Left(), kept_);
    tried_.clear();
    std::array<uint64_t, 2> most = {steps_, ~steps_};
    const ccl_result_t result =
        ccl_allreduce(most.data(), most.data(), most.size(), CCL_UINT64, CCL_MAX, smaller, nullptr);
    if (result == CCL_SUCCESS) {
      EXPECT_EQ(most[0], ~most[1]) << "members count different steps";
    }
    return result;
  }

 private:
  static constexpr size_t kCount = 3000;

  std::vector<float> Left() const {
    std::vector<float> values(kCount);
    EXPECT_EQ(ccl_residual_export(residual_, values.data(), kCount), CCL_SUCCESS);
    return values;
  }
  void Keep() {
    kept_.swap(tried_);
    tried_.clear();
    ++steps_;
  }

  const int me_;
  ccl_residual_t residual_ = nullptr;
  ccl_codec_t codec_ = nullptr;
  std::vector<float> kept_, tried_;  // the residual; after a step of which others may not know
  uint64_t steps_ = 0;               // of this round
};

// One worker's process.
class Life {
 public:
  Life(Shared* shared, int me)
      : shared_(*shared), me_(me), mine_(shared->workers[me]), feedback_(me) {}

  void Run(uint64_t first_round) {
    for (uint64_t round = first_round;; ++round) {
      for (int naps = 1; shared_.round < round; ++naps) {
        if (shared_.over) return;
        if (naps % 256 == 0) Measure();
        Nap();
      }
      seed_ = Mix64(shared_.seed + round);
      Round(round);
      Measure();
      mine_.done = round;
    }
  }

 private:
  void Measure() {
    const Holdings holds = Holdings::Now();
    mine_.fds = holds.fds;
    mine_.threads = holds.threads;
    mine_.kib = holds.rss_kib;
  }
  void Note(const char* what, ccl_result_t result, ccl_comm_t comm) {
    std::snprintf(mine_.text, sizeof mine_.text, "%s: %d: %s", what, static_cast<int>(result),
                  ccl_get_last_error(comm));
  }

  void Round(uint64_t round) {
    feedback_.BeginRound();
    int rank = 0;
    while (shared_.order[static_cast<size_t>(rank)] != me_) ++rank;
    if (rank == 0) {
      const ccl_result_t made = ccl_get_unique_id(&shared_.id);
      EXPECT_EQ(made, CCL_SUCCESS) << ccl_get_last_error(nullptr);
      shared_.id_of = round;
    }
    while (shared_.id_of < round) {
      if (shared_.last >= round) return;  // the one that was to make the id is dead
      Nap();
    }
    ccl_comm_t comm = nullptr;
    ccl_result_t result = CCL_SUCCESS;
    if (rank < shared_.first) {
      result = ccl_comm_init_rank(&comm, shared_.first, shared_.id, rank);
      if (result != CCL_SUCCESS) return Note("init", result, nullptr);
    }
    if (shared_.first < kWorkers) {
      result = Grow(&comm, rank, round);
      if (comm == nullptr) return;
    }
    mine_.joined = result == CCL_SUCCESS;
    for (int depth = 0;; ++depth) {
      result = Use(comm, depth, round);
      if (result == CCL_SUCCESS) break;
      Note(depth == 0 ? "operation" : "operation after shrink", result, comm);
      ccl_comm_t smaller = nullptr;
      const ccl_result_t shrunk =
          ccl_comm_shrink(comm, nullptr, 0, &smaller, nullptr, CCL_SHRINK_ABORT);
      if (shrunk != CCL_SUCCESS) Note("shrink", shrunk, nullptr);
      EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
      comm = smaller;
      if (shrunk != CCL_SUCCESS) return;
      ++mine_.shrinks;
    }
    EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
  }

  // A rank of the first communicator, or one that joins it. *comm: the larger one, or after an
  // error what it was before.
  ccl_result_t Grow(ccl_comm_t* comm, int rank, uint64_t round) {
    const int place = shared_.places[static_cast<size_t>(rank)];
    if (rank == 0) {
      EXPECT_EQ(ccl_comm_get_unique_id(*comm, &shared_.growth_id), CCL_SUCCESS);
      shared_.growth_of = round;
    }
    while (rank >= shared_.first && shared_.growth_of < round) {
      if (shared_.last >= round) return CCL_REMOTE_ERROR;  // the one that was to make it is dead
      Nap();
    }
    ccl_config_t config = CCL_CONFIG_INIT;
    config.init_timeout_ms = kGrowthMs;
    ccl_comm_t larger = nullptr;
    const ccl_result_t result =
        ccl_comm_grow(*comm, kWorkers, rank == 0 || *comm == nullptr ? &shared_.growth_id : nullptr,
                      place, &larger, &config);
    if (result != CCL_SUCCESS) {
      Note("grow", result, nullptr);
      return result;
    }
    EXPECT_EQ(ccl_comm_destroy(*comm), CCL_SUCCESS);
    *comm = larger;
    return result;
  }

  // Learns who the members are, runs verified operations, and returns the first error.
  ccl_result_t Use(ccl_comm_t comm, int depth, uint64_t round) {
    int n = 0, rank = 0;
    EXPECT_EQ(ccl_comm_count(comm, &n), CCL_SUCCESS);
    EXPECT_EQ(ccl_comm_user_rank(comm, &rank), CCL_SUCCESS);
    uint64_t members = uint64_t{1} << me_;
    const ccl_result_t known =
        ccl_allreduce(&members, &members, 1, CCL_UINT64, CCL_SUM, comm, nullptr);
    if (known != CCL_SUCCESS) return known;
    EXPECT_EQ(__builtin_popcountll(members), n) << fmt::format("{:x}", members);
    if (depth > 0) {
      const ccl_result_t result = feedback_.GoOn(comm);
      if (result != CCL_SUCCESS) return result;
    }
    RandomOperationRunner runner(rank, n, comm, seed_ + static_cast<uint64_t>(depth), nullptr,
                                 Limits());
    // What rank 0 reads, it says in the next portion: a rank that had died when it read it cannot
    // take part in what it says, so all members end after the same operation.
    bool end_next = false;
    for (uint64_t first = 0;; first += kAtOnce) {
      const ccl_result_t fed = feedback_.Step(comm, seed_);
      if (fed != CCL_SUCCESS) return fed;
      const uint64_t before = runner.completed();
      const ccl_result_t result = n == 1 ? CCL_SUCCESS : runner.Run(first, kAtOnce);
      mine_.operations += runner.completed() - before;
      mine_.total += runner.completed() - before;
      if (result != CCL_SUCCESS) return result;
      uint32_t end = rank == 0 && end_next ? 1 : 0;
      end_next = shared_.last >= round && (depth == 0 || first >= kAfter);
      const ccl_result_t told = ccl_allreduce(&end, &end, 1, CCL_UINT32, CCL_MAX, comm, nullptr);
      if (told != CCL_SUCCESS) return told;
      if (end != 0 || ::testing::Test::HasFailure()) break;
    }
    mine_.members = members;
    return CCL_SUCCESS;
  }

  Shared& shared_;
  const int me_;
  Worker& mine_;
  uint64_t seed_ = 0;
  Feedback feedback_;
};

class ChurnTest : public FaultTest {
 protected:
  ChurnTest()
      : FaultTest({.init_seconds = 10.0 * kSlowness,
                   .op_seconds = 30.0 * kSlowness,
                   .dead_seconds = kDead}),
        rng_(TestSeed()) {}

  void SetUp() override {
    FaultTest::SetUp();
    const std::string missing = Hosts::Missing();
    if (!missing.empty()) GTEST_SKIP() << missing;
    hosts_ = std::make_unique<Hosts>(HostsOptions{.count = kHosts});
    void* const memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    shared_ = new (memory) Shared;
    shared_->seed = TestSeed();
    for (int worker = 0; worker < kWorkers; ++worker) Start(worker, 1);
  }
  void TearDown() override {
    if (shared_ != nullptr) {
      for (const Process& process : processes_) {
        if (process.pid <= 0) continue;
        kill(process.pid, SIGKILL);
        waitpid(process.pid, nullptr, 0);
      }
      munmap(shared_, sizeof(Shared));
    }
    hosts_.reset();
    FaultTest::TearDown();
  }

  // Runs a round and checks its outcome.
  void Round(uint64_t round, Fault fault) {
    SCOPED_TRACE(fmt::format("round {}: {}", round, Name(fault)));
    for (size_t i = 0; i < kWorkers; ++i) shared_->order[i] = static_cast<int>(i);
    for (size_t i = kWorkers; i-- > 1;)
      std::swap(shared_->order[i], shared_->order[rng_.Below(i + 1)]);
    // Growth in every second round: at the end, or into places between.
    const uint64_t late = round % 2 == 0 ? 1 + rng_.Below(kMostLate) : 0;
    shared_->first = kWorkers - static_cast<int>(late);
    for (size_t i = 0; i < kWorkers; ++i) shared_->places[i] = static_cast<int>(i);
    const bool between = rng_.Below(2) == 0;
    for (size_t i = kWorkers; between && i-- > 1;) {
      std::swap(shared_->places[i], shared_->places[rng_.Below(i + 1)]);
    }
    for (Worker& worker : shared_->workers) {
      worker.operations = 0;
      worker.joined = false;
      worker.members = 0;
      worker.shrinks = 0;
      worker.text[0] = '\0';
    }
    const int victim = static_cast<int>(rng_.Below(kWorkers));
    const int second = (victim + 1 + static_cast<int>(rng_.Below(kWorkers - 1))) % kWorkers;
    const int host = victim / kPerHost;
    shared_->round = round;
    if (fault == Fault::kKillJoining) {
      usleep(static_cast<useconds_t>(rng_.Below(100'000)));
      Kill(victim);
    } else {
      for (int worker = 0; worker < kWorkers; ++worker) {
        Await(round, [&] { return shared_->workers[worker].operations >= kBefore; });
      }
    }
    std::vector<int> absent;  // those that the others do without
    const double began = Seconds();
    switch (fault) {
      case Fault::kNone: break;
      case Fault::kShortStop:
        kill(processes_[Index(victim)].pid, SIGSTOP);
        usleep(static_cast<useconds_t>(0.2e6 * kDead));
        kill(processes_[Index(victim)].pid, SIGCONT);
        break;
      case Fault::kShortPartition:
        hosts_->Partition(host);
        usleep(static_cast<useconds_t>(0.1e6 * kDead));
        hosts_->Heal(host);
        break;
      case Fault::kKillTwo:
        Kill(victim);
        usleep(static_cast<useconds_t>(rng_.Below(60'000)));
        Kill(second);
        absent = {victim, second};
        break;
      case Fault::kKillAndStop:
        Kill(victim);
        usleep(static_cast<useconds_t>(rng_.Below(60'000)));
        kill(processes_[Index(second)].pid, SIGSTOP);
        absent = {victim, second};
        break;
      case Fault::kKill: Kill(victim); [[fallthrough]];
      case Fault::kKillJoining: absent = {victim}; break;
      case Fault::kStop:
        kill(processes_[Index(victim)].pid, SIGSTOP);
        absent = {victim};
        break;
      case Fault::kPartition:
        hosts_->Partition(host);
        for (int i = 0; i < kPerHost; ++i) absent.push_back(host * kPerHost + i);
        break;
      case Fault::kPartitionAndKill: {
        hosts_->Partition(host);
        for (int i = 0; i < kPerHost; ++i) absent.push_back(host * kPerHost + i);
        usleep(static_cast<useconds_t>(rng_.Below(static_cast<uint64_t>(1.5e6 * kDead))));
        const int other = (host + 1) % kHosts * kPerHost;
        Kill(other);
        absent.push_back(other);
        break;
      }
      case Fault::kFaults: break;
    }
    shared_->last = round;
    // A busy machine may have made a short fault long. Packets come again after a while as long as
    // the partition.
    const bool short_enough = Seconds() - began < 0.45 * kDead;
    const auto missing = [&](int worker) {
      return std::find(absent.begin(), absent.end(), worker) != absent.end();
    };
    for (int worker = 0; worker < kWorkers; ++worker) {
      if (!missing(worker)) AwaitEnd(worker, round);
    }
    if (Stops(fault)) {
      kill(processes_[Index(fault == Fault::kStop ? victim : second)].pid, SIGCONT);
    }
    for (const int worker : absent) AwaitEnd(worker, round);
    if (Parts(fault)) hosts_->Heal(host);
    if (!absent.empty() || short_enough) Check(fault, absent);
    for (int worker = 0; worker < kWorkers; ++worker) {
      if (processes_[Index(worker)].pid < 0) Start(worker, round + 1);
    }
  }

  // After the rounds: a process that has lived for long holds no more than after its first rounds.
  void ExpectFlat(uint64_t rounds) {
    int old = 0;
    size_t most_growth = 0;
    for (int worker = 0; worker < kWorkers; ++worker) {
      const Process& process = processes_[Index(worker)];
      if (rounds < process.first_round + kSettled + 2) continue;
      ++old;
      const Worker& now = shared_->workers[worker];
      // The rendezvous of a creation that failed may still be there.
      const double limit = Seconds() + 20.0 * kSlowness;
      while ((now.fds > process.settled.fds || now.threads > process.settled.threads) &&
             Seconds() < limit) {
        Nap();
      }
      EXPECT_LE(now.fds, process.settled.fds) << "worker " << worker;
      EXPECT_LE(now.threads, process.settled.threads) << "worker " << worker;
      const size_t kib = now.kib, before = process.settled.rss_kib;
      most_growth = std::max(most_growth, kib - std::min(kib, before));
      if (!kSanitized) {
        EXPECT_LT(kib, before + (6u << 10)) << "KiB, worker " << worker;
      }
    }
    fmt::print("{} processes lived long enough to be measured; the most grew by {} KiB\n", old,
               most_growth);
  }
  uint64_t total() const {
    uint64_t sum = 0;
    for (const Worker& worker : shared_->workers) sum += worker.total;
    return sum;
  }
  Rng& rng() { return rng_; }

  void End() {
    shared_->over = true;
    for (Process& process : processes_) {
      int status = -1;
      EXPECT_EQ(waitpid(process.pid, &status, 0), process.pid);
      process.pid = -1;
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    }
  }

 private:
  struct Process {
    pid_t pid = -1;
    uint64_t first_round = 0;
    Holdings settled;  // after kSettled rounds
  };

  static size_t Index(int worker) { return static_cast<size_t>(worker); }

  void Start(int worker, uint64_t first_round) {
    std::fflush(nullptr);
    shared_->workers[worker].done = first_round - 1;
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      setenv("INCCL_SOCKET_IFNAME", "e0", 1);
      setenv("INCCL_TRANSPORT", "shm,tcp", 1);
      setenv("INCCL_DEBUG", "NONE", 0);  // each fault is a warning of each worker
      const std::string refused = hosts_->Enter(worker / kPerHost);
      if (!refused.empty()) {
        std::fprintf(stderr, "%s\n", refused.c_str());
        _exit(97);
      }
      Life(shared_, worker).Run(first_round);
      std::fflush(nullptr);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    ASSERT_GT(pid, 0);
    processes_[Index(worker)] = {.pid = pid, .first_round = first_round, .settled = {}};
  }
  void Kill(int worker) {
    Process& process = processes_[Index(worker)];
    kill(process.pid, SIGKILL);
    waitpid(process.pid, nullptr, 0);
    process.pid = -1;
  }

  template <typename Condition>
  void Await(uint64_t round, const Condition& condition) {
    const double limit = Seconds() + kLate;
    while (!condition() && Seconds() < limit) {
      for (const Process& process : processes_) {
        if (process.pid > 0 && waitpid(process.pid, nullptr, WNOHANG) == process.pid) {
          ADD_FAILURE() << "a worker has ended";
          std::abort();
        }
      }
      Nap();
    }
    if (condition()) return;
    std::string stacks;
    for (int worker = 0; worker < kWorkers; ++worker) {
      if (shared_->workers[worker].done >= round || processes_[Index(worker)].pid < 0) continue;
      stacks += fmt::format("worker {}, {} operations, {}\n{}", worker,
                            shared_->workers[worker].operations.load(),
                            shared_->workers[worker].text, StacksOf(processes_[Index(worker)].pid));
    }
    ADD_FAILURE() << "hangs: " << stacks;
    std::fflush(nullptr);
    std::abort();  // the children die with this process
  }
  void AwaitEnd(int worker, uint64_t round) {
    if (processes_[Index(worker)].pid < 0) return;
    Await(round, [&] { return shared_->workers[worker].done >= round; });
    Process& process = processes_[Index(worker)];
    const Worker& now = shared_->workers[worker];
    if (round >= process.first_round + kSettled) return;
    process.settled.fds = std::max<size_t>(process.settled.fds, now.fds);
    process.settled.threads = std::max<size_t>(process.settled.threads, now.threads);
    process.settled.rss_kib = std::max<size_t>(process.settled.rss_kib, now.kib);
  }

  void Check(Fault fault, const std::vector<int>& absent) {
    uint64_t present = (uint64_t{1} << kWorkers) - 1;
    for (const int worker : absent) present &= ~(uint64_t{1} << worker);
    const bool all_joined = std::all_of(
        std::begin(shared_->workers), std::end(shared_->workers), [&](const Worker& worker) {
          return worker.joined || (present >> (&worker - shared_->workers) & 1) == 0;
        });
    for (int worker = 0; worker < kWorkers; ++worker) {
      const Worker& end = shared_->workers[worker];
      const uint64_t bit = uint64_t{1} << worker, members = end.members;
      if ((present & bit) == 0) {
        // It may have gone on with those that it still reached.
        if (Parts(fault)) {
          EXPECT_EQ(members & present, 0u) << end.text;
        }
        if (Stops(fault)) {
          EXPECT_EQ(members & ~bit, 0u) << end.text;
        }
        continue;
      }
      if (fault == Fault::kKillJoining && !all_joined) {
        // If it was one that joins, the members have what they had.
        const auto first = shared_->order.begin(), last = first + shared_->first;
        if (std::find(first, last, absent[0]) == last && std::find(first, last, worker) != last) {
          uint64_t before = 0;
          for (auto member = first; member != last; ++member) before |= uint64_t{1} << *member;
          EXPECT_EQ(members, before) << "worker " << worker << ": " << end.text;
        }
        continue;
      }
      EXPECT_EQ(members, present) << "worker " << worker << ": " << end.text;
      if (absent.empty()) {
        EXPECT_EQ(end.shrinks, 0) << "worker " << worker << ": " << end.text;
      }
    }
  }

  Rng rng_;
  std::unique_ptr<Hosts> hosts_;
  Shared* shared_ = nullptr;
  std::array<Process, kWorkers> processes_;
};

TEST_F(ChurnTest, SurvivorsGoOnAndHoldNoMore) {
  ForRow("1,2,4,5,24,29,30", "tcp");
  const char* const text = std::getenv("INCCL_TEST_ROUNDS");
  const auto all = static_cast<uint64_t>(Fault::kFaults);
  // Under a sanitizer only those that wait for no dead time.
  const uint64_t some = kSanitized ? static_cast<uint64_t>(Fault::kKillTwo) + 1 : all;
  const uint64_t rounds = text != nullptr ? std::strtoull(text, nullptr, 10) : some;
  const double began = Seconds();
  for (uint64_t round = 1; round <= rounds && !HasFailure(); ++round) {
    // Each kind once, then at random.
    Round(round, static_cast<Fault>(round <= all ? round - 1 : rng().Below(all)));
    if (round % 50 == 0) fmt::print("round {}, {:.0f} s\n", round, Seconds() - began);
    std::fflush(stdout);
  }
  if (!HasFailure()) Round(rounds + 1, Fault::kNone);
  ExpectFlat(rounds + 1);
  fmt::print("{} rounds, {} verified operations, {:.1f} s\n", rounds + 1, total(),
             Seconds() - began);
  End();
}

}  // namespace
}  // namespace inccl::test
