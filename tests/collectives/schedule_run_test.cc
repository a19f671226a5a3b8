// SPDX-License-Identifier: Apache-2.0
//
// Runs calls one after the other on numbers, in random order, with lanes of random depth that all
// calls share and rows cut into random groups of slices, in place (outputs lie over inputs), and
// compares with sums taken directly.
// Shares no code with Validate: what Validate claims (right results, no deadlock at any
// interleaving and capacity) is seen here.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "collectives/schedule.h"
#include "collectives/schedule_cases.h"
#include "support/seed.h"
#include "verify/validate.h"

namespace inccl {
namespace {

using test::MakeAll;

constexpr int kRows = 4;

// One element of the input of a rank: different for every rank, row, group, slice and chunk.
uint64_t InputOf(int rank, int row, int slice, int phase, int chunk, int channel) {
  uint64_t x = static_cast<uint64_t>(rank);
  for (int part : {row, slice, phase, chunk, channel}) {
    x = (x + static_cast<uint64_t>(part) + 1) * 0x9e3779b97f4a7c15u;
    x ^= x >> 31;
  }
  return x;
}

// A lane of the communicator: a queue per consumer.
struct Lane {
  std::vector<std::deque<uint64_t>> queues;
  size_t capacity = 1;
};
using LaneName = std::tuple<LaneClass, int, int, std::vector<int>>;
using OutputName = std::tuple<int, int, int, int, int, int>;  // rank row slice phase chunk channel

// How a call cuts its rows: slices per row, by chunk (0: an empty chunk) and at most.
struct Cut {
  int slices = 1;
  std::vector<int> chunk_slices;
};

// One call of the run.
struct Call {
  std::vector<Schedule> schedules;
  std::vector<Cut> cuts;                                         // by phase
  std::vector<std::vector<int>> finished;                        // rows, by rank and strand
  std::vector<std::map<std::pair<int, int>, uint64_t>> scratch;  // by rank: slot, slice of group
  std::map<OutputName, uint64_t> outputs;
  // Rank, row, segment (else 0): some data output is written.
  std::set<std::tuple<int, int, int>> overwritten;
};

class Interpreter {
 public:
  explicit Interpreter(uint64_t seed) : random_(seed), group_(Pick(1, 3)) {}

  void AddCall(std::vector<Schedule> schedules) {
    Call call;
    for (const Phase& phase : schedules[0].phases) {
      Cut cut;
      cut.slices = Pick(1, 5);
      for (uint32_t c = 0; c < phase.chunks; ++c) cut.chunk_slices.push_back(Pick(0, cut.slices));
      call.cuts.push_back(cut);
    }
    for (const Schedule& schedule : schedules) {
      for (size_t i = 0; i < schedule.strands.size(); ++i) {
        workers_.push_back({calls_.size(), static_cast<size_t>(schedule.rank), i});
      }
      call.finished.emplace_back(schedule.strands.size(), 0);
      call.scratch.emplace_back();
    }
    call.schedules = std::move(schedules);
    calls_.push_back(std::move(call));
  }

  // False: nothing moves, and not all have ended.
  bool Run() {
    for (bool moved = true; moved;) {
      moved = false;
      std::shuffle(workers_.begin(), workers_.end(), random_);
      for (Worker& worker : workers_) {
        for (int budget = Pick(1, 6); budget > 0 && TryStep(&worker); --budget) moved = true;
      }
    }
    return std::all_of(workers_.begin(), workers_.end(),
                       [](const Worker& worker) { return worker.row == kRows; });
  }

  const Call& call(size_t index) const { return calls_[index]; }
  bool LanesEmpty() const {
    for (const auto& [name, lane] : lanes_) {
      for (const auto& queue : lane.queues) {
        if (!queue.empty()) return false;
      }
    }
    return true;
  }

 private:
  struct Worker {
    size_t call, rank, strand;
    int row = 0, group = 0, slice = 0;  // slice: within the group
    size_t step = 0;
  };

  int Pick(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<uint64_t>(high - low + 1));
  }

  Lane& LaneOf(const ScheduleLane& lane) {
    Lane& found = lanes_[LaneName(lane.lane_class, lane.channel, lane.producer, lane.consumers)];
    if (found.queues.empty()) {
      found.queues.resize(lane.consumers.size());
      found.capacity = static_cast<size_t>(group_ + Pick(0, 1));
    }
    return found;
  }

