// SPDX-License-Identifier: Apache-2.0
#include "compress/identity_codec.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "gtest/gtest.h"
#include "support/fp_oracle.h"
#include "support/seed.h"

namespace inccl {
namespace {

constexpr uint32_t kCount = 10000;  // several tiles, and no multiple of one

using Bytes = std::vector<std::byte>;

// Elements whose sums round but mostly neither overflow nor vanish, with NaN and the largest number
// here and there.
Bytes RandomElements(DataType type, uint64_t seed) {
  Rng rng(test::TestSeed() + seed);
  Bytes bytes(kCount * SizeOf(type));
  for (uint32_t i = 0; i < kCount; ++i) {
    uint64_t bits = rng.Next();
    const double value = (rng.Uniform() - 0.5) * 8;
    const auto value32 = static_cast<float>(value);
    if (IsFloat(type) && rng.Below(50) == 0) {
      const uint64_t sign = (bits & 1) << (8 * SizeOf(type) - 1);
      bits = ((bits & 2) != 0 ? test::QuietNan(type) : test::LargestCode(type)) | sign;
    } else if (type == DataType::kFloat64) {
      std::memcpy(&bits, &value, sizeof(value));
    } else if (type == DataType::kFloat32) {
      std::memcpy(&bits, &value32, sizeof(value32));
    } else if (IsFloat(type)) {
      bits = test::NarrowCode(type, value);
    }
    test::StoreBits(type, bytes.data(), i, bits);
  }
  return bytes;
}

Term In(Form form, const Bytes& bytes, uint16_t contributions = 1) {
  const auto stated = static_cast<uint32_t>(bytes.size());
  return {{form, form == Form::kSum ? contributions : uint16_t{0}},
          const_cast<std::byte*>(bytes.data()),
          form == Form::kInput ? 0 : stated};
}

Term Out(Form form, Bytes* bytes) {
  return {{form, 0}, bytes->data(), static_cast<uint32_t>(bytes->size())};
}

// A factor with which products of every type round or wrap, in the bits of the type.
uint64_t Factor(DataType type) {
  if (type == DataType::kFloat64) return std::bit_cast<uint64_t>(-1.7);
  if (type == DataType::kFloat32) return std::bit_cast<uint32_t>(-1.7f);
  if (IsFloat(type)) return test::NarrowCode(type, -1.7);
  return 0x9E3779B97F4A7C15u >> (64 - 8 * SizeOf(type));
}

// As a user gives it: what lies behind the element does not count.
Scalar ScalarOf(DataType type) {
  Scalar scalar;
  scalar.fill(std::byte{0xE7});
  test::StoreBits(type, scalar.data(), 0, Factor(type));
  return scalar;
}

std::unique_ptr<CodecState> State(Collective collective, DataType type, ReduceOp op, int nranks) {
  std::unique_ptr<CodecState> state = IdentityCodec()->NewState();
  const Status s = state->Begin({.collective = collective,
                                 .type = type,
                                 .op = op,
                                 .scalar = ScalarOf(type),
                                 .nranks = nranks,
                                 .rank = 1,
                                 .count = kCount});
  EXPECT_TRUE(s.ok()) << s.message();
  return state;
}

Status Combine(CodecState* state, std::vector<Term> inputs, std::vector<Term>* outputs,
               uint32_t count = kCount) {
  return state->Combine({.count = count}, inputs, *outputs);
}

Bytes Expected(DataType type, ReduceOp op, const std::vector<Term>& inputs, int nranks, bool divide,
               uint32_t count = kCount) {
  Bytes bytes(count * SizeOf(type));
  for (uint32_t i = 0; i < count; ++i) {
    std::vector<test::FoldOperand> operands;
    for (const Term& input : inputs) {
      const bool scaled =
          (op == ReduceOp::kAvg || op == ReduceOp::kPreMulSum) && input.format.form == Form::kInput;
      operands.push_back({test::LoadBits(type, input.data, i), scaled, Factor(type)});
    }
    test::StoreBits(type, bytes.data(), i, test::FoldElement(type, op, operands, nranks, divide));
  }
  return bytes;
}

class Identity : public testing::TestWithParam<int> {
 protected:
  DataType type() const { return static_cast<DataType>(GetParam()); }
  size_t bytes() const { return kCount * SizeOf(type()); }
};

std::string TypeName(const testing::TestParamInfo<int>& test) {
  return Name(static_cast<DataType>(test.param));
}
INSTANTIATE_TEST_SUITE_P(Types, Identity, testing::Range(0, kDataTypes), TypeName);

TEST_P(Identity, FoldsAndFinishesEveryOperation) {
  const Bytes a = RandomElements(type(), 1), b = RandomElements(type(), 2),
              c = RandomElements(type(), 3);
  for (int o = 0; o < kReduceOpKinds; ++o) {
    const auto op = static_cast<ReduceOp>(o);
    const int nranks = 6;
    auto state = State(Collective::kAllReduce, type(), op, nranks);
    const std::vector<Term> inputs = {In(Form::kSum, a, 3), In(Form::kInput, b), In(Form::kSum, c)};
    Bytes sum(bytes()), result(bytes()), output(bytes());
    std::vector<Term> outputs = {Out(Form::kResult, &result), Out(Form::kSum, &sum),
                                 Out(Form::kOutput, &output)};
    ASSERT_TRUE(Combine(state.get(), inputs, &outputs).ok());
    EXPECT_EQ(sum, Expected(type(), op, inputs, nranks, false)) << Name(op);
    EXPECT_EQ(result, Expected(type(), op, inputs, nranks, true)) << Name(op);
    EXPECT_EQ(output, result) << Name(op);
    for (const Term& term : outputs) EXPECT_EQ(term.bytes, bytes());
    std::vector<Term> only = {Out(Form::kSum, &output)};
    ASSERT_TRUE(Combine(state.get(), inputs, &only).ok());
    EXPECT_EQ(output, sum) << Name(op);
  }
}

// More operands than a kernel takes: the owner's of a communicator of more than 64 ranks.
TEST_P(Identity, FoldsManyOperandsInOrder) {
  constexpr int kMany = 131;         // 64, then 63, then 4
  constexpr uint32_t kShort = 2100;  // more than a tile
  const size_t size = kShort * SizeOf(type());
  std::vector<Bytes> parts;
  for (int i = 0; i < kMany; ++i) {
    parts.push_back(RandomElements(type(), 100 + static_cast<uint64_t>(i)));
    parts.back().resize(size);
  }
  for (const int n : {65, kMany}) {
    for (int o = 0; o < kReduceOpKinds; ++o) {
      const auto op = static_cast<ReduceOp>(o);
      SCOPED_TRACE(std::string(Name(op)) + " of " + std::to_string(n));
      auto state = State(Collective::kAllReduce, type(), op, n);
      std::vector<Term> inputs;
      for (int i = 0; i < n; ++i) {
        inputs.push_back(In(i == 64 || i == 3 ? Form::kInput : Form::kSum, parts[i]));
      }
      Bytes sum(size), result(size), output(size);
      std::vector<Term> outputs = {Out(Form::kResult, &result), Out(Form::kSum, &sum),
                                   Out(Form::kOutput, &output)};
      ASSERT_TRUE(Combine(state.get(), inputs, &outputs, kShort).ok());
      EXPECT_EQ(sum, Expected(type(), op, inputs, n, false, kShort));
      EXPECT_EQ(result, Expected(type(), op, inputs, n, true, kShort));
      EXPECT_EQ(output, result);
      // In place, and with an output per consumer.
      Bytes own = parts[3];
      inputs[3].data = own.data();
      std::vector<Bytes> copies(70, Bytes(size));
      std::vector<Term> all = {Out(Form::kOutput, &own)};
      for (Bytes& copy : copies) all.push_back(Out(Form::kResult, &copy));
      ASSERT_TRUE(Combine(state.get(), inputs, &all, kShort).ok());
      EXPECT_EQ(own, result);
      EXPECT_EQ(std::count(copies.begin(), copies.end(), result), 70);
    }
  }
}

TEST_P(Identity, OneOperandIsACopyUnlessItIsAveragedOrMultiplied) {
  const Bytes a = RandomElements(type(), 1);
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kAvg, ReduceOp::kPreMulSum}) {
    auto state = State(Collective::kReduceScatter, type(), op, 3);
    Bytes first(bytes()), second(bytes());
    const auto run = [&](const Term& in, Form form) {
      std::fill(first.begin(), first.end(), std::byte{});
      std::vector<Term> outputs = {Out(form, &first), Out(form, &second)};
      EXPECT_TRUE(Combine(state.get(), {in}, &outputs).ok());
      EXPECT_EQ(first, second);
    };
    const bool averages = op == ReduceOp::kAvg;
    const bool scales = op == ReduceOp::kPreMulSum || (averages && IsFloat(type()));
    run(In(Form::kInput, a), Form::kSum);
    EXPECT_EQ(first, scales ? Expected(type(), op, {In(Form::kInput, a)}, 3, false) : a);
    run(In(Form::kSum, a, 3), Form::kSum);
    EXPECT_EQ(first, a);
    run(In(Form::kSum, a, 3), Form::kOutput);
    EXPECT_EQ(first, averages && !IsFloat(type())
                         ? Expected(type(), op, {In(Form::kSum, a, 3)}, 3, true)
                         : a);
    run(In(Form::kResult, a), Form::kResult);
    EXPECT_EQ(first, a);
    run(In(Form::kResult, a), Form::kOutput);
    EXPECT_EQ(first, a);
  }
}

