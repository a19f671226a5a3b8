// SPDX-License-Identifier: Apache-2.0
//
// The real schedules and the real executor in the simulator: random collectives, shapes and codecs,
// slices and credits arriving in random order, work finishing late, ranks crashing. One integer
// replays a run: INCCL_TEST_SEED.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "collectives/executor.h"
#include "support/hbi_oracle.h"
#include "support/seed.h"
#include "support/sim_engine.h"
#include "transport/sim/sim_world.h"

namespace inccl {
namespace {

constexpr int kRuns = 400;

struct Scenario {
  Collective collective;
  Algorithm algorithm;
  int nranks, root, channels;
  bool hbi, side_one_shot, in_place, late_engine, multicast;
  uint64_t count, row_elements;
  uint32_t slice_elements, group;
  uint16_t depth;

  static Scenario Random(Rng* rng) {
    Scenario s{};
    do {
      s.collective = static_cast<Collective>(rng->Below(kCollectiveKinds));
      s.algorithm = static_cast<Algorithm>(rng->Below(kAlgorithms));
      s.nranks = static_cast<int>(2 + rng->Below(8));
    } while (!HasSchedule(s.collective, s.algorithm, s.nranks));
    s.root = static_cast<int>(rng->Below(static_cast<uint64_t>(s.nranks)));
    s.channels = static_cast<int>(1 + rng->Below(3));
    const bool all_reduce = s.collective == Collective::kAllReduce;
    const bool halves = s.collective == Collective::kReduceScatter ||
                        s.collective == Collective::kAllGather;  // of an all-reduce
    s.hbi = (all_reduce || halves) && rng->Below(2) == 0;
    s.side_one_shot = all_reduce && rng->Below(2) == 0;
    s.in_place = (all_reduce || halves) && rng->Below(2) == 0;
    s.late_engine = rng->Below(2) == 0;
    s.multicast = rng->Below(2) == 0;
    s.count = rng->Below(4) == 0 ? rng->Below(3) : rng->Below(12000);
    s.row_elements = s.hbi ? kWindow : kSuperblock * (1 + rng->Below(20));
    s.slice_elements = static_cast<uint32_t>(kSuperblock * (1 + rng->Below(4)));
    s.depth = static_cast<uint16_t>(1 + rng->Below(4));
    s.group = static_cast<uint32_t>(1 + rng->Below(s.depth));
    return s;
  }
  std::string ToString() const {
    return std::string(Name(collective)) + " by " + Name(algorithm) +
           " n=" + std::to_string(nranks) + " root=" + std::to_string(root) +
           " channels=" + std::to_string(channels) + " count=" + std::to_string(count) +
           " slice=" + std::to_string(slice_elements) + " depth=" + std::to_string(depth) +
           " group=" + std::to_string(group) + (hbi ? " hbi" : " none") +
           (in_place ? " in-place" : "") + (late_engine ? " late" : "") +
           (multicast ? " multicast" : " unicast");
  }
  uint64_t InputCount() const {
    const bool parts = collective == Collective::kReduceScatter ||
                       collective == Collective::kScatter || collective == Collective::kAllToAll;
    return parts ? count * static_cast<uint64_t>(nranks) : count;
  }
  uint64_t OutputCount() const {
    const bool parts = collective == Collective::kAllGather || collective == Collective::kGather ||
                       collective == Collective::kAllToAll;
    return parts ? count * static_cast<uint64_t>(nranks) : count;
  }
  // In place, the smaller buffer is this rank's segment of the larger one.
  uint64_t Segment(int rank) const { return count * static_cast<uint64_t>(rank); }
  // Where element i of a rank's output comes from: the rank and the element of its input. Of no
  // rank: the sum of all.
  std::pair<int, uint64_t> SourceOf(uint64_t rank, uint64_t i) const {
    const uint64_t mine = rank * count;
    switch (collective) {
      case Collective::kAllGather:
      case Collective::kGather: return {static_cast<int>(i / count), i % count};
      case Collective::kAllToAll: return {static_cast<int>(i / count), mine + i % count};
      case Collective::kBroadcast: return {root, i};
      case Collective::kScatter: return {root, mine + i};
      case Collective::kReduceScatter: return {-1, mine + i};
      case Collective::kAllReduce:
      case Collective::kReduce: break;
    }
    return {-1, i};
  }
};

// One rank: memory, program, task.
struct SimRank {
  std::vector<float> input, original, output;
  std::unique_ptr<LaneTable> lanes;
  std::unique_ptr<Program> program;
  std::unique_ptr<CodecState> codec;
  std::unique_ptr<test::SimEngine> engine;
  std::unique_ptr<Task> task;
  Status failure;
  bool over() const { return task->done() || !failure.ok(); }
};

class Simulation {
 public:
  explicit Simulation(uint64_t seed)
      : rng_(seed),
        scenario_(Scenario::Random(&rng_)),
        world_(scenario_.nranks, rng_.Next(), SimOptions{.multicast = scenario_.multicast}),
        codec_(scenario_.hbi ? *MakeCodec("hbi:bits=6") : IdentityCodec()) {
    for (int rank = 0; rank < scenario_.nranks; ++rank) ranks_.push_back(MakeRank(rank));
    MakeExpected();
  }

