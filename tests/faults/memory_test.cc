// SPDX-License-Identifier: Apache-2.0
//
// The n-th allocation fails, for every n, in calls on streams, groups, sends, reducers, calls that
// preserve their input and calls on registered buffers: every call returns, no process ends, the
// first error stays with the communicator and reaches the other ranks, streams run empty, and what
// is said to have succeeded is right.
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/rng.h"
#include "faults/fault_test.h"
#include "faults/interposer.h"
#include "support/seed.h"
#include "world/stacks.h"
#if INCCL_TEST_VERBS
#include "fakes/verbs/fake_verbs.h"
#endif

namespace inccl::test {
namespace {

constexpr int kRanks = 3, kVictim = 1;
constexpr size_t kCount = 3000, kRegisteredCount = 30'000;
constexpr double kReturnsSeconds = 12.0 * kSlowness;  // far below the limit of an operation
// Every kStep-th allocation between threads, and so many between processes, at random; every one
// with INCCL_TEST_EXHAUSTIVE. INCCL_TEST_TRACE: where they hit.
constexpr uint64_t kStep = kSanitized ? 17 : 3;
constexpr size_t kMostProcessCases = kSanitized ? 3 : 8;

bool Exhaustive() { return std::getenv("INCCL_TEST_EXHAUSTIVE") != nullptr; }

// What a rank has and found out. Nothing here allocates while allocations fail.
struct Rank {
  int rank = 0;
  std::array<ccl_comm_t, 2> comms{};
  std::array<ccl_stream_t, 2> streams{};
  float *send = nullptr, *recv = nullptr;

