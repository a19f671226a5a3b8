// SPDX-License-Identifier: Apache-2.0
//
// The simulation of docs/scaling.md: it moves exactly what the real executor moves, bytes agree
// with the formulas of docs/algorithms.md, times with hand calculations, and a thousand ranks run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "collectives/executor.h"
#include "perf/scaling/estimate.h"
#include "perf/scaling/fleet.h"
#include "perf/scaling/simulation.h"
#include "tuning/segmentation.h"
#include "tuning/tuner.h"
#include "verify/sim_world.h"
#include "world/limits.h"

namespace inccl::perf {
namespace {

constexpr uint32_t kSlice = 16 * 1024;

struct Case {
  Algorithm algorithm = Algorithm::kTwoShot;
  int ranks = 4, per_host = 1;
  uint64_t count = 1 << 16;
  std::string codec = "none";
  bool side_one_shot = false;
  uint32_t slice_bytes = kSlice;

  std::string ToString() const {
    return fmt::format("{} n={} per host={} count={} {}{}", Name(algorithm), ranks, per_host, count,
                       codec, side_one_shot ? " side one-shot" : "");
  }
};

Chunking ChunkingOf(const Case& c, const Codec& codec) {
  return CutCall({.nranks = c.ranks, .count = c.count}, codec, 1, c.slice_bytes);
}

ScheduleRequest RequestOf(const Case& c, const Codec& codec) {
  const size_t phases = codec.side_phases().size();
  return {{.nranks = c.ranks}, c.algorithm, 1, phases, phases != 0 && c.side_one_shot};
}

CallTotals Simulate(const Case& c, const Machine& machine = {}) {
  const HostMap hosts = EqualHosts(c.ranks, c.per_host);
  Result<std::unique_ptr<Payloads>> payloads = Payloads::Make(c.codec, c.ranks, c.count);
  EXPECT_TRUE(payloads.ok()) << payloads.status().message();
  if (!payloads.ok()) return {};
  const Codec& codec = (*payloads)->codec();
  Result<Fleet> fleet = MakeFleet(RequestOf(c, codec), hosts);
  EXPECT_TRUE(fleet.ok()) << fleet.status().message();
  if (!fleet.ok()) return {};
  Simulation simulation(&*fleet, &hosts, SlotsFor(c.slice_bytes));
  Result<CallTotals> totals = simulation.Run(ChunkingOf(c, codec), machine, payloads->get());
  EXPECT_TRUE(totals.ok()) << c.ToString() << ": " << totals.status().message();
  return totals.ok() ? *totals : CallTotals{};
}

// The real executor and the real codec, in the simulator with bytes.
class RealCall {
 public:
  explicit RealCall(const Case& c) : world_(c.ranks, 1), hosts_(EqualHosts(c.ranks, c.per_host)) {
    const std::shared_ptr<const Codec> codec = *MakeCodec(c.codec);
    // All superblocks are alike, as in Payloads.
    input_.resize(c.count);
    for (size_t i = 0; i < input_.size(); ++i) input_[i] = static_cast<float>(i % 256) - 128;
    for (int rank = 0; rank < c.ranks; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(&world_, rank));
      Rank& r = *ranks_.back();
      ScheduleRequest request = RequestOf(c, *codec);
      request.rank = rank;
      request.hosts = &hosts_;
      r.program = *Bind(*MakeSchedule(request), SlotsFor(c.slice_bytes), &r.lanes);
      r.codec = codec->NewState();
      const CollectiveArgs args{.nranks = c.ranks, .rank = rank, .count = c.count};
      EXPECT_TRUE(r.codec->Begin(args).ok());
      r.output.resize(c.count);
      r.request.Start({.program = r.program.get(),
                       .chunking = ChunkingOf(c, *codec),
                       .codec = r.codec.get(),
                       .input = reinterpret_cast<const std::byte*>(input_.data()),
                       .output = reinterpret_cast<std::byte*>(r.output.data()),
                       .signature = 42});
    }
  }

