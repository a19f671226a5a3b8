// SPDX-License-Identifier: Apache-2.0
//
// Inputs, oracle and verification against plain arithmetic on single elements.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "perf/support/element.h"
#include "perf/support/oracle.h"
#include "perf/support/verify.h"
#include "support/seed.h"

namespace inccl::perf {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin,
                             ReduceOp::kAvg};

Inputs RandomInputs(int nranks, uint64_t period) {
  Rng rng(test::TestSeed());
  std::vector<float> patterns(static_cast<size_t>(nranks) * period);
  for (float& x : patterns)
    x = static_cast<float>(std::ldexp(rng.Uniform() - 0.5, static_cast<int>(rng.Below(8))));
  return {nranks, period, std::move(patterns)};
}

std::vector<std::byte> Buffer(const Inputs& inputs, int rank, DataType type, ReduceOp op,
                              uint64_t first, uint64_t count) {
  std::vector<std::byte> bytes(count * SizeOf(type));
  inputs.Fill(rank, type, op, first, count, bytes.data());
  return bytes;
}

std::vector<double> Floats(DataType type, const std::vector<std::byte>& bytes) {
  std::vector<double> values(bytes.size() / SizeOf(type));
  DecodeFloats(type, bytes.data(), values.size(), values.data());
  return values;
}

// One rounding to the type.
double Round(DataType type, double value) {
  uint64_t bits = 0;
  EncodeFloats(type, std::span(&value, 1), &bits);
  DecodeFloats(type, &bits, 1, &value);
  return value;
}

template <typename T>
T Wrap(ReduceOp op, T a, T b) {
  using U = std::make_unsigned_t<T>;
  // Unsigned and wide: no promotion to a signed int that could overflow.
  const uint64_t x = static_cast<U>(a), y = static_cast<U>(b);
  switch (op) {
    case ReduceOp::kProd: return static_cast<T>(static_cast<U>(x * y));
    case ReduceOp::kMax: return std::max(a, b);
    case ReduceOp::kMin: return std::min(a, b);
    default: return static_cast<T>(static_cast<U>(x + y));
  }
}

template <typename T>
void CheckIntegers(DataType type) {
  constexpr int kRanks = 5;
  const Inputs inputs = RandomInputs(kRanks, 300);
  for (const ReduceOp op : kOps) {
    const Oracle oracle = MakeOracle(inputs, type, op);
    std::vector<T> result(700);
    std::vector<std::vector<std::byte>> sent;
    for (int rank = 0; rank < kRanks; ++rank)
      sent.push_back(Buffer(inputs, rank, type, op, 0, 700));
    bool wrapped = false;
    for (size_t i = 0; i < result.size(); ++i) {
      std::vector<T> x(kRanks);
      for (size_t rank = 0; rank < kRanks; ++rank) {
        std::memcpy(&x[rank], sent[rank].data() + i * sizeof(T), sizeof(T));
      }
      result[i] = x[0];
      long double exact = x[0];
      for (size_t rank = 1; rank < kRanks; ++rank) {
        result[i] = Wrap(op, result[i], x[rank]);
        exact += static_cast<long double>(x[rank]);
      }
      wrapped |= exact != static_cast<long double>(result[i]);
      if (op == ReduceOp::kAvg) {
        EXPECT_EQ(exact, static_cast<long double>(result[i])) << "an average must not wrap";
        result[i] = static_cast<T>(result[i] / kRanks);
      }
    }
    EXPECT_TRUE(wrapped || op == ReduceOp::kAvg) << "sums over the whole range should wrap";
    EXPECT_EQ(VerifyReduction(oracle, 0, result.data(), result.size(), std::nullopt).wrong, 0u)
        << Name(type) << " " << Name(op);
    EXPECT_EQ(VerifyReduction(oracle, 123, result.data() + 123, 500, std::nullopt).wrong, 0u);
    result[699] = static_cast<T>(result[699] + 1);
    const Accuracy off = VerifyReduction(oracle, 0, result.data(), result.size(), std::nullopt);
    EXPECT_EQ(off.wrong, 1u);
    EXPECT_GT(off.max_error, 0);
  }
}

TEST(BenchOracle, IntegersAreExact) {
  CheckIntegers<int8_t>(DataType::kInt8);
  CheckIntegers<uint8_t>(DataType::kUint8);
  CheckIntegers<int32_t>(DataType::kInt32);
  CheckIntegers<uint32_t>(DataType::kUint32);
  CheckIntegers<int64_t>(DataType::kInt64);
  CheckIntegers<uint64_t>(DataType::kUint64);
}

