// SPDX-License-Identifier: Apache-2.0
//
// Row 26: a rank dies at every fault point of a compressed all-reduce with error feedback. The
// others keep input and residual, agree after shrinking on the last call that counts, repeat the
// later ones, and lose nothing.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "base/fault_point.h"
#include "faults/fault_test.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 3, kVictim = 2;
constexpr size_t kCount = 20000, kSteps = 3;

struct Case {
  size_t point;
  uint64_t hit;
};

std::vector<float> Gradient(int rank, size_t step) {
  std::vector<float> values(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    values[i] = std::sin(static_cast<float>(i * (step + 2) + 1000 * static_cast<size_t>(rank)));
  }
  return values;
}

class Training {
 public:
  explicit Training(const Side& side) : side_(side) {
    EXPECT_EQ(ccl_residual_create(&residual_, kCount, nullptr), CCL_SUCCESS);
    EXPECT_EQ(ccl_codec_create(&codec_, "hbi:ag=exact,bits=4"), CCL_SUCCESS);
    states_.push_back(State());
  }
  ~Training() {
    ccl_residual_destroy(residual_);
    ccl_codec_destroy(codec_);
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  bool done() const { return steps() == kSteps; }
  size_t steps() const { return states_.size() - 1; }

  ccl_result_t Step(ccl_comm_t comm) {
    const std::vector<float> in = Gradient(side_.rank(), steps());
    std::vector<float> send = in;
    out_.assign(kCount, 0);
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.codec = codec_;
    how.residual = residual_;
    const ccl_result_t result = ccl_allreduce_compressed(send.data(), out_.data(), kCount,
                                                         CCL_FLOAT32, CCL_SUM, &how, comm, nullptr);
    EXPECT_EQ(send, in);
    if (result == CCL_SUCCESS) {
      states_.push_back(State());
    } else {
      EXPECT_EQ(State(), states_.back());
    }
    return result;
  }

  // Back to the state after so many steps, which is the present one or the one before.
  void BackTo(ccl_comm_t smaller, uint64_t steps_on_all) {
    EXPECT_LE(steps_on_all, steps());
    EXPECT_LE(steps(), steps_on_all + 1);
    EXPECT_EQ(ccl_residual_rollback(residual_, smaller), CCL_SUCCESS);
    states_.resize(steps_on_all + 1);
    EXPECT_EQ(State(), states_.back());
  }

  // inputs + residuals before the last step = result + residuals after it, over the ranks of `comm`
  void ExpectConserved(ccl_comm_t comm) const {
    const std::vector<float> in = Gradient(side_.rank(), steps() - 1);
    std::vector<double> sums(2 * kCount);
    for (size_t i = 0; i < kCount; ++i) {
      sums[i] = static_cast<double>(in[i]) + static_cast<double>(states_[steps() - 1][i]);
      sums[kCount + i] = states_[steps()][i];
    }
    ASSERT_EQ(
        ccl_allreduce(sums.data(), sums.data(), sums.size(), CCL_FLOAT64, CCL_SUM, comm, nullptr),
        CCL_SUCCESS);
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(sums[i], static_cast<double>(out_[i]) + sums[kCount + i], 1e-5) << i;
    }
  }

 private:
  std::vector<float> State() const {
    std::vector<float> values(kCount);
    EXPECT_EQ(ccl_residual_export(residual_, values.data(), kCount), CCL_SUCCESS);
    return values;
  }

  const Side& side_;
  ccl_residual_t residual_ = nullptr;
  ccl_codec_t codec_ = nullptr;
  std::vector<std::vector<float>> states_;  // after each step
  std::vector<float> out_;
};

// With `c` null no rank dies, and each counts the fault points that it passes.
int Body(const Side& side, const Case* c) {
  ccl_comm_t comm = nullptr;
  if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
  Training training(side);
  side.mine().stage = 1;
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(side.Await(rank, 1));
  fault::Plan plan;
  if (c != nullptr && side.rank() == kVictim) {
    plan.point = c->point;
    plan.hit = c->hit;
    plan.action = fault::Action::kKill;
  }
  fault::Arm(plan);
  ccl_result_t result = CCL_SUCCESS;
  while (result == CCL_SUCCESS && !training.done()) result = training.Step(comm);
  for (size_t i = 0; i < fault::kPointCount; ++i) side.mine().counters[i] = fault::Hits(i);
  fault::Disarm();
  side.mine().result = static_cast<int>(training.steps());
  if (c == nullptr) {
    EXPECT_EQ(result, CCL_SUCCESS) << ccl_get_last_error(comm);
    EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
    return 0;
  }
  // The victim has died in its last step at the latest, which others may have finished.
  float x = 1;
  if (result == CCL_SUCCESS) {
    result = ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr);
  }
  EXPECT_EQ(result, CCL_REMOTE_ERROR) << ccl_get_last_error(comm);
  ccl_comm_t smaller = nullptr;
  EXPECT_EQ(ccl_comm_shrink(comm, nullptr, 0, &smaller, nullptr, CCL_SHRINK_ABORT), CCL_SUCCESS)
      << ccl_get_last_error(nullptr);
  if (smaller == nullptr) return 11;
  uint64_t operation = 0;
  EXPECT_EQ(ccl_comm_last_completed(smaller, &operation), CCL_SUCCESS);
  training.BackTo(smaller, operation);
  while (!training.done()) {
    if (training.Step(smaller) != CCL_SUCCESS) return 12;
    training.ExpectConserved(smaller);
  }
  EXPECT_EQ(ccl_comm_destroy(smaller), CCL_SUCCESS);
  EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
  return 0;
}