  // What all ranks have published together.
  RequestStats Run() {
    for (bool over = false; !over;) {
      bool moved = false;
      over = true;
      for (const std::unique_ptr<Rank>& r : ranks_) {
        if (r->request.done()) continue;
        Result<int> ran = r->request.Advance(1000);
        EXPECT_TRUE(ran.ok()) << ran.status().message();
        if (!ran.ok()) return {};
        moved = moved || *ran > 0;
        over = over && r->request.done();
      }
      if (!moved && !over && !world_.Step()) {
        ADD_FAILURE() << "nothing will ever happen again";
        return {};
      }
    }
    RequestStats all;
    for (const std::unique_ptr<Rank>& r : ranks_) {
      all.payload_bytes += r->request.stats().payload_bytes;
      all.slices += r->request.stats().slices;
    }
    return all;
  }

 private:
  struct Rank {
    Rank(SimWorld* world, int rank) : lanes(world->transport(rank)), request(&engine) {}
    LaneTable lanes;
    CpuEngine engine;
    std::unique_ptr<Program> program;
    std::unique_ptr<CodecState> codec;
    std::vector<float> output;
    Executor request;
  };
  SimWorld world_;
  HostMap hosts_;
  std::vector<float> input_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST(ScalingTest, MovesWhatTheExecutorMoves) {
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kTree, Algorithm::kRecursiveDoubling, Algorithm::kOneShot,
        Algorithm::kTwoShot, Algorithm::kHierarchical}) {
    for (const auto& [ranks, per_host] : {std::pair(2, 1), {5, 1}, {6, 3}, {8, 4}, {7, 3}}) {
      if (!HasSchedule(Collective::kAllReduce, algorithm, ranks,
                       std::make_unique<HostMap>(EqualHosts(ranks, per_host)).get())) {
        continue;
      }
      for (const char* codec : {"none", "hbi:bits=6", "hbi:k=7,k2=15", "hbi:bits=4,checksum=1"}) {
        for (const uint64_t count :
             {uint64_t{256}, uint64_t{256 * 77}, uint64_t{5} * kWindow / 4}) {
          if (count > kWindow && (ranks < 5 || ranks > 6)) continue;
          const Case c{algorithm, ranks, per_host, count, codec, count < 1000};
          const CallTotals simulated = Simulate(c);
          const RequestStats real = RealCall(c).Run();
          EXPECT_EQ(simulated.payload_bytes, real.payload_bytes) << c.ToString();
          EXPECT_EQ(simulated.slices, real.slices) << c.ToString();
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// docs/algorithms.md: what hosts and ranks send, in vectors of D bytes.
TEST(ScalingTest, BytesAreThoseOfTheFormulas) {
  constexpr uint64_t kBytes = 4 << 20, kCount = kBytes / 4;
  const auto total = [](Algorithm algorithm, int ranks, int per_host) {
    return Simulate({algorithm, ranks, per_host, kCount});
  };
  EXPECT_EQ(total(Algorithm::kRing, 8, 1).payload_bytes, 2 * 7 * kBytes);
  EXPECT_EQ(total(Algorithm::kTwoShot, 8, 1).payload_bytes, 2 * 7 * kBytes);
  EXPECT_EQ(total(Algorithm::kTree, 8, 1).payload_bytes, 2 * 7 * kBytes);
  EXPECT_EQ(total(Algorithm::kOneShot, 8, 1).payload_bytes, 8 * 7 * kBytes);
  EXPECT_EQ(total(Algorithm::kRecursiveDoubling, 8, 1).payload_bytes, 8 * 3 * kBytes);
  // From host to host: a ring of hosts, two-shot of ranks, two-shot of hosts.
  EXPECT_EQ(total(Algorithm::kRing, 16, 4).crossing_bytes, 4 * 2 * kBytes * 15 / 16);
  EXPECT_EQ(total(Algorithm::kRing, 16, 4).most_sent, 2 * kBytes * 15 / 16);
  EXPECT_EQ(total(Algorithm::kTwoShot, 16, 4).most_sent, 2 * 4 * kBytes * 12 / 16);
  const CallTotals hierarchical = total(Algorithm::kHierarchical, 16, 4);
  EXPECT_EQ(hierarchical.most_sent, 2 * kBytes * 3 / 4);
  EXPECT_EQ(hierarchical.most_received, 2 * kBytes * 3 / 4);
}

// A plan spends its budget: what two-shot sends for an element in each of its two phases.
TEST(ScalingTest, BitsAreThoseOfTheSpecification) {
  for (const int bits : {4, 6, 8}) {
    const CallTotals totals =
        Simulate({Algorithm::kTwoShot, 8, 1, kWindow, fmt::format("hbi:bits={}", bits)});
    const double elements = 2.0 * 7 * kWindow;
    EXPECT_NEAR(static_cast<double>(totals.payload_bytes) * 8 / elements, bits, 0.05) << bits;
  }
}

Machine SimpleMachine() {
  Machine machine;
  machine.gbps = 8;  // a byte in a nanosecond
  machine.framing = 1;
  machine.latency = 10000;
  machine.message = 1000;
  machine.message_byte = 0;
  machine.step = 100;
  machine.local_latency = 50;
  machine.copy = machine.add = machine.copy_byte = machine.memory_byte = 0;
  return machine;
}

// One-shot of two ranks: a step and a message to send; 1024 + 64 bytes and the latency; a message
// and a step to receive.
TEST(ScalingTest, TimeOfOneMessage) {
  const double nanoseconds = 100 + 1000 + 10000 + 1024 + 64 + 1000 + 100;
  const Case c{Algorithm::kOneShot, 2, 1, 256};
  EXPECT_NEAR(Simulate(c, SimpleMachine()).seconds, nanoseconds * 1e-9, 1e-12);
  // On one host: two steps and the local latency.
  const Case local{Algorithm::kOneShot, 2, 2, 256};
  EXPECT_NEAR(Simulate(local, SimpleMachine()).seconds, (100 + 50 + 100) * 1e-9, 1e-12);
}

// Every rank sends to the others in ascending order, so the three messages for rank 3 are the last
// of their senders. They reach rank 3's host at the same time, and its link takes one after the
// other.
TEST(ScalingTest, MessagesShareTheLinkOfAHost) {
  Machine machine = SimpleMachine();
  machine.message = machine.step = 0.001;
  const Case c{Algorithm::kOneShot, 4, 1, 4096};
  const double bytes = 4 * 4096 + 64;
  EXPECT_NEAR(Simulate(c, machine).seconds, ((2 + 3) * bytes + 10000) * 1e-9, 1e-8);
}

// Two hosts on two sites: the message takes the sites' latency, and their link as well as its own.
TEST(ScalingTest, MessagesBetweenSitesPassTheirLinks) {
  Machine machine = SimpleMachine();
  machine.site_latency = 1e6;
  const HostMap hosts = EqualHosts(4, 1, 2);
  EXPECT_EQ(hosts.sites(), 2);
  const auto seconds = [&] {
    const Case c{Algorithm::kOneShot, 4, 1, 256};
    Result<std::unique_ptr<Payloads>> payloads = Payloads::Make(c.codec, c.ranks, c.count);
    Result<Fleet> fleet = MakeFleet(RequestOf(c, (*payloads)->codec()), hosts);
    Simulation simulation(&*fleet, &hosts, SlotsFor(c.slice_bytes));
    return simulation.Run(ChunkingOf(c, (*payloads)->codec()), machine, payloads->get())->seconds;
  };
  const double own = seconds();
  EXPECT_GT(own, 1e-3);
  EXPECT_LT(own, 1.1e-3);
  // Four messages of 1088 bytes pass one link, at 10 ns a byte.
  machine.site_gbps = machine.gbps / 10;
  EXPECT_NEAR(seconds() - own, 4 * 1088 * 10e-9, 1e-5);
}

// An independent judge of the cost model: of the algorithms that the simulation runs, the chosen
// one is not far from the fastest, compressed or not, on one site and on several.
TEST(ScalingTest, TheTunerChoosesNearTheFastest) {
  struct Place {
    int ranks, per_host, sites;
    double round_trip_ms, site_gbps;
  };
  double worst = 1, product = 1;
  int calls = 0;
  for (const Place& place : {Place{4, 1, 1, 0, 0},
                             {8, 2, 1, 0, 0},
                             {16, 4, 1, 0, 0},
                             {8, 1, 2, 20, 0},
                             {16, 1, 2, 20, 1},
                             {32, 1, 4, 20, 0},
                             {16, 2, 2, 50, 1}}) {
    const HostMap hosts = EqualHosts(place.ranks, place.per_host, place.sites);
    TunerTable table;
    table.SetLink(1000, static_cast<uint32_t>(place.round_trip_ms * 1000));
    Machine machine;
    machine.gbps = 1;
    machine.site_latency = place.round_trip_ms * 1e6 / 2;
    machine.site_gbps = place.site_gbps;
    for (const char* const codec : {"none", "hbi:bits=6"}) {
      for (const uint64_t count : {uint64_t{1} << 17, uint64_t{1} << 22}) {
        Result<std::unique_ptr<Payloads>> payloads = Payloads::Make(codec, place.ranks, count);
        const Codec& made = (*payloads)->codec();
        TunerCall call{{.nranks = place.ranks, .count = count}};
        call.hosts = &hosts;
        call.compressed = codec != std::string("none");
        if (call.compressed) call.wire = WireBitsOf(made, Collective::kAllReduce, place.ranks);
        call.slots.under_way = UnderWay(table.costs(), &hosts);
        call.slots.bytes = DefaultSlotBytes(call.slots.under_way);
        const Choice choice = *Choose(call, AlgorithmFilter(), table);
        double chosen = 0, least = 1e9;
        for (int a = 0; a < kAlgorithms; ++a) {
          const auto algorithm = static_cast<Algorithm>(a);
          if (!HasSchedule(Collective::kAllReduce, algorithm, place.ranks, &hosts)) continue;
          const SlotOptions slots = SlotsOf(Collective::kAllReduce, algorithm, place.ranks, &hosts,
                                            call.slots, call.slots.slice_bytes);
          const Chunking chunking =
              CutCall({.nranks = place.ranks, .count = count}, made, 1, call.slots.slice_bytes,
                      LongLinksFor(slots, &hosts, call.slots.under_way));
          const size_t phases = made.side_phases().size();
          const bool one_shot = phases != 0 && choice.side_one_shot;
          Result<Fleet> fleet = MakeFleet({{}, algorithm, 1, phases, one_shot}, hosts);
          ASSERT_TRUE(fleet.ok());
          const double seconds =
              Simulation(&*fleet, &hosts, slots).Run(chunking, machine, payloads->get())->seconds;
          least = std::min(least, seconds);
          if (algorithm == choice.algorithm) chosen = seconds;
        }
        ASSERT_GT(chosen, 0);
        EXPECT_LE(chosen, 1.6 * least) << place.ranks << " ranks, " << place.sites << " sites, "
                                       << codec << ", " << count << ": " << Name(choice.algorithm);
        worst = std::max(worst, chosen / least);
        product *= chosen / least;
        ++calls;
      }
    }
  }
  const double mean = std::pow(product, 1.0 / calls);
  EXPECT_LE(mean, 1.1);
  fmt::print("{} calls: chosen over fastest {:.3f} in the geometric mean, {:.2f} at most\n", calls,
             mean, worst);
}

// Large vectors are limited by the link: the bound is from the formula of the bytes.
TEST(ScalingTest, LargeCallsTakeWhatTheLinkTakes) {
  Machine machine;
  for (const double gbps : {0.1, 1.0}) {
    machine.gbps = gbps;
    for (const auto& [algorithm, ranks, per_host] :
         {std::tuple(Algorithm::kTwoShot, 4, 1), std::tuple(Algorithm::kRing, 4, 1),
          std::tuple(Algorithm::kHierarchical, 8, 2)}) {
      const double bytes = 2.0 * (4 << 20) * 3 / 4;
      const double bound = bytes * 8e-9 / gbps * machine.framing;
      const double time = Simulate({algorithm, ranks, per_host, 1 << 20}, machine).seconds;
      EXPECT_GE(time, bound);
      EXPECT_LE(time, bound * 1.15) << Name(algorithm) << " at " << gbps;
    }
  }
}

// Where links are the limit. Where processors are, a faster link can take a rank to other steps
// first and the call longer.
TEST(ScalingTest, TimesAreMonotone) {
  for (const char* codec : {"none", "hbi:bits=6"}) {
    for (const Algorithm algorithm :
         {Algorithm::kRing, Algorithm::kTree, Algorithm::kTwoShot, Algorithm::kHierarchical}) {
      double last = 0;
      for (const double gbps : {4.0, 1.0, 0.25}) {
        Machine machine;
        machine.gbps = gbps;
        const double time = Simulate({algorithm, 16, 4, 1 << 18, codec}, machine).seconds;
        EXPECT_GT(time, last) << Name(algorithm) << " at " << gbps;
        last = time;
      }
      last = 0;
      for (const uint64_t count : {uint64_t{256}, uint64_t{1} << 16, uint64_t{1} << 20}) {
        const double time = Simulate({algorithm, 16, 4, count, codec}).seconds;
        EXPECT_GT(time, last) << Name(algorithm) << " of " << count;
        last = time;
      }
    }
  }
}

TEST(ScalingTest, ThousandRanks) {
  constexpr int kRanks = test::kSanitized ? 64 : 1024, kHosts = kRanks / 8;
  constexpr uint64_t kBytes = 4 << 20;
  const CallTotals totals = Simulate({Algorithm::kHierarchical, kRanks, 8, kBytes / 4});
  EXPECT_EQ(totals.most_sent, 2 * kBytes * (kHosts - 1) / kHosts);
  EXPECT_EQ(totals.most_received, totals.most_sent);
  EXPECT_EQ(Simulate({Algorithm::kTree, kRanks, 8, kBytes / 4, "hbi:bits=6"}).seconds > 0, true);
}

TEST(ScalingTest, TheFormulaIsNearTheSimulation) {
  for (const auto& [algorithm, ranks, per_host] :
       {std::tuple(Algorithm::kTwoShot, 32, 1), std::tuple(Algorithm::kRing, 32, 1),
        std::tuple(Algorithm::kHierarchical, 64, 8), std::tuple(Algorithm::kTree, 64, 1)}) {
    for (const char* codec : {"none", "hbi:bits=6"}) {
      const Case c{algorithm, ranks, per_host, 4 << 20, codec, false, 128 * 1024};
      Machine machine;
      machine.gbps = 1;
      const double time = Simulate(c, machine).seconds;
      Result<std::unique_ptr<Payloads>> payloads = Payloads::Make(codec, ranks, c.count);
      const TimeEstimate estimate =
          Estimate(algorithm, {ranks / per_host, per_host}, ChunkingOf(c, (*payloads)->codec()),
                   machine, payloads->get());
      EXPECT_GT(estimate.seconds() / time, 0.5) << c.ToString();
      EXPECT_LT(estimate.seconds() / time, 1.5) << c.ToString();
    }
  }
}

TEST(ScalingTest, RefusesOtherCodecs) {
  EXPECT_EQ(Payloads::Make("bf16", 4, 256).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Payloads::Make("hbi:m=2", 4, 256).status().code(), Code::kInvalidArgument);
  EXPECT_FALSE(Payloads::Make("hbi:k=4095", 4096, 256).ok());
}

}  // namespace
}  // namespace inccl::perf
