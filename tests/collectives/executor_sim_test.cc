// SPDX-License-Identifier: Apache-2.0
//
// The real schedules and the real executor in the simulator: random collectives, shapes and codecs,
// slices and credits arriving in random order, work finishing late, registered buffers, ranks
// crashing. One integer replays a run: INCCL_TEST_SEED.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "collectives/executor.h"
#include "fakes/sim_engine.h"
#include "support/hbi_oracle.h"
#include "support/seed.h"
#include "topology/host_map.h"
#include "verify/sim_world.h"

namespace inccl {
namespace {

constexpr int kRuns = 400;

// Which registered buffers a call has: none; in memory of the host, where the owner writes results
// into the buffers of its peers; or in memory of devices, where peers only read, and to which a
// rank revokes access when its call fails.
enum class ZeroCopy { kNothing, kOfHost, kOfDevice };

struct Scenario {
  Collective collective;
  Algorithm algorithm;
  int nranks, root, channels;
  bool hbi, side_one_shot, in_place, late_engine, multicast;
  ZeroCopy zero_copy;
  bool noticed_soon, sends_from_caller, turns;
  uint64_t count, window_elements;
  uint32_t slice_elements, group;
  uint16_t depth;
  HostMap hosts;

  static Scenario Random(Rng* rng) {
    Scenario s{};
    do {
      s.collective = static_cast<Collective>(rng->Below(kCollectiveKinds));
      s.algorithm = static_cast<Algorithm>(rng->Below(kAlgorithms));
      s.nranks = static_cast<int>(2 + rng->Below(8));
      std::vector<uint64_t> identities;
      const uint64_t most_hosts = 1 + rng->Below(4);
      for (int rank = 0; rank < s.nranks; ++rank) identities.push_back(rng->Below(most_hosts));
      s.hosts = HostMap(identities);
    } while (!HasSchedule(s.collective, s.algorithm, s.nranks, &s.hosts));
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
    // As the composition root does (src/communicator/zero_copy.cc), over what joins ranks by shared
    // memory.
    const bool can_register = TraitsOf(s.algorithm).zero_copy && !s.hbi && s.multicast &&
                              (all_reduce || halves || s.collective == Collective::kBroadcast);
    s.noticed_soon = rng->Below(2) == 0;
    s.zero_copy = can_register ? static_cast<ZeroCopy>(rng->Below(3)) : ZeroCopy::kNothing;
    s.sends_from_caller = s.zero_copy == ZeroCopy::kNothing && rng->Below(2) == 0;
    s.turns = rng->Below(2) == 0;
    s.count = rng->Below(4) == 0 ? rng->Below(3) : rng->Below(12000);
    s.window_elements = s.hbi ? kWindow : kSuperblock * (1 + rng->Below(20));
    s.slice_elements = static_cast<uint32_t>(kSuperblock * (1 + rng->Below(4)));
    s.depth = static_cast<uint16_t>(1 + rng->Below(4));
    s.group = static_cast<uint32_t>(1 + rng->Below(s.depth));
    return s;
  }
  // Calls on registered buffers. Ranks that fail early revoke access while peers still use them.
  static Scenario RegisteredBuffer(ZeroCopy zero_copy, Rng* rng) {
    Scenario s{};
    do {
      s = Random(rng);
    } while (s.zero_copy != zero_copy || s.count < 1000);
    s.late_engine = s.noticed_soon = true;
    return s;
  }
  static Scenario SentFromCaller(Rng* rng) {
    Scenario s{};
    do {
      s = Random(rng);
    } while (!s.sends_from_caller || s.hbi || s.count < 1000);
    s.noticed_soon = true;
    return s;
  }
  // An all-reduce into registered buffers, where a result has more readers than one step writes to.
  static Scenario ManyReaders(Rng* rng) {
    Scenario s{};
    do {
      s = RegisteredBuffer(ZeroCopy::kOfHost, rng);
    } while (s.collective != Collective::kAllReduce || s.algorithm != Algorithm::kTwoShot);
    s.nranks = 40;
    s.hosts = HostMap::OneHost(40);
    s.root = 0;
    s.channels = 1;
    s.count = 2 * kSuperblock * 40;
    return s;
  }
  std::string ToString() const {
    return std::string(Name(collective)) + " by " + Name(algorithm) +
           " n=" + std::to_string(nranks) + " hosts=" + std::to_string(hosts.hosts()) +
           " root=" + std::to_string(root) + " channels=" + std::to_string(channels) +
           " count=" + std::to_string(count) + " slice=" + std::to_string(slice_elements) +
           " depth=" + std::to_string(depth) + " group=" + std::to_string(group) +
           (hbi ? " hbi" : " none") + (in_place ? " in-place" : "") + (late_engine ? " late" : "") +
           (multicast ? " multicast" : " unicast") + (sends_from_caller ? " from-caller" : "") +
           (turns ? " turns" : "") +
           (zero_copy == ZeroCopy::kNothing  ? ""
            : zero_copy == ZeroCopy::kOfHost ? " registered"
                                             : " registered, of a device");
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
  Transport* transport = nullptr;
  std::unique_ptr<Executor> task;
  std::vector<float> other;  // registered before
  MemoryHandle registered_input, registered_output;
  Status failure;
  bool over() const { return (task->done() && !transport->unsent()) || !failure.ok(); }
};

class Simulation {
 public:
  explicit Simulation(uint64_t seed, ZeroCopy zero_copy = ZeroCopy::kNothing)
      : Simulation(seed, [zero_copy](Rng* rng) {
          return zero_copy == ZeroCopy::kNothing ? Scenario::Random(rng)
                                                 : Scenario::RegisteredBuffer(zero_copy, rng);
        }) {}
  Simulation(uint64_t seed, const std::function<Scenario(Rng*)>& make)
      : rng_(seed),
        scenario_(make(&rng_)),
        world_(scenario_.nranks, rng_.Next(), SimOptionsOf(scenario_)),
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
  const SimWorld& world() const { return world_; }