std::vector<Case> Cases() {
  ProcessWorld world({.nranks = kRanks}, [](const Side& side) { return Body(side, nullptr); });
  world.ExpectAllExited({});
  std::vector<Case> cases;
  for (size_t point = 0; point < fault::kPointCount; ++point) {
    // Whether a rank sleeps depends on the moment.
    if (std::string_view(fault::kPoints[point]).starts_with("progress.")) continue;
    const uint64_t times = world.report(kVictim).counters[point];
    for (const uint64_t hit : {uint64_t{1}, times / 2 + 1, times}) {
      if (hit == 0 || hit > times) continue;
      const bool known = std::any_of(cases.begin(), cases.end(), [&](const Case& c) {
        return c.point == point && c.hit == hit;
      });
      if (!known) cases.push_back({point, hit});
    }
  }
  EXPECT_GT(cases.size(), 8u);
  return cases;
}

class ResidualFaultTest : public TransportFaultTest {};

TEST_P(ResidualFaultTest, Row26_ARankDiesInACallWithErrorFeedback) {
  ForRow("26");
  const std::vector<Case> cases = Cases();
  RecordProperty("cases", static_cast<int>(cases.size()));
  RunWorlds(
      cases.size(), 4,
      [&](size_t i) {
        return std::make_unique<ProcessWorld>(
            WorldOptions{.nranks = kRanks},
            [&](const Side& side) { return Body(side, &cases[i]); });
      },
      [&](size_t i, ProcessWorld& world) {
        const Case& c = cases[i];
        SCOPED_TRACE(fmt::format("point={};hit={}", fault::kPoints[c.point], c.hit));
        const std::vector<RankEnd>& ends = world.Wait();
        EXPECT_TRUE(ends[kVictim].Killed(SIGKILL)) << ends[kVictim].Describe();
        for (int rank = 0; rank < kVictim; ++rank) {
          EXPECT_TRUE(ends[static_cast<size_t>(rank)].Exited())
              << "rank " << rank << " " << ends[static_cast<size_t>(rank)].Describe();
        }
      });
}

// A communicator that comes from another one counts its calls from 1. When its first call fails, no
// call of the other one is taken back.
int FailInTheFirstCallOfAChild(const Side& side) {
  ccl_comm_t comm = nullptr, child = nullptr, smaller = nullptr;
  if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
  Training training(side);
  if (training.Step(comm) != CCL_SUCCESS) return 11;
  if (ccl_comm_split(comm, 0, side.rank(), &child, nullptr) != CCL_SUCCESS) return 12;
  side.mine().stage = 1;
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(side.Await(rank, 1));
  if (side.rank() == kVictim) raise(SIGKILL);
  EXPECT_EQ(training.Step(child), CCL_REMOTE_ERROR) << ccl_get_last_error(child);
  if (ccl_comm_shrink(child, nullptr, 0, &smaller, nullptr, CCL_SHRINK_ABORT) != CCL_SUCCESS) {
    return 13;
  }
  training.BackTo(smaller, 1);
  while (!training.done()) {
    if (training.Step(smaller) != CCL_SUCCESS) return 14;
    training.ExpectConserved(smaller);
  }
  for (ccl_comm_t one : {smaller, child, comm}) EXPECT_EQ(ccl_comm_destroy(one), CCL_SUCCESS);
  return 0;
}

TEST_P(ResidualFaultTest, AFailedFirstCallTakesBackNoneOfTheFormerCommunicator) {
  ProcessWorld world({.nranks = kRanks}, FailInTheFirstCallOfAChild);
  const std::vector<RankEnd>& ends = world.Wait();
  EXPECT_TRUE(ends[kVictim].Killed(SIGKILL)) << ends[kVictim].Describe();
  for (size_t rank = 0; rank < kVictim; ++rank) {
    EXPECT_TRUE(ends[rank].Exited()) << "rank " << rank << " " << ends[rank].Describe();
  }
}
INSTANTIATE_OVER_TRANSPORTS(ResidualFaultTest);

}  // namespace
}  // namespace inccl::test
