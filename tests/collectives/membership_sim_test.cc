// SPDX-License-Identifier: Apache-2.0
//
// Members that come and go, in the simulator: error feedback over communicators that are made from
// each other. In each era the members sum gradients with random algorithms, in virtual time, until
// one of them dies at a random moment, or until others join. Those who are left make the next
// communicator as ccl_comm_shrink and ccl_comm_grow do, go on from the last step that counts, and
// lose nothing: inputs and former residuals are result and new residuals, in every step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/lineage.h"
#include "base/rng.h"
#include "collectives/executor.h"
#include "compress/residual/residual.h"
#include "engine/engine.h"
#include "support/hbi_oracle.h"
#include "support/seed.h"
#include "tuning/segmentation.h"
#include "verify/sim_world.h"

namespace inccl {
namespace {

using Values = std::vector<float>;

constexpr uint64_t kCount = 9 * kSuperblock + 17;
constexpr uint32_t kSliceBytes = 1024;

Values Gradient(uint64_t seed, int process, uint64_t step) {
  Rng rng(Mix64(seed ^ Mix64(static_cast<uint64_t>(process) << 32 | step)));
  Values values(kCount);
  for (float& x : values) x = static_cast<float>(rng.Uniform() - 0.5);
  return values;
}

// What a process keeps from one communicator to the next.
struct Process {
  explicit Process(int number) : id(number) {}
  const int id;
  Residual residual{kCount, {}};
  Lineage lineage;  // of its present communicator
  // Of the steps of the training that it has completed.
  struct Step {
    Values left;  // the residual after it
    Values result;
  };
  std::map<uint64_t, Step> steps;

  // The residual before a step; who has joined since the last one begins with zero.
  Values Before(uint64_t step) const {
    const auto last = step == 0 ? steps.end() : steps.find(step - 1);
    return last == steps.end() ? Values(kCount) : last->second.left;
  }

  Values State() {
    Values values(kCount);
    EXPECT_TRUE(residual.Export(values).ok());
    return values;
  }
};

// One rank of a communicator, which makes its calls one after the other.
class Rank {
 public:
  Rank(SimWorld* world, int rank, Process* process, const Codec& codec)
      : world_(world),
        rank_(rank),
        process_(process),
        codec_(codec),
        lanes_(world->transport(rank)),
        state_(codec.NewState()) {}

  uint64_t completed() const { return completed_; }
  bool failed() const { return !failure_.ok(); }
  const Status& failure() const { return failure_; }
  bool over(uint64_t calls) const { return failed() || completed_ == calls; }

  // Begins its next call, if none is in progress, and moves on. Returns whether something happened.
  bool Poll(uint64_t step, uint64_t seed, Algorithm algorithm, int budget) {
    if (!use_) Begin(step, seed, algorithm);
    Transport* const transport = world_->transport(rank_);
    const Result<int> events = transport->Progress(world_->now());
    const Result<int> ran = events.ok() ? task_.Advance(budget) : events;
    if (!ran.ok()) {
      failure_ = ran.status();
      transport->DropUnsent();
      use_.reset();
      return true;
    }
    if (!task_.done() || transport->unsent()) return *ran > 0;
    EXPECT_TRUE(feedback_.CheckComplete().ok());
    use_->Commit(++completed_);
    use_.reset();
    process_->steps[step] = {process_->State(), output_};
    return true;
  }

 private:
  void Begin(uint64_t step, uint64_t seed, Algorithm algorithm) {
    const int nranks = world_->nranks();
    std::unique_ptr<Program>& program = programs_[algorithm];
    const CollectiveArgs call{.collective = Collective::kAllReduce,
                              .nranks = nranks,
                              .rank = rank_,
                              .count = kCount,
                              .seed = 3,
                              .step = step};
    if (program == nullptr) {
      Result<Schedule> schedule =
          MakeSchedule({call, algorithm, 1, codec_.side_phases().size(), false, 0, nullptr});
      ASSERT_TRUE(schedule.ok()) << schedule.status().message();
      Result<std::unique_ptr<Program>> bound =
          Bind(*std::move(schedule), SlotsFor(kSliceBytes), &lanes_);
      ASSERT_TRUE(bound.ok()) << bound.status().message();
      program = *std::move(bound);
    }
    input_ = Gradient(seed, process_->id, step);
    output_.assign(kCount, -7.0f);
    use_.emplace(&process_->residual, process_->lineage);
    ASSERT_TRUE(use_->status().ok());
    feedback_.Use(state_.get(), &process_->residual, TraitsOf(algorithm).one_owner);
    ASSERT_TRUE(feedback_.Begin(call).ok());
    task_.Start({.program = program.get(),
                 .chunking = CutCall(call, codec_, 1, kSliceBytes),
                 .codec = &feedback_,
                 .input = reinterpret_cast<const std::byte*>(input_.data()),
                 .output = reinterpret_cast<std::byte*>(output_.data()),
                 .signature = step});
  }

