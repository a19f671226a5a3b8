// SPDX-License-Identifier: Apache-2.0
//
// Zero copy on memory of ccl_mem_alloc: the results have the bits that ordinary buffers give,
// whichever buffers are registered; what a caller does with its buffers after the call disturbs no
// peer; and a forked child does not disturb its parent.
#include <dirent.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/fault_point.h"
#include "base/rng.h"
#include "gtest/gtest.h"
#include "support/seed.h"
#include "world/process_world.h"
#include "world/world.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 3;
constexpr size_t kMost = 100'000;                    // elements of one vector
constexpr size_t kBytes = (kRanks + 1) * kMost * 4;  // of a buffer, with room around
constexpr float kGuard = -77.0f;

uint64_t References() { return fault::Hits(fault::IndexOf("zero_copy.after_publish")); }
uint64_t Deliveries() { return fault::Hits(fault::IndexOf("zero_copy.after_delivery")); }

// A buffer of either kind, as floats.
class Memory {
 public:
  explicit Memory(bool registered, size_t bytes = kBytes)
      : registered_(registered), own_(registered ? 0 : bytes / 4) {
    if (registered) {
      EXPECT_EQ(ccl_mem_alloc(&data_, bytes), CCL_SUCCESS) << ccl_get_last_error(nullptr);
    }
  }
  ~Memory() {
    if (registered_) ccl_mem_free(data_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  float* data() { return registered_ ? static_cast<float*>(data_) : own_.data(); }
  void Fill(float value) { std::fill_n(data(), kBytes / 4, value); }

 private:
  const bool registered_;
  std::vector<float> own_;
  void* data_ = nullptr;
};

// Element i of what a rank gives in a round.
float Value(uint64_t round, int rank, size_t i) {
  return static_cast<float>(Mix64(round << 40 ^ static_cast<uint64_t>(rank) << 32 ^ i) % 20011) /
             7.0f -
         1000.0f;
}

enum class What : uint8_t { kSum, kAverage, kMax, kReduceScatter, kAllGather, kBroadcast };

// What element i of the result of a rank is: sums in rank order, rounded at every step.
float Expected(What what, uint64_t round, int rank, size_t count, size_t i) {
  if (what == What::kAllGather) return Value(round, static_cast<int>(i / count), i % count);
  if (what == What::kBroadcast) return Value(round, 1, i);
  if (what == What::kReduceScatter) i += static_cast<size_t>(rank) * count;
  const float scale = what == What::kAverage ? 1.0f / kRanks : 1.0f;
  float result = Value(round, 0, i) * scale;
  for (int q = 1; q < kRanks; ++q) {
    const float next = Value(round, q, i) * scale;
    result = what == What::kMax ? std::max(result, next) : result + next;
  }
  return result;
}

ccl_result_t Call(What what, const float* send, float* recv, size_t count, ccl_comm_t comm) {
  switch (what) {
    case What::kReduceScatter:
      return ccl_reduce_scatter(send, recv, count, CCL_FLOAT32, CCL_SUM, comm, nullptr);
    case What::kAllGather: return ccl_allgather(send, recv, count, CCL_FLOAT32, comm, nullptr);
    case What::kBroadcast: return ccl_broadcast(send, recv, count, CCL_FLOAT32, 1, comm, nullptr);
    default: break;
  }
  const ccl_redop_t op = what == What::kSum ? CCL_SUM : what == What::kMax ? CCL_MAX : CCL_AVG;
  return ccl_allreduce(send, recv, count, CCL_FLOAT32, op, comm, nullptr);
}

// Where a call's data begins in its buffers: the same on all ranks or not, as it is with callers.
struct Shape {
  size_t count = 0, send_at = 0, recv_at = 0;
  bool in_place = false;
};

// Number of wrong elements, those around the result included.
size_t RunOnce(What what, const Shape& shape, uint64_t round, int rank, ccl_comm_t comm,
               Memory* send_memory, Memory* recv_memory) {
  const size_t send_count = shape.count * (what == What::kReduceScatter ? kRanks : 1);
  const size_t recv_count = shape.count * (what == What::kAllGather ? kRanks : 1);
  recv_memory->Fill(kGuard);
  float* recv = recv_memory->data() + shape.recv_at;
  float* send = send_memory->data() + shape.send_at;
  const size_t segment = static_cast<size_t>(rank) * shape.count;
  if (shape.in_place && what == What::kReduceScatter) {
    send = recv;
    recv += segment;
  } else if (shape.in_place) {
    send = recv + (what == What::kAllGather ? segment : 0);
  }
  for (size_t i = 0; i < send_count; ++i) send[i] = Value(round, rank, i);
  const ccl_result_t result = Call(what, send, recv, shape.count, comm);
  EXPECT_EQ(result, CCL_SUCCESS) << ccl_get_last_error(comm);
  size_t wrong = 0;
  for (size_t i = 0; i < recv_count; ++i) {
    if (recv[i] != Expected(what, round, rank, shape.count, i)) ++wrong;
  }
  const float* const begin = recv_memory->data();
  const float* const used = shape.in_place && what == What::kReduceScatter ? send : recv;
  const size_t used_count = shape.in_place ? std::max(send_count, recv_count) : recv_count;
  wrong +=
      static_cast<size_t>(std::count_if(begin, used, [](float value) { return value != kGuard; }));
  wrong += static_cast<size_t>(std::count_if(used + used_count, begin + kBytes / 4,
                                             [](float value) { return value != kGuard; }));
  return wrong;
}

class RegisteredBuffersTest : public ::testing::Test {
 private:
  const ScopedEnv env_{{{"INCCL_TRANSPORT", "shm"},
                        {"INCCL_SLICE_BYTES", "8192"},
                        {"INCCL_ALGO", "direct"},
                        {"INCCL_TEST_NT_STORE_BYTES", "200000"}}};
};

void InProcesses(const std::function<void(const Side&, ccl_comm_t)>& body, int nranks = kRanks) {
  ProcessWorld world({.nranks = nranks, .deadline_seconds = 100.0 * kSlowness},
                     [&](const Side& side) {
                       ccl_comm_t comm = nullptr;
                       if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
                       fault::Arm({});
                       body(side, comm);
                       fault::Disarm();
                       return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
                     });
  world.ExpectAllExited();
}

// Which ranks have registered inputs, and which registered results: bit r for rank r.
struct Registered {
  unsigned inputs, results;
};

// Whether something is so on all ranks.
bool Everywhere(bool here, ccl_comm_t comm) {
  const int32_t mine = here ? 1 : 0;
  int32_t all = 0;
  EXPECT_EQ(ccl_allreduce(&mine, &all, 1, CCL_INT32, CCL_MIN, comm, nullptr), CCL_SUCCESS)
      << ccl_get_last_error(comm);
  return all != 0;
}

TEST_F(RegisteredBuffersTest, SameBitsWhicheverBuffersAreRegistered) {
  const uint64_t seed = TestSeed();
  InProcesses([seed](const Side& side, ccl_comm_t comm) {
    Rng rng(seed);  // the same on all ranks
    uint64_t round = 0;
    for (const Registered& ranks :
         {Registered{0b111, 0b111}, Registered{0b010, 0b010}, Registered{0b111, 0},
          Registered{0, 0b111}, Registered{0b001, 0b110}}) {
      Memory send((ranks.inputs >> side.rank() & 1) != 0);
      Memory recv((ranks.results >> side.rank() & 1) != 0);
      const uint64_t references = References(), deliveries = Deliveries();
      for (int i = 0; i < (kSanitized ? 12 : 60); ++i) {
        const auto what = static_cast<What>(i % 6);
        Shape shape{.count = 1 + rng.Below(kMost),
                    .send_at = rng.Below(3000),
                    .recv_at = rng.Below(3000),
                    .in_place = rng.Below(3) == 0};
        if (what == What::kReduceScatter || what == What::kAllGather) shape.count /= kRanks;
        if (shape.count == 0) shape.count = 1;
        if (rng.Below(2) == 0) {  // nor do the ranks' places have to be alike
          Rng own(seed + round * kRanks + static_cast<uint64_t>(side.rank()));
          shape.send_at = own.Below(3000);
          shape.recv_at = own.Below(3000);
        }
        SCOPED_TRACE(fmt::format("seed {} round {} kind {} count {} at {} and {} in place {}", seed,
                                 round, i % 6, shape.count, shape.send_at, shape.recv_at,
                                 shape.in_place));
        EXPECT_EQ(RunOnce(what, shape, round++, side.rank(), comm, &send, &recv), 0u);
      }
      // The calls have used zero copy. Peers import a region asynchronously, and a buffer of
      // results holds an input in place only: the calls of this seed may not have been enough.
      const bool refers = ((ranks.inputs | ranks.results) >> side.rank() & 1) != 0;
      const bool delivers = (ranks.results & ~(1u << side.rank())) != 0;
      const auto seen = [&] {
        return (References() > references) == refers && (Deliveries() > deliveries) == delivers;
      };
      for (int i = 0; i < 50 && !Everywhere(seen(), comm); ++i) {
        const Shape shape{.count = kMost, .in_place = i % 2 == 1};
        EXPECT_EQ(RunOnce(What::kSum, shape, round++, side.rank(), comm, &send, &recv), 0u);
      }
      EXPECT_EQ(References() > references, refers);
      EXPECT_EQ(Deliveries() > deliveries, delivers);
    }
  });
}

size_t Descriptors() {
  size_t count = 0;
  DIR* const directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

// Of other processes' regions.
size_t MappedRegions() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:inccl-memory") != std::string::npos) ++count;
  }
  return count;
}

TEST_F(RegisteredBuffersTest, FreedAtOnceAndAllocatedAgain) {
  InProcesses([](const Side& side, ccl_comm_t comm) {
    const size_t descriptors = Descriptors();
    Rng rng(7 + static_cast<uint64_t>(side.rank()));
    for (uint64_t round = 0; round < (kSanitized ? 30 : 150); ++round) {
      SCOPED_TRACE(round);
      // Often the address that was free last, with other contents and of another size.
      Memory send(true, kBytes + 4096 * rng.Below(64));
      Memory recv(rng.Below(4) != 0, kBytes + 4096 * rng.Below(64));
      for (const uint64_t repeat : {0, 1, 2}) {
        EXPECT_EQ(RunOnce(What::kSum, {.count = 30'000, .send_at = 5}, 3 * round + repeat,
                          side.rank(), comm, &send, &recv),
                  0u);
      }
    }
    EXPECT_GT(References(), 0u);
    EXPECT_GT(Deliveries(), 0u);
    EXPECT_LE(Descriptors(), descriptors);
    EXPECT_LE(MappedRegions(), 32u * (kRanks - 1));
  });
}

TEST_F(RegisteredBuffersTest, AForkedChildKeepsToItself) {
  InProcesses([](const Side& side, ccl_comm_t comm) {
    Memory send(true), recv(true);
    const Shape shape{.count = 50'000};
    for (uint64_t round = 0; round < 20; ++round) {
      EXPECT_EQ(RunOnce(What::kSum, shape, round, side.rank(), comm, &send, &recv), 0u);
    }
    EXPECT_GT(Deliveries(), 0u);
    const float before = send.data()[17];
    int ready[2], go[2];
    ASSERT_EQ(pipe(ready) | pipe(go), 0);
    const pid_t child = fork();
    if (child == 0) {
      const bool seen = send.data()[17] == before;
      send.Fill(1e9f);
      recv.Fill(1e9f);
      char c = seen ? 'y' : 'n';
      if (write(ready[1], &c, 1) != 1 || read(go[0], &c, 1) != 1) _exit(3);
      // What the parent has done meanwhile is not to be seen where this process has written.
      _exit(send.data()[17] == 1e9f && recv.data()[17] == 1e9f ? 0 : 4);
    }
    char answer = 0;
    EXPECT_EQ(read(ready[0], &answer, 1), 1);
    EXPECT_EQ(answer, 'y');
    EXPECT_EQ(send.data()[17], before);
    for (uint64_t round = 20; round < 40; ++round) {
      EXPECT_EQ(RunOnce(What::kSum, shape, round, side.rank(), comm, &send, &recv), 0u);
    }
    EXPECT_EQ(write(go[1], &answer, 1), 1);
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    for (const int fd : {ready[0], ready[1], go[0], go[1]}) close(fd);
  });
}

}  // namespace
}  // namespace inccl::test
