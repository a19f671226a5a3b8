// SPDX-License-Identifier: Apache-2.0
//
// What else goes on in a process: forks, signals, an exit with live communicators, a library that
// is loaded and unloaded.
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "build_paths.h"
#include "faults/fault_test.h"
#include "world/sanitizers.h"

namespace inccl::test {
namespace {

class ProcessTest : public TransportFaultTest {};

ccl_result_t Sum(ccl_comm_t comm, int nranks, size_t count = 100) {
  std::vector<float> data(count, 1.0f);
  const ccl_result_t result =
      ccl_allreduce(data.data(), data.data(), count, CCL_FLOAT32, CCL_SUM, comm, nullptr);
  for (size_t i = 0; result == CCL_SUCCESS && i < count; ++i) {
    EXPECT_EQ(data[i], static_cast<float>(nranks));
  }
  return result;
}

int WaitForChild(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

#if !defined(__SANITIZE_THREAD__)  // which cannot fork a process with threads

// Like the workers of a data loader: forked in the middle of things, using memory, exiting.
TEST_P(ProcessTest, Row21_ChildrenOfForkDisturbNoRank) {
  ForRow("21");
  RunProcesses(3, [](int rank, ccl_comm_t comm) {
    ASSERT_EQ(Sum(comm, 3), CCL_SUCCESS);
    std::vector<pid_t> children;
    for (int i = 0; i < 8; ++i) {
      std::fflush(nullptr);
      const pid_t child = fork();
      if (child == 0) {
        std::vector<char> memory(1 << 20, static_cast<char>(rank));
        if (memory[77] != rank) _exit(3);
        if (i % 2 == 0) _exit(0);
        ExitsWithThreadsAtWork();  // those of the parent: what they held looks lost
        std::exit(0);              // with the destructors of static objects
      }
      children.push_back(child);
      ASSERT_EQ(Sum(comm, 3, 3000), CCL_SUCCESS) << ccl_get_last_error(comm);
    }
    for (const pid_t child : children) EXPECT_EQ(WaitForChild(child), 0);
    for (int i = 0; i < 100; ++i) ASSERT_EQ(Sum(comm, 3), CCL_SUCCESS) << ccl_get_last_error(comm);
  });
}

TEST_P(ProcessTest, Row21_AChildThatUsesTheCommunicatorIsRefused) {
  ForRow("21");
  RunProcesses(2, [](int rank, ccl_comm_t comm) {
    ASSERT_EQ(Sum(comm, 2), CCL_SUCCESS);
    if (rank == 0) {
      std::fflush(nullptr);
      const pid_t child = fork();
      if (child == 0) {
        const double start = Seconds();
        float x = 1;
        int value = 0;
        ccl_comm_t fresh = nullptr;
        const bool refused =
            ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr) == CCL_INVALID_USAGE &&
            Matches(ccl_get_last_error(nullptr), "fork") &&
            ccl_comm_count(comm, &value) == CCL_INVALID_USAGE &&
            ccl_comm_destroy(comm) == CCL_INVALID_USAGE &&
            ccl_comm_init_all(&fresh, 1, nullptr) == CCL_INVALID_USAGE;
        _exit(refused && Seconds() - start < SlackSeconds() ? 0 : 1);
      }
      EXPECT_EQ(WaitForChild(child), 0);
    }
    for (int i = 0; i < 100; ++i) ASSERT_EQ(Sum(comm, 2), CCL_SUCCESS) << ccl_get_last_error(comm);
  });
}

// A data loader's worker outlives the rank that forked it. Silence is no error here, so it is the
// end of the connections that tells.
TEST_P(ProcessTest, Row21_AChildDoesNotHideTheDeathOfItsParent) {
  ForRow("21");
  const ScopedEnv patient({{"INCCL_DEAD_TIMEOUT_MS", "0"}});
  ProcessWorld world({.nranks = 3}, [](const Side& side) {
    ccl_comm_t comm = nullptr;
    if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
    ccl_result_t result = Sum(comm, 3);
    if (result == CCL_SUCCESS && side.rank() == 1) {
      std::fflush(nullptr);
      const pid_t child = fork();
      if (child == 0) {
        pause();
        _exit(0);
      }
      side.mine().counters[0] = static_cast<uint64_t>(child);
      _exit(0);
    }
    if (result == CCL_SUCCESS) result = Sum(comm, 3);
    side.mine().SetText(ccl_get_last_error(comm));
    return ccl_comm_abort(comm) == CCL_SUCCESS && result == CCL_REMOTE_ERROR ? 0 : 12;
  });
  const double start = Seconds();
  world.Wait();
  EXPECT_LT(Seconds() - start, kLocalDeathSeconds + SlackSeconds());
  const auto child = static_cast<pid_t>(world.report(1).counters[0]);
  EXPECT_EQ(kill(child, SIGKILL), 0) << "it lived to the end";
  world.ExpectAllExited();
  for (const int rank : {0, 2}) {
    const Report& report = world.report(rank);
    EXPECT_TRUE(Matches(report.text, "peer 1@.* closed without finalize")) << report.text;
  }
}

#endif  // __SANITIZE_THREAD__

// A peer closes while others write: with the default disposition SIGPIPE would end the process.
TEST_P(ProcessTest, Row22_NoSigpipe) {
  ForRow("22");
  for (int round = 0; round < 5; ++round) {
    ProcessWorld world({.nranks = 3}, [](const Side& side) {
      signal(SIGPIPE, SIG_DFL);
      ccl_comm_t comm = nullptr;
      if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
      ccl_result_t result = CCL_SUCCESS;
      for (int i = 0; result == CCL_SUCCESS && i < 100000; ++i) {
        if (side.rank() == 2 && i == 20) _exit(0);
        result = Sum(comm, 3);
      }
      return ccl_comm_abort(comm) == CCL_SUCCESS && result == CCL_REMOTE_ERROR ? 0 : 12;
    });
    world.ExpectAllExited();
  }
}

std::atomic<int> alarms{0};
std::atomic<int> alarms_elsewhere{0};
pthread_t main_thread;

void OnAlarm(int) {
  ++alarms;
  if (!pthread_equal(pthread_self(), main_thread)) ++alarms_elsewhere;
}

// The least of several rounds, in seconds.
double TimeOfCalls(ccl_comm_t comm) {
  double best = 1e9;
  for (int round = 0; round < 7; ++round) {
    const double start = Seconds();
    for (int i = 0; i < 20; ++i) {
      if (Sum(comm, 2, 20000) != CCL_SUCCESS) return -1;
    }
    best = std::min(best, Seconds() - start);
  }
  return best;
}

TEST_P(ProcessTest, Row22_AFastTimerInterruptsNothing) {
  ForRow("22");
  ProcessWorld world({.nranks = 2}, [](const Side& side) {
    main_thread = pthread_self();
    struct sigaction action {};
    action.sa_handler = OnAlarm;  // without SA_RESTART
    sigaction(SIGALRM, &action, nullptr);
    const itimerval every_ms = {.it_interval = {0, 1000}, .it_value = {0, 1000}};
    EXPECT_EQ(setitimer(ITIMER_REAL, &every_ms, nullptr), 0);
    ccl_comm_t comm = nullptr;
    EXPECT_EQ(side.Init(&comm, CCL_CONFIG_INIT), CCL_SUCCESS) << side.mine().text;
    const double interrupted = TimeOfCalls(comm);
    EXPECT_GT(interrupted, 0) << ccl_get_last_error(comm);
    // both go on until both have seen many signals
    float go_on = 1;
    while (go_on > 0) {
      go_on = alarms < 100 ? 1.0f : 0.0f;
      EXPECT_EQ(ccl_allreduce(&go_on, &go_on, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr), CCL_SUCCESS)
          << ccl_get_last_error(comm);
    }
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    side.mine().counters[0] = static_cast<uint64_t>(alarms);
    side.mine().seconds = interrupted / TimeOfCalls(comm);
    EXPECT_EQ(alarms_elsewhere, 0) << "a handler ran on a thread of the library";
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
  });
  world.ExpectAllExited();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_GT(world.report(rank).counters[0], 20u) << "signals";
    RecordProperty(fmt::format("slowdown_rank{}", rank),
                   fmt::format("{:.3f}", world.report(rank).seconds.load()));
    // On a busy machine the ratio says little; what must not happen is that work starts anew with
    // every signal.
    EXPECT_LT(world.report(rank).seconds, 10.0 * Busy());
  }
}

struct LivesLong {
  ccl_comm_t comm = nullptr;
  ~LivesLong() {
    int rank = -1;
    if (comm != nullptr && ccl_comm_user_rank(comm, &rank) != CCL_SUCCESS) _exit(33);
  }
};

TEST_P(ProcessTest, Row22_ExitWithLiveCommunicators) {
  ForRow("22");
  const double start = Seconds();
  ProcessWorld world({.nranks = 2}, [](const Side& side) {
    static LivesLong lives_long;  // NOLINT: its destructor runs in exit()
    ccl_comm_t comm = nullptr;
    if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
    lives_long.comm = comm;
    if (Sum(comm, 2) != CCL_SUCCESS) return 11;
    ccl_stream_t stream = nullptr;
    EXPECT_EQ(ccl_stream_create(&stream), CCL_SUCCESS);
    static float x = 1;
    // Never completes: the other rank does not take part.
    if (side.rank() == 0) {
      EXPECT_EQ(ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, comm, stream), CCL_SUCCESS);
    }
    ExitsWithThreadsAtWork();
    std::exit(0);
  });
  world.ExpectAllExited();
  EXPECT_LT(Seconds() - start, 2.0 + SlackSeconds());
}
INSTANTIATE_OVER_TRANSPORTS(ProcessTest);