 private:
  static SimOptions SimOptionsOf(const Scenario& scenario) {
    SimOptions options{.multicast = scenario.multicast,
                       .sends_from_caller = scenario.sends_from_caller};
    if (scenario.noticed_soon) {  // crashes, while slices are still under way
      options.min_detection = kMicrosecond;
      options.max_detection = 300 * kMicrosecond;
    }
    return options;
  }

  // A part of the buffer, so that some slices lie in it and some do not; at any place of a rank's
  // table, if others have been there before.
  MemoryHandle Register(Transport* transport, std::vector<float>* buffer, bool writable) {
    if (buffer->empty()) return {};
    Result<MemoryHandle> memory =
        transport->exports()->Register(buffer->data(), buffer->size() * sizeof(float),
                                       {.access = writable ? Access::kReadWrite : Access::kRead});
    EXPECT_TRUE(memory.ok()) << memory.status().message();
    if (rng_.Below(4) == 0) {
      const size_t head = rng_.Below(buffer->size() * sizeof(float));
      memory->offset += head;
      memory->begin += head;
    }
    return *memory;
  }

  void RegisterBuffers(int rank, std::vector<float>* input, std::vector<float>* output,
                       SimRank* r) {
    const Scenario& s = scenario_;
    if (s.zero_copy == ZeroCopy::kNothing) return;
    Transport* const transport = world_.transport(rank);
    r->other.resize(64);
    for (uint64_t i = rng_.Below(16); i > 0; --i) {
      EXPECT_TRUE(transport->exports()->Register(&r->other[i], sizeof(float), {}).ok());
    }
    const bool host = s.zero_copy == ZeroCopy::kOfHost;
    if (s.collective == Collective::kAllReduce) {
      r->registered_output = Register(transport, output, host);
    }
    if (s.collective != Collective::kBroadcast || rank == s.root) {
      r->registered_input = Register(transport, input, false);
    }
    if (rng_.Below(2) == 0) world_.AdvanceTo(world_.now() + kMillisecond);  // else it comes later
  }

  // What follows a failed call: nothing that a peer reads here from now on may become a result.
  void RevokeAccess(int rank, SimRank* r) {
    world_.transport(rank)->DropUnsent();
    if (scenario_.zero_copy != ZeroCopy::kOfDevice && !scenario_.sends_from_caller) return;
    for (const MemoryHandle& memory : {r->registered_input, r->registered_output}) {
      EXPECT_TRUE(world_.transport(rank)->exports()->RevokeAccess(memory).ok());
    }
    std::fill(r->input.begin(), r->input.end(), 1e30f);
    std::fill(r->output.begin(), r->output.end(), 1e30f);
  }