  ccl_result_t result = CCL_SUCCESS;  // of the first call that failed
  ccl_result_t synchronized = CCL_SUCCESS;
  std::array<ccl_result_t, 2> sticky{CCL_SUCCESS, CCL_SUCCESS};
  bool wrong = false, unrestored = false, forgotten = false;
  bool outside = false;  // the call that failed was about no communicator
  double seconds = 0;
  char text[1000]{};
};

// An error of a call that is about no communicator leaves everything as it was; it may be repeated.
ccl_result_t StartGroup() {
  const ccl_result_t result = ccl_group_start();
  return result == CCL_SUCCESS ? result : ccl_group_start();
}

void Keep(Rank* r, ccl_result_t result) {
  if (result == CCL_SUCCESS || r->result != CCL_SUCCESS) return;
  r->result = result;
  std::strncpy(r->text, ccl_get_last_error(nullptr), sizeof r->text - 1);
}

float Input(int rank, int call) { return static_cast<float>(100 * call + rank + 1); }
float Sum(int call) { return static_cast<float>(300 * call + 6); }

void Fill(float* data, size_t count, float value) { std::fill(data, data + count, value); }
bool All(const float* data, size_t count, float value) {
  return std::all_of(data, data + count, [&](float x) { return x == value; });
}

void Check(Rank* r, const float* data, size_t count, float value) {
  if (r->result == CCL_SUCCESS && !All(data, count, value)) r->wrong = true;
}

// Two communicators in turn, on one stream.
void OnAStream(Rank* r) {
  for (int call = 0; call < 4 && r->result == CCL_SUCCESS; ++call) {
    Fill(r->send, kCount, Input(r->rank, call));
    for (size_t k = 0; k < 2; ++k) {
      Keep(r, ccl_allreduce(r->send, r->recv + k * kCount, kCount, CCL_FLOAT32, CCL_SUM,
                            r->comms[k], r->streams[0]));
    }
    r->synchronized = ccl_stream_synchronize(r->streams[0]);
    Keep(r, r->synchronized);
    Check(r, r->recv, 2 * kCount, Sum(call));
  }
}

// Calls of two communicators on two streams, and sends, in one group.
void InAGroup(Rank* r) {
  const int right = (r->rank + 1) % kRanks, left = (r->rank + 2) % kRanks;
  for (int call = 0; call < 3 && r->result == CCL_SUCCESS; ++call) {
    Fill(r->send, kCount, Input(r->rank, call));
    Keep(r, StartGroup());
    r->outside = r->result != CCL_SUCCESS;
    if (r->outside) return;
    for (size_t k = 0; k < 2; ++k) {
      Keep(r, ccl_allreduce(r->send, r->recv + k * kCount, kCount, CCL_FLOAT32, CCL_SUM,
                            r->comms[k], r->streams[k]));
    }
    ccl_stream_t const other = call == 1 ? nullptr : r->streams[1];
    Keep(r, ccl_send(r->send, kCount, CCL_FLOAT32, right, r->comms[0], other));
    Keep(r, ccl_recv(r->recv + 2 * kCount, kCount, CCL_FLOAT32, left, r->comms[0], other));
    Keep(r, ccl_group_end());
    for (const ccl_stream_t stream : r->streams) Keep(r, ccl_stream_synchronize(stream));
    Check(r, r->recv, 2 * kCount, Sum(call));
    Check(r, r->recv + 2 * kCount, kCount, Input(left, call));
  }
}

// One after the other, first at once and then on a stream.
void SendsAndReceives(Rank* r) {
  for (int call = 0; call < 4 && r->result == CCL_SUCCESS; ++call) {
    ccl_stream_t const stream = call < 2 ? nullptr : r->streams[0];
    Fill(r->send, kCount, Input(r->rank, call));
    for (int step = 0; step < kRanks; ++step) {
      const int next = (step + 1) % kRanks;
      if (r->rank == step) {
        Keep(r, ccl_send(r->send, kCount, CCL_FLOAT32, next, r->comms[0], stream));
      } else if (r->rank == next) {
        Keep(r, ccl_recv(r->recv, kCount, CCL_FLOAT32, step, r->comms[0], stream));
      }
    }
    Keep(r, ccl_stream_synchronize(r->streams[0]));
    Check(r, r->recv, kCount, Input((r->rank + 2) % kRanks, call));
  }
}

void InPlace(Rank* r, size_t count) {
  for (int call = 0; call < 3 && r->result == CCL_SUCCESS; ++call) {
    // A longer one each time, so that there is something to allocate.
    const size_t elements = count / 3 * static_cast<size_t>(call + 1);
    Fill(r->send, elements, Input(r->rank, call));
    ccl_stream_t const stream = call == 1 ? r->streams[0] : nullptr;
    Keep(r, ccl_allreduce(r->send, r->send, elements, CCL_FLOAT32, CCL_SUM, r->comms[0], stream));
    if (stream != nullptr) Keep(r, ccl_stream_synchronize(stream));
    Check(r, r->send, elements, Sum(call));
    if (r->result != CCL_SUCCESS && !All(r->send, elements, Input(r->rank, call))) {
      r->unrestored = true;
    }
  }
}

void PreservesInput(Rank* r) { InPlace(r, kCount); }
void PreservesRegistered(Rank* r) { InPlace(r, kRegisteredCount); }

void OnRegisteredBuffers(Rank* r) {
  for (int call = 0; call < 3 && r->result == CCL_SUCCESS; ++call) {
    Fill(r->send, kRegisteredCount, Input(r->rank, call));
    Keep(r, ccl_allreduce(r->send, r->recv, kRegisteredCount, CCL_FLOAT32, CCL_SUM, r->comms[0],
                          call == 0 ? nullptr : r->streams[0]));
    Keep(r, ccl_stream_synchronize(r->streams[0]));
    Check(r, r->recv, kRegisteredCount, Sum(call));
    if (!All(r->send, kRegisteredCount, Input(r->rank, call))) r->unrestored = true;
  }
}

// What these reducers leave out of such sums is nothing.
void WithReducers(Rank* r) {
  for (const char* spec : {"topk:k=1|fp16", "count_sketch"}) {
    ccl_reducer_t reducer = nullptr;
    ccl_reducer_state_t state = nullptr;
    Keep(r, ccl_reducer_create(&reducer, spec));
    if (r->result == CCL_SUCCESS) {
      Keep(r, ccl_reducer_state_create(&state, reducer, 30, kCount / 30, CCL_FLOAT32));
    }
    r->outside = r->result != CCL_SUCCESS;
    if (!r->outside) {
      Fill(r->send, kCount, Input(r->rank, 1));
      Keep(r, ccl_allreduce_reduced(r->send, r->send, state, CCL_SUM, nullptr, r->comms[0],
                                    r->streams[0]));
      Keep(r, ccl_stream_synchronize(r->streams[0]));
      Check(r, r->send, kCount, Sum(1));
      if (r->result != CCL_SUCCESS && !All(r->send, kCount, Input(r->rank, 1))) {
        r->unrestored = true;
      }
    }
    (void)ccl_reducer_state_destroy(state);
    (void)ccl_reducer_destroy(reducer);
    if (r->result != CCL_SUCCESS) return;
  }
}

struct Scenario {
  const char* name;
  void (*run)(Rank*);
  bool preserves = false, registered = false;
};
constexpr Scenario kScenarios[] = {
    {"stream", OnAStream},
    {"group", InAGroup},
    {"sends", SendsAndReceives},
    {"preserve_input", PreservesInput, true},
    {"reducers", WithReducers},
    {"registered", OnRegisteredBuffers, false, true},
    {"registered_preserve_input", PreservesRegistered, true, true},
};

bool Prepare(const Scenario& scenario, ccl_comm_t comm, Rank* r) {
  ccl_config_t config = CCL_CONFIG_INIT;
  config.preserve_input = scenario.preserves ? 1 : 0;
  config.algorithm = scenario.registered ? "direct" : nullptr;
  bool well = true;
  for (ccl_comm_t& made : r->comms) {
    if (made == nullptr) well &= ccl_comm_split(comm, 0, r->rank, &made, &config) == CCL_SUCCESS;
  }
  for (ccl_stream_t& stream : r->streams) well &= ccl_stream_create(&stream) == CCL_SUCCESS;
  for (float** memory : {&r->send, &r->recv}) {
    void* data = nullptr;
    if (scenario.registered) {
      well &= ccl_mem_alloc(&data, size_t{1} << 20) == CCL_SUCCESS;
    } else {
      data = std::malloc(3 * kCount * sizeof(float));
    }
    *memory = static_cast<float*>(data);
  }
  return well;
}

void RunScenario(const Scenario& scenario, Rank* r) {
  const double start = Seconds();
  scenario.run(r);
  // After an error, too, everything that was taken up on a stream comes to its end.
  for (const ccl_stream_t stream : r->streams) (void)ccl_stream_synchronize(stream);
  r->seconds = Seconds() - start;
  for (size_t k = 0; k < 2; ++k) {
    ccl_result_t now = CCL_SUCCESS, later = CCL_SUCCESS;
    if (ccl_comm_get_async_error(r->comms[k], &now) != CCL_SUCCESS) continue;
    r->sticky[k] = now;
    if (now == CCL_SUCCESS) continue;
    float value = 1;
    later = ccl_allreduce(&value, &value, 1, CCL_FLOAT32, CCL_SUM, r->comms[k], nullptr);
    r->forgotten |= later != now;
  }
  // What a program does that has lost one of two communicators: no peer is to wait for it on the
  // other.
  for (size_t k = 0; k < 2; ++k) {
    if (r->result != CCL_SUCCESS && r->sticky[k] == CCL_SUCCESS) ccl_comm_revoke(r->comms[k]);
  }
}

bool Cleanup(const Scenario& scenario, Rank* r) {
  bool well = true;
  for (const ccl_comm_t comm : r->comms) well &= ccl_comm_destroy(comm) == CCL_SUCCESS;
  for (const ccl_stream_t stream : r->streams) well &= ccl_stream_destroy(stream) == CCL_SUCCESS;
  for (float* const memory : {r->send, r->recv}) {
    scenario.registered ? (void)ccl_mem_free(memory) : std::free(memory);
  }
  return well;
}

void ExpectSound(const Rank& r) {
  SCOPED_TRACE(fmt::format("rank {}: {}", r.rank, r.text));
  EXPECT_FALSE(r.wrong) << "a wrong result of a call that succeeded";
  EXPECT_FALSE(r.unrestored) << "the input is not what it was";
  EXPECT_FALSE(r.forgotten) << "a later call does not say the same";
  EXPECT_LT(r.seconds, kReturnsSeconds);
  if (r.result == CCL_SUCCESS) return;
  EXPECT_TRUE(r.result == CCL_SYSTEM_ERROR || r.result == CCL_REMOTE_ERROR) << r.result;
  const bool sticky = r.sticky[0] != CCL_SUCCESS || r.sticky[1] != CCL_SUCCESS;
  EXPECT_TRUE(sticky || r.outside) << "not sticky";
  EXPECT_GT(std::strlen(r.text), 10u);
}

// Ranks that are threads, so that the n-th allocation may be any rank's, for every n.
class MemoryTest : public FaultTest {
 protected:
  // The allocations of one run, of which those from `first` to `last` fail.
  static uint64_t RunThreads(const Scenario& scenario, const interposer::Plan& plan,
                             std::array<Rank, kRanks>* ranks);