TEST_P(Identity, OtherCollectivesMoveWhateverTheOperation) {
  const Bytes a = RandomElements(type(), 1);
  for (const Collective collective :
       {Collective::kAllGather, Collective::kBroadcast, Collective::kAllToAll, Collective::kGather,
        Collective::kScatter}) {
    for (int o = 0; o < kReduceOpKinds; ++o) {
      auto state = State(collective, type(), static_cast<ReduceOp>(o), 5);
      Bytes result(bytes()), output(bytes());
      std::vector<Term> outputs = {Out(Form::kResult, &result), Out(Form::kOutput, &output)};
      ASSERT_TRUE(Combine(state.get(), {In(Form::kInput, a)}, &outputs).ok());
      EXPECT_EQ(result, a);
      EXPECT_EQ(output, a);
    }
  }
}

TEST_P(Identity, OfOneRankAverageIsTheInput) {
  const Bytes a = RandomElements(type(), 1);
  auto state = State(Collective::kAllReduce, type(), ReduceOp::kAvg, 1);
  Bytes output(bytes());
  std::vector<Term> outputs = {Out(Form::kOutput, &output)};
  ASSERT_TRUE(Combine(state.get(), {In(Form::kInput, a)}, &outputs).ok());
  EXPECT_EQ(output, a);
}

