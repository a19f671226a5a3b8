// SPDX-License-Identifier: Apache-2.0
//
// Counts beyond 2^31 and 2^32 elements, cut and run by the real plans and the real executor over
// loopback. The engine touches no memory and writes down where it would have: the caller's buffers
// are addresses with nothing behind them. Sends and receives do move their bytes, through memory
// that is mapped again and again.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "collectives/call.h"
#include "collectives/executor.h"
#include "collectives/send_recv.h"
#include "communicator/collective_runner.h"
#include "compress/identity_codec.h"
#include "transport/loopback/loopback.h"
#include "tuning/segmentation.h"

namespace inccl {
namespace {

constexpr uintptr_t kInputAt = uintptr_t{1} << 44, kOutputAt = uintptr_t{1} << 45;
constexpr uint32_t kSliceBytes = 4 << 20;  // the most there is
constexpr int kRanks = 3;

using Ranges = std::map<uint64_t, uint64_t>;  // in bytes: begin -> end

class RecordingEngine final : public Engine {
 public:
  explicit RecordingEngine(uint64_t element) : element_(element) {}
  Result<CompletionId> Combine(CodecState*, const Range& range, std::span<const Term> inputs,
                               std::span<Term> outputs) override {
    const uint64_t bytes = range.count * element_;
    for (const Term& input : inputs) {
      if (input.format.form == Form::kInput) Note(input, kInputAt, bytes, &read);
    }
    for (Term& output : outputs) {
      if (output.format.form == Form::kOutput) {
        again += Note(output, kOutputAt, bytes, &written) ? 0 : 1;
      } else {
        output.bytes = 1;
      }
    }
    return CompletionId{0};
  }
  Result<bool> Done(CompletionId) override { return true; }

  Ranges read, written;
  int again = 0;  // times that a range of the output was written which had been

 private:
  static bool Note(const Term& term, uintptr_t base, uint64_t bytes, Ranges* ranges) {
    const uint64_t begin = reinterpret_cast<uintptr_t>(term.data) - base;
    const auto [at, inserted] = ranges->emplace(begin, begin + bytes);
    at->second = std::max(at->second, begin + bytes);
    return inserted;
  }

  const uint64_t element_;
};

// What a list of ranges covers from 0 on without a gap; UINT64_MAX if some of it overlaps.
uint64_t Tiled(const Ranges& ranges) {
  uint64_t end = 0;
  for (const auto& [from, to] : ranges) {
    if (from < end) return UINT64_MAX;
    if (from > end) break;
    end = to;
  }
  return end;
}
// The same where some may overlap: a codec looks at its input more than once.
uint64_t Covered(const Ranges& ranges) {
  uint64_t end = 0;
  for (const auto& [from, to] : ranges) {
    if (from > end) break;
    end = std::max(end, to);
  }
  return end;
}
uint64_t End(const Ranges& ranges) { return ranges.empty() ? 0 : ranges.rbegin()->second; }

struct Shape {
  Collective collective;
  Algorithm algorithm;
  DataType type;
  uint64_t count;
  std::shared_ptr<const Codec> codec;
};

struct RankRun {
  std::unique_ptr<LaneTable> lanes;
  CommOptions options;
  std::unique_ptr<Plans> plans;
  std::unique_ptr<RecordingEngine> engine;
  std::unique_ptr<Executor> task;
};

void RunShape(const Shape& shape) {
  const uint64_t element = SizeOf(shape.type);
  const std::vector<std::unique_ptr<Transport>> ends = MakeLoopback(kRanks);
  ASSERT_EQ(ends.size(), size_t{kRanks});
  std::vector<RankRun> ranks(kRanks);
  Call call;
  call.collective = shape.collective;
  call.type = shape.type;
  call.count = shape.count;
  call.nranks = kRanks;
  call.root = 1;
  for (int rank = 0; rank < kRanks; ++rank) {
    RankRun& r = ranks[static_cast<size_t>(rank)];
    r.lanes = std::make_unique<LaneTable>(ends[static_cast<size_t>(rank)].get());
    r.options.algorithms = *AlgorithmFilter::Parse(Name(shape.algorithm));
    r.plans = std::make_unique<Plans>(
        Plans::Options{.slots = {.slice_bytes = kSliceBytes, .channels = 2}, .filtered = true},
        &r.options, r.lanes.get());
    call.rank = rank;
    call.codec = shape.codec == IdentityCodec() ? nullptr : shape.codec;
    const Result<Plan*> plan = r.plans->For(call, false);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    ASSERT_EQ((*plan)->choice.algorithm, shape.algorithm);
    const Status bound = r.plans->Bind(call, *plan);
    ASSERT_TRUE(bound.ok()) << bound.message();
    r.engine = std::make_unique<RecordingEngine>(element);
    r.task = std::make_unique<Executor>(r.engine.get());
    r.task->Start({.program = (*plan)->program,
                   .chunking = (*plan)->chunking,
                   .input = reinterpret_cast<const std::byte*>(kInputAt),
                   .output = reinterpret_cast<std::byte*>(kOutputAt),
                   .signature = 17});
  }
  for (bool all = false, moved = true; !all;) {
    ASSERT_TRUE(moved) << "stuck";
    all = true;
    moved = false;
    for (RankRun& r : ranks) {
      if (r.task->done()) continue;
      Result<int> ran = r.task->Advance(64);
      ASSERT_TRUE(ran.ok()) << ran.status().message();
      moved = moved || *ran > 0;
      all = all && r.task->done();
    }
  }
  uint64_t sent = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    SCOPED_TRACE(fmt::format("rank {}", rank));
    const RankRun& r = ranks[static_cast<size_t>(rank)];
    const Extent extent = ExtentOf(shape.collective, shape.count, kRanks, rank == call.root);
    EXPECT_EQ(Tiled(r.engine->written), extent.recv * element);
    EXPECT_EQ(End(r.engine->written), extent.recv * element);
    EXPECT_EQ(r.engine->again, 0);
    EXPECT_EQ(Covered(r.engine->read), extent.send * element);
    EXPECT_EQ(End(r.engine->read), extent.send * element);
    sent += r.task->stats().raw_bytes;
  }
  // What has to travel, by counting: each rank's part to one rank, or a result to all ranks.
  const uint64_t vector = shape.count * element, others = kRanks - 1;
  switch (shape.collective) {
    case Collective::kAllReduce: EXPECT_EQ(sent, 2 * others * vector); break;
    case Collective::kReduceScatter:
    case Collective::kAllGather:
    case Collective::kAllToAll: EXPECT_EQ(sent, kRanks * others * vector); break;
    case Collective::kBroadcast:
    case Collective::kScatter:
    case Collective::kGather:
    case Collective::kReduce: EXPECT_EQ(sent, others * vector); break;
  }
}

constexpr uint64_t kBeyond31 = (uint64_t{1} << 31) + 12345, kBeyond32 = (uint64_t{1} << 32) + 77;

TEST(LargeCountsTest, EveryElementOnce) {
  for (int c = 0; c < kCollectiveKinds; ++c) {
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTwoShot}) {
      const auto collective = static_cast<Collective>(c);
      if (!HasSchedule(collective, algorithm, kRanks)) continue;
      for (const auto& [type, count] :
           {std::pair(DataType::kUint8, kBeyond32), std::pair(DataType::kFloat32, kBeyond31)}) {
        SCOPED_TRACE(
            fmt::format("{} by {} of {} {}", Name(collective), Name(algorithm), count, Name(type)));
        RunShape({collective, algorithm, type, count, IdentityCodec()});
      }
    }
  }
}