class LoadTest : public FaultTest {};

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The shared library, as a plugin would have it.
TEST_F(LoadTest, Row22_LoadedUsedAndUnloaded) {
  ForRow("22", "loopback");
  ProcessWorld world({.nranks = 1}, [](const Side&) {
    for (int round = 0; round < 5; ++round) {
      void* const library = dlopen(INCCL_BINARY_DIR "/src/libinccl.so.0", RTLD_NOW | RTLD_LOCAL);
      EXPECT_NE(library, nullptr) << dlerror();
      if (library == nullptr) return 9;
      const auto init_all =
          reinterpret_cast<decltype(&ccl_comm_init_all)>(dlsym(library, "ccl_comm_init_all"));
      const auto destroy =
          reinterpret_cast<decltype(&ccl_comm_destroy)>(dlsym(library, "ccl_comm_destroy"));
      const auto allreduce =
          reinterpret_cast<decltype(&ccl_allreduce)>(dlsym(library, "ccl_allreduce"));
      std::vector<ccl_comm_t> comms(2);
      EXPECT_EQ(init_all(comms.data(), 2, nullptr), CCL_SUCCESS);
      EXPECT_EQ(init_all(nullptr, 2, nullptr), CCL_INVALID_ARGUMENT);  // leaves an error behind
      std::vector<std::thread> threads;
      for (ccl_comm_t comm : comms) {
        threads.emplace_back([&, comm] {
          float x = 1;
          EXPECT_EQ(allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr), CCL_SUCCESS);
          EXPECT_EQ(allreduce(nullptr, &x, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr),
                    CCL_INVALID_ARGUMENT);
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (ccl_comm_t comm : comms) EXPECT_EQ(destroy(comm), CCL_SUCCESS);
      EXPECT_EQ(dlclose(library), 0);
    }
    return 0;
  });
  world.ExpectAllExited();
}

// The library's threads and its handlers are still there after the last dlclose.
TEST_F(LoadTest, Row22_UnloadedWithALiveCommunicator) {
  ForRow("22", "loopback");
  const ScopedEnv beats({{"INCCL_TEST_HEARTBEAT_MS", "1"}});
  const ScopedEnv names({{"INCCL_LIBRARY", INCCL_BINARY_DIR "/src/libinccl.so.0"}});
  for (const bool nccl : {false, true}) {
    ProcessWorld world({.nranks = 1, .baseline = false}, [&](const Side&) {
      void* const library = dlopen(nccl ? INCCL_BINARY_DIR "/src/inccl-nccl/libnccl.so.2"
                                        : INCCL_BINARY_DIR "/src/libinccl.so.0",
                                   RTLD_NOW | RTLD_LOCAL);
      EXPECT_NE(library, nullptr) << dlerror();
      if (library == nullptr) return 9;
      const auto init_all = reinterpret_cast<int (*)(void**, int, const void*)>(
          dlsym(library, nccl ? "ncclCommInitAll" : "ccl_comm_init_all"));
      const auto count = reinterpret_cast<int (*)(void*, int*)>(
          dlsym(library, nccl ? "ncclCommCount" : "ccl_comm_count"));
      void* comms[2] = {};
      EXPECT_EQ(init_all(comms, 2, nullptr), 0);
      EXPECT_EQ(dlclose(library), 0);
      usleep(50000);  // the control thread wakes up for heartbeats
      int ranks = 0;
      EXPECT_EQ(count(comms[0], &ranks), 0);
      EXPECT_EQ(ranks, 2);
      const pid_t child = fork();
      if (child == 0) _exit(0);
      EXPECT_EQ(WaitForChild(child), 0);
      ExitsWithThreadsAtWork();
      std::exit(::testing::Test::HasFailure() ? 1 : 0);
    });
    world.ExpectAllExited();
  }
}
#endif

}  // namespace
}  // namespace inccl::test
