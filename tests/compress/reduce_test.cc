// SPDX-License-Identifier: Apache-2.0
//
// Folds of every type and operation, on every target, against the oracle, bit for bit.
#include "compress/kernels/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/reduce_targets.h"
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "support/fp_oracle.h"
#include "support/seed.h"

namespace inccl {
namespace {

constexpr size_t kSlack = 8;  // elements before and after
// Elements beyond a tile of 2048 bytes of lanes (narrow floats have lanes of fp32) and all vectors.
size_t Longest(DataType type) {
  return 2048 / (IsFloat(type) ? std::max<size_t>(SizeOf(type), 4) : SizeOf(type)) + 87;
}

// An element's bits: any, one of the values that are special, or a number of ordinary size whose
// sums and products round (`ordinary`: only those).
uint64_t AnyElement(DataType type, Rng* rng, bool ordinary) {
  const uint64_t bits = rng->Next();
  const uint64_t mask = SizeOf(type) == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * SizeOf(type))) - 1;
  const uint64_t kind = ordinary ? 2 : rng->Below(4);
  if (kind == 0) return bits & mask;
  const uint64_t sign = (rng->Next() & 1) != 0 ? mask - (mask >> 1) : 0;
  if (!IsFloat(type)) return kind == 1 ? ((bits & 3) - 2) & mask : bits & mask & 0xFF;
  const uint64_t nan = test::QuietNan(type);
  if (kind == 1) {
    const uint64_t largest = test::LargestCode(type);
    const uint64_t specials[] = {
        0, 1, nan, nan - 1, nan + 1, nan & ~((mask >> 1) >> 9), 3, largest, largest, largest - 1};
    return (specials[rng->Below(std::size(specials))] & (mask >> 1)) | sign;
  }
  const double value = (rng->Uniform() - 0.5) * 8;
  if (type == DataType::kFloat64) return std::bit_cast<uint64_t>(value);
  if (type == DataType::kFloat32) return std::bit_cast<uint32_t>(static_cast<float>(value));
  return test::NarrowCode(type, value);
}

// Arrays of elements that begin `offset` elements into their memory.
class Arrays {
 public:
  Arrays(DataType type, int arrays, size_t count) : type_(type) {
    memory_.resize(static_cast<size_t>(arrays));
    for (auto& bytes : memory_) bytes.assign((count + 2 * kSlack) * 8, std::byte{0x5A});
  }
  std::byte* at(int array, size_t offset = 0) {
    return memory_[static_cast<size_t>(array)].data() + offset * SizeOf(type_);
  }

 private:
  DataType type_;
  std::vector<std::vector<std::byte>> memory_;
};

struct Problem {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int inputs = 0;
  int nranks = 0;
  uint64_t scaled = 0;
  double scale = 1;
  uint64_t factor = 1;
  std::vector<std::vector<uint64_t>> in;
  std::vector<uint64_t> expected;
};

Problem MakeProblem(DataType type, ReduceOp op, int inputs, Rng* rng) {
  Problem p;
  p.type = type;
  p.op = op;
  p.inputs = inputs;
  p.nranks = 2 + static_cast<int>(rng->Below(9));
  if (op == ReduceOp::kAvg && IsFloat(type)) {
    p.scaled = rng->Next();
    p.scale = type == DataType::kFloat64 ? 1.0 / p.nranks
                                         : static_cast<double>(1.0f / static_cast<float>(p.nranks));
  }
  if (op == ReduceOp::kPreMulSum) {
    p.scaled = rng->Next();
    p.factor = AnyElement(type, rng, rng->Below(3) != 0);
    if (type == DataType::kFloat64) {
      p.scale = std::bit_cast<double>(p.factor);
    } else if (type == DataType::kFloat32) {
      p.scale = static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(p.factor)));
    } else if (IsFloat(type)) {
      p.scale = test::NarrowValue(type, static_cast<uint32_t>(p.factor));
    }
  }
  p.in.resize(static_cast<size_t>(inputs));
  for (size_t i = 0; i < Longest(type); ++i) {
    std::vector<test::FoldOperand> operands;
    for (int k = 0; k < inputs; ++k) {
      const uint64_t bits = AnyElement(type, rng, i % 2 != 0);
      p.in[static_cast<size_t>(k)].push_back(bits);
      operands.push_back({bits, ((p.scaled >> k) & 1) != 0, p.factor});
    }
    p.expected.push_back(test::FoldElement(type, op, operands, p.nranks, false));
  }
  return p;
}

