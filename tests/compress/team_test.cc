// SPDX-License-Identifier: Apache-2.0
//
// Codecs on teams of threads: every operation gives the bytes that one thread gives.
#include "base/team.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "compress/hbi_cases.h"
#include "compress/hbi_driver.h"
#include "compress/kernels/convert.h"
#include "support/seed.h"
#include "world/limits.h"

namespace inccl::test {
namespace {

constexpr int kSizes[] = {1, 2, 3, 7};

// A state with a team beside one without. Each operation runs on both, and their outputs are
// compared.
class Beside final : public CodecState {
 public:
  Beside(std::unique_ptr<CodecState> alone, std::unique_ptr<CodecState> with, Team* team)
      : alone_(std::move(alone)), with_(std::move(with)) {
    with_->set_team(team);
  }

  Status Begin(const CollectiveArgs& call) override {
    for (CodecState* state : {alone_.get(), with_.get()}) {
      state->set_non_temporal(non_temporal_output(), non_temporal_payloads());
      if (Status status = state->Begin(call); !status.ok()) return status;
    }
    return Status::Ok();
  }

  Status Combine(const Range& range, std::span<const Term> inputs,
                 std::span<Term> outputs) override {
    std::vector<std::vector<std::byte>> copies(outputs.size());
    std::vector<Term> expected(outputs.begin(), outputs.end());
    for (size_t i = 0; i < outputs.size(); ++i) {
      copies[i].resize(outputs[i].bytes);
      if (outputs[i].data != nullptr) expected[i].data = copies[i].data();
    }
    const Status alone = alone_->Combine(range, inputs, expected);
    const Status with = with_->Combine(range, inputs, outputs);
    EXPECT_EQ(alone.message(), with.message());
    for (size_t i = 0; with.ok() && i < outputs.size(); ++i) {
      EXPECT_EQ(outputs[i].bytes, expected[i].bytes);
      if (outputs[i].data == nullptr || outputs[i].bytes == 0) continue;
      EXPECT_EQ(std::memcmp(outputs[i].data, expected[i].data, outputs[i].bytes), 0)
          << Name(range) << ": output " << i << " of " << outputs.size() << " from "
          << inputs.size() << " inputs";
    }
    return with;
  }

  void Finish(CodecStats* stats) override {
    CodecStats alone;
    alone_->Finish(&alone);
    with_->Finish(stats);
    EXPECT_EQ(std::memcmp(&alone, stats, sizeof alone), 0);
  }

 private:
  static std::string Name(const Range& range) {
    return fmt::format("elements {} to {} of segment {}", range.first, range.first + range.count,
                       range.segment);
  }

  std::unique_ptr<CodecState> alone_, with_;
};

struct TeamCall {
  std::string spec;
  int n = 2;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  uint64_t count = 0;
  Kind kind = Kind::kScales;
  bool in_place = false;

  std::string Description(int threads, Collective collective) const {
    return fmt::format("{} threads: {} {} of {} {} by {}, {} ranks, kind {}{}", threads,
                       inccl::Name(collective), inccl::Name(op), count, inccl::Name(type), spec, n,
                       static_cast<int>(kind), in_place ? ", in place" : "");
  }
};

void RunBeside(const TeamCall& call, Collective collective, Way way, uint32_t slice, Team* team,
               Rng* rng) {
  SCOPED_TRACE(call.Description(team->threads(), collective));
  HbiDriver driver(call.spec, call.n, call.type, call.op, call.count, rng->Next(), rng->Next(),
                   collective);
  int rank = 0;
  driver.Wrap([&](std::unique_ptr<CodecState> state) {
    auto both = std::make_unique<Beside>(std::move(state), driver.codec().NewState(), team);
    both->set_non_temporal(rank % 2 == 1, rank % 3 != 1);
    ++rank;
    return both;
  });
  if (way == Way::kGroups) driver.set_group(2);
  const auto n = static_cast<size_t>(call.n), size = SizeOf(call.type);
  const size_t sent = call.count * (collective == Collective::kReduceScatter ? n : 1);
  const size_t got = call.count * (collective == Collective::kAllGather ? n : 1);
  std::vector<Payload> inputs, outputs;
  for (const std::vector<float>& x : MakeInputs(call.n, sent, call.kind, rng)) {
    inputs.emplace_back(sent * size);
    FromFloat(call.type, x.data(), inputs.back().data(), sent);
    outputs.emplace_back(got * size);
  }
  std::vector<std::byte*> in, out;
  for (size_t r = 0; r < n; ++r) {
    in.push_back(inputs[r].data());
    out.push_back(call.in_place && sent == got ? in[r] : outputs[r].data());
  }
  switch (collective) {
    case Collective::kReduceScatter: driver.RunReduceScatter(way, slice, in, out); break;
    case Collective::kAllGather: driver.RunAllGather(slice, in, out); break;
    default: driver.Run(way, slice, in, out);
  }
  for (int r = 0; r < call.n; ++r) {
    CodecStats stats;
    driver.state(r).Finish(&stats);
  }
}

uint64_t OddCount(Rng* rng) { return 40'001 + 2 * rng->Below(60'000); }

// All types, widths, operations and collectives, with slices that a team cuts.
TEST(CodecTeam, HbiGivesTheBitsOfOneThread) {
  Rng rng(TestSeed());
  for (const int threads : kSizes) {
    Team team(threads);
    for (const DataType type :
         {DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16, DataType::kFloat64}) {
      for (const int bits : {4, 6, 8}) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
          const TeamCall call{.spec = fmt::format("hbi:bits={}", bits),
                              .n = 2 + static_cast<int>(rng.Below(3)),
                              .type = type,
                              .op = op,
                              .count = OddCount(&rng),
                              .kind = rng.Below(2) == 0 ? Kind::kScales : Kind::kSpecial,
                              .in_place = rng.Below(2) == 0};
          const Way way = rng.Below(2) == 0 ? Way::kTwoShot : Way::kRing;
          RunBeside(call, Collective::kAllReduce, way, 1u << 20, &team, &rng);
        }
      }
      if (kSanitized) break;
    }
  }
}