  // Row -> group -> step -> slice of the group.
  void Next(Worker* worker) {
    Call& call = calls_[worker->call];
    const Strand& strand = call.schedules[worker->rank].strands[worker->strand];
    if (++worker->slice < group_) return;
    worker->slice = 0;
    if (++worker->step < strand.steps.size()) return;
    worker->step = 0;
    if (++worker->group * group_ < call.cuts[strand.phase].slices) return;
    worker->group = 0;
    call.finished[worker->rank][worker->strand] = ++worker->row;
  }

  // A rank runs its calls in order.
  bool CallBegun(const Worker& worker) const {
    if (worker.call == 0) return true;
    const std::vector<int>& before = calls_[worker.call - 1].finished[worker.rank];
    return std::all_of(before.begin(), before.end(), [](int rows) { return rows == kRows; });
  }

  bool TryStep(Worker* worker) {
    if (worker->row >= kRows || !CallBegun(*worker)) return false;
    Call& call = calls_[worker->call];
    const Schedule& schedule = call.schedules[worker->rank];
    const Strand& strand = schedule.strands[worker->strand];
    for (const Dependency& wait : strand.waits) {
      if (call.finished[worker->rank][wait.strand] < worker->row - wait.lag + 1) return false;
    }
    const Step& step = strand.steps[worker->step];
    const Operand* operands = &schedule.operands[step.first_operand];
    const int slice = worker->group * group_ + worker->slice;
    if (slice < call.cuts[strand.phase].chunk_slices[operands[0].chunk]) {
      if (!Ready(schedule, operands, step)) return false;
      Fold(*worker, operands, step, slice);
    }
    Next(worker);
    return true;
  }

  bool Ready(const Schedule& schedule, const Operand* operands, const Step& step) {
    for (int i = 0; i < step.inputs + step.outputs; ++i) {
      if (operands[i].space != Space::kLane) continue;
      const ScheduleLane& spec = schedule.lanes[operands[i].index];
      Lane& lane = LaneOf(spec);
      if (i < step.inputs) {
        if (QueueOf(spec, &lane, schedule.rank).empty()) return false;
      } else {
        for (const auto& queue : lane.queues) {
          if (queue.size() >= lane.capacity) return false;
        }
      }
    }
    return true;
  }

  static std::deque<uint64_t>& QueueOf(const ScheduleLane& spec, Lane* lane, int rank) {
    const auto at = std::find(spec.consumers.begin(), spec.consumers.end(), rank);
    return lane->queues[static_cast<size_t>(at - spec.consumers.begin())];
  }

  static int SegmentOf(const Schedule& schedule, int chunk) {
    return SegmentsOf(schedule.collective, 2) > 1 ? chunk : 0;
  }

  // The input, over which the output of the same place may have been written.
  uint64_t InPlace(const Call& call, const Schedule& schedule, const Strand& strand, int row,
                   int slice, int chunk) const {
    const bool data = schedule.phases[strand.phase].lane_class == LaneClass::kData;
    const auto over =
        call.outputs.find({schedule.rank, row, slice, strand.phase, chunk, strand.channel});
    if (data && over != call.outputs.end()) return over->second;
    const int segment = SegmentOf(schedule, chunk);
    if (!data && call.overwritten.count({schedule.rank, row, segment}) > 0) return 0;
    return InputOf(schedule.rank, row, slice, strand.phase, chunk, strand.channel);
  }

  void Fold(const Worker& worker, const Operand* operands, const Step& step, int slice) {
    Call& call = calls_[worker.call];
    const Schedule& schedule = call.schedules[worker.rank];
    const Strand& strand = schedule.strands[worker.strand];
    auto& scratch = call.scratch[worker.rank];
    uint64_t sum = 0;
    for (int i = 0; i < step.inputs; ++i) {
      const Operand& in = operands[i];
      if (in.space == Space::kInput) {
        sum += InPlace(call, schedule, strand, worker.row, slice, in.chunk);
      } else if (in.space == Space::kScratch) {
        sum += scratch.at({in.index, worker.slice});
      } else {
        const ScheduleLane& spec = schedule.lanes[in.index];
        auto& queue = QueueOf(spec, &LaneOf(spec), schedule.rank);
        sum += queue.front();
        queue.pop_front();
      }
    }
    for (int i = step.inputs; i < step.inputs + step.outputs; ++i) {
      const Operand& out = operands[i];
      if (out.space == Space::kOutput) {
        const OutputName name(schedule.rank, worker.row, slice, strand.phase, out.chunk,
                              strand.channel);
        EXPECT_TRUE(call.outputs.emplace(name, sum).second) << "written twice";
        if (schedule.phases[strand.phase].lane_class == LaneClass::kData) {
          const int segment = SegmentOf(schedule, out.chunk);
          call.overwritten.insert({schedule.rank, worker.row, segment});
        }
      } else if (out.space == Space::kScratch) {
        scratch[{out.index, worker.slice}] = sum;
      } else {
        for (auto& queue : LaneOf(schedule.lanes[out.index]).queues) queue.push_back(sum);
      }
    }
  }

