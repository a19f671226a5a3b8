// SPDX-License-Identifier: Apache-2.0
#include "support/kernel_reduce.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "compress/kernels/convert.h"
#include "compress/kernels/reduce.h"
#include "support/fp_oracle.h"

namespace inccl::test {
namespace {

using Bytes = std::vector<uint8_t>;

uint64_t Mask(DataType type) { return ~uint64_t{0} >> (64 - 8 * SizeOf(type)); }

// Bits of an element: any, special, or of a size whose sums and products round.
uint64_t AnyElement(DataType type, Rng* rng, bool ordinary) {
  const uint64_t bits = rng->Next(), mask = Mask(type);
  const uint64_t kind = ordinary ? 2 : rng->Below(4);
  if (kind == 0) return bits & mask;
  const uint64_t sign = (rng->Next() & 1) != 0 ? mask - (mask >> 1) : 0;
  if (!IsFloat(type)) return kind == 1 ? ((bits & 3) - 2) & mask : bits & 0xFF;
  if (kind == 1) {  // around zero, infinity and NaN
    const uint64_t nan = QuietNan(type);
    const uint64_t largest = LargestCode(type);
    const uint64_t specials[] = {
        0, 1, 3, nan, nan - 1, nan + 1, nan & ~(mask >> 10), largest, largest, largest - 1};
    return (specials[rng->Below(std::size(specials))] & (mask >> 1)) | sign;
  }
  const auto value = static_cast<float>((rng->Uniform() - 0.5) * 8);
  if (type == DataType::kFloat64) return std::bit_cast<uint64_t>(double{value} / 3);
  uint64_t code = 0;
  FromFloat(type, &value, &code, 1);
  return code;
}

// What is asked of the kernel, and where.
struct Reduction {
  cuda::ReduceKernelArgs args;  // without pointers
  std::vector<Bytes> in;
  std::vector<size_t> in_offsets, out_offsets;  // in elements
  std::vector<int> in_place;                    // of each output: an input that it is, or -1
};

Bytes Expected(const Reduction& what) {
  const cuda::ReduceKernelArgs& args = what.args;
  if (args.inputs == 1 && args.scaled == 0 && args.divisor == 1) return what.in[0];
  Bytes expected(what.in[0].size());
  std::vector<const void*> in;
  for (const Bytes& bytes : what.in) in.push_back(bytes.data());
  void* const out = expected.data();
  FindReduce(args.type, args.op)({.in = in.data(),
                                  .inputs = static_cast<int>(args.inputs),
                                  .out = &out,
                                  .outputs = 1,
                                  .count = args.count,
                                  .scaled = args.scaled,
                                  .scale = args.scale,
                                  .factor = args.factor});
  if (args.divisor != 1) {
    DivideIntegers(args.type, out, args.count, static_cast<int>(args.divisor));
  }
  return expected;
}

void ExpectSame(const Reduction& what, const Bytes& found, const Bytes& expected, uint32_t output) {
  if (found == expected) return;
  const auto differ = std::mismatch(found.begin(), found.end(), expected.begin());
  const size_t element = static_cast<size_t>(differ.first - found.begin()) / SizeOf(what.args.type);
  std::string operands;
  for (const Bytes& in : what.in) {
    operands += fmt::format(" {:x}", LoadBits(what.args.type, in.data(), element));
  }
  FAIL() << fmt::format("output {} element {}: {:x}, expected {:x}, of{}", output, element,
                        LoadBits(what.args.type, found.data(), element),
                        LoadBits(what.args.type, expected.data(), element), operands);
}

void Run(KernelTarget* target, const Reduction& what) {
  const size_t size = SizeOf(what.args.type), bytes = what.args.count * size;
  SCOPED_TRACE(fmt::format("{} {} of {} inputs, {} elements, {} outputs, divisor {}, scaled {:x}",
                           Name(what.args.type), Name(what.args.op), what.args.inputs,
                           what.args.count, what.args.outputs, what.args.divisor,
                           what.args.scaled));
  cuda::ReduceKernelArgs args = what.args;
  std::vector<std::unique_ptr<TargetBytes>> in, out;
  for (uint32_t i = 0; i < args.inputs; ++i) {
    in.push_back(std::make_unique<TargetBytes>(target, what.in[i], what.in_offsets[i] * size));
    args.in[i] = in[i]->data();
  }
  std::vector<bool> replaced(args.inputs);
  for (uint32_t k = 0; k < args.outputs; ++k) {
    const int same = what.in_place[k];
    if (same < 0) {
      out.push_back(std::make_unique<TargetBytes>(target, bytes, what.out_offsets[k] * size));
      args.out[k] = out.back()->data();
    } else {
      out.push_back(nullptr);
      args.out[k] = in[static_cast<size_t>(same)]->data();
      replaced[static_cast<size_t>(same)] = true;
    }
  }
  ASSERT_EQ(target->launchers().reduce(args, nullptr), 0);
  const Bytes expected = Expected(what);
  for (uint32_t k = 0; k < args.outputs; ++k) {
    const TargetBytes* const at =
        out[k] != nullptr ? out[k].get() : in[static_cast<size_t>(what.in_place[k])].get();
    ExpectSame(what, at->Take(), expected, k);
  }
  for (uint32_t i = 0; i < args.inputs; ++i) {
    if (replaced[i]) continue;
    ASSERT_EQ(in[i]->Take(), what.in[i]) << "input " << i << " has changed";
  }
}

void SetOperation(DataType type, ReduceOp op, Rng* rng, cuda::ReduceKernelArgs* args) {
  args->type = type;
  args->op = op;
  const uint64_t all = ~uint64_t{0} >> (64 - args->inputs);
  const auto nranks = static_cast<uint32_t>(2 + rng->Below(9));
  if (op == ReduceOp::kAvg && IsFloat(type)) {
    args->scaled = rng->Next() & all;
    args->scale =
        type == DataType::kFloat64 ? 1.0 / nranks : double{1.0f / static_cast<float>(nranks)};
  } else if (op == ReduceOp::kAvg && rng->Below(3) != 0) {
    static const uint32_t kDivisors[] = {1, 2, 3, 7, 64, 127, 255, 256, 1000003, 0x7fffffff};
    args->divisor = rng->Below(2) == 0 ? nranks : kDivisors[rng->Below(std::size(kDivisors))];
  } else if (op == ReduceOp::kPreMulSum) {
    args->scaled = rng->Next() & all;
    args->factor = AnyElement(type, rng, rng->Below(3) != 0);
    float narrow = 0;
    if (type == DataType::kFloat64) {
      args->scale = std::bit_cast<double>(args->factor);
    } else if (IsFloat(type)) {
      ToFloat(type, &args->factor, &narrow, 1);
      args->scale = double{narrow};
    }
  }
}

Reduction RandomReduction(DataType type, ReduceOp op, uint32_t inputs, uint64_t count, Rng* rng) {
  Reduction what;
  what.args.inputs = inputs;
  what.args.outputs = 1 + static_cast<uint32_t>(rng->Below(rng->Below(3) == 0 ? 8 : 2));
  what.args.count = count;
  SetOperation(type, op, rng, &what.args);
  const size_t size = SizeOf(type);
  const uint64_t where = rng->Below(4);  // aligned to vectors, alike, two times; not alike
  const size_t alike = where == 0 ? 0 : rng->Below(16 / size);
  const auto offset = [&] { return where == 3 ? rng->Below(16 / size) : alike; };
  for (uint32_t i = 0; i < inputs; ++i) {
    Bytes bytes(count * size);
    for (uint64_t e = 0; e < count; ++e) {
      const uint64_t bits = AnyElement(type, rng, e % 2 != 0);
      std::memcpy(bytes.data() + e * size, &bits, size);
    }
    what.in.push_back(std::move(bytes));
    what.in_offsets.push_back(offset());
  }
  for (uint32_t k = 0; k < what.args.outputs; ++k) {
    what.in_place.push_back(rng->Below(4) == 0 ? static_cast<int>(rng->Below(inputs)) : -1);
    what.out_offsets.push_back(offset());
  }
  return what;
}

// Every pair of 8 bits; of 16 bits each with the same one.
void CheckAllElements(KernelTarget* target, DataType type, Rng* rng) {
  for (int op = 0; op < kReduceOpKinds; ++op) {
    Reduction what;
    what.args.inputs = 2;
    what.args.outputs = 1;
    what.args.count = 65536;
    SetOperation(type, static_cast<ReduceOp>(op), rng, &what.args);
    what.in.assign(2, Bytes(65536 * SizeOf(type)));
    const uint64_t other = AnyElement(type, rng, true);
    for (uint32_t e = 0; e < 65536; ++e) {
      StoreBits(type, what.in[0].data(), e, e & Mask(type));
      StoreBits(type, what.in[1].data(), e, SizeOf(type) == 1 ? e >> 8 : other);
    }
    what.in_offsets = {0, 0};
    what.out_offsets = {0};
    what.in_place = {-1};
    Run(target, what);
    if (testing::Test::HasFatalFailure()) return;
  }
}

void CheckRefusals(KernelTarget* target) {
  const TargetBytes bytes(target, 256);
  cuda::ReduceKernelArgs good{.inputs = 1, .outputs = 1, .count = 4};
  good.in[0] = good.out[0] = bytes.data();
  const auto run = [&](auto change) {
    cuda::ReduceKernelArgs args = good;
    change(&args);
    return target->launchers().reduce(args, nullptr);
  };
  using Args = cuda::ReduceKernelArgs;
  EXPECT_EQ(run([](Args*) {}), 0);
  EXPECT_EQ(run([](Args* a) { a->count = 0; }), 0);
  EXPECT_NE(run([](Args* a) { a->type = static_cast<DataType>(kDataTypes); }), 0);
  EXPECT_NE(run([](Args* a) { a->op = static_cast<ReduceOp>(kReduceOpKinds); }), 0);
  EXPECT_NE(run([](Args* a) { a->inputs = 0; }), 0);
  EXPECT_NE(run([](Args* a) { a->inputs = cuda::kMaxSources + 1; }), 0);
  EXPECT_NE(run([](Args* a) { a->outputs = 0; }), 0);
  EXPECT_NE(run([](Args* a) { a->outputs = cuda::kMaxReduced + 1; }), 0);
  EXPECT_NE(run([](Args* a) { a->divisor = 0; }), 0);
  EXPECT_NE(run([](Args* a) { a->divisor = 2; }), 0) << "of floats";
  EXPECT_NE(run([&](Args* a) { a->in[0] = bytes.data() + 2; }), 0);
  EXPECT_NE(run([&](Args* a) { a->out[0] = bytes.data() + 2; }), 0);
}

}  // namespace

void CheckReduction(KernelTarget* target, DataType type, ReduceOp op, uint32_t inputs,
                    uint64_t count, Rng* rng) {
  Run(target, RandomReduction(type, op, inputs, count, rng));
}

void CheckReductions(KernelTarget* target, Rng* rng) {
  for (int t = 0; t < kDataTypes; ++t) {
    const auto type = static_cast<DataType>(t);
    for (int o = 0; o < kReduceOpKinds; ++o) {
      for (const uint32_t inputs : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, cuda::kMaxSources}) {
        // Less than a vector, less than a block at once, more than blocks begin with.
        const uint64_t most = inputs > 9 ? 200 : rng->Below(6) == 0 ? 14000 : 1500;
        for (const uint64_t count : {rng->Below(40), rng->Below(most)}) {
          CheckReduction(target, type, static_cast<ReduceOp>(o), inputs, count, rng);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
    if (SizeOf(type) <= 2) CheckAllElements(target, type, rng);
    if (testing::Test::HasFatalFailure()) return;
  }
  CheckRefusals(target);
}

}  // namespace inccl::test