// Runs `count` elements at the given offsets. An output array below `aliases` is that input.
void RunAndCheck(const Problem& p, size_t count, int outputs, size_t in_offset, size_t out_offset,
                 int aliases) {
  Arrays in(p.type, p.inputs, count), out(p.type, outputs, count);
  std::vector<const void*> in_pointers;
  std::vector<void*> out_pointers;
  for (int k = 0; k < p.inputs; ++k) {
    for (size_t i = 0; i < count; ++i) {
      test::StoreBits(p.type, in.at(k, in_offset), i, p.in[static_cast<size_t>(k)][i]);
    }
    in_pointers.push_back(in.at(k, in_offset));
  }
  for (int k = 0; k < outputs; ++k) {
    out_pointers.push_back(k < aliases ? in.at(k, in_offset) : out.at(k, out_offset));
  }
  const ReduceArgs args = {.in = in_pointers.data(),
                           .inputs = p.inputs,
                           .out = out_pointers.data(),
                           .outputs = outputs,
                           .count = count,
                           // Any of them, or none.
                           .streamed = (count + in_offset) & (~uint64_t{0} >> (64 - outputs)),
                           .scaled = p.scaled,
                           .scale = p.scale,
                           .factor = p.factor};
  FindReduce(p.type, p.op)(args);
  for (int k = 0; k < outputs; ++k) {
    const auto* written = static_cast<const std::byte*>(out_pointers[static_cast<size_t>(k)]);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(test::LoadBits(p.type, written, i), p.expected[i])
          << fmt::format("output {} element {} of {}, ranks {}", k, i, count, p.nranks);
    }
    ASSERT_EQ(written[count * SizeOf(p.type)], std::byte{0x5A});
    if (k >= aliases && out_offset > 0) {
      ASSERT_EQ(*(written - 1), std::byte{0x5A});
    }
  }
  for (int k = aliases; k < p.inputs; ++k) {  // the other inputs are as they were
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(test::LoadBits(p.type, in.at(k, in_offset), i), p.in[static_cast<size_t>(k)][i]);
    }
  }
}

class Reduce : public testing::TestWithParam<int> {
 protected:
  static DataType Type() { return static_cast<DataType>(GetParam()); }
};