  const Scenario& scenario() const { return scenario_; }

  // Polls the ranks in random order until all are over; `crash_after` polls (or never, if negative)
  // later one rank crashes. Returns the crashed rank or -1.
  int Play(int64_t crash_after) {
    int victim = -1;
    for (int64_t polls = 0;; ++polls) {
      if (polls == crash_after) {
        victim = static_cast<int>(rng_.Below(ranks_.size()));
        world_.Crash(victim);
      }
      bool all_over = true, moved = false;
      const size_t first = rng_.Below(ranks_.size());
      for (size_t i = 0; i < ranks_.size(); ++i) {
        const size_t rank = (first + i) % ranks_.size();
        if (static_cast<int>(rank) == victim || ranks_[rank]->over()) continue;
        moved |= Poll(static_cast<int>(rank));
        all_over &= ranks_[rank]->over();
      }
      if (all_over) return victim;
      if (!moved && !world_.Step()) {
        ADD_FAILURE() << "nothing will ever happen again: " << scenario_.ToString();
        return victim;
      }
    }
  }

  void ExpectRight(int rank) {
    SimRank& r = *ranks_[static_cast<size_t>(rank)];
    const bool to_root =
        scenario_.collective == Collective::kReduce || scenario_.collective == Collective::kGather;
    if (to_root && rank != scenario_.root) return;
    const std::vector<float> got = ResultOf(rank);
    const std::vector<float>& want = expected_[static_cast<size_t>(rank)];
    ASSERT_EQ(got.size(), want.size());
    size_t wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      wrong += std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(want[i]);
    }
    EXPECT_EQ(wrong, 0u) << "rank " << rank << ": " << scenario_.ToString();
    if (!scenario_.in_place) {
      EXPECT_EQ(r.input, r.original) << "the input was written";
    }
  }
  // What lies where this rank's result belongs.
  std::vector<float> ResultOf(int rank) {
    const SimRank& r = *ranks_[static_cast<size_t>(rank)];
    if (!scenario_.in_place || scenario_.collective == Collective::kAllGather) return r.output;
    if (scenario_.collective == Collective::kAllReduce) return r.input;
    const auto first = r.input.begin() + static_cast<std::ptrdiff_t>(scenario_.Segment(rank));
    return {first, first + static_cast<std::ptrdiff_t>(scenario_.count)};
  }
  SimRank& rank(int i) { return *ranks_[static_cast<size_t>(i)]; }

 private:
  std::unique_ptr<SimRank> MakeRank(int rank) {
    const Scenario& s = scenario_;
    auto r = std::make_unique<SimRank>();
    r->input.resize(s.InputCount());
    // Whole numbers: uncompressed sums are exact in any order.
    for (float& x : r->input) x = static_cast<float>(static_cast<int>(rng_.Below(2001)) - 1000);
    r->original = r->input;
    r->output.assign(s.OutputCount(), -7.0f);
    Transport* transport = world_.transport(rank);
    r->lanes = std::make_unique<LaneTable>(transport);
    Result<Schedule> schedule = MakeSchedule({.collective = s.collective,
                                              .algorithm = s.algorithm,
                                              .nranks = s.nranks,
                                              .rank = rank,
                                              .root = s.root,
                                              .channels = s.channels,
                                              .side_phase = s.hbi,
                                              .side_one_shot = s.side_one_shot});
    EXPECT_TRUE(schedule.ok()) << schedule.status().message();
    const SlotOptions slots{.data_bytes = s.slice_elements * 4,
                            .side_bytes = kWindow / kBlock,
                            .data_depth = s.depth,
                            .side_depth = 1};
    Result<std::unique_ptr<Program>> program = Bind(*std::move(schedule), slots, r->lanes.get());
    EXPECT_TRUE(program.ok()) << program.status().message();
    r->program = *std::move(program);
    r->codec = codec_->NewState();
    EXPECT_TRUE(r->codec
                    ->Begin({.collective = s.collective,
                             .nranks = s.nranks,
                             .rank = rank,
                             .count = s.count,
                             .seed = 3,
                             .step = 9})
                    .ok());
    r->engine =
        std::make_unique<test::SimEngine>(&world_, rank, rng_.Next(), s.late_engine ? 0.25 : 1.0);
    r->task = std::make_unique<Task>(r->engine.get());
    const float* input = r->input.data();
    float* output = r->output.data();
    if (s.in_place && s.collective == Collective::kAllGather) {
      float* own = output + s.Segment(rank);
      std::copy(r->input.begin(), r->input.end(), own);
      input = own;
    } else if (s.in_place) {
      output = r->input.data() + (s.collective == Collective::kAllReduce ? 0 : s.Segment(rank));
    }
    r->task->Start({.program = r->program.get(),
                    .chunking = Chunking({.collective = s.collective,
                                          .nranks = s.nranks,
                                          .count = s.count,
                                          .row_elements = s.row_elements,
                                          .slice_elements = s.slice_elements,
                                          .side_slice_elements = kWindow,
                                          .group = s.group}),
                    .codec = r->codec.get(),
                    .element_bytes = 4,
                    .input = reinterpret_cast<const std::byte*>(input),
                    .output = reinterpret_cast<std::byte*>(output),
                    .signature = 42});
    return r;
  }