TEST(CodecTeam, HbiOptionsAndCollectives) {
  Rng rng(TestSeed());
  for (const int threads : kSizes) {
    Team team(threads);
    for (const char* spec : {"hbi:bits=6,checksum=1", "hbi:bits=6,ag=exact", "hbi:bits=6,rht=1",
                             "hbi:bits=6,unbiased=1", "hbi:k=7", "hbi:k=3,checksum=1,ag=exact",
                             "hbi:bits=3,ref=ring"}) {
      const bool four = rng.Below(2) == 0;
      const TeamCall call{.spec = spec, .n = four ? 4 : 2, .count = OddCount(&rng)};
      for (const Way way : {Way::kTwoShot, Way::kRing, Way::kDoubling}) {
        RunBeside(call, Collective::kAllReduce, way, 1u << 16, &team, &rng);
      }
      RunBeside(call, Collective::kReduceScatter, Way::kTwoShot, 1u << 15, &team, &rng);
      RunBeside(call, Collective::kReduceScatter, Way::kRing, 1u << 15, &team, &rng);
      RunBeside(call, Collective::kAllGather, Way::kTwoShot, 1u << 15, &team, &rng);
    }
    const TeamCall groups{.spec = "hbi:m=2", .n = 4, .count = OddCount(&rng)};
    RunBeside(groups, Collective::kAllReduce, Way::kGroups, 1u << 20, &team, &rng);
  }
}

// Windows of one superblock to several windows, and slices of all lengths.
TEST(CodecTeam, HbiLengths) {
  Rng rng(TestSeed());
  for (const int threads : kSizes) {
    Team team(threads);
    for (const uint64_t count : {uint64_t{1}, uint64_t{257}, uint64_t{64 * 256}, uint64_t{65 * 256},
                                 uint64_t{kWindow + 12'345}}) {
      const TeamCall call{.spec = "hbi:bits=6", .n = 3, .count = count, .kind = Kind::kSparse};
      const auto slice = static_cast<uint32_t>(kSuperblock * (1 + rng.Below(1000)));
      RunBeside(call, Collective::kAllReduce, Way::kTwoShot, slice, &team, &rng);
    }
  }
}

// The uncompressed codec: `inputs` operands of each form, sums and results.
void RunIdentity(DataType type, ReduceOp op, int inputs, int outputs, uint64_t count, Team* team,
                 Rng* rng) {
  SCOPED_TRACE(fmt::format("{} threads: {} of {} x {} {} into {}", team->threads(), Name(op),
                           inputs, count, Name(type), outputs));
  Beside state(IdentityCodec()->NewState(), IdentityCodec()->NewState(), team);
  state.set_non_temporal(rng->Below(2) == 0, rng->Below(2) == 0);
  CollectiveArgs call{.type = type, .op = op, .nranks = inputs + 1, .rank = 0, .count = count};
  const float factor = 1.5f;
  FromFloat(DataType::kFloat32, &factor, call.scalar.data(), 1);
  ASSERT_TRUE(state.Begin(call).ok());
  const auto bytes = static_cast<uint32_t>(count * SizeOf(type));
  std::vector<std::vector<std::byte>> memory(static_cast<size_t>(inputs + outputs));
  for (std::vector<std::byte>& one : memory) {
    one.resize(bytes);
    for (std::byte& byte : one) byte = static_cast<std::byte>(rng->Next());
  }
  std::vector<Term> in, out;
  for (int i = 0; i < inputs; ++i) {
    const Format format = i == 0 ? Format{Form::kInput, 0} : Format{Form::kSum, 1};
    in.push_back({format, memory[static_cast<size_t>(i)].data(), bytes});
  }
  const Form forms[] = {Form::kResult, Form::kOutput, Form::kSum};
  for (int i = 0; i < outputs; ++i) {
    const Format format{forms[i % 3], static_cast<uint16_t>(i % 3 == 2 ? inputs : 0)};
    out.push_back({format, memory[static_cast<size_t>(inputs + i)].data(), bytes});
  }
  if (rng->Below(2) == 0) out[0].data = in[0].data;  // in place
  EXPECT_TRUE(state.Combine({.count = static_cast<uint32_t>(count)}, in, out).ok());
}

TEST(CodecTeam, IdentityGivesTheBitsOfOneThread) {
  Rng rng(TestSeed());
  for (const int threads : kSizes) {
    Team team(threads);
    for (int t = 0; t < kDataTypes; ++t) {
      for (int o = 0; o < kReduceOpKinds; ++o) {
        const auto type = static_cast<DataType>(t);
        const auto op = static_cast<ReduceOp>(o);
        const uint64_t count = (100'001 + 2 * rng.Below(100'000)) / SizeOf(type);
        RunIdentity(type, op, 1 + static_cast<int>(rng.Below(4)),
                    1 + static_cast<int>(rng.Below(3)), count, &team, &rng);
      }
      RunIdentity(static_cast<DataType>(t), ReduceOp::kSum, 70, 2, 5001, &team, &rng);
    }
    for (const uint64_t count : {uint64_t{1}, uint64_t{8191}, uint64_t{8192}, uint64_t{16384}}) {
      RunIdentity(DataType::kFloat32, ReduceOp::kSum, 2, 1, count, &team, &rng);
    }
  }
}

}  // namespace
}  // namespace inccl::test
