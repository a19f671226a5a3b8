// SPDX-License-Identifier: Apache-2.0
//
// What a warm call costs beside its arithmetic: no memory is allocated, the kernel is asked for
// nothing but waiting, and a call of many slices takes no more locks than one of few.
//
// A peer that is kept from running for long is asked where it is, which does allocate and send; so
// a case has several rounds, and the least of them counts. What a call always does is in every one.
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "faults/interposer.h"
#include "gtest/gtest.h"
#include "integration/hosts_world.h"
#include "support/kernel_calls.h"
#include "world/process_world.h"
#include "world/world.h"

namespace {
thread_local uint64_t locks_taken = 0;

template <typename F>
F* Next(F*, const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}
}  // namespace

// In front of the C library's.
extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) {
  static auto* const next = Next(&pthread_mutex_lock, "pthread_mutex_lock");
  ++locks_taken;
  return next(mutex);
}
extern "C" int pthread_rwlock_rdlock(pthread_rwlock_t* lock) {
  static auto* const next = Next(&pthread_rwlock_rdlock, "pthread_rwlock_rdlock");
  ++locks_taken;
  return next(lock);
}
extern "C" int pthread_rwlock_wrlock(pthread_rwlock_t* lock) {
  static auto* const next = Next(&pthread_rwlock_wrlock, "pthread_rwlock_wrlock");
  ++locks_taken;
  return next(lock);
}