  void MakeExpected() {
    const Scenario& s = scenario_;
    const auto n = static_cast<size_t>(s.nranks);
    expected_.resize(n);
    if (s.hbi) {
      std::vector<std::vector<float>> inputs;
      for (const auto& r : ranks_) inputs.push_back(r->original);
      const test::HbiOptions options{.bits8 = 48, .seed = 3, .step = 9};
      switch (s.collective) {
        case Collective::kReduceScatter: expected_ = HbiReduceScatter(inputs, options); break;
        case Collective::kAllGather: expected_.assign(n, HbiAllGather(inputs, options)); break;
        default: expected_.assign(n, HbiAllReduce(inputs, options));
      }
      return;
    }
    for (size_t rank = 0; rank < n; ++rank) {
      std::vector<float>& want = expected_[rank];
      want.resize(s.OutputCount());
      for (size_t i = 0; i < want.size(); ++i) {
        const auto [source, at] = s.SourceOf(rank, i);
        if (source >= 0) {
          want[i] = ranks_[static_cast<size_t>(source)]->original[at];
        } else {
          for (size_t q = 0; q < n; ++q) want[i] += ranks_[q]->original[at];
        }
      }
    }
  }

  bool Poll(int rank) {
    SimRank& r = *ranks_[static_cast<size_t>(rank)];
    Result<int> events = world_.transport(rank)->Progress(world_.now());
    if (!events.ok()) {
      r.failure = events.status();
      return true;
    }
    Result<int> ran = r.task->Advance(static_cast<int>(1 + rng_.Below(8)));
    if (!ran.ok()) {
      r.failure = ran.status();
      return true;
    }
    return *ran > 0;
  }

  Rng rng_;
  Scenario scenario_;
  SimWorld world_;
  std::shared_ptr<const Codec> codec_;
  std::vector<std::unique_ptr<SimRank>> ranks_;
  std::vector<std::vector<float>> expected_;
};

TEST(ExecutorSimTest, RandomRunsEndWithTheRightResult) {
  const uint64_t seed = test::TestSeed();
  for (int i = 0; i < kRuns; ++i) {
    Simulation run(seed + static_cast<uint64_t>(i));
    SCOPED_TRACE("INCCL_TEST_SEED=" + std::to_string(seed + static_cast<uint64_t>(i)));
    run.Play(-1);
    for (int rank = 0; rank < run.scenario().nranks; ++rank) {
      ASSERT_TRUE(run.rank(rank).failure.ok())
          << run.rank(rank).failure.message() << ": " << run.scenario().ToString();
      run.ExpectRight(rank);
    }
    if (HasFailure()) return;
  }
}

// A rank dies at any moment. Every survivor ends, with an error that names it or with the right
// result.
TEST(ExecutorSimTest, SurvivorsOfACrashEnd) {
  const uint64_t seed = test::TestSeed() ^ 0xC0FFEE;
  int errors = 0;
  for (int i = 0; i < kRuns; ++i) {
    Simulation run(seed + static_cast<uint64_t>(i));
    SCOPED_TRACE("seed " + std::to_string(seed + static_cast<uint64_t>(i)));
    const int victim = run.Play(static_cast<int64_t>(Mix64(seed + static_cast<uint64_t>(i)) % 60));
    for (int rank = 0; rank < run.scenario().nranks; ++rank) {
      if (rank == victim) continue;
      SimRank& r = run.rank(rank);
      ASSERT_TRUE(r.over()) << "rank " << rank << ": " << run.scenario().ToString();
      if (r.failure.ok()) {
        run.ExpectRight(rank);
      } else {
        ++errors;
        EXPECT_EQ(r.failure.code(), Code::kRemoteError) << r.failure.message();
        EXPECT_NE(r.failure.message().find(std::to_string(victim)), std::string::npos);
      }
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(errors, kRuns / 4) << "hardly any run was hit by its crash";
}

}  // namespace
}  // namespace inccl