// A correct library: inside a step fp32 for narrow types, rounded once per step; steps of random
// sizes, ranks in random order.
double ReduceLikeALibrary(DataType type, ReduceOp op, std::vector<double> x, Rng* rng) {
  const auto n = static_cast<double>(x.size());
  const DataType inner = SizeOf(type) < 4 ? DataType::kFloat32 : type;
  const double inverse = Round(inner, 1.0 / n);
  for (size_t i = x.size() - 1; i > 0; --i) std::swap(x[i], x[rng->Below(i + 1)]);
  if (op == ReduceOp::kAvg) {
    for (double& v : x) v = Round(inner, v * inverse);
  }
  double value = x[0];
  for (size_t i = 1; i < x.size(); ++i) {
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg: value = Round(inner, value + x[i]); break;
      case ReduceOp::kProd: value = Round(inner, value * x[i]); break;
      case ReduceOp::kMax: value = std::max(value, x[i]); break;
      case ReduceOp::kMin: value = std::min(value, x[i]); break;
      case ReduceOp::kPreMulSum: break;  // not of the benchmarks
    }
    if (rng->Below(2) == 0) value = Round(type, value);
  }
  return Round(type, value);
}

TEST(BenchOracle, AdmitsEveryOrderOfAFloatReduction) {
  Rng rng(test::TestSeed() + 1);
  for (const DataType type : {DataType::kFloat16, DataType::kFloat32, DataType::kFloat64,
                              DataType::kBfloat16, DataType::kFloat8E4M3, DataType::kFloat8E5M2}) {
    for (const int nranks : {1, 2, 3, 8}) {
      const Inputs inputs = RandomInputs(nranks, 500);
      for (const ReduceOp op : kOps) {
        const Oracle oracle = MakeOracle(inputs, type, op);
        std::vector<std::vector<double>> sent;
        for (int rank = 0; rank < nranks; ++rank) {
          sent.push_back(Floats(type, Buffer(inputs, rank, type, op, 0, 1200)));
        }
        std::vector<double> result(1200);
        for (size_t i = 0; i < result.size(); ++i) {
          std::vector<double> x;
          for (const std::vector<double>& s : sent) x.push_back(s[i]);
          result[i] = ReduceLikeALibrary(type, op, x, &rng);
        }
        std::vector<std::byte> bytes(result.size() * SizeOf(type));
        EncodeFloats(type, result, bytes.data());
        EXPECT_EQ(VerifyReduction(oracle, 0, bytes.data(), 1200, std::nullopt).wrong, 0u)
            << Name(type) << " " << Name(op) << " n = " << nranks;
      }
    }
  }
}

TEST(BenchOracle, SlackOfFp32IsOfTheOrderOfItsRoundoff) {
  const Inputs inputs = RandomInputs(4, 1000);
  const Oracle oracle = MakeOracle(inputs, DataType::kFloat32, ReduceOp::kSum);
  for (size_t i = 0; i < oracle.period; ++i) {
    double magnitude = 0;
    for (int rank = 0; rank < 4; ++rank) magnitude += std::fabs(inputs.pattern(rank)[i]);
    EXPECT_GE(oracle.slack[i], 3 * 0x1p-24 * magnitude);
    EXPECT_LE(oracle.slack[i], 8 * 0x1p-24 * magnitude + 1e-40);
  }
}

TEST(BenchOracle, FindsOneWrongElement) {
  const Inputs inputs = RandomInputs(4, 1000);
  const Oracle oracle = MakeOracle(inputs, DataType::kFloat32, ReduceOp::kSum);
  std::vector<float> result(5000);
  for (size_t i = 0; i < result.size(); ++i) result[i] = static_cast<float>(oracle.value[i % 1000]);
  EXPECT_EQ(VerifyReduction(oracle, 0, result.data(), result.size(), std::nullopt).wrong, 0u);
  // One rank's contribution is missing in the last element.
  result[4999] = static_cast<float>(oracle.value[999] - inputs.pattern(2)[999]);
  const Accuracy wrong = VerifyReduction(oracle, 0, result.data(), result.size(), std::nullopt);
  EXPECT_EQ(wrong.wrong, 1u);
  EXPECT_NEAR(wrong.max_error, std::fabs(inputs.pattern(2)[999]), 1e-5);
  result[4999] = std::numeric_limits<float>::quiet_NaN();
  const Accuracy nan = VerifyReduction(oracle, 0, result.data(), result.size(), std::nullopt);
  EXPECT_EQ(nan.wrong, 1u);
  EXPECT_TRUE(std::isinf(nan.max_error));
  // Shifted by one element: nearly everything is wrong.
  for (size_t i = 0; i < result.size(); ++i)
    result[i] = static_cast<float>(oracle.value[(i + 1) % 1000]);
  EXPECT_GT(VerifyReduction(oracle, 0, result.data(), result.size(), std::nullopt).wrong, 4000u);
}