  std::unique_ptr<SimRank> MakeRank(int rank) {
    const Scenario& s = scenario_;
    auto r = std::make_unique<SimRank>();
    r->input.resize(s.InputCount());
    // Whole numbers: uncompressed sums are exact in any order.
    for (float& x : r->input) x = static_cast<float>(static_cast<int>(rng_.Below(2001)) - 1000);
    r->original = r->input;
    r->output.assign(s.OutputCount(), -7.0f);
    Transport* transport = world_.transport(rank);
    r->transport = transport;
    r->lanes = std::make_unique<LaneTable>(transport);
    Result<Schedule> schedule = MakeSchedule(
        {{.collective = s.collective, .nranks = s.nranks, .rank = rank, .root = s.root},
         s.algorithm,
         s.channels,
         s.hbi ? 1u : 0u,
         s.side_one_shot,
         0,
         &s.hosts});
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
    r->task = std::make_unique<Executor>(r->engine.get());
    const float* input = r->input.data();
    float* output = r->output.data();
    if (s.in_place && s.collective == Collective::kAllGather) {
      float* own = output + s.Segment(rank);
      std::copy(r->input.begin(), r->input.end(), own);
      input = own;
    } else if (s.in_place) {
      output = r->input.data() + (s.collective == Collective::kAllReduce ? 0 : s.Segment(rank));
    }
    std::vector<float>* const in_buffer =
        s.in_place && s.collective == Collective::kAllGather ? &r->output : &r->input;
    std::vector<float>* const out_buffer =
        s.in_place && s.collective != Collective::kAllGather ? &r->input : &r->output;
    RegisterBuffers(rank, in_buffer, out_buffer, r.get());
    const bool host = s.zero_copy == ZeroCopy::kOfHost;
    r->task->Start(
        {.program = r->program.get(),
         .chunking = Chunking({{.collective = s.collective, .nranks = s.nranks, .count = s.count},
                               s.window_elements,
                               s.slice_elements,
                               kWindow,
                               s.group}),
         .codec = r->codec.get(),
         .input = reinterpret_cast<const std::byte*>(input),
         .output = reinterpret_cast<std::byte*>(output),
         .signature = 42,
         .registered_input = r->registered_input,
         .registered_output = host ? r->registered_output : MemoryHandle{},
         .registered_result = host ? MemoryHandle{} : r->registered_output,
         .turns = s.turns,
         .sends_input = !s.in_place || TraitsOf(s.algorithm).one_owner,
         .sends_output = true});
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
      RevokeAccess(rank, &r);
      return true;
    }
    Result<int> ran = r.task->Advance(static_cast<int>(1 + rng_.Below(8)));
    if (!ran.ok()) {
      r.failure = ran.status();
      RevokeAccess(rank, &r);
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

// Every fourth run has registered buffers.
ZeroCopy ZeroCopyOf(int i) {
  if (i % 4 != 1) return ZeroCopy::kNothing;
  return i % 8 == 1 ? ZeroCopy::kOfHost : ZeroCopy::kOfDevice;
}

TEST(ExecutorSimTest, RandomRunsEndWithTheRightResult) {
  const uint64_t seed = test::TestSeed();
  uint64_t references = 0, targets = 0, sent_from_caller = 0;
  for (int i = 0; i < kRuns; ++i) {
    Simulation run(seed + static_cast<uint64_t>(i), ZeroCopyOf(i));
    SCOPED_TRACE("run " + std::to_string(i) + " of INCCL_TEST_SEED=" + std::to_string(seed));
    run.Play(-1);
    for (int rank = 0; rank < run.scenario().nranks; ++rank) {
      ASSERT_TRUE(run.rank(rank).failure.ok())
          << run.rank(rank).failure.message() << ": " << run.scenario().ToString();
      run.ExpectRight(rank);
    }
    references += run.world().references();
    targets += run.world().targets();
    sent_from_caller += run.world().sent_from_caller();
    if (HasFailure()) return;
  }
  EXPECT_GT(sent_from_caller, 1000u) << "hardly any slice was sent from memory of the caller";
  EXPECT_GT(references, 100u) << "hardly any slice lay in a registered buffer";
  EXPECT_GT(targets, 30u) << "hardly any result was wanted in a registered buffer";
}

TEST(ExecutorSimTest, MoreReadersThanOneStepWritesTo) {
  const uint64_t seed = test::TestSeed() ^ 0x40;
  uint64_t targets = 0, deliveries = 0, deals = 0;
  for (uint64_t i = 0; i < 4; ++i) {
    Simulation run(seed + i, Scenario::ManyReaders);
    SCOPED_TRACE("seed " + std::to_string(seed + i) + ": " + run.scenario().ToString());
    run.Play(-1);
    for (int rank = 0; rank < run.scenario().nranks; ++rank) {
      ASSERT_TRUE(run.rank(rank).failure.ok()) << run.rank(rank).failure.message();
      run.ExpectRight(rank);
      deals += run.rank(rank).task->stats().slices / 2;  // the other half are results
    }
    targets += run.world().targets();
    deliveries += run.world().deliveries();
    if (HasFailure()) return;
  }
  // Each of 40 results goes to 39 readers, 32 of which it may be written to.
  EXPECT_GT(deliveries, 0u);
  EXPECT_LT(deliveries, targets);
  EXPECT_LE(deliveries, deals * 32 / 39);
}

struct Crashes {
  int errors = 0;
  int revoked = 0;  // of `errors`: a peer had revoked access to its buffer
};

// A rank dies at any moment. Every survivor ends, with an error that names it or with the right
// result.
void CrashOneIn(Simulation* run, uint64_t crash_after, Crashes* crashes) {
  const int victim = run->Play(static_cast<int64_t>(crash_after));
  for (int rank = 0; rank < run->scenario().nranks; ++rank) {
    if (rank == victim) continue;
    SimRank& r = run->rank(rank);
    ASSERT_TRUE(r.over()) << "rank " << rank << ": " << run->scenario().ToString();
    if (r.failure.ok()) {
      run->ExpectRight(rank);
      continue;
    }
    ++crashes->errors;
    EXPECT_EQ(r.failure.code(), Code::kRemoteError) << r.failure.message();
    // Else the error names a peer that failed because of it, and revoked access to its buffer.
    if (r.failure.message().find("revoked access to its buffer") != std::string::npos) {
      ++crashes->revoked;
    } else {
      EXPECT_NE(r.failure.message().find(std::to_string(victim)), std::string::npos);
    }
  }
}

TEST(ExecutorSimTest, SurvivorsOfACrashEnd) {
  const uint64_t seed = test::TestSeed() ^ 0xC0FFEE;
  Crashes crashes;
  for (int i = 0; i < kRuns && !HasFailure(); ++i) {
    Simulation run(seed + static_cast<uint64_t>(i), ZeroCopyOf(i));
    SCOPED_TRACE("seed " + std::to_string(seed + static_cast<uint64_t>(i)));
    CrashOneIn(&run, Mix64(seed + static_cast<uint64_t>(i)) % 60, &crashes);
  }
  EXPECT_GT(crashes.errors, kRuns / 4) << "hardly any run was hit by its crash";
}

// Survivors that fail overwrite their registered buffers, while others still read them.
TEST(ExecutorSimTest, RevokedMemoryNeverBecomesAResult) {
  const uint64_t seed = test::TestSeed() ^ 0xDE71CE;
  Crashes crashes;
  for (int i = 0; i < kRuns && !HasFailure(); ++i) {
    Simulation run(seed + static_cast<uint64_t>(i), ZeroCopy::kOfDevice);
    SCOPED_TRACE("seed " + std::to_string(seed + static_cast<uint64_t>(i)));
    CrashOneIn(&run, Mix64(seed + static_cast<uint64_t>(i)) % 60, &crashes);
  }
  EXPECT_GT(crashes.revoked, 0) << "no rank was late to what had been revoked";
}

// Survivors that fail overwrite buffers from which they had still to send.
TEST(ExecutorSimTest, DroppedPayloadsNeverBecomeAResult) {
  const uint64_t seed = test::TestSeed() ^ 0xD209;
  Crashes crashes;
  uint64_t sent_from_caller = 0;
  for (int i = 0; i < kRuns && !HasFailure(); ++i) {
    Simulation run(seed + static_cast<uint64_t>(i), Scenario::SentFromCaller);
    SCOPED_TRACE("seed " + std::to_string(seed + static_cast<uint64_t>(i)));
    CrashOneIn(&run, Mix64(seed + static_cast<uint64_t>(i)) % 60, &crashes);
    sent_from_caller += run.world().sent_from_caller();
  }
  EXPECT_GT(crashes.errors, kRuns / 4) << "hardly any run was hit by its crash";
  EXPECT_GT(sent_from_caller, 1000u);
}

}  // namespace
}  // namespace inccl