namespace inccl::test {
namespace {

constexpr int kWarm = 64, kRounds = 8;  // a communicator remembers its last 64 calls
// Elements; slices of 8 KB: 6 and 250. From two slices on buffers are looked up, which takes a
// lock.
constexpr size_t kFew = 12'000, kMany = 500'000;

struct Buffers {
  std::span<float> send, recv;  // 2 * kMany each
};

struct Case {
  std::string name;
  std::function<ccl_result_t(ccl_comm_t, Buffers*, size_t count)> run;
  bool registered = false;  // memory of ccl_mem_alloc
};

ccl_codec_t Codec(const char* spec) {
  ccl_codec_t codec = nullptr;
  EXPECT_EQ(ccl_codec_create(&codec, spec), CCL_SUCCESS) << spec;
  return codec;
}

Case Compressed(const char* spec) {
  return {spec, [codec = Codec(spec)](ccl_comm_t comm, Buffers* b, size_t count) {
            ccl_compression_t compression = CCL_COMPRESSION_INIT;
            compression.codec = codec;
            return ccl_allreduce_compressed(b->send.data(), b->recv.data(), count, CCL_FLOAT32,
                                            CCL_SUM, &compression, comm, nullptr);
          }};
}

std::vector<Case> Cases() {
  std::vector<Case> cases = {
      {"allreduce",
       [](ccl_comm_t comm, Buffers* b, size_t count) {
         return ccl_allreduce(b->send.data(), b->recv.data(), count, CCL_FLOAT32, CCL_SUM, comm,
                              nullptr);
       }},
      {"reduce_scatter",
       [](ccl_comm_t comm, Buffers* b, size_t count) {
         return ccl_reduce_scatter(b->send.data(), b->recv.data(), count / 2, CCL_FLOAT32, CCL_SUM,
                                   comm, nullptr);
       }},
      {"allgather",
       [](ccl_comm_t comm, Buffers* b, size_t count) {
         return ccl_allgather(b->send.data(), b->recv.data(), count / 2, CCL_FLOAT32, comm,
                              nullptr);
       }},
      {"broadcast",
       [](ccl_comm_t comm, Buffers* b, size_t count) {
         return ccl_broadcast(b->send.data(), b->recv.data(), count, CCL_FLOAT32, 0, comm, nullptr);
       }},
      Compressed("hbi:bits=6"),
      Compressed("hbi:bits=6,rht=1,unbiased=1,checksum=1"),
      Compressed("hbi:bits=6,ref=ring"),
      Compressed("bf16"),
      Compressed("mxfp8"),
      Compressed("lossless"),
      Compressed("onebit"),
      Compressed("qsgd:q=8"),
      Compressed("qsgd_ms:q=4+8"),
  };
  for (size_t i = 0; i < 4; ++i) {
    cases.push_back({cases[i].name + " on registered buffers", cases[i].run, true});
  }
  return cases;
}

struct Cost {
  uint64_t allocations = UINT64_MAX, kernel = UINT64_MAX, locks = UINT64_MAX;
  std::string kernel_numbers;
};

Cost MeasureOnce(const Case& c, ccl_comm_t comm, Buffers* buffers, size_t count) {
  interposer::Arm({});
  KernelCalls::Reset();
  locks_taken = 0;
  const ccl_result_t result = c.run(comm, buffers, count);
  const uint64_t locks = locks_taken, kernel = KernelCalls::Count();
  interposer::Disarm();
  EXPECT_EQ(result, CCL_SUCCESS) << c.name << ": " << ccl_get_last_error(comm);
  return {interposer::Calls(interposer::kNew) + interposer::Calls(interposer::kMalloc), kernel,
          locks, KernelCalls::Numbers()};
}

// The least of several calls; all ranks make equally many.
Cost Measure(const Case& c, ccl_comm_t comm, Buffers* buffers, size_t count) {
  Cost least;
  for (int round = 0; round < kRounds; ++round) {
    Cost cost = MeasureOnce(c, comm, buffers, count);
    least.allocations = std::min(least.allocations, cost.allocations);
    least.locks = std::min(least.locks, cost.locks);
    if (cost.kernel < least.kernel) {
      least.kernel = cost.kernel;
      least.kernel_numbers = std::move(cost.kernel_numbers);
    }
  }
  return least;
}

TEST(WarmPathTest, NothingIsAllocatedNorAskedOfTheKernelNorLockedForASlice) {
  // No thread can start while KernelCalls counts, as a team's helpers would.
  const ScopedEnv env({{"INCCL_SLICE_BYTES", "8192"},
                       {"INCCL_THREADS", "1"},
                       {"INCCL_ALGO", "direct"},
                       {"INCCL_TEST_HEARTBEAT_MS", "600000"},
                       {"INCCL_DEAD_TIMEOUT_MS", "3600000"}});
  ProcessWorld world(
      {.nranks = 2, .deadline_seconds = 120, .baseline = false}, [](const Side& side) {
        ccl_comm_t comm = nullptr;
        if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
        std::vector<float> ordinary(4 * kMany, 1.5f);
        void* registered = nullptr;
        if (ccl_mem_alloc(&registered, 4 * kMany * sizeof(float)) != CCL_SUCCESS) {
          return 13;
        }
        const std::vector<Case> cases = Cases();
        if (!KernelCalls::StartCounting()) return 11;
        for (const Case& c : cases) {
          SCOPED_TRACE(c.name);
          float* const memory = c.registered ? static_cast<float*>(registered) : ordinary.data();
          Buffers buffers{{memory, 2 * kMany}, {memory + 2 * kMany, 2 * kMany}};
          for (int i = 0; i < kWarm; ++i) {
            EXPECT_EQ(c.run(comm, &buffers, kFew), CCL_SUCCESS);
          }
          EXPECT_EQ(c.run(comm, &buffers, kMany), CCL_SUCCESS);
          const Cost few = Measure(c, comm, &buffers, kFew);
          const Cost many = Measure(c, comm, &buffers, kMany);
          EXPECT_EQ(few.allocations, 0u);
          EXPECT_EQ(many.allocations, 0u);
          EXPECT_EQ(few.kernel, 0u) << few.kernel_numbers;
          EXPECT_EQ(many.kernel, 0u) << many.kernel_numbers;
          EXPECT_LE(many.locks, few.locks);
          EXPECT_GT(few.locks, 0u) << "locks are not counted";
        }
        ccl_mem_free(registered);
        return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
      });
  world.ExpectAllExited();
}

// Two levels: shared memory inside a host, TCP between hosts.
TEST(WarmPathTest, OnHostsNothingIsAllocated) {
  const ScopedEnv env({{"INCCL_SLICE_BYTES", "8192"},
                       {"INCCL_THREADS", "1"},
                       {"INCCL_TRANSPORT", "shm,tcp"},
                       {"INCCL_TEST_HEARTBEAT_MS", "600000"},
                       {"INCCL_DEAD_TIMEOUT_MS", "3600000"}});
  RunHosts("aabb", [](const Side&, ccl_comm_t comm) {
    std::vector<float> memory(4 * kFew, 1.5f);
    Buffers buffers{{memory.data(), 2 * kFew}, {memory.data() + 2 * kFew, 2 * kFew}};
    for (const Case& c : {Compressed("hbi:bits=6"), Compressed("hbi:bits=6,local=fp32")}) {
      SCOPED_TRACE(c.name);
      for (int i = 0; i < kWarm; ++i) {
        EXPECT_EQ(c.run(comm, &buffers, kFew), CCL_SUCCESS);
      }
      EXPECT_EQ(Measure(c, comm, &buffers, kFew).allocations, 0u);
    }
  });
}

// Allocations of a rank's first call, the least of several worlds'.
uint64_t FirstCallAllocations(const char* algorithm) {
  const ScopedEnv env({{"INCCL_ALGO", algorithm}});
  const Case small = {"allreduce", [](ccl_comm_t comm, Buffers* b, size_t count) {
                        return ccl_allreduce(b->send.data(), b->recv.data(), count, CCL_FLOAT32,
                                             CCL_SUM, comm, nullptr);
                      }};
  uint64_t least = UINT64_MAX;
  for (int round = 0; round < 3; ++round) {
    ProcessWorld world({.nranks = 2, .baseline = false}, [&small](const Side& side) {
      ccl_comm_t comm = nullptr;
      if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
      std::vector<float> memory(2000, 1.5f);
      Buffers buffers{{memory.data(), 1000}, {memory.data() + 1000, 1000}};
      side.mine().counters[0] = MeasureOnce(small, comm, &buffers, 1000).allocations;
      return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
    });
    world.ExpectAllExited();
    least = std::min<uint64_t>(least, world.report(0).counters[0]);
  }
  return least;
}

// Creation ends with a small all-reduce, by direct one-shot; it leaves nothing to build to the
// first one of a user. A ring's schedule and lanes are built by the first call.
TEST(WarmPathTest, TheFirstSmallCallBuildsNothing) {
  constexpr uint64_t kMost = 6;  // what the communicator remembers of a call
  EXPECT_LE(FirstCallAllocations("direct"), kMost);
  EXPECT_GT(FirstCallAllocations("ring"), 3 * kMost);
}

// That the counters count: what is known to happen once, they show once.
TEST(WarmPathTest, TheCountersCount) {
  ProcessWorld world({.nranks = 1, .baseline = false}, [](const Side&) {
    if (!KernelCalls::StartCounting()) return 11;
    interposer::Arm({});
    KernelCalls::Reset();
    delete new (std::nothrow) int(3);
    const pid_t parent = getppid();
    const uint64_t kernel = KernelCalls::Count();
    interposer::Disarm();
    EXPECT_GT(parent, 0);
    EXPECT_EQ(kernel, 1u) << KernelCalls::Numbers();
    return 0;
  });
  world.ExpectAllExited();
}

}  // namespace
}  // namespace inccl::test