TEST(BenchOracle, BoundOfALossyCodec) {
  const Inputs inputs = RandomInputs(2, 64);
  const Oracle oracle = MakeOracle(inputs, DataType::kFloat32, ReduceOp::kSum);
  std::vector<float> result(64);
  double error2 = 0, reference2 = 0;
  for (size_t i = 0; i < 64; ++i) {
    result[i] = static_cast<float>(oracle.value[i] + (i % 2 == 0 ? 0.5 : -0.25));
    error2 += std::pow(result[i] - oracle.value[i], 2);
    reference2 += oracle.value[i] * oracle.value[i];
  }
  const Accuracy inside = VerifyReduction(oracle, 0, result.data(), 64, 0.50001);
  EXPECT_EQ(inside.wrong, 0u);
  EXPECT_NEAR(inside.max_error, 0.5, 1e-5);
  EXPECT_NEAR(inside.Vnmse(), error2 / reference2, 1e-12 * error2 / reference2);
  EXPECT_NEAR(inside.RelativeL2(), std::sqrt(error2 / reference2), 1e-9);
  EXPECT_EQ(VerifyReduction(oracle, 0, result.data(), 64, 0.3).wrong, 32u);
}

TEST(BenchOracle, InfinityAndNanInTheInput) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr size_t kCount = 3 * 256, kInfinite = 256 + 40, kNan = 512 + 70;
  std::vector<float> patterns(2 * kCount, 1.0f);
  patterns[kInfinite] = kInfinity;
  patterns[kCount + kNan] = std::numeric_limits<float>::quiet_NaN();
  const Inputs inputs(2, kCount, patterns);
  const Oracle oracle = MakeOracle(inputs, DataType::kFloat32, ReduceOp::kSum);
  std::vector<float> result(kCount, 2.0f);
  EXPECT_EQ(VerifyReduction(oracle, 0, result.data(), kCount, std::nullopt).wrong, 2u);
  result[kInfinite] = kInfinity;
  result[kNan] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(VerifyReduction(oracle, 0, result.data(), kCount, std::nullopt).wrong, 0u);
  // A codec poisons the superblocks of 256 around them.
  EXPECT_EQ(VerifyReduction(oracle, 0, result.data(), kCount, 0.1).wrong, 511u);
  std::fill(result.begin() + 256, result.end(), std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(VerifyReduction(oracle, 0, result.data(), kCount, 0.1).wrong, 0u);
}

TEST(BenchOracle, OverflowIsNotAnError) {
  const Inputs inputs(2, 2, {40000.0f, 1.0f, 40000.0f, 1.0f});
  const Oracle oracle = MakeOracle(inputs, DataType::kFloat16, ReduceOp::kSum);
  uint16_t result[2] = {0x7C00, 0x4000};  // infinity, 2
  EXPECT_EQ(VerifyReduction(oracle, 0, result, 2, std::nullopt).wrong, 0u);
  result[1] = 0x7C00;
  EXPECT_EQ(VerifyReduction(oracle, 0, result, 2, std::nullopt).wrong, 1u);
}

TEST(BenchInputs, BuffersRepeatThePattern) {
  const Inputs inputs = RandomInputs(3, 100);
  for (const DataType type : {DataType::kFloat32, DataType::kInt8, DataType::kFloat16}) {
    const size_t bytes = SizeOf(type);
    const std::vector<std::byte> once = Buffer(inputs, 1, type, ReduceOp::kSum, 0, 100);
    for (const uint64_t first : {0u, 1u, 99u, 250u}) {
      for (const uint64_t count : {0u, 1u, 60u, 100u, 101u, 777u}) {
        const std::vector<std::byte> many = Buffer(inputs, 1, type, ReduceOp::kSum, first, count);
        for (uint64_t i = 0; i < count; ++i) {
          ASSERT_EQ(std::memcmp(&many[i * bytes], &once[(first + i) % 100 * bytes], bytes), 0)
              << first << " + " << i << " of " << count;
        }
      }
    }
  }
  const std::vector<std::byte> raw = Buffer(inputs, 2, DataType::kFloat32, ReduceOp::kSum, 0, 100);
  EXPECT_EQ(std::memcmp(raw.data(), inputs.pattern(2).data(), raw.size()), 0);
}