TEST_P(Identity, AloneIsTheInputMultipliedByTheScalar) {
  const Bytes a = RandomElements(type(), 1);
  for (int c = 0; c < kCollectiveKinds; ++c) {
    for (int o = 0; o < kReduceOpKinds; ++o) {
      const auto collective = static_cast<Collective>(c);
      const auto op = static_cast<ReduceOp>(o);
      const bool multiplies = op == ReduceOp::kPreMulSum && Reduces(collective);
      const Bytes expected = multiplies ? Expected(type(), op, {In(Form::kInput, a)}, 1, false) : a;
      const CollectiveArgs call = {.collective = collective,
                                   .type = type(),
                                   .op = op,
                                   .scalar = ScalarOf(type()),
                                   .count = kCount};
      Bytes out(bytes()), in_place = a;
      CombineAlone(call, a.data(), out.data());
      EXPECT_EQ(out, expected) << Name(collective) << " " << Name(op);
      CombineAlone(call, in_place.data(), in_place.data());
      EXPECT_EQ(in_place, expected) << Name(collective) << " " << Name(op);
      CombineAlone({.collective = collective, .type = type(), .op = op}, nullptr, nullptr);
    }
  }
}

// The same through the state of a communicator of one rank.
TEST_P(Identity, OfOneRankPreMulSumMultiplies) {
  const Bytes a = RandomElements(type(), 1);
  auto state = State(Collective::kAllReduce, type(), ReduceOp::kPreMulSum, 1);
  Bytes output(bytes());
  std::vector<Term> outputs = {Out(Form::kOutput, &output)};
  ASSERT_TRUE(Combine(state.get(), {In(Form::kInput, a)}, &outputs).ok());
  EXPECT_EQ(output, Expected(type(), ReduceOp::kPreMulSum, {In(Form::kInput, a)}, 1, false));
}