 private:
  const ScopedEnv slices_{{{"INCCL_SLICE_BYTES", "8192"}}};  // little memory for each of many runs
};

uint64_t MemoryTest::RunThreads(const Scenario& scenario, const interposer::Plan& plan,
                                std::array<Rank, kRanks>* ranks) {
  const ScopedEnv env({{"INCCL_ALGO", scenario.registered ? "direct" : ""}});
  std::array<std::array<ccl_comm_t, kRanks>, 2> comms{};
  for (auto& all : comms) {
    EXPECT_EQ(ccl_comm_init_all(all.data(), kRanks, nullptr), CCL_SUCCESS);
  }
  std::atomic<int> ready{0}, done{0};
  std::atomic<bool> go{false}, leave{false};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    Rank* const r = &(*ranks)[static_cast<size_t>(rank)];
    *r = {};
    r->rank = rank;
    threads.emplace_back([&, r, rank = static_cast<size_t>(rank)] {
      if (!scenario.preserves) r->comms = {comms[0][rank], comms[1][rank]};
      EXPECT_TRUE(Prepare(scenario, comms[0][rank], r)) << ccl_get_last_error(nullptr);
      ++ready;
      while (!go.load()) usleep(100);
      RunScenario(scenario, r);
      ++done;
      while (!leave.load()) usleep(100);
      EXPECT_TRUE(Cleanup(scenario, r)) << ccl_get_last_error(nullptr);
    });
  }
  while (ready.load() < kRanks) usleep(100);
  interposer::Arm(plan);
  go.store(true);
  while (done.load() < kRanks) usleep(100);
  const uint64_t calls = interposer::Calls(interposer::kNew);
  interposer::Disarm();
  leave.store(true);
  for (std::thread& thread : threads) thread.join();
  if (!scenario.preserves) return calls;  // else these are the parents of those that were used
  for (const auto& all : comms) {
    for (const ccl_comm_t comm : all) EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
  }
  return calls;
}

TEST_F(MemoryTest, Row19_EveryAllocationFailsOnceBetweenThreads) {
  ForRow("19", "loopback");
  const Watchdog watchdog(100.0 * kSlowness);
  const uint64_t step = Exhaustive() ? 1 : kStep;
  Rng rng(TestSeed());
  for (const Scenario& scenario : kScenarios) {
    std::array<Rank, kRanks> ranks;
    const uint64_t calls = RunThreads(scenario, {}, &ranks);
    for (const Rank& r : ranks) ASSERT_EQ(r.result, CCL_SUCCESS) << scenario.name << r.text;
    std::printf("%s: %lu allocations\n", scenario.name, static_cast<unsigned long>(calls));
    EXPECT_GT(calls, 10u);
    for (uint64_t n = 1 + rng.Below(step); n <= calls; n += step) {
      SCOPED_TRACE(fmt::format("{}: allocation {} of {}", scenario.name, n, calls));
      RunThreads(scenario, {interposer::kNew, n, n, 0}, &ranks);
      for (const Rank& r : ranks) ExpectSound(r);
    }
  }
}

// A directory in which a process that has ended left a socket for inccl-status, half made.
class StatusLeftovers {
 public:
  StatusLeftovers() : environment_({{"XDG_RUNTIME_DIR", Root()}}) {
    const std::string directory = root_ + "/inccl";
    EXPECT_EQ(mkdir(directory.c_str(), 0700), 0);
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    // Above the largest process number of Linux.
    std::strcpy(address.sun_path, (directory + "/.99999999-0a1b2c3d").c_str());
    const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ~StatusLeftovers() { std::filesystem::remove_all(root_); }

 private:
  const char* Root() {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
    return root_.c_str();
  }

  std::string root_ = ::testing::TempDir() + "inccl-memory-XXXXXX";
  const ScopedEnv environment_;
};

// All of the handles or none; the next creation is as if nothing had been.
TEST_F(MemoryTest, Row19_CreationBetweenThreads) {
  ForRow("19", "loopback");
  const Watchdog watchdog(100.0 * kSlowness);
  const StatusLeftovers leftovers;
  std::array<ccl_comm_t, kRanks> comms{};
  interposer::Arm({});
  ASSERT_EQ(ccl_comm_init_all(comms.data(), kRanks, nullptr), CCL_SUCCESS);
  const uint64_t calls = interposer::Calls(interposer::kNew);
  interposer::Disarm();
  for (const ccl_comm_t comm : comms) EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
  const Baseline baseline;
  int failures = 0;
  for (uint64_t n = 1; n <= calls; ++n) {
    SCOPED_TRACE(n);
    comms = {};
    interposer::Arm({interposer::kNew, n, n, 0});
    const ccl_result_t result = ccl_comm_init_all(comms.data(), kRanks, nullptr);
    interposer::Disarm();
    EXPECT_TRUE(result == CCL_SUCCESS || result == CCL_SYSTEM_ERROR) << result;
    failures += result != CCL_SUCCESS;
    for (const ccl_comm_t comm : comms) {
      EXPECT_EQ(comm != nullptr, result == CCL_SUCCESS);
      EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
    }
  }
  EXPECT_GT(failures, 10);
}

// No caller catches what a thread in the background or of a group throws.
TEST_F(MemoryTest, Row19_CreationInTheBackgroundAndInGroups) {
  ForRow("19", "shm");
  const Watchdog watchdog(100.0 * kSlowness);
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  const uint64_t step = Exhaustive() ? 1 : 29;
  Rng rng(TestSeed());
  uint64_t calls = 0;
  for (const bool group : {false, true}) {
    for (uint64_t n = 0; n <= calls; n += n == 0 ? 1 + rng.Below(step) : step) {
      SCOPED_TRACE(fmt::format("{} allocation {}", group ? "group" : "background", n));
      std::array<ccl_comm_t, 2> comms{};
      std::array<ccl_unique_id_t, 2> ids;
      ccl_config_t config = CCL_CONFIG_INIT;
      config.blocking = group ? 1 : 0;
      for (ccl_unique_id_t& id : ids) ASSERT_EQ(ccl_get_unique_id(&id), CCL_SUCCESS);
      interposer::Arm({interposer::kNew, n, n, 0});  // the 0th: none
      bool started = false;
      std::array<ccl_result_t, 2> results{};
      if (group) started = ccl_group_start() == CCL_SUCCESS;
      for (size_t i = 0; i < 2; ++i) {
        results[i] = ccl_comm_init_rank_config(&comms[i], 1, ids[i], 0, &config);
      }
      if (started) results[0] = ccl_group_end();
      for (size_t i = 0; i < 2; ++i) {
        ccl_result_t now = CCL_IN_PROGRESS;
        while (comms[i] != nullptr && ccl_comm_get_async_error(comms[i], &now) == CCL_SUCCESS &&
               now == CCL_IN_PROGRESS) {
          usleep(100);
        }
        if (results[i] == CCL_IN_PROGRESS) results[i] = now;
      }
      if (n == 0) calls = interposer::Calls(interposer::kNew);
      interposer::Disarm();
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_TRUE(results[i] == CCL_SUCCESS || results[i] == CCL_SYSTEM_ERROR ||
                    results[i] == CCL_TIMEOUT || results[i] == CCL_REMOTE_ERROR)
            << results[i];
        EXPECT_EQ(ccl_comm_destroy(comms[i]), CCL_SUCCESS);  // or NULL
        // A rendezvous to which no rank ever came would wait for ever.
        ccl_comm_t again = nullptr;
        if (ccl_comm_init_rank(&again, 1, ids[i], 0) == CCL_SUCCESS) ccl_comm_destroy(again);
      }
    }
    EXPECT_GT(calls, 100u);
  }
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(std::memcmp(&before, &after, 8), 0) << "signals stay blocked";
}

// With no memory at all: an abort is told, a communicator and its handle are given back, and a call
// on one that is finalized does not hold on to it.
TEST_F(MemoryTest, Row19_TheEndNeedsNoMemory) {
  ForRow("19", "loopback");
  const Watchdog watchdog(60.0 * kSlowness);
  constexpr interposer::Plan kNone = {interposer::kNew, 1, UINT64_MAX, 0};
  for (int way = 0; way < 3; ++way) {
    SCOPED_TRACE(way);
    std::array<ccl_comm_t, kRanks> comms{};
    ASSERT_EQ(ccl_comm_init_all(comms.data(), kRanks, nullptr), CCL_SUCCESS);
    float value = 1;
    if (way == 2) {
      EXPECT_EQ(ccl_comm_finalize(comms[kVictim]), CCL_SUCCESS);
    }
    interposer::Arm(kNone);
    ccl_result_t result = CCL_SUCCESS, called = CCL_SUCCESS;
    if (way == 0) result = ccl_comm_abort(comms[kVictim]);
    if (way == 2) {
      called = ccl_allreduce(&value, &value, 1, CCL_FLOAT32, CCL_SUM, comms[kVictim], nullptr);
    }
    if (way != 0) result = ccl_comm_destroy(comms[kVictim]);
    interposer::Disarm();
    EXPECT_EQ(result, CCL_SUCCESS);
    EXPECT_EQ(called == CCL_SUCCESS, way != 2);
    for (const int rank : {0, 2}) {
      const ccl_comm_t comm = comms[static_cast<size_t>(rank)];
      EXPECT_NE(ccl_allreduce(&value, &value, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr), CCL_SUCCESS);
      // The news may come while this rank, a thread of the same process, has no memory either; then
      // it fails itself, and the third rank may see that first.
      EXPECT_TRUE(Matches(ccl_get_last_error(comm),
                          "peer 1@|rank 1/3|: out of memory$|peer [02]@.*closed without finalize"))
          << ccl_get_last_error(comm);
    }
    for (const int rank : {0, 2}) {
      EXPECT_EQ(ccl_comm_destroy(comms[static_cast<size_t>(rank)]), CCL_SUCCESS);
    }
  }
}

#if INCCL_TEST_VERBS
// The same over RDMA, whose queue pairs and registrations end then.
TEST_F(MemoryTest, Row19_TheEndOfRdmaNeedsNoMemory) {
  ForRow("19", "verbs");
  const Watchdog watchdog(60.0 * kSlowness);
  const ScopedEnv env({{"INCCL_TRANSPORT", "verbs"}});
  fake_verbs::Get().SetMachine(fake_verbs::Get().StandardMachine());
  std::array<ccl_comm_t, kRanks> comms{};
  ASSERT_EQ(ccl_comm_init_all(comms.data(), kRanks, nullptr), CCL_SUCCESS)
      << ccl_get_last_error(nullptr);
  std::vector<std::thread> threads;
  for (const ccl_comm_t comm : comms) {
    threads.emplace_back([comm] {
      std::vector<float> data(kCount, 1.0f);
      EXPECT_EQ(
          ccl_allreduce(data.data(), data.data(), kCount, CCL_FLOAT32, CCL_SUM, comm, nullptr),
          CCL_SUCCESS);
      EXPECT_TRUE(All(data.data(), kCount, kRanks));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const ccl_comm_t comm : comms) {
    interposer::Arm({interposer::kNew, 1, UINT64_MAX, 0});
    const ccl_result_t destroyed = ccl_comm_destroy(comm);
    interposer::Disarm();
    EXPECT_EQ(destroyed, CCL_SUCCESS);
  }
  EXPECT_EQ(fake_verbs::Get().OpenObjects(), 0u);
  fake_verbs::Get().SetMachine({});
}
#endif

struct Case {
  const Scenario* scenario;
  interposer::Plan plan;
};

int ProcessBody(const Side& side, const Case& c) {
  ccl_comm_t comm = nullptr;
  if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
  Rank r;
  r.rank = side.rank();
  if (!Prepare(*c.scenario, comm, &r)) return 11;
  if (r.rank == kVictim) interposer::Arm(c.plan);
  RunScenario(*c.scenario, &r);
  const bool clean = Cleanup(*c.scenario, &r);
  side.mine().counters[0] = interposer::Calls(interposer::kNew);
  interposer::Disarm();
  side.mine().result = r.result;
  side.mine().seconds = r.seconds;
  side.mine().SetText(r.text);
  ExpectSound(r);
  const ccl_result_t destroyed = ccl_comm_destroy(comm);
  return clean && destroyed == CCL_SUCCESS ? 0 : 12;
}

std::vector<Case> ProcessCases() {
  std::vector<Case> cases;
  Rng rng(TestSeed());
  const size_t most = Exhaustive() ? SIZE_MAX : kMostProcessCases;
  for (const Scenario& scenario : kScenarios) {
    ProcessWorld world({.nranks = kRanks}, [&](const Side& side) {
      return ProcessBody(side, {&scenario, {}});
    });
    world.ExpectAllExited();
    EXPECT_EQ(world.report(kVictim).result, CCL_SUCCESS) << world.report(kVictim).text;
    const uint64_t calls = world.report(kVictim).counters[0];
    EXPECT_GT(calls, 3u);
    std::vector<uint64_t> chosen;
    for (uint64_t n = 1; n <= calls; ++n) chosen.push_back(n);
    for (size_t k = 0; k < chosen.size(); ++k) {
      std::swap(chosen[k], chosen[k + rng.Below(chosen.size() - k)]);
    }
    if (chosen.size() > most) chosen.resize(most);
    for (const uint64_t n : chosen) cases.push_back({&scenario, {interposer::kNew, n, n, 0}});
    // From some allocation on there is no memory at all.
    cases.push_back({&scenario, {interposer::kNew, chosen[0], UINT64_MAX, 0}});
    cases.push_back({&scenario, {interposer::kNew, 1, UINT64_MAX, 0}});
  }
  return cases;
}

TEST_F(MemoryTest, Row19_AnAllocationOfOneRankFails) {
  ForRow("19", "shm");
  const std::vector<Case> cases = ProcessCases();
  std::printf("%zu cases\n", cases.size());
  RunWorlds(
      cases.size(), 6,
      [&](size_t i) {
        return std::make_unique<ProcessWorld>(
            WorldOptions{.nranks = kRanks},
            [&](const Side& side) { return ProcessBody(side, cases[i]); });
      },
      [&](size_t i, ProcessWorld& world) {
        const interposer::Plan& plan = cases[i].plan;
        SCOPED_TRACE(fmt::format("{}: allocations {} to {} of rank {}", cases[i].scenario->name,
                                 plan.first, plan.last, kVictim));
        world.ExpectAllExited();
        const bool failed = world.report(kVictim).result != CCL_SUCCESS;
        for (const int rank : {0, 2}) {
          Report& report = world.report(rank);
          if (report.result == CCL_SUCCESS) continue;
          EXPECT_TRUE(failed) << report.text;
          EXPECT_TRUE(Matches(report.text, "peer 1@|rank 1/3")) << report.text;
        }
      });
}

}  // namespace
}  // namespace inccl::test
