// SPDX-License-Identifier: Apache-2.0
//
// The executor and the wait loop over loopback, below the communicator: every schedule moves real
// elements, whatever the slices, groups and channels.
#include "collectives/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "collectives/progress.h"
#include "transport/loopback/loopback.h"

namespace inccl {
namespace {

class Patient final : public WaitObserver {
 public:
  Status Check() override { return Status::Ok(); }
  Status OnStall(const Request& task, std::span<const int> /*awaited*/, Time stalled) override {
    if (stalled < 20 * kSecond) return Status::Ok();
    const Blocked blocked = task.blocked_on();
    return TimeoutError("stuck in strand " + std::to_string(blocked.strand) + " step " +
                        std::to_string(blocked.step) + " waiting for " +
                        std::to_string(blocked.peer));
  }
};

struct Shape {
  Collective collective;
  Algorithm algorithm;
  int nranks;
  int channels;
  uint64_t count;
  uint64_t window_elements;
  uint32_t slice_elements;
  uint32_t group;
  uint16_t depth;
  const HostMap* hosts = nullptr;
};

uint64_t InputCount(const Shape& shape) {
  const auto n = static_cast<uint64_t>(shape.nranks);
  switch (shape.collective) {
    case Collective::kReduceScatter:
    case Collective::kScatter:
    case Collective::kAllToAll: return n * shape.count;
    default: return shape.count;
  }
}

uint64_t OutputCount(const Shape& shape) {
  const auto n = static_cast<uint64_t>(shape.nranks);
  switch (shape.collective) {
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kAllToAll: return n * shape.count;
    default: return shape.count;
  }
}

int32_t Value(int rank, uint64_t i) { return static_cast<int32_t>(1000003 * (rank + 1) + i * 7); }

// A different factor on every rank.
int32_t FactorOf(ReduceOp op, int rank) { return op == ReduceOp::kPreMulSum ? 5 - 3 * rank : 1; }

struct Expected {
  const Shape& shape;
  ReduceOp op;
  int root;
  int32_t At(int rank, uint64_t i) const {
    const uint64_t n = static_cast<uint64_t>(shape.nranks);
    const uint64_t mine = static_cast<uint64_t>(rank) * shape.count;  // this rank's segment
    const uint64_t segment = i / shape.count, rest = i % shape.count;
    switch (shape.collective) {
      case Collective::kAllGather:
      case Collective::kGather: return Value(static_cast<int>(segment), rest);
      case Collective::kAllToAll: return Value(static_cast<int>(segment), mine + rest);
      case Collective::kBroadcast: return Value(root, i);
      case Collective::kScatter: return Value(root, mine + i);
      case Collective::kReduceScatter: i += mine; break;
      default: break;
    }
    uint32_t sum = 0;
    for (uint64_t r = 0; r < n; ++r) {
      const auto q = static_cast<int>(r);
      sum += static_cast<uint32_t>(Value(q, i)) * static_cast<uint32_t>(FactorOf(op, q));
    }
    return static_cast<int32_t>(sum);
  }
};

// Results are written on the root only.
bool HasResult(Collective collective, int rank, int root) {
  return rank == root || (collective != Collective::kReduce && collective != Collective::kGather);
}

void RunRank(const Shape& shape, ReduceOp op, int rank, int root, Transport* transport, int calls) {
  LaneTable lanes(transport);
  Result<Schedule> schedule = MakeSchedule(
      {{.collective = shape.collective, .nranks = shape.nranks, .rank = rank, .root = root},
       shape.algorithm,
       shape.channels,
       0,
       false,
       0,
       shape.hosts});
  ASSERT_TRUE(schedule.ok()) << schedule.status().message();
  const SlotOptions slots{.data_bytes = shape.slice_elements * 4,
                          .side_bytes = 1024,
                          .data_depth = shape.depth,
                          .side_depth = 2};
  Result<std::unique_ptr<Program>> program = Bind(*std::move(schedule), slots, &lanes);
  ASSERT_TRUE(program.ok()) << program.status().message();
  const Chunking chunking(
      {{.collective = shape.collective, .nranks = shape.nranks, .count = shape.count},
       shape.window_elements,
       shape.slice_elements,
       kSuperblock,
       shape.group});
  const uint64_t in_count = InputCount(shape), out_count = OutputCount(shape);
  Scalar scalar{};
  const int32_t factor = FactorOf(op, rank);
  std::memcpy(scalar.data(), &factor, sizeof factor);
  std::vector<int32_t> input(in_count), output(out_count);
  for (uint64_t i = 0; i < in_count; ++i) input[i] = Value(rank, i);
  std::unique_ptr<CodecState> codec = IdentityCodec()->NewState();
  CpuEngine engine;
  Executor task(&engine);
  Progress progress(transport, &SystemClock(), WaitPolicy{.spins = 0, .yields = 20});
  Patient observer;
  for (int call = 0; call < calls; ++call) {
    std::fill(output.begin(), output.end(), -1);
    ASSERT_TRUE(codec
                    ->Begin({.collective = shape.collective,
                             .type = DataType::kInt32,
                             .op = op,
                             .scalar = scalar,
                             .nranks = shape.nranks,
                             .rank = rank,
                             .count = shape.count})
                    .ok());
    task.Start({.program = program->get(),
                .chunking = chunking,
                .codec = codec.get(),
                .input = reinterpret_cast<const std::byte*>(input.data()),
                .output = reinterpret_cast<std::byte*>(output.data()),
                .signature = static_cast<uint64_t>(call) + 1});
    const Status status = progress.Drive(&task, &observer);
    ASSERT_TRUE(status.ok()) << status.message();
    if (!HasResult(shape.collective, rank, root)) {
      ASSERT_EQ(std::count(output.begin(), output.end(), -1), static_cast<int64_t>(out_count));
      continue;
    }
    const Expected expected{shape, op, root};
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < out_count; ++i) wrong += output[i] != expected.At(rank, i);
    ASSERT_EQ(wrong, 0u) << Name(shape.collective) << " " << Name(op) << " by "
                         << Name(shape.algorithm) << " n " << shape.nranks << " rank " << rank
                         << " count " << shape.count;
  }
}

void RunShape(const Shape& shape, int root, ReduceOp op = ReduceOp::kSum) {
  std::vector<std::unique_ptr<Transport>> ends = MakeLoopback(shape.nranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < shape.nranks; ++rank) {
    threads.emplace_back(
        [&, rank] { RunRank(shape, op, rank, root, ends[static_cast<size_t>(rank)].get(), 3); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ExecutorTest, EveryScheduleMovesTheRightElements) {
  for (int c = 0; c < kCollectiveKinds; ++c) {
    for (int a = 0; a < kAlgorithms; ++a) {
      for (const int n : {2, 3, 4, 6}) {
        const auto collective = static_cast<Collective>(c);
        const auto algorithm = static_cast<Algorithm>(a);
        constexpr uint64_t kHosts[] = {1, 2, 1, 3, 2, 1};
        const HostMap several(std::span<const uint64_t>(kHosts, static_cast<size_t>(n)));
        const HostMap* const hosts = TraitsOf(algorithm).several_hosts ? &several : nullptr;
        if (!HasSchedule(collective, algorithm, n, hosts)) continue;
        for (const uint64_t count : {uint64_t{1}, uint64_t{5000}, uint64_t{20001}}) {
          RunShape({collective, algorithm, n, 1, count, 8192, 512, 2, 4, hosts}, n - 1);
          RunShape({collective, algorithm, n, 3, count, 4096, 256, 1, 1, hosts}, 0);
          if (Reduces(collective) && count == 5000) {
            RunShape({collective, algorithm, n, 2, count, 4096, 256, 2, 2, hosts}, n / 2,
                     ReduceOp::kPreMulSum);
          }
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// One rank's call on slices of a superblock, run step by step.
struct Stepped {
  Stepped(const CollectiveArgs& args, Transport* transport, bool until_read, bool turns = false)
      : lanes(transport), task(&engine) {
    Result<Schedule> schedule = MakeSchedule({args, Algorithm::kTwoShot});
    Result<std::unique_ptr<Program>> bound =
        Bind(*std::move(schedule), {.data_bytes = 4096, .data_depth = 4}, &lanes);
    program = *std::move(bound);
    EXPECT_TRUE(codec->Begin(args).ok());
    std::fill(input.begin(), input.end(), 7 + args.rank);
    task.Start({.program = program.get(),
                .chunking = Chunking({args, 8 * kSuperblock, kSuperblock, kSuperblock, 2}),
                .codec = codec.get(),
                .input = reinterpret_cast<const std::byte*>(input.data()),
                .output = reinterpret_cast<std::byte*>(output.data()),
                .signature = 1,
                .turns = turns,
                .until_read = until_read});
  }
  void Advance(int budget = 64) { EXPECT_TRUE(task.Advance(budget).ok()); }

  std::vector<int32_t> input = std::vector<int32_t>(4 * kSuperblock);
  std::vector<int32_t> output = std::vector<int32_t>(8 * kSuperblock);
  std::unique_ptr<CodecState> codec = IdentityCodec()->NewState();
  CpuEngine engine;
  LaneTable lanes;
  std::unique_ptr<Program> program;
  Executor task;
};

TEST(ExecutorTest, ACallUntilReadLastsUntilTheOthersHaveReleasedItsSlices) {
  for (const bool until_read : {false, true}) {
    std::vector<std::unique_ptr<Transport>> ends = MakeLoopback(2);
    CollectiveArgs args{
        .collective = Collective::kBroadcast, .type = DataType::kInt32, .nranks = 2, .count = 100};
    Stepped root(args, ends[0].get(), until_read);
    args.rank = 1;
    Stepped reader(args, ends[1].get(), false);
    root.Advance();
    EXPECT_EQ(root.task.done(), !until_read);
    if (until_read) {
      EXPECT_EQ(root.task.blocked_on().on, Blocked::On::kCredit);
      EXPECT_EQ(root.task.blocked_on().peer, 1);
    }
    reader.Advance();
    EXPECT_TRUE(reader.task.done());
    EXPECT_EQ(std::count(reader.output.begin(), reader.output.end(), 7), 100);
    root.Advance();
    EXPECT_TRUE(root.task.done());
  }
}

// Both a credit for every slice and all of the peer's slices are there.
TEST(ExecutorTest, StrandsTakeTurnsAtGroupsOfSlices) {
  for (const bool turns : {false, true}) {
    std::vector<std::unique_ptr<Transport>> ends = MakeLoopback(2);
    CollectiveArgs args{.collective = Collective::kAllGather,
                        .type = DataType::kInt32,
                        .nranks = 2,
                        .count = 4 * kSuperblock};
    Stepped first(args, ends[0].get(), false, turns);
    args.rank = 1;
    Stepped second(args, ends[1].get(), false, turns);
    second.Advance();
    ASSERT_EQ(second.task.stats().slices, 4u);
    const auto received = [&] {
      return std::count(first.output.begin(), first.output.end(), 8) /
             static_cast<int64_t>(kSuperblock);
    };
    first.Advance(3);
    EXPECT_EQ(first.task.stats().slices, turns ? 2u : 3u);
    EXPECT_EQ(received(), turns ? 1 : 0);
    first.Advance();
    EXPECT_EQ(first.task.stats().slices, 4u);
    EXPECT_EQ(received(), 4);
    EXPECT_TRUE(first.task.done());
  }
}

}  // namespace
}  // namespace inccl