// Rank 0 folds its own elements with the payload of rank 1, rank 1 the other way about: both must
// get the same bits, whatever the rounding of x / n.
TEST_P(Identity, OwnElementsCountTheSameAsTheirPayload) {
  const Bytes a = RandomElements(type(), 1), b = RandomElements(type(), 2);
  for (int o = 0; o < kReduceOpKinds; ++o) {
    auto state = State(Collective::kAllReduce, type(), static_cast<ReduceOp>(o), 3);
    Bytes of_a(bytes()), of_b(bytes()), rank0(bytes()), rank1(bytes());
    std::vector<Term> outputs = {Out(Form::kSum, &of_a)};
    ASSERT_TRUE(Combine(state.get(), {In(Form::kInput, a)}, &outputs).ok());
    outputs = {Out(Form::kSum, &of_b)};
    ASSERT_TRUE(Combine(state.get(), {In(Form::kInput, b)}, &outputs).ok());
    outputs = {Out(Form::kOutput, &rank0)};
    ASSERT_TRUE(Combine(state.get(), {In(Form::kInput, a), In(Form::kSum, of_b)}, &outputs).ok());
    outputs = {Out(Form::kOutput, &rank1)};
    ASSERT_TRUE(Combine(state.get(), {In(Form::kSum, of_a), In(Form::kInput, b)}, &outputs).ok());
    EXPECT_EQ(rank0, rank1) << Name(static_cast<ReduceOp>(o));
  }
}

TEST_P(Identity, InPlace) {
  const Bytes a = RandomElements(type(), 1), b = RandomElements(type(), 2);
  for (int o = 0; o < kReduceOpKinds; ++o) {
    const auto op = static_cast<ReduceOp>(o);
    auto state = State(Collective::kAllReduce, type(), op, 4);
    const std::vector<Term> apart = {In(Form::kSum, a, 3), In(Form::kInput, b)};
    const Bytes expected = Expected(type(), op, apart, 4, true);
    Bytes own = b, result(bytes());  // the user's buffer is input and output
    std::vector<Term> outputs = {Out(Form::kResult, &result), Out(Form::kOutput, &own)};
    ASSERT_TRUE(Combine(state.get(), {In(Form::kSum, a, 3), In(Form::kInput, own)}, &outputs).ok());
    EXPECT_EQ(own, expected) << Name(op);
    EXPECT_EQ(result, expected) << Name(op);
    own = b;
    outputs = {Out(Form::kOutput, &own), Out(Form::kResult, &result)};
    ASSERT_TRUE(Combine(state.get(), {In(Form::kResult, own)}, &outputs).ok());
    EXPECT_EQ(own, b);
    EXPECT_EQ(result, b);
  }
}

TEST_P(Identity, AnotherLengthIsRefused) {
  const Bytes a = RandomElements(type(), 1), b = RandomElements(type(), 2);
  auto state = State(Collective::kAllReduce, type(), ReduceOp::kSum, 4);
  Bytes out(bytes());
  for (const Form form : {Form::kSum, Form::kResult}) {
    for (const int difference : {-1, 1, static_cast<int>(SizeOf(type()))}) {
      Term in = In(form, a);
      in.bytes += static_cast<uint32_t>(difference);
      std::vector<Term> outputs = {Out(Form::kOutput, &out)};
      const Status s = Combine(state.get(), {in}, &outputs);
      EXPECT_EQ(s.code(), Code::kInternalError);
      EXPECT_NE(s.message().find(std::to_string(in.bytes)), std::string::npos) << s.message();
      EXPECT_NE(s.message().find(std::to_string(bytes())), std::string::npos) << s.message();
      EXPECT_NE(s.message().find("rank 1"), std::string::npos) << s.message();
    }
    std::vector<Term> outputs = {Out(form, &out)};
    outputs[0].bytes -= 1;
    const Status s = Combine(state.get(), {In(Form::kInput, a)}, &outputs);
    EXPECT_EQ(s.code(), Code::kInternalError);
    EXPECT_NE(s.message().find(std::to_string(bytes() - 1)), std::string::npos) << s.message();
    EXPECT_NE(s.message().find(std::to_string(bytes())), std::string::npos) << s.message();
  }
  EXPECT_EQ(out, Bytes(bytes()));  // nothing was written
}

TEST(IdentityCodec, ShorterRangeTouchesOnlyItsElements) {
  const Bytes a = RandomElements(DataType::kInt32, 1);
  auto state = State(Collective::kAllReduce, DataType::kInt32, ReduceOp::kSum, 2);
  Bytes out(a.size(), std::byte{0x5A});
  Term in = In(Form::kSum, a);
  in.bytes = 28;
  std::vector<Term> outputs = {Out(Form::kSum, &out)};
  ASSERT_TRUE(Combine(state.get(), {in, In(Form::kInput, a)}, &outputs, 7).ok());
  EXPECT_EQ(outputs[0].bytes, 28u);
  EXPECT_EQ(test::LoadBits(DataType::kInt32, out.data(), 6),
            (2 * test::LoadBits(DataType::kInt32, a.data(), 6)) & 0xFFFFFFFFu);
  EXPECT_EQ(test::LoadBits(DataType::kInt32, out.data(), 7), 0x5A5A5A5Au);
  std::vector<Term> empty = {{{Form::kSum, 1}, nullptr, 0}};
  EXPECT_TRUE(Combine(state.get(), {{{Form::kInput, 0}, nullptr, 0}}, &empty, 0).ok());
}