  SimWorld* const world_;
  const int rank_;
  Process* const process_;
  const Codec& codec_;
  LaneTable lanes_;
  std::map<Algorithm, std::unique_ptr<Program>> programs_;
  std::unique_ptr<CodecState> state_;
  FeedbackState feedback_;
  CpuEngine engine_;
  Executor task_{&engine_};
  std::optional<ResidualUse> use_;
  Values input_, output_;
  uint64_t completed_ = 0;
  Status failure_;
};

struct Tally {
  int shrunk = 0, grown = 0;
  int partial = 0;    // a step had completed on some ranks only
  int conserved = 0;  // steps whose sums have been checked, and all ranks were there to the end
};

class Job {
 public:
  Job(const char* codec, bool one_owner, uint64_t seed)
      : codec_(*MakeCodec(codec)), exact_(!one_owner), seed_(seed), rng_(seed) {
    for (const Algorithm algorithm : {Algorithm::kTwoShot, Algorithm::kRing, Algorithm::kTree,
                                      Algorithm::kRecursiveDoubling, Algorithm::kOneShot}) {
      if (!one_owner || TraitsOf(algorithm).one_owner) algorithms_.push_back(algorithm);
    }
    for (uint64_t n = 2 + rng_.Below(4); n > 0; --n) AddProcess();
  }

  // The life of one communicator, and what is made of it.
  void Era(Tally* tally) {
    const uint64_t calls = 1 + rng_.Below(4);
    std::vector<Algorithm> algorithms;
    for (uint64_t i = 0; i < calls; ++i) {
      algorithms.push_back(algorithms_[rng_.Below(algorithms_.size())]);
    }
    SimWorld world(static_cast<int>(members_.size()), rng_.Next(),
                   {.multicast = rng_.Below(2) == 0,
                    .min_detection = kMicrosecond,
                    .max_detection = 300 * kMicrosecond});
    std::vector<std::unique_ptr<Rank>> ranks;
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      ranks.push_back(
          std::make_unique<Rank>(&world, static_cast<int>(rank), members_[rank].get(), *codec_));
    }
    const int victim = Play(&world, &ranks, algorithms);
    if (::testing::Test::HasFailure()) return;

    uint64_t counted = calls, most = 0;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (static_cast<int>(rank) == victim) continue;
      const Rank& r = *ranks[rank];
      EXPECT_EQ(r.failed() ? r.failure().code() : Code::kRemoteError, Code::kRemoteError);
      EXPECT_TRUE(victim >= 0 || !r.failed()) << r.failure().message();
      counted = std::min(counted, r.completed());
      most = std::max(most, r.completed());
    }
    EXPECT_LE(most, counted + 1) << "a residual keeps one call only";
    tally->partial += most > counted;
    for (uint64_t i = 0; i < counted; ++i) ExpectRight(step_ + i, victim, tally);
    step_ += counted;
    ranks.clear();
    Continue(victim, counted, tally);
  }

 private:
  void AddProcess() {
    const auto place = static_cast<std::ptrdiff_t>(rng_.Below(members_.size() + 1));
    members_.insert(members_.begin() + place, std::make_unique<Process>(processes_++));
  }

  // Returns the rank that has died, or -1.
  int Play(SimWorld* world, std::vector<std::unique_ptr<Rank>>* ranks,
           const std::vector<Algorithm>& algorithms) {
    const uint64_t calls = algorithms.size();
    // When a rank dies: after some polls, or when the first rank has completed some call.
    const bool dies = ranks->size() > 1 && rng_.Below(3) != 0, by_polls = rng_.Below(2) == 0;
    const uint64_t dies_after = by_polls ? rng_.Below(40 * calls) : 1 + rng_.Below(calls);
    int victim = -1;
    uint64_t most = 0;
    for (uint64_t polls = 0;; ++polls) {
      if (dies && victim < 0 && (by_polls ? polls : most) >= dies_after) {
        victim = static_cast<int>(rng_.Below(ranks->size()));
        world->Crash(victim);
      }
      bool all_over = true, moved = false;
      const size_t first = rng_.Below(ranks->size());
      for (size_t i = 0; i < ranks->size(); ++i) {
        const size_t place = (first + i) % ranks->size();
        Rank& rank = *(*ranks)[place];
        if (static_cast<int>(place) == victim || rank.over(calls)) continue;
        const uint64_t call = rank.completed();
        moved |=
            rank.Poll(step_ + call, seed_, algorithms[call], static_cast<int>(1 + rng_.Below(8)));
        all_over &= rank.over(calls);
        most = std::max(most, rank.completed());
      }
      if (all_over || ::testing::Test::HasFatalFailure()) return victim;
      if (!moved && !world->Step()) {
        ADD_FAILURE() << "nothing will ever happen again";
        return victim;
      }
    }
  }