TEST(BenchInputs, FactorsOfProductsStayNearOne) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Inputs inputs(1, 6, {0.0f, -0.0f, 1e30f, -1e30f, 1.0f, -kInfinity});
  const std::vector<double> x =
      Floats(DataType::kFloat64, Buffer(inputs, 0, DataType::kFloat64, ReduceOp::kProd, 0, 6));
  for (const double v : x) {
    EXPECT_GE(std::fabs(v), 0.75);
    EXPECT_LE(std::fabs(v), 1.25);
  }
  EXPECT_EQ(x[4], 1.0);
  EXPECT_LT(x[3], 0);
}

TEST(BenchInputs, PeriodIsAnOddNumberOfSuperblocks) {
  for (const int nranks : {1, 2, 8, 16, 64}) {
    const uint64_t period = PatternPeriod(0, uint64_t{1} << 30, nranks);
    EXPECT_EQ(period % 512, 256u) << nranks;
    EXPECT_LE(period * static_cast<uint64_t>(nranks), 16u << 20);
  }
  EXPECT_GT(PatternPeriod(0, uint64_t{1} << 30, 8), 1u << 20);
  EXPECT_EQ(PatternPeriod(0, 1000, 4), 1000u);
  EXPECT_EQ(PatternPeriod(uint64_t{1} << 25, uint64_t{1} << 30, 4), uint64_t{1} << 25);
  EXPECT_EQ(PatternPeriod(0, 0, 4), 1u);
}

TEST(BenchVerify, LossyCopies) {
  constexpr size_t kCount = 3 * 256 + 4;
  std::vector<float> a(kCount, 1.0f), b(kCount, 1.25f);
  const auto verify = [&](double bound) {
    return VerifyLossyCopy(DataType::kFloat32, a.data(), b.data(), kCount, bound);
  };
  EXPECT_EQ(verify(0.25).wrong, 0u);
  const Accuracy off = verify(0.2499);
  EXPECT_EQ(off.wrong, kCount);
  EXPECT_EQ(off.max_error, 0.25);
  EXPECT_DOUBLE_EQ(off.Vnmse(), 0.0625);
  // The second superblock and the tail are poisoned: NaN, and nothing else.
  a[300] = std::numeric_limits<float>::infinity();
  a[kCount - 1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(verify(0.25).wrong, 260u);
  std::fill_n(b.begin() + 256, 256, std::numeric_limits<float>::quiet_NaN());
  std::fill_n(b.begin() + 768, 4, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(verify(0.25).wrong, 0u);
  b[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(verify(0.25).wrong, 1u);
}

TEST(BenchVerify, CopiesAndGuards) {
  std::vector<uint16_t> a(10000), b;
  std::iota(a.begin(), a.end(), uint16_t{0});
  b = a;
  EXPECT_EQ(VerifyCopy(DataType::kFloat16, a.data(), b.data(), a.size()).wrong, 0u);
  b[0] ^= 1;
  b[9999] ^= 0x8000;
  EXPECT_EQ(VerifyCopy(DataType::kFloat16, a.data(), b.data(), a.size()).wrong, 2u);
  std::vector<std::byte> guard(256, kPoison);
  EXPECT_EQ(CountDisturbed(guard), 0u);
  guard[255] = std::byte{0};
  EXPECT_EQ(CountDisturbed(guard), 1u);
}

TEST(BenchVerify, AccuracyOfRanksAddsUp) {
  Accuracy a{1, 0.5, 4, 100}, b{2, 0.25, 5, 44};
  a.Add(b);
  EXPECT_EQ(a.wrong, 3u);
  EXPECT_EQ(a.max_error, 0.5);
  EXPECT_DOUBLE_EQ(a.Vnmse(), 9.0 / 144);
  EXPECT_DOUBLE_EQ(a.RelativeL2(), 0.25);
  EXPECT_EQ(Accuracy().Vnmse(), 0);
}

}  // namespace
}  // namespace inccl::perf