  std::mt19937_64 random_;
  const int group_;  // slices of a group; lanes are at least as deep
  std::vector<Call> calls_;
  std::vector<Worker> workers_;
  std::map<LaneName, Lane> lanes_;
};

// What the collective promises, straight from its definition.
std::map<OutputName, uint64_t> Promised(const Call& call) {
  std::map<OutputName, uint64_t> outputs;
  const Schedule& first = call.schedules[0];
  const int n = first.nranks, root = first.root;
  const Collective what = first.collective;
  for (int p = 0; p < static_cast<int>(first.phases.size()); ++p) {
    const Phase& phase = first.phases[static_cast<size_t>(p)];
    for (int rank = 0; rank < n; ++rank) {
      for (int chunk = 0; chunk < static_cast<int>(phase.chunks); ++chunk) {
        // Side information is for everybody.
        const bool parted = (what == Collective::kReduceScatter || what == Collective::kScatter) &&
                            phase.lane_class == LaneClass::kData;
        if (parted && chunk != rank) continue;
        if ((what == Collective::kReduce || what == Collective::kGather) && rank != root) continue;
        if (what == Collective::kAllToAll && chunk % n != rank) continue;
        const int slices =
            call.cuts[static_cast<size_t>(p)].chunk_slices[static_cast<size_t>(chunk)];
        for (int at = 0; at < kRows * slices * phase.channels; ++at) {
          const int row = at % kRows, slice = at / kRows % slices, channel = at / kRows / slices;
          uint64_t value = 0;
          if (what == Collective::kAllGather || what == Collective::kGather) {
            value = InputOf(chunk, row, slice, p, chunk, channel);
          } else if (what == Collective::kAllToAll) {
            value = InputOf(chunk / n, row, slice, p, chunk, channel);
          } else if (what == Collective::kBroadcast || what == Collective::kScatter) {
            value = InputOf(root, row, slice, p, chunk, channel);
          } else {
            for (int q = 0; q < n; ++q) value += InputOf(q, row, slice, p, chunk, channel);
          }
          outputs[{rank, row, slice, p, chunk, channel}] = value;
        }
      }
    }
  }
  return outputs;
}

void RunAndCompare(const std::vector<ScheduleRequest>& requests, uint64_t seed) {
  Interpreter interpreter(seed);
  std::string text = fmt::format("seed {}:", seed);
  for (const ScheduleRequest& request : requests) {
    interpreter.AddCall(MakeAll(request));
    text += fmt::format(" {};", test::Describe(request));
  }
  ASSERT_TRUE(interpreter.Run()) << "deadlock: " << text;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(interpreter.call(i).outputs == Promised(interpreter.call(i)))
        << i << " of " << text;
  }
  EXPECT_TRUE(interpreter.LanesEmpty()) << text;
}

// A map of ranks to hosts, chosen at random, of at least two hosts and a host of two ranks or more
// if there are that many ranks.
HostMap RandomHosts(int nranks, std::mt19937_64* random) {
  const uint64_t most = 2 + (*random)() % 3;
  std::vector<uint64_t> identities;
  for (int rank = 0; rank < nranks; ++rank) identities.push_back((*random)() % most);
  if (nranks > 2) identities[1] = identities[0];
  if (nranks > 2) identities[2] = identities[0] + 1;
  std::shuffle(identities.begin(), identities.end(), *random);
  return HostMap(identities);
}

ScheduleRequest RandomRequest(const test::Case& which, int nranks, std::mt19937_64* random,
                              const HostMap* hosts) {
  ScheduleRequest request = test::RequestOf(which, nranks);
  request.hosts = hosts;
  request.channels = 1 + static_cast<int>((*random)() % 2);
  if (HasRoot(request.collective)) {
    request.root = static_cast<int>((*random)() % static_cast<uint64_t>(nranks));
  }
  if (test::HasSides(request.collective)) {
    request.side_phases = (*random)() % 2 == 0 ? 1 : 0;
    request.side_one_shot = request.collective == Collective::kAllReduce && (*random)() % 2 == 0;
  }
  return request;
}