  // A step that counts: equal bits on all ranks, and nothing lost.
  void ExpectRight(uint64_t step, int victim, Tally* tally) {
    std::vector<Values> inputs;
    std::vector<double> balance(kCount);  // what has come in and has not come out
    const Values* result = nullptr;
    bool complete = true;
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      const Process& process = *members_[rank];
      Values input = Gradient(seed_, process.id, step);
      const Values before = process.Before(step);
      for (size_t i = 0; i < kCount; ++i) {
        balance[i] += static_cast<double>(input[i]) + static_cast<double>(before[i]);
        input[i] += before[i];
      }
      inputs.push_back(std::move(input));
      const auto own = process.steps.find(step);
      if (own == process.steps.end()) {
        EXPECT_EQ(static_cast<int>(rank), victim);
        complete = false;
        continue;
      }
      for (size_t i = 0; i < kCount; ++i) balance[i] -= static_cast<double>(own->second.left[i]);
      if (result == nullptr) result = &own->second.result;
      EXPECT_EQ(own->second.result, *result) << "process " << process.id << " has other bits";
    }
    ASSERT_NE(result, nullptr);
    if (exact_) {
      EXPECT_EQ(*result,
                test::HbiAllReduce(inputs, {.bits8 = 32, .seed = 3, .step = step, .exact = true}));
    }
    if (!complete) return;
    ++tally->conserved;
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(balance[i], static_cast<double>((*result)[i]), 1e-3) << "element " << i;
    }
  }

  // Makes the next communicator of those who are left and those who join.
  void Continue(int victim, uint64_t counted, Tally* tally) {
    if (victim >= 0) {
      ++tally->shrunk;
      members_.erase(members_.begin() + victim);
      for (const auto& process : members_) {
        const Lineage::Completed calls = {counted, counted + process->steps.count(step_)};
        process->lineage = Lineage(process->lineage, calls);
        process->steps.erase(step_);
        // Else the next call does it.
        if (rng_.Below(2) == 0) continue;
        EXPECT_TRUE(process->residual.Settle(process->lineage).ok());
        EXPECT_EQ(process->State(), process->Before(step_));
      }
    }
    if (victim >= 0 && members_.size() > 1 && rng_.Below(2) == 0) return;
    ++tally->grown;
    for (const auto& process : members_) process->lineage = Lineage(process->lineage, {});
    for (uint64_t n = 1 + rng_.Below(2); n > 0 && members_.size() < 8; --n) AddProcess();
  }

  const std::shared_ptr<const Codec> codec_;
  const bool exact_;  // the oracle knows the codec's results
  const uint64_t seed_;
  Rng rng_;
  std::vector<Algorithm> algorithms_;
  std::vector<std::unique_ptr<Process>> members_;  // by rank
  int processes_ = 0;
  uint64_t step_ = 0;  // the next one
};

void RunJobs(const char* codec, bool one_owner) {
  constexpr int kJobs = 60, kEras = 15;
  const uint64_t seed = test::TestSeed();
  Tally tally;
  for (int i = 0; i < kJobs; ++i) {
    Job job(codec, one_owner, seed + static_cast<uint64_t>(i));
    for (int era = 0; era < kEras; ++era) {
      SCOPED_TRACE(testing::Message()
                   << "job " << i << " of INCCL_TEST_SEED=" << seed << ", communicator " << era);
      job.Era(&tally);
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(tally.shrunk, kJobs * kEras / 4);
  EXPECT_GT(tally.grown, kJobs * kEras / 4);
  EXPECT_GT(tally.partial, kJobs * kEras / 50)
      << "hardly any step has completed on some ranks only";
  EXPECT_GT(tally.conserved, kJobs * kEras / 4);
}

TEST(MembershipSimTest, ContributionsAreConserved) { RunJobs("hbi:ag=exact,bits=4", false); }

TEST(MembershipSimTest, TotalsOfTheirOwnersAreConserved) { RunJobs("onebit", true); }

}  // namespace
}  // namespace inccl
