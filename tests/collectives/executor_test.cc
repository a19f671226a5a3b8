// SPDX-License-Identifier: Apache-2.0
//
// The executor and the wait loop over loopback, below the communicator: every schedule moves real
// elements, whatever the slices, groups and channels.
#include "collectives/executor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "collectives/progress.h"
#include "transport/loopback/loopback.h"

namespace inccl {
namespace {

class Patient final : public WaitObserver {
 public:
  Status Check() override { return Status::Ok(); }
  Status OnStall(const Task& task, Time stalled) override {
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
  uint64_t row_elements;
  uint32_t slice_elements;
  uint32_t group;
  uint16_t depth;
};

int32_t Value(int rank, uint64_t i) { return static_cast<int32_t>(1000003 * (rank + 1) + i * 7); }

struct Expected {
  const Shape& shape;
  int root;
  int32_t At(int rank, uint64_t i) const {
    const uint64_t n = static_cast<uint64_t>(shape.nranks);
    switch (shape.collective) {
      case Collective::kAllGather: return Value(static_cast<int>(i / shape.count), i % shape.count);
      case Collective::kBroadcast: return Value(root, i);
      case Collective::kReduceScatter: i += static_cast<uint64_t>(rank) * shape.count; break;
      default: break;
    }
    uint32_t sum = 0;
    for (uint64_t r = 0; r < n; ++r) sum += static_cast<uint32_t>(Value(static_cast<int>(r), i));
    return static_cast<int32_t>(sum);
  }
};

void RunRank(const Shape& shape, int rank, int root, Transport* transport, int calls) {
  LaneTable lanes(transport);
  Result<Schedule> schedule = MakeSchedule({.collective = shape.collective,
                                            .algorithm = shape.algorithm,
                                            .nranks = shape.nranks,
                                            .rank = rank,
                                            .root = root,
                                            .channels = shape.channels});
  ASSERT_TRUE(schedule.ok()) << schedule.status().message();
  const SlotOptions slots{.data_bytes = shape.slice_elements * 4,
                          .side_bytes = 1024,
                          .data_depth = shape.depth,
                          .side_depth = 2};
  Result<std::unique_ptr<Program>> program = Bind(*std::move(schedule), slots, &lanes);
  ASSERT_TRUE(program.ok()) << program.status().message();
  const Chunking chunking({.collective = shape.collective,
                           .count = shape.count,
                           .row_elements = shape.row_elements,
                           .slice_elements = shape.slice_elements,
                           .side_slice_elements = kSuperblock,
                           .group = shape.group});
  const uint64_t n = static_cast<uint64_t>(shape.nranks);
  const uint64_t in_count =
      shape.collective == Collective::kReduceScatter ? n * shape.count : shape.count;
  const uint64_t out_count =
      shape.collective == Collective::kAllGather ? n * shape.count : shape.count;
  std::vector<int32_t> input(in_count), output(out_count);
  for (uint64_t i = 0; i < in_count; ++i) input[i] = Value(rank, i);
  std::unique_ptr<CodecState> codec = IdentityCodec()->NewState();
  CpuEngine engine;
  Task task(&engine);
  Progress progress(transport, &SystemClock(), WaitPolicy{.spins = 0, .yields = 20});
  Patient observer;
  for (int call = 0; call < calls; ++call) {
    std::fill(output.begin(), output.end(), -1);
    ASSERT_TRUE(codec
                    ->Begin({.collective = shape.collective,
                             .type = DataType::kInt32,
                             .op = ReduceOp::kSum,
                             .nranks = shape.nranks,
                             .rank = rank,
                             .count = shape.count})
                    .ok());
    task.Start({.program = program->get(),
                .chunking = chunking,
                .codec = codec.get(),
                .element_bytes = 4,
                .input = reinterpret_cast<const std::byte*>(input.data()),
                .output = reinterpret_cast<std::byte*>(output.data()),
                .signature = static_cast<uint64_t>(call) + 1});
    const Status status = progress.Run(&task, &observer);
    ASSERT_TRUE(status.ok()) << status.message();
    if (shape.collective == Collective::kReduce && rank != root) continue;
    const Expected expected{shape, root};
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < out_count; ++i) wrong += output[i] != expected.At(rank, i);
    ASSERT_EQ(wrong, 0u) << Name(shape.collective) << " by " << Name(shape.algorithm) << " n "
                         << shape.nranks << " rank " << rank << " count " << shape.count;
  }
}

void RunShape(const Shape& shape, int root) {
  std::vector<std::unique_ptr<Transport>> ends = MakeLoopback(shape.nranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < shape.nranks; ++rank) {
    threads.emplace_back(
        [&, rank] { RunRank(shape, rank, root, ends[static_cast<size_t>(rank)].get(), 3); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ExecutorTest, EveryScheduleMovesTheRightElements) {
  for (int c = 0; c < kCollectiveKinds; ++c) {
    for (int a = 0; a < kAlgorithms; ++a) {
      for (const int n : {2, 3, 4, 6}) {
        const auto collective = static_cast<Collective>(c);
        const auto algorithm = static_cast<Algorithm>(a);
        if (!HasSchedule(collective, algorithm, n)) continue;
        for (const uint64_t count : {uint64_t{1}, uint64_t{5000}, uint64_t{20001}}) {
          RunShape({collective, algorithm, n, 1, count, 8192, 512, 2, 4}, n - 1);
          RunShape({collective, algorithm, n, 3, count, 4096, 256, 1, 1}, 0);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace inccl
