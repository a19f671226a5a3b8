// SPDX-License-Identifier: Apache-2.0
//
// What a state refuses: ranges, lengths, formats and words that cannot be. It must say so before it
// reads; the payloads here lie at the very end of their memory, so that a sanitizer sees a byte too
// many. A warm call allocates nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "compress/hbi_cases.h"
#include "compress/hbi_driver.h"
#include "support/seed.h"

namespace {
size_t allocations = 0;
}  // namespace

// Not inlined, so that the compiler does not take the pair for a mistake.
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace inccl::test {
namespace {

constexpr int kRanks = 3;
constexpr uint32_t kCount = 1000;

class HbiMalformed : public testing::Test {
 protected:
  HbiMalformed()
      : driver_("hbi:k=3,k2=7", kRanks, DataType::kFloat32, ReduceOp::kSum, kCount),
        inputs_(kRanks, std::vector<float>(kCount, 1.5f)),
        in_(Memory(inputs_)) {}

  void SetUp() override {
    driver_.Begin();
    driver_.Agree(0, kCount, in_);
  }

  Term In(uint32_t count = kCount) const { return driver_.In(0, {0, 0, count}, in_); }

  // The combine of rank 0 must fail and every part of `parts` stand in its text.
  void Refused(const Range& range, const std::vector<Term>& inputs, std::vector<Term> outputs,
               const std::vector<std::string>& parts) {
    const Status status = driver_.state(0).Combine(range, inputs, outputs);
    ASSERT_EQ(status.code(), Code::kInternalError) << status.message();
    for (const std::string& part : parts) {
      EXPECT_NE(status.message().find(part), std::string::npos)
          << "\"" << part << "\" is not in: " << status.message();
    }
  }

  const Range all_{0, 0, kCount};
  HbiDriver driver_;
  Vectors inputs_;
  std::vector<std::byte*> in_;
  Payload room_ = Payload(1 << 16);
};

Term Of(const Format& format, Payload* payload) { return HbiDriver::Of(format, payload); }

TEST_F(HbiMalformed, Ranges) {
  const auto refused = [&](uint32_t segment, uint64_t first, uint32_t count) {
    const Term input{{Form::kInput}, in_[0], count * 4};
    Refused({segment, first, count}, {input}, {Of(HbiDriver::Sum(1), &room_)}, {"elements"});
    Refused({segment, first, count}, {input}, {{{Form::kSide}, nullptr, 0}}, {"elements"});
  };
  refused(0, 0, 0);
  refused(0, 0, kCount + 1);
  refused(0, 1024, 256);
  refused(0, 768, 256);
  refused(0, UINT64_MAX - 255, 256);
  refused(1, 0, 256);
  refused(0, 1, 256);
  refused(0, 0, 100);
  refused(0, 32, 256);
}

TEST_F(HbiMalformed, RangesAcrossWindows) {
  HbiDriver driver("hbi", 2, DataType::kFloat32, ReduceOp::kSum, kWindow + 512);
  driver.Begin();
  std::vector<float> x(512);
  std::vector<Term> outputs = {Of(HbiDriver::Sum(1), &room_)};
  const Term input{{Form::kInput}, reinterpret_cast<std::byte*>(x.data()), 2048};
  EXPECT_FALSE(driver.state(0).Combine({0, kWindow - 256, 512}, {&input, 1}, outputs).ok());
}

TEST_F(HbiMalformed, LengthsOfPayloads) {
  // Four live superblocks: K = 3 has 3 bits for one contribution, 4 for two.
  for (const size_t bytes : {0u, 1u, 96u * 4 - 1, 96u * 4 + 1, 128u * 4, 4000u}) {
    Payload payload(bytes);
    Refused(all_, {Of(HbiDriver::Sum(1), &payload), In()}, {Of(HbiDriver::Sum(2), &room_)},
            {"sum", std::to_string(bytes), "384"});
    Refused(all_, {In(), Of(HbiDriver::Sum(1), &payload), Of(HbiDriver::Sum(1), &payload)},
            {Of({Form::kResult}, &room_)}, {"sum", std::to_string(bytes), "384"});
  }
  for (const size_t bytes : {0u, 15u, 527u, 529u}) {  // words 4 * 4, fields 4 bits: 4 * 128
    Payload payload(bytes);
    Refused(all_, {Of({Form::kResult}, &payload)}, {Of({Form::kOutput}, &room_)},
            {"result", std::to_string(bytes), "528"});
  }
  for (const size_t bytes : {0u, 15u, 17u}) {
    Payload payload(bytes);
    Refused(all_, {Of({Form::kSide}, &payload)}, {{{Form::kSide}, nullptr, 0}},
            {"side", std::to_string(bytes), "16"});
  }
  Term shorter = In();
  shorter.bytes -= 1;
  Refused(all_, {shorter}, {Of(HbiDriver::Sum(1), &room_)}, {"3999", "1000"});
  Refused(all_, {shorter}, {{{Form::kSide}, nullptr, 0}}, {"3999", "1000"});
}

TEST_F(HbiMalformed, CapacitiesOfOutputs) {
  for (const Format& format : {HbiDriver::Sum(1), Format{Form::kSide}}) {
    Payload payload(format.form == Form::kSide ? 15 : 383);
    Refused(all_, {In()}, {Of(format, &payload)}, {"room", std::to_string(payload.size())});
  }
  Payload sums(384), result(527), output(3999);
  const std::vector<Term> everybody = {Of(HbiDriver::Sum(1), &sums), In(),
                                       Of(HbiDriver::Sum(1), &sums)};
  Refused(all_, everybody, {Of({Form::kResult}, &result)}, {"527", "528"});
  Refused(all_, everybody, {Of({Form::kOutput}, &output)}, {"3999", "4000"});
}

TEST_F(HbiMalformed, Formats) {
  Payload one(384), two(512);
  const Term sum1 = Of(HbiDriver::Sum(1), &one), sum2 = Of(HbiDriver::Sum(2), &two);
  const auto to = [&](const Format& format) { return std::vector<Term>{Of(format, &room_)}; };
  Refused(all_, {}, to(HbiDriver::Sum(1)), {"0 inputs"});
  Refused(all_, {In()}, {}, {"0 outputs"});
  Refused(all_, {Of(HbiDriver::Sum(0), &one)}, to(HbiDriver::Sum(1)), {"0 contributions"});
  Refused(all_, {Of(HbiDriver::Sum(4), &one)}, to(HbiDriver::Sum(4)), {"4 contributions"});
  Refused(all_, {sum1, In()}, to(HbiDriver::Sum(1)), {"1 contributions from 2"});
  Refused(all_, {sum2, sum1, In()}, to(HbiDriver::Sum(4)), {"4 contributions of 3"});
  Refused(all_, {sum1, In()}, to({Form::kResult}), {"result", "2 of 3"});
  Refused(all_, {sum1, In()}, to({Form::kOutput}), {"output", "2 of 3"});
  Refused(all_, {In()}, to({Form::kInput}), {"input", "an output"});
  Refused(all_, {Of({Form::kOutput}, &room_)}, to(HbiDriver::Sum(1)), {"output", "an input"});
  Refused(all_, {In(), Of({Form::kSide}, &one)}, to(HbiDriver::Sum(1)), {"side", "an input"});
  Refused(all_, {sum1}, to({Form::kSide}), {"sum", "an input"});
  Payload result(528), again(528);
  Refused(all_, {Of({Form::kResult}, &result)}, to(HbiDriver::Sum(3)), {"sum", "an output"});
  Refused(all_, {Of({Form::kResult}, &result), Of({Form::kResult}, &again)}, to({Form::kOutput}),
          {"result", "an input"});
}

// Every word that no rank computes is refused, in either payload that carries words.
TEST_F(HbiMalformed, InvalidWords) {
  const auto taken = [this](uint32_t word) {
    bool both[2];
    for (const Form form : {Form::kSide, Form::kResult}) {
      Payload payload(form == Form::kSide ? 16 : 528);
      const uint32_t usual = 100 | 1 << 11;  // ordinary words are checked together
      for (int i = 0; i < 4; ++i) std::memcpy(payload.data() + 4 * i, &usual, 4);
      std::memcpy(payload.data() + 8, &word, 4);
      const Term term = Of({form}, &payload);
      std::vector<Term> output = {{{Form::kSide}, nullptr, 0}};
      if (form == Form::kResult) output = {Of({Form::kOutput}, &room_)};
      both[form == Form::kSide] = driver_.state(0).Combine(all_, {&term, 1}, output).ok();
      driver_.Agree(0, kCount, in_);
    }
    EXPECT_EQ(both[0], both[1]) << word;
    return both[0];
  };
  Rng rng(TestSeed());
  int good = 0;
  for (int i = 0; i < 20000; ++i) {
    const uint32_t byte =
        i < 256 ? static_cast<uint32_t>(i)
                : static_cast<uint32_t>(rng.Below(4) == 0 ? 250 + rng.Below(5) : rng.Below(256));
    const bool outer = 250 <= byte && byte < 255;
    const uint32_t bits = outer ? 2 : 3, from = outer ? 16 : 8;
    const uint64_t kind = rng.Below(4);
    uint32_t word = byte;
    if (outer) word |= static_cast<uint32_t>(rng.Below(256)) << 8;
    // Few deltas, small ones, any; where none is zero the word is wrong.
    for (uint32_t b = 0; b < 8 && i >= 256; ++b) {
      const auto below = kind == 0   ? rng.Below(16) == 0
                         : kind == 1 ? rng.Below(std::max(byte, 1u) % (1u << bits) + 1)
                                     : rng.Below(uint64_t{1} << bits);
      word |= static_cast<uint32_t>(below) << (from + bits * b);
    }
    uint32_t smallest = 7, largest = 0;
    for (uint32_t b = 0; b < 8; ++b) {
      const uint32_t below = word >> (from + bits * b) & ((1u << bits) - 1);
      smallest = std::min(smallest, below);
      largest = std::max(largest, below);
    }
    // Words of the middle codes, 321 to 569, have them less 320. Outer words have others only.
    const uint32_t top = outer ? (byte - 250) * 256 + (word >> 8 & 255) : byte;
    const bool known = !outer || (top <= 1141 && (top < 321 || top > 569));
    const bool whole = byte == 0 || byte == 255;
    const bool right = whole ? largest == 0 : known && smallest == 0 && largest < top;
    ASSERT_EQ(taken(word), right) << std::hex << word;
    good += right ? 1 : 0;
  }
  EXPECT_GT(good, 2000);
  EXPECT_LT(good, 18000);
}

// Any bytes of the right length are summed and decoded without harm: what they mean is lost, memory
// is not.
TEST_F(HbiMalformed, GarbageOfTheRightLength) {
  Rng rng(TestSeed());
  for (int i = 0; i < 200; ++i) {
    auto sum = std::make_unique<std::byte[]>(384), two = std::make_unique<std::byte[]>(512);
    auto result = std::make_unique<std::byte[]>(528);
    for (int b = 0; b < 384; ++b) sum[b] = static_cast<std::byte>(rng.Next());
    for (int b = 0; b < 512; ++b) two[b] = static_cast<std::byte>(rng.Next());
    for (int b = 0; b < 528; ++b) result[b] = static_cast<std::byte>(rng.Next());
    for (int s = 0; s < 4; ++s) {  // words that can be: some block at the top, none below 1
      result[4 * s] = static_cast<std::byte>(8 + rng.Below(242));
      result[4 * s + 1] &= std::byte{0xf8};
    }
    Payload made(528), elements(4000);
    std::vector<Term> outputs = {Of({Form::kResult}, &made), Of({Form::kOutput}, &elements)};
    const Term inputs[2] = {{HbiDriver::Sum(2), two.get(), 512},
                            {HbiDriver::Sum(1), sum.get(), 384}};
    EXPECT_TRUE(driver_.state(0).Combine(all_, inputs, outputs).ok());
    const Term owner[2] = {{HbiDriver::Sum(2), two.get(), 512}, In()};
    EXPECT_TRUE(driver_.state(0).Combine(all_, owner, outputs).ok());
    const Term forward{{Form::kResult}, result.get(), 528};
    EXPECT_TRUE(driver_.state(0).Combine(all_, {&forward, 1}, outputs).ok());
    EXPECT_EQ(std::memcmp(made.data(), result.get(), 528), 0);
  }
}

TEST_F(HbiMalformed, CodesTooSmallForTheElements) {
  // A peer that says 1 (2^-36) for everything: the result is wrong, the memory is not touched.
  Payload side(16, std::byte{0});
  for (size_t s = 0; s < 4; ++s) side[4 * s] = std::byte{1};
  const Term term = Of({Form::kSide}, &side);
  std::vector<Term> state = {{{Form::kSide}, nullptr, 0}};
  ASSERT_TRUE(driver_.state(0).Combine(all_, {&term, 1}, state).ok());
  inputs_[0][5] = std::numeric_limits<float>::quiet_NaN();
  inputs_[0][6] = -std::numeric_limits<float>::infinity();
  std::vector<Term> sum = {Of(HbiDriver::Sum(1), &room_)};
  const Term input = In();
  EXPECT_TRUE(driver_.state(0).Combine(all_, {&input, 1}, sum).ok());
}

TEST(HbiState, BeginRefusesWhatTheCodecDoesNotSupport) {
  const std::unique_ptr<CodecState> state = (*MakeCodec("hbi"))->NewState();
  CollectiveArgs call{.nranks = 2, .rank = 0, .count = 10};
  EXPECT_TRUE(state->Begin(call).ok());
  call.rank = 2;
  EXPECT_FALSE(state->Begin(call).ok());
  call = {.type = DataType::kInt32, .nranks = 2, .count = 10};
  EXPECT_FALSE(state->Begin(call).ok());
  call = {.collective = Collective::kBroadcast, .nranks = 2, .count = 10};
  EXPECT_FALSE(state->Begin(call).ok());
  call = {.collective = Collective::kReduceScatter, .op = ReduceOp::kMax, .nranks = 2, .count = 10};
  EXPECT_FALSE(state->Begin(call).ok());
  call.op = ReduceOp::kAvg;
  EXPECT_TRUE(state->Begin(call).ok());
  CodecStats stats;
  (*MakeCodec("hbi"))->NewState()->Finish(&stats);
  EXPECT_EQ(stats.zero_blocks, 0u);
}

TEST(HbiState, CountZeroIsLegal) {
  HbiDriver driver("hbi", 2, DataType::kFloat32, ReduceOp::kSum, 0);
  driver.Begin();
  CodecStats stats;
  driver.state(0).Finish(&stats);
  EXPECT_EQ(stats.error_bound, 0.0);
}

TEST(HbiState, AWarmCallAllocatesNothing) {
  Rng rng(TestSeed());
  for (const std::string spec :
       {"hbi", "hbi:ag=exact,bits=4", "hbi:k=15", "hbi:bits=4,code=entropy"}) {
    const Vectors inputs = MakeInputs(2, 10000, Kind::kSpecial, &rng);
    HbiDriver driver(spec, 2, DataType::kFloat32, ReduceOp::kAvg, 10000);
    RunFloat(&driver, Way::kTwoShot, 4096, inputs);
    const std::vector<std::byte*> in = Memory(inputs);
    const Range all{0, 0, 10000};
    Payload peer = driver.Make(1, all, {driver.In(1, all, in)}, HbiDriver::Sum(1), 1 << 16);
    const size_t code_bytes = HbiDriver::SideCapacity(all);
    Payload peer_codes = driver.Make(1, all, {driver.In(1, all, in)}, {Form::kSide}, code_bytes);
    Payload result(1 << 16), elements(40000), codes(code_bytes);
    const CollectiveArgs call{.op = ReduceOp::kAvg, .nranks = 2, .rank = 0, .count = 10000};
    const Term own = driver.In(0, all, in);
    const Term sources[2] = {Of(HbiDriver::Sum(1), &peer), own};
    const Term all_codes[2] = {Of({Form::kSide}, &peer_codes), own};
    CodecState& state = driver.state(0);
    state.set_non_temporal(false, false);  // the slices are larger than those before
    state.Finish(nullptr);                 // warns once of the range of the data
    const auto run = [&] {
      Term side[2] = {Of({Form::kSide}, &codes), {{Form::kSide}, nullptr, 0}};
      Term made[2] = {Of({Form::kResult}, &result), Of({Form::kOutput}, &elements)};
      ASSERT_TRUE(state.Begin(call).ok());
      ASSERT_TRUE(state.Combine(all, all_codes, side).ok());
      ASSERT_TRUE(state.Combine(all, sources, made).ok());
      const Term forward = made[0];
      ASSERT_TRUE(state.Combine(all, {&forward, 1}, {&made[1], 1}).ok());
      CodecStats stats;
      state.Finish(&stats);
    };
    // Coded payloads have memory and tables for what they have seen.
    if (spec.find("entropy") != std::string::npos) run();
    const size_t before = allocations;
    run();
    EXPECT_EQ(allocations, before) << spec;
  }
}

TEST(HbiState, AWarmCallInGroupsAllocatesNothing) {
  Rng rng(TestSeed());
  const Vectors inputs = MakeInputs(5, 5000, Kind::kSpecial, &rng);
  const std::vector<std::byte*> in = Memory(inputs);
  for (const char* spec : {"hbi:m=2,rht=1", "hbi:m=2,checksum=1"}) {
    HbiDriver driver(spec, 5, DataType::kFloat32, ReduceOp::kSum, 5000);
    RunFloat(&driver, Way::kTwoShot, 1024, inputs);
    const Range all{0, 0, 5000};
    // At rank 2: the sum of its group.
    Payload three = driver.Make(3, all, {driver.In(3, all, in)}, HbiDriver::Sum(1), 1 << 16);
    const std::vector<Term> sources = {driver.In(2, all, in), Of(HbiDriver::Sum(1), &three)};
    Payload codes(HbiDriver::SideCapacity(all) + 4), sum(1 << 16);
    std::vector<Term> side = {Of({Form::kSide}, &codes), {{Form::kSide}, nullptr, 0}};
    std::vector<Term> made = {Of(HbiDriver::Sum(2), &sum)};
    std::vector<Term> everyone;
    for (int r = 0; r < 5; ++r) everyone.push_back(driver.In(r, all, in));
    const CollectiveArgs call{.nranks = 5, .rank = 2, .count = 5000};
    CodecState& state = driver.state(2);
    state.Finish(nullptr);  // warns once of the range of the data
    const size_t before = allocations;
    ASSERT_TRUE(state.Begin(call).ok());
    ASSERT_TRUE(state.Combine(all, everyone, side).ok());
    ASSERT_TRUE(state.Combine(all, sources, made).ok());
    CodecStats stats;
    state.Finish(&stats);
    EXPECT_EQ(allocations, before) << spec;
  }
}

// Warm: the second of two equal calls, whatever came in between on other states.
TEST(HbiState, AWarmCallOfSegmentsAllocatesNothing) {
  Rng rng(TestSeed());
  for (const Collective collective : {Collective::kReduceScatter, Collective::kAllGather}) {
    constexpr uint32_t kElements = 5000;
    const Vectors inputs = MakeInputs(2, 2 * kElements, Kind::kSpecial, &rng);
    const std::vector<std::byte*> in = Memory(inputs);
    HbiDriver driver("hbi", 2, DataType::kFloat32, ReduceOp::kSum, kElements, 0, 0, collective);
    const bool scatters = collective == Collective::kReduceScatter;
    if (scatters) {
      ReduceScatterFloat(&driver, Way::kTwoShot, 4096, inputs);
    } else {
      AllGatherFloat(&driver, 4096,
                     {{inputs[0].begin(), inputs[0].begin() + kElements},
                      {inputs[1].begin(), inputs[1].begin() + kElements}});
    }
    const Range own{0, 0, kElements};
    const Term element = driver.In(0, own, in);
    Payload codes(1024), payload(1 << 15), elements(4 * kElements);
    const CollectiveArgs call{.collective = collective, .nranks = 2, .rank = 0, .count = kElements};
    Term side[2] = {Of({Form::kSide}, &codes), {{Form::kSide}, nullptr, 0}};
    const Format travelling = scatters ? HbiDriver::Sum(1) : Format{Form::kResult};
    Term made[2] = {Of(travelling, &payload), Of({Form::kOutput}, &elements)};
    CodecState& state = driver.state(0);
    state.set_non_temporal(false, false);  // the slices are larger than those before
    state.Finish(nullptr);                 // warns once of the range of the data
    const size_t before = allocations;
    ASSERT_TRUE(state.Begin(call).ok());
    ASSERT_TRUE(state.Combine(own, {&element, 1}, side).ok());
    ASSERT_TRUE(state.Combine(own, {&element, 1}, {made, scatters ? 1u : 2u}).ok());
    if (scatters) {
      const Term both[2] = {element, made[0]};
      ASSERT_TRUE(state.Combine(own, both, {made + 1, 1}).ok());
    } else {
      const Term forward = made[0];
      ASSERT_TRUE(state.Combine(own, {&forward, 1}, {made + 1, 1}).ok());
    }
    CodecStats stats;
    state.Finish(&stats);
    EXPECT_EQ(allocations, before) << Name(collective);
  }
}

}  // namespace
}  // namespace inccl::test