TEST(IdentityCodec, FormsThatDoNotOccurAreRefused) {
  const Bytes a = RandomElements(DataType::kFloat32, 1);
  Bytes out(a.size());
  auto reduce = State(Collective::kAllReduce, DataType::kFloat32, ReduceOp::kSum, 2);
  auto gather = State(Collective::kAllGather, DataType::kFloat32, ReduceOp::kSum, 2);
  const auto code = [&](CodecState* state, std::vector<Term> inputs, std::vector<Term> outputs) {
    return Combine(state, std::move(inputs), &outputs).code();
  };
  const Term sum = Out(Form::kSum, &out), in = In(Form::kInput, a);
  EXPECT_EQ(code(reduce.get(), {In(Form::kSide, a)}, {sum}), Code::kInternalError);
  EXPECT_EQ(code(reduce.get(), {In(Form::kOutput, a)}, {sum}), Code::kInternalError);
  EXPECT_EQ(code(reduce.get(), {in, In(Form::kResult, a)}, {sum}), Code::kInternalError);
  EXPECT_EQ(code(reduce.get(), {in}, {Out(Form::kSide, &out)}), Code::kInternalError);
  EXPECT_EQ(code(reduce.get(), {in}, {Out(Form::kInput, &out)}), Code::kInternalError);
  EXPECT_EQ(code(reduce.get(), {}, {sum}), Code::kInternalError);
  EXPECT_EQ(code(reduce.get(), {in}, {}), Code::kInternalError);
  EXPECT_EQ(code(gather.get(), {in, in}, {sum}), Code::kInternalError);
  EXPECT_EQ(code(reduce.get(), std::vector<Term>(65, in), std::vector<Term>(65, sum)), Code::kOk);
}

TEST(IdentityCodec, SaysWhatItIs) {
  const auto codec = IdentityCodec();
  EXPECT_EQ(codec->spec(), "none");
  EXPECT_TRUE(codec->side_phases().empty());
  EXPECT_EQ(codec->window_elements(), 0u);
  EXPECT_EQ(codec->MaxBytes(DataType::kFloat64, 8, 1000), 8000u);
  EXPECT_EQ(codec->MaxBytes(DataType::kFloat8E4M3, 8, 1000), 1000u);
  EXPECT_EQ(codec->MaxBytes(DataType::kFloat64, 8, 0xFFFFFFFFu), 0xFFFFFFFFu);
  double bits = -1, error = -1;
  codec->Bound(8, &bits, &error);
  EXPECT_EQ(error, 0);
  for (int type = 0; type < kDataTypes; ++type) {
    for (int op = 0; op < kReduceOpKinds; ++op) {
      EXPECT_TRUE(codec
                      ->Supports(Collective::kAllReduce, static_cast<DataType>(type),
                                 static_cast<ReduceOp>(op), 64)
                      .ok());
    }
  }
  const auto supports = [&](int type, int op, int nranks) {
    return codec
        ->Supports(Collective::kAllReduce, static_cast<DataType>(type), static_cast<ReduceOp>(op),
                   nranks)
        .code();
  };
  EXPECT_EQ(supports(12, 0, 2), Code::kInvalidArgument);
  EXPECT_EQ(supports(0, 5, 2), Code::kOk);
  EXPECT_EQ(supports(0, 6, 2), Code::kInvalidArgument);
  EXPECT_EQ(supports(0, 0, 0), Code::kInvalidArgument);
  auto state = codec->NewState();
  EXPECT_EQ(state->Begin({.type = static_cast<DataType>(12)}).code(), Code::kInvalidArgument);
  CodecStats stats = {.error_bound = 1, .zero_blocks = 2};
  state->Finish(&stats);
  EXPECT_EQ(stats.error_bound, 0);
  EXPECT_EQ(stats.zero_blocks, 0u);
  state->Finish(nullptr);
}

}  // namespace
}  // namespace inccl