TEST_P(Reduce, EveryOperationOnEveryTarget) {
  const DataType type = Type();
  Rng rng(test::TestSeed() + static_cast<uint64_t>(type));
  const size_t counts[] = {0,  1,  2,  3,  4,  5,   7,   8,   9,   15,  16,  17,  31,           32,
                           33, 63, 64, 65, 79, 127, 128, 129, 191, 255, 257, 300, Longest(type)};
  for (int op = 0; op < kReduceOpKinds; ++op) {
    for (const int inputs : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) {
      const Problem problem = MakeProblem(type, static_cast<ReduceOp>(op), inputs, &rng);
      for (const int64_t target : test::Targets()) {
        const test::ScopedTarget scoped(target);
        SCOPED_TRACE(fmt::format("{} {} of {} on {}", Name(type), Name(problem.op), inputs,
                                 hwy::TargetName(target)));
        for (const size_t count : counts) {
          const int outputs = 1 + static_cast<int>(rng.Below(3));
          RunAndCheck(problem, count, outputs, rng.Below(kSlack), rng.Below(kSlack), 0);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(Reduce, InPlace) {
  Rng rng(test::TestSeed() + static_cast<uint64_t>(Type()));
  for (const int inputs : {1, 2, 3, 5, 20}) {
    const ReduceOp op = inputs == 3 ? ReduceOp::kPreMulSum : ReduceOp::kSum;
    const Problem problem = MakeProblem(Type(), op, inputs, &rng);
    for (const int64_t target : test::Targets()) {
      const test::ScopedTarget scoped(target);
      for (int aliases = 1; aliases <= inputs; ++aliases) {
        for (const int outputs : {aliases, aliases + 1}) {
          RunAndCheck(problem, Longest(Type()), outputs, rng.Below(kSlack), rng.Below(kSlack),
                      aliases);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(Reduce, MostInputsAndOutputs) {
  Rng rng(test::TestSeed() + static_cast<uint64_t>(Type()));
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kPreMulSum}) {
    const Problem problem = MakeProblem(Type(), op, kMaxReduceInputs, &rng);
    for (const int64_t target : test::Targets()) {
      const test::ScopedTarget scoped(target);
      RunAndCheck(problem, Longest(Type()), kMaxReduceOutputs, 1, 3, 0);
      if (HasFatalFailure()) return;
    }
  }
}

double Value(DataType type, const void* data) {
  const uint64_t bits = test::LoadBits(type, data, 0);
  if (type == DataType::kFloat64) return std::bit_cast<double>(bits);
  if (type == DataType::kFloat32) {
    return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  return test::NarrowValue(type, static_cast<uint32_t>(bits));
}

// Of equal elements, the largest ones, whatever the order: in one fold, along a ring, and in two
// halves. Products and sums round up for some numbers of ranks.
TEST_P(Reduce, AveragesOfTheLargestElementAreFinite) {
  if (!IsFloat(Type())) return;
  const uint64_t largest = test::LargestCode(Type());
  const ReduceFn average = FindReduce(Type(), ReduceOp::kAvg);
  for (const int n : {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 37, 63, 64}) {
    const double scale =
        Type() == DataType::kFloat64 ? 1.0 / n : static_cast<double>(1.0f / static_cast<float>(n));
    uint64_t element = 0;
    test::StoreBits(Type(), &element, 0, largest);
    const auto fold = [&](std::vector<const void*> in, uint64_t scaled) {
      uint64_t sum = 0;
      void* const out = &sum;
      average({.in = in.data(),
               .inputs = static_cast<int>(in.size()),
               .out = &out,
               .outputs = 1,
               .count = 1,
               .scaled = scaled,
               .scale = scale});
      return sum;
    };
    const auto of_ranks = [&](int ranks) {
      return fold(std::vector<const void*>(static_cast<size_t>(ranks), &element), ~uint64_t{0});
    };
    uint64_t ring = of_ranks(1);
    for (int rank = 1; rank < n; ++rank) ring = fold({&ring, &element}, 2);
    const uint64_t first = of_ranks(n / 2), second = of_ranks(n - n / 2);
    const uint64_t all = of_ranks(n), halves = fold({&first, &second}, 0);
    const double top = Value(Type(), &element);
    // Each product and each sum is rounded, so a ring of n is off by n roundings at most.
    const double unit = (top -
                         [&] {
                           uint64_t below = 0;
                           test::StoreBits(Type(), &below, 0, largest - 1);
                           return Value(Type(), &below);
                         }()) /
                        top;
    for (const uint64_t result : {all, ring, halves}) {
      const double average_value = Value(Type(), &result);
      EXPECT_LE(average_value, top) << n;
      EXPECT_GE(average_value, top * (1 - 2 * n * unit)) << n;
    }
  }
}

std::string TypeName(const testing::TestParamInfo<int>& test) {
  return Name(static_cast<DataType>(test.param));
}

INSTANTIATE_TEST_SUITE_P(Types, Reduce, testing::Range(0, kDataTypes), TypeName);

TEST(DivideIntegers, TruncatesTowardZero) {
  Rng rng(test::TestSeed());
  for (int t = 0; t < kDataTypes; ++t) {
    const auto type = static_cast<DataType>(t);
    if (IsFloat(type)) continue;
    for (const int divisor : {1, 2, 3, 7, 64, 300, 100000}) {
      std::vector<uint64_t> bits;
      for (int i = 0; i < 500; ++i) bits.push_back(AnyElement(type, &rng, false));
      bits.push_back(uint64_t{1} << (8 * SizeOf(type) - 1));  // the most negative
      bits.push_back(AnyElement(type, &rng, false));
      for (const int64_t target : test::Targets()) {
        const test::ScopedTarget scoped(target);
        std::vector<uint64_t> memory(bits.size());
        for (size_t i = 0; i < bits.size(); ++i) {
          test::StoreBits(type, memory.data(), i, bits[i]);
        }
        DivideIntegers(type, memory.data(), bits.size(), divisor);
        for (size_t i = 0; i < bits.size(); ++i) {
          ASSERT_EQ(test::LoadBits(type, memory.data(), i),
                    test::FoldElement(type, ReduceOp::kAvg, {{bits[i]}}, divisor, true))
              << hwy::TargetName(target) << " " << Name(type) << " " << bits[i] << " / " << divisor;
        }
      }
    }
  }
}

}  // namespace
}  // namespace inccl