TEST(LargeCountsTest, EveryElementOnceCompressed) {
  for (const char* spec : {"hbi:bits=6", "bf16", "qsgd:q=8"}) {
    const std::shared_ptr<const Codec> codec = *MakeCodec(spec);
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
      if (!codec->Supports(collective, DataType::kFloat32, ReduceOp::kSum, kRanks).ok()) continue;
      SCOPED_TRACE(fmt::format("{} {}", Name(collective), spec));
      RunShape({collective, Algorithm::kTwoShot, DataType::kFloat32, kBeyond31, codec});
    }
  }
}

// Address space whose pages are all the same few, but for the first and the last ones.
class Folded {
 public:
  explicit Folded(uint64_t bytes) : bytes_(bytes), mapped_((bytes / kFold + 2) * kFold) {
    const int file = memfd_create("folded", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(file, kFold), 0);
    void* const all =
        mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(all, MAP_FAILED);
    data_ = static_cast<std::byte*>(all);
    for (uint64_t at = 0; at < mapped_; at += kFold) {
      const bool own = at < kFold || at + 3 * kFold > mapped_;
      EXPECT_NE(
          mmap(data_ + at, kFold, PROT_READ | PROT_WRITE,
               MAP_FIXED | (own ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED), own ? -1 : file, 0),
          MAP_FAILED);
    }
    close(file);
  }
  ~Folded() { munmap(data_, mapped_); }
  Folded(const Folded&) = delete;
  Folded& operator=(const Folded&) = delete;
  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t last() const { return mapped_ - 3 * kFold; }  // from here on all are its own

 private:
  static constexpr uint64_t kFold = 4 << 20;
  const uint64_t bytes_, mapped_;
  std::byte* data_ = nullptr;
};

std::byte Pattern(uint64_t i) { return static_cast<std::byte>(Mix64(i) | 1); }

TEST(LargeCountsTest, SendAndReceive) {
  const Folded from(kBeyond31), to(kBeyond31);
  constexpr uint64_t kHead = 100'000;
  for (uint64_t i = 0; i < kHead; ++i) from.data()[i] = Pattern(i);
  for (uint64_t i = from.last(); i < kBeyond31; ++i) from.data()[i] = Pattern(i);
  const std::vector<std::unique_ptr<Transport>> ends = MakeLoopback(2);
  LaneTable send_lanes(ends[0].get()), recv_lanes(ends[1].get());
  const SlotOptions slots = SlotsFor(128 * 1024);
  SendRecvRequest send(0, 2, slots), recv(1, 2, slots);
  Call message;
  message.kind = CallKind::kSend;
  message.peer = 1;
  message.type = DataType::kUint8;
  message.count = kBeyond31;
  message.send = from.data();
  ASSERT_TRUE(send.Start({message}, {}, &send_lanes).ok());
  message.kind = CallKind::kRecv;
  message.peer = 0;
  message.recv = to.data();
  ASSERT_TRUE(recv.Start({message}, {}, &recv_lanes).ok());
  while (!send.done() || !recv.done()) {
    const Result<int> sent = send.Advance(64), received = recv.Advance(64);
    ASSERT_TRUE(sent.ok()) << sent.status().message();
    ASSERT_TRUE(received.ok()) << received.status().message();
    ASSERT_GT(*sent + *received, 0) << "stuck";
  }
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < kHead; ++i) wrong += to.data()[i] != Pattern(i) ? 1 : 0;
  for (uint64_t i = to.last(); i < kBeyond31; ++i) wrong += to.data()[i] != Pattern(i) ? 1 : 0;
  EXPECT_EQ(wrong, 0u);
  for (uint64_t i = kBeyond31; i < kBeyond31 + 5000; ++i) {
    EXPECT_EQ(to.data()[i], std::byte{0}) << i - kBeyond31 << " bytes behind the end";
  }
}

}  // namespace
}  // namespace inccl
