// SPDX-License-Identifier: Apache-2.0
//
// A peer that is stopped in the middle of a call on registered buffers and goes on when the others
// have given it up: it neither writes into buffers that are their callers' again, nor takes what
// these have put there for the inputs of the call.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/fault_point.h"
#include "faults/fault_test.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 2, kVictim = 1;
constexpr size_t kCount = 300'000;  // more than a region must have, 147 slices
constexpr float kOthers = 5e8f;

struct Case {
  const char* point;
  bool in_place;
  bool registered = false;  // by the application
};

float Given(int rank, uint64_t round, size_t i) {
  return static_cast<float>((i + round) % 1000) + 0.5f * static_cast<float>(rank);
}

struct Buffers {
  Buffers() {
    for (float** memory : {&send, &recv}) {
      void* data = nullptr;
      EXPECT_EQ(ccl_mem_alloc(&data, kCount * sizeof(float)), CCL_SUCCESS);
      *memory = static_cast<float*>(data);
    }
  }
  ~Buffers() {
    ccl_mem_free(send);
    ccl_mem_free(recv);
  }
  float *send = nullptr, *recv = nullptr;
};

ccl_result_t RunOnce(int rank, uint64_t round, bool in_place, ccl_comm_t comm, Buffers* buffers) {
  float* const input = in_place ? buffers->recv : buffers->send;
  for (size_t i = 0; i < kCount; ++i) input[i] = Given(rank, round, i);
  const ccl_result_t result =
      ccl_allreduce(input, buffers->recv, kCount, CCL_FLOAT32, CCL_SUM, comm, nullptr);
  if (result != CCL_SUCCESS) return result;
  size_t wrong = 0;
  for (size_t i = 0; i < kCount; ++i) {
    if (buffers->recv[i] != Given(0, round, i) + Given(1, round, i)) ++wrong;
  }
  EXPECT_EQ(wrong, 0u) << "rank " << rank << " round " << round;
  return result;
}

size_t Others(const float* data) {
  return static_cast<size_t>(std::count(data, data + kCount, kOthers));
}

int Body(const Side& side, const Case& c) {
  ccl_comm_t comm = nullptr;
  if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
  Buffers buffers;
  if (c.registered) {
    for (float* data : {buffers.send, buffers.recv}) {
      void* handle = nullptr;
      EXPECT_EQ(ccl_comm_register(comm, data, kCount * sizeof(float), &handle), CCL_SUCCESS);
      EXPECT_NE(handle, nullptr);
    }
  }
  fault::Arm({});
  uint64_t round = 0;
  ccl_result_t result = CCL_SUCCESS;
  // Until each writes into the other's memory, which both see in the same call, or nearly.
  for (; round < 50; ++round) {
    if (RunOnce(side.rank(), round, c.in_place, comm, &buffers) != CCL_SUCCESS) return 11;
  }
  EXPECT_GT(fault::Hits(fault::IndexOf("zero_copy.after_delivery")), 0u);
  if (side.rank() == kVictim) {
    fault::Arm({.point = fault::IndexOf(c.point), .hit = 31, .action = fault::Action::kStop});
  }
  while (result == CCL_SUCCESS) {
    result = RunOnce(side.rank(), round++, c.in_place, comm, &buffers);
  }
  side.mine().result = result;
  side.mine().SetText(ccl_get_last_error(comm));
  if (side.rank() == kVictim) {
    side.mine().stage = 2;
  } else {
    size_t changed = 0;
    for (size_t i = 0; i < kCount && !c.in_place; ++i) {
      if (buffers.send[i] != Given(0, round - 1, i)) ++changed;
    }
    EXPECT_EQ(changed, 0u) << "the input of a failed call";
    for (float* data : {buffers.send, buffers.recv}) std::fill_n(data, kCount, kOthers);
    side.mine().stage = 1;  // now the victim goes on
    EXPECT_TRUE(side.Await(kVictim, 2, 60.0 * kSlowness));
    EXPECT_EQ(Others(buffers.send), kCount);
    EXPECT_EQ(Others(buffers.recv), kCount);
  }
  fault::Disarm();
  return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
}

class RegisteredBuffersFaultTest : public FaultTest {
 protected:
  // Only a silent peer is given up soon.
  RegisteredBuffersFaultTest() : FaultTest(FaultLimits{.dead_seconds = kDeadSeconds}) {}

 private:
  const ScopedEnv env_{{{"INCCL_TRANSPORT", "shm"},
                        {"INCCL_SLICE_BYTES", "8192"},
                        {"INCCL_ALGO", "direct_two_shot"}}};
};

TEST_F(RegisteredBuffersFaultTest, Row02_ALatePeerTouchesNothingAnyMore) {
  ForRow("2", "shm");
  std::vector<std::pair<Case, std::unique_ptr<ProcessWorld>>> worlds;
  for (const char* point :
       {"executor.before_step", "zero_copy.after_delivery", "zero_copy.after_publish"}) {
    for (const bool in_place : {false, true}) {
      const Case c{point, in_place, worlds.size() % 3 == 0};
      worlds.emplace_back(c,
                          std::make_unique<ProcessWorld>(
                              WorldOptions{.nranks = kRanks, .deadline_seconds = 100.0 * kSlowness},
                              [c](const Side& side) { return Body(side, c); }));
    }
  }
  for (auto& [c, world] : worlds) {
    SCOPED_TRACE(std::string(c.point) + (c.in_place ? " in place" : ""));
    while (world->Running(0) && world->report(0).stage != 1) usleep(1000);
    world->Kill(kVictim, SIGCONT);
    world->ExpectAllExited();
    EXPECT_EQ(world->report(0).result, CCL_REMOTE_ERROR) << world->report(0).text;
    EXPECT_EQ(world->report(kVictim).result, CCL_REMOTE_ERROR) << world->report(kVictim).text;
  }
}

}  // namespace
}  // namespace inccl::test
