// SPDX-License-Identifier: Apache-2.0
//
// An allocation fails in a call in which the ranks of each host add up their elements first, or in
// one of two vectors: every rank's call returns, the others name a rank that has failed, and sums
// that are said to be right are.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/rng.h"
#include "faults/fault_test.h"
#include "faults/interposer.h"
#include "integration/hosts_world.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

constexpr const char* kHosts = "aabb";
constexpr int kRanks = 4, kVictim = 1;
constexpr size_t kCount = 5000, kFed = 100;  // elements; kFed of them with a residual
constexpr size_t kCases = kSanitized ? 6 : 24;
constexpr double kReturnsSeconds = 12.0 * kSlowness;  // far below the limit of an operation

int Body(const Side& side, const interposer::Plan& plan) {
  SetHost(kHosts, side.rank());
  ccl_comm_t comm = nullptr;
  ccl_codec_t codec = nullptr, plain = nullptr;
  std::array<ccl_stream_t, 2> streams{};
  if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
  if (ccl_codec_create(&codec, "hbi:bits=8,local=fp32") != CCL_SUCCESS) return 11;
  if (ccl_codec_create(&plain, "hbi:bits=8,code=entropy") != CCL_SUCCESS) return 11;
  for (ccl_stream_t& stream : streams) {
    if (ccl_stream_create(&stream) != CCL_SUCCESS) return 13;
  }
  ccl_residual_t residual = nullptr;
  if (ccl_residual_create(&residual, kFed, nullptr) != CCL_SUCCESS) return 15;
  const std::vector<float> send(2 * kCount, static_cast<float>(side.rank() + 1));
  std::vector<float> recv(2 * kCount);
  ccl_compression_t compression = CCL_COMPRESSION_INIT;
  ccl_compression_t with_residual = CCL_COMPRESSION_INIT;
  compression.codec = codec;
  with_residual.codec = plain;
  bool wrong = false;
  if (side.rank() == kVictim) interposer::Arm(plan);
  const double start = Seconds();
  ccl_result_t result = CCL_SUCCESS;
  for (int call = 0; call < 4 && result == CCL_SUCCESS; ++call) {
    // Two calls in progress, each on a stream of its own; a longer one each time.
    const size_t count = kCount / 4 * static_cast<size_t>(call + 1);
    result = ccl_allreduce_compressed(send.data(), recv.data(), count, CCL_FLOAT32, CCL_SUM,
                                      &compression, comm, streams[0]);
    if (result == CCL_SUCCESS) {
      const float* const from = send.data() + kCount;
      float* const to = recv.data() + kCount;
      const std::array<ccl_vector_t, 2> vectors = {
          {{from, to, kFed, residual}, {from + kFed, to + kFed, count - kFed, nullptr}}};
      result = ccl_allreduce_fused(vectors.data(), vectors.size(), CCL_FLOAT32, CCL_SUM,
                                   &with_residual, comm, streams[1]);
    }
    for (const ccl_stream_t stream : streams) {
      const ccl_result_t now = ccl_stream_synchronize(stream);
      if (result == CCL_SUCCESS) result = now;
    }
    for (size_t i = 0; i < 2 && result == CCL_SUCCESS; ++i) {
      wrong |= std::any_of(recv.data() + i * kCount, recv.data() + i * kCount + count,
                           [](float x) { return x < 9.7F || x > 10.3F; });
    }
  }
  side.mine().seconds = Seconds() - start;
  side.mine().counters[0] = interposer::Calls(interposer::kNew);
  interposer::Disarm();
  side.mine().result = result;
  if (result != CCL_SUCCESS) side.mine().SetText(ccl_get_last_error(comm));
  for (const ccl_stream_t stream : streams) ccl_stream_destroy(stream);
  ccl_residual_destroy(residual);
  ccl_codec_destroy(codec);
  ccl_codec_destroy(plain);
  const ccl_result_t ended = result == CCL_SUCCESS ? ccl_comm_destroy(comm) : ccl_comm_abort(comm);
  return wrong ? 14 : ended == CCL_SUCCESS ? 0 : 12;
}

class MemoryHostsTest : public FaultTest {};

TEST_F(MemoryHostsTest, Row19_AnAllocationOfOneRankFailsInASumOfHosts) {
  ForRow("19", "shm+tcp");
  const ScopedEnv env({{"INCCL_TRANSPORT", "shm,tcp"}, {"INCCL_SLICE_BYTES", "8192"}});
  uint64_t calls = 0;
  {
    ProcessWorld world({.nranks = kRanks}, [](const Side& side) { return Body(side, {}); });
    world.ExpectAllExited();
    ASSERT_EQ(world.report(kVictim).result, CCL_SUCCESS) << world.report(kVictim).text;
    calls = world.report(kVictim).counters[0];
  }
  ASSERT_GT(calls, 10u);
  Rng rng(TestSeed());
  int failed = 0;
  for (size_t i = 0; i < kCases; ++i) {
    const uint64_t n = 1 + rng.Below(calls);
    const interposer::Plan plan = {interposer::kNew, n, i % 4 == 3 ? UINT64_MAX : n, 0};
    SCOPED_TRACE(fmt::format("allocations {} to {} of {}", plan.first, plan.last, calls));
    ProcessWorld world({.nranks = kRanks}, [&](const Side& side) { return Body(side, plan); });
    world.ExpectAllExited();
    const bool victim_failed = world.report(kVictim).result != CCL_SUCCESS;
    failed += victim_failed;
    for (int rank = 0; rank < kRanks; ++rank) {
      Report& report = world.report(rank);
      EXPECT_LT(report.seconds, kReturnsSeconds) << rank;
      if (report.result == CCL_SUCCESS || rank == kVictim) continue;
      EXPECT_TRUE(victim_failed) << report.text;
      EXPECT_TRUE(Matches(report.text, "peer 1@|rank 1/4")) << rank << ": " << report.text;
    }
  }
  EXPECT_GT(failed, 0);
}

}  // namespace
}  // namespace inccl::test