class RunSchedule : public testing::TestWithParam<test::Case> {};

TEST_P(RunSchedule, GivesWhatTheCollectivePromises) {
  std::mt19937_64 random(test::TestSeed());
  for (int n : {1, 2, 3, 4, 5, 6, 7, 8, 11, 16}) {
    for (int round = 0; round < 4; ++round) {
      const HostMap some = RandomHosts(n, &random);
      for (const HostMap* const hosts : {&some, static_cast<const HostMap*>(nullptr)}) {
        if (!HasSchedule(GetParam().collective, GetParam().algorithm, n, hosts)) continue;
        RunAndCompare({RandomRequest(GetParam(), n, &random, hosts)}, random());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, RunSchedule, testing::ValuesIn(test::HostsCases()),
                         test::CaseName);

TEST(RunCalls, OfAllAlgorithmsShareTheirLanes) {
  std::mt19937_64 random(test::TestSeed());
  for (int n : {2, 3, 4, 7, 8}) {
    for (int round = 0; round < 10; ++round) {
      const HostMap hosts = RandomHosts(n, &random);
      std::vector<ScheduleRequest> requests;
      while (requests.size() < 6) {
        const test::Case& which = test::HostsCases()[random() % test::HostsCases().size()];
        if (!HasSchedule(which.collective, which.algorithm, n, &hosts)) continue;
        requests.push_back(RandomRequest(which, n, &random, &hosts));
      }
      RunAndCompare(requests, random());
    }
  }
}

// Changes one thing at random; the result may still be a right schedule.
void Mutate(Schedule* schedule, std::mt19937_64* random) {
  auto below = [&](size_t limit) { return static_cast<size_t>((*random)() % limit); };
  Strand& strand = schedule->strands[below(schedule->strands.size())];
  if (strand.steps.empty()) return;  // by the change before
  Step& step = strand.steps[below(strand.steps.size())];
  Operand& operand = schedule->operands[step.first_operand + below(step.inputs + step.outputs)];
  switch (below(8)) {
    case 0: std::swap(step, strand.steps[below(strand.steps.size())]); break;
    case 1:
      std::swap(schedule->operands[step.first_operand],
                schedule->operands[step.first_operand + below(step.inputs)]);
      break;
    case 2: operand.index = static_cast<uint16_t>(below(schedule->lanes.size() + 1)); break;
    case 3:
      operand.chunk = static_cast<uint16_t>(below(static_cast<size_t>(schedule->nranks)));
      break;
    case 4: operand.space = static_cast<Space>(below(4)); break;
    case 5: operand.format = {static_cast<Form>(below(5)), static_cast<uint16_t>(below(4))}; break;
    case 6: {  // the end of a strand becomes a strand of its own
      Strand tail = {strand.phase, strand.channel, {strand.steps.back()}, {}};
      strand.steps.pop_back();
      schedule->strands.push_back(std::move(tail));
      break;
    }
    case 7:
      strand.waits.push_back({static_cast<uint16_t>(below(schedule->strands.size())),
                              static_cast<uint16_t>(below(3))});
      break;
  }
}

TEST(RunMutants, WhatValidateAcceptsIsRight) {
  std::mt19937_64 random(test::TestSeed());
  int accepted = 0, refused = 0;
  for (const test::Case& which : test::HostsCases()) {
    for (int round = 0; round < 300; ++round) {
      ScheduleRequest request = test::RequestOf(which, 2 + round % 5);
      const HostMap hosts = RandomHosts(request.nranks, &random);
      if (which.algorithm == Algorithm::kHierarchical) request.hosts = &hosts;
      if (!HasSchedule(which.collective, which.algorithm, request.nranks, &hosts)) continue;
      std::vector<Schedule> schedules = MakeAll(request);
      for (int changes = 1 + round % 2; changes > 0; --changes) {
        Mutate(&schedules[random() % schedules.size()], &random);
      }
      if (!Validate(schedules).ok()) {
        ++refused;
        continue;
      }
      ++accepted;
      const uint64_t seed = random();
      Interpreter interpreter(seed);
      interpreter.AddCall(std::move(schedules));
      ASSERT_TRUE(interpreter.Run()) << test::Describe(request) << " seed " << seed;
      EXPECT_TRUE(interpreter.call(0).outputs == Promised(interpreter.call(0)))
          << test::Describe(request) << " seed " << seed;
      EXPECT_TRUE(interpreter.LanesEmpty()) << test::Describe(request) << " seed " << seed;
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, accepted);
}

}  // namespace
}  // namespace inccl
