// SPDX-License-Identifier: Apache-2.0
//
// One residual: what a call may do with it, and when. Whole calls are in api/residual_test.cc.
#include "compress/residual/residual.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

#include "base/rng.h"
#include "compress/float_types.h"
#include "compress/kernels/convert.h"
#include "compress/kernels/feedback.h"
#include "compress/reduce_targets.h"
#include "support/seed.h"

namespace inccl {
namespace {

std::vector<float> ValuesOf(Residual* residual) {
  std::vector<float> values(residual->count());
  EXPECT_TRUE(residual->Export(values).ok());
  return values;
}

void Commit(Residual* residual, const Lineage& lineage, std::vector<float> errors,
            uint64_t operation) {
  ResidualUse use(residual, lineage);
  ASSERT_TRUE(use.status().ok());
  residual->SetErrors(0, errors);
  use.Commit(operation);
}

TEST(ResidualTest, ServesOneCallAtATime) {
  Residual residual(2, {});
  const Lineage lineage;
  ASSERT_TRUE(residual.Take(lineage).ok());
  std::vector<float> values(2);
  EXPECT_EQ(residual.Take(lineage).code(), Code::kInvalidUsage);
  EXPECT_EQ(residual.SetScale(2).code(), Code::kInvalidUsage);
  EXPECT_EQ(residual.Export(values).code(), Code::kInvalidUsage);
  EXPECT_EQ(residual.Import(values).code(), Code::kInvalidUsage);
  EXPECT_EQ(residual.Reset().code(), Code::kInvalidUsage);
  EXPECT_EQ(residual.Settle(lineage).code(), Code::kInvalidUsage);
  residual.End({});
  EXPECT_TRUE(residual.Take(lineage).ok());
  residual.End({});
  EXPECT_TRUE(residual.Reset().ok());
}

TEST(ResidualTest, AUseEndsWithItsScope) {
  Residual residual(1, {});
  const Lineage lineage;
  try {
    const ResidualUse use(&residual, lineage);
    ASSERT_TRUE(use.status().ok());
    EXPECT_EQ(ResidualUse(&residual, lineage).status().code(), Code::kInvalidUsage);
    EXPECT_EQ(residual.Take(lineage).code(), Code::kInvalidUsage)
        << "the second use has ended the first";
    throw std::bad_alloc();
  } catch (const std::bad_alloc&) {
  }
  ASSERT_TRUE(residual.Take(lineage).ok());
  residual.End({});
}

// A communicator that was made by shrinking another one, after so many of its calls on all ranks,
// and one more on this one.
Lineage Shrunk(const Lineage& parent, uint64_t completed) {
  return {parent, Lineage::Completed{completed, completed + 1}};
}

TEST(ResidualTest, AFailedCallChangesNothing) {
  Residual residual(3, {});
  const Lineage lineage;
  Commit(&residual, lineage, {1, 2, 3}, 7);
  ASSERT_TRUE(residual.Take(lineage).ok());
  const std::vector<float> errors = {4, 5, 6};
  residual.SetErrors(0, errors);
  residual.End({});
  EXPECT_EQ(ValuesOf(&residual), (std::vector<float>{1, 2, 3}));
  // Another rank may have failed in call 7 already.
  EXPECT_TRUE(residual.Settle(Shrunk(lineage, 6)).ok());
  EXPECT_EQ(ValuesOf(&residual), (std::vector<float>{0, 0, 0}));
}

TEST(ResidualTest, ACallThatDoesNotCountIsTakenBackOnce) {
  Residual residual(1, {});
  const Lineage first;
  Commit(&residual, first, {1}, 4);
  Commit(&residual, first, {2}, 6);
  EXPECT_TRUE(residual.Settle(first).ok());
  EXPECT_TRUE(residual.Settle(Shrunk(first, 6)).ok());
  EXPECT_TRUE(residual.Settle(Lineage()).ok()) << "that knows nothing of the first communicator";
  EXPECT_EQ(ValuesOf(&residual)[0], 2);
  const Lineage smaller = Shrunk(first, 5);
  EXPECT_TRUE(residual.Settle(smaller).ok());
  EXPECT_EQ(ValuesOf(&residual)[0], 1);
  EXPECT_TRUE(residual.Settle(Shrunk(smaller, 0)).ok());
  EXPECT_EQ(ValuesOf(&residual)[0], 1) << "only one call is kept to be taken back";
}

// A residual that nobody has settled: the next call does it, however many communicators later.
TEST(ResidualTest, TheNextCallTakesBackWhatDoesNotCount) {
  for (const bool counts : {false, true}) {
    Residual residual(1, {});
    const Lineage first;
    Commit(&residual, first, {1}, 4);
    Commit(&residual, first, {2}, 5);
    const Lineage smaller = Shrunk(first, counts ? 5 : 4);
    const Lineage grown(smaller, {});
    const Lineage last = Shrunk(grown, 0);
    const ResidualUse use(&residual, last);
    std::vector<float> values(1);
    residual.Scaled(0, values);
    EXPECT_EQ(values[0], counts ? 2 : 1);
  }
}

// Each communicator numbers its calls from 1.
TEST(ResidualTest, NoCallOfAnotherCommunicatorIsTakenBack) {
  Residual residual(1, {});
  const Lineage first;
  Commit(&residual, first, {3}, 7);
  const Lineage grown(first, {});
  EXPECT_TRUE(residual.Settle(Shrunk(grown, 0)).ok()) << "the first call of `grown` has failed";
  EXPECT_EQ(ValuesOf(&residual)[0], 3);
  EXPECT_TRUE(residual.Settle(Shrunk(Shrunk(first, 7), 0)).ok());
  EXPECT_EQ(ValuesOf(&residual)[0], 3);
  EXPECT_TRUE(residual.Settle(Shrunk(first, 5)).ok()) << "it is later than the shrink";
  EXPECT_EQ(ValuesOf(&residual)[0], 3);
}

// What is taken back is the last call, not an earlier one of equal number.
TEST(ResidualTest, ACallAfterAnEqualNumberIsTakenBack) {
  constexpr size_t kElements = kSuperblock;
  Residual residual(kElements, {});
  const Lineage first;
  const Lineage grown(first, {});
  const std::vector<float> zeros(kElements), sum(kElements, 1.0f);
  {
    ResidualUse use(&residual, first);
    residual.SetErrors(0, zeros);
    residual.SetTotal(0, 1, sum, zeros.data());
    use.Commit(6);
  }
  Commit(&residual, first, zeros, 7);  // the rank does not own the superblock any more
  EXPECT_EQ(ValuesOf(&residual), sum);
  Commit(&residual, grown, zeros, 7);
  EXPECT_TRUE(residual.Settle(Shrunk(grown, 6)).ok());
  EXPECT_EQ(ValuesOf(&residual), sum);
}

// Of three calls of an owner the last one is taken back, whether or not another has failed since:
// the total then gets back what the second call has left, in every place.
TEST(ResidualTest, RollbackOfATotalInItsOwnCall) {
  constexpr size_t kElements = 2 * kSuperblock;
  const std::vector<float> zeros(kElements);
  const Lineage lineage;
  const auto call = [&](Residual* residual, float first, float second, uint64_t operation) {
    ResidualUse use(residual, lineage);
    ASSERT_TRUE(use.status().ok());
    residual->SetErrors(0, zeros);
    const std::vector<float> sum(kSuperblock, first), other(kSuperblock, second);
    residual->SetTotal(0, 1, sum, zeros.data());
    residual->SetTotal(1, 2, other, zeros.data());
    if (operation != 0) use.Commit(operation);
  };
  const auto expect = [](Residual* residual, float first, float second) {
    const std::vector<float> values = ValuesOf(residual);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], i < kSuperblock ? first : second) << i;
    }
    std::vector<float> got(kSuperblock);
    residual->CorrectTotal(1, 4, got);
    EXPECT_EQ(got, std::vector<float>(kSuperblock, 4 * second));
  };
  for (const bool fails : {false, true}) {
    SCOPED_TRACE(fails);
    Residual residual(kElements, {});
    call(&residual, 1, 2, 1);
    call(&residual, 3, 6, 2);
    call(&residual, 5, 10, 3);
    expect(&residual, 5, 5);
    if (fails) call(&residual, 7, 14, 0);
    EXPECT_TRUE(residual.Settle(Shrunk(lineage, 2)).ok());
    expect(&residual, 3, 3);
    call(&residual, 9, 18, 3);  // the call is made again
    expect(&residual, 9, 9);
    EXPECT_TRUE(residual.Settle(Shrunk(lineage, 2)).ok());
    expect(&residual, 3, 3);
  }
}

TEST(ResidualTest, ScalesRoundsAndMixes) {
  Residual plain(2, {}), narrow(2, {.storage = DataType::kBfloat16});
  Residual mixed(2, {.storage = DataType::kFloat32, .keep = 0.5f});
  const Lineage lineage;
  for (Residual* residual : {&plain, &narrow, &mixed}) {
    Commit(residual, lineage, {1.001f, -3}, 1);
  }
  EXPECT_EQ(ValuesOf(&plain), (std::vector<float>{1.001f, -3}));
  EXPECT_EQ(ValuesOf(&narrow), (std::vector<float>{1, -3}));
  EXPECT_EQ(ValuesOf(&mixed), (std::vector<float>{0.5f * 1.001f, -1.5f}));
  Commit(&mixed, lineage, {8, 8}, 2);
  EXPECT_EQ(ValuesOf(&mixed)[1], 0.5f * -1.5f + 4);
  // What is kept has the scale that the call has sent it with.
  ASSERT_TRUE(mixed.SetScale(4).ok());
  Commit(&mixed, lineage, {0, 8}, 3);
  EXPECT_EQ(ValuesOf(&mixed)[1], 0.5f * 4 * 3.25f + 4);
  ASSERT_TRUE(plain.SetScale(0.5f).ok());
  std::vector<float> scaled(1);
  plain.Scaled(1, scaled);
  EXPECT_EQ(scaled[0], -1.5f);
}

TEST(ResidualTest, WhatIsNotFiniteCountsAsZero) {
  Residual residual(3, {});
  Commit(&residual, Lineage(),
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 2}, 1);
  EXPECT_EQ(ValuesOf(&residual), (std::vector<float>{0, 0, 2}));
}

// Element by element, with the scalar conversions of float_types.h.
class PlainFeedback {
 public:
  PlainFeedback(const Corrected& sums, const float* sent, float kept, float added)
      : sums_(sums), sent_(sent), kept_(kept), added_(added) {}

  float Sum(size_t i) const { return At(sums_.type, sums_.x, i) + Scaled(i); }
  float Error(size_t i) const {
    const float error = sent_ == nullptr ? Sum(i) : Sum(i) - sent_[i];
    const float finite = std::isfinite(error) ? error : 0.0f;
    if (added_ == 1) return finite;
    const float kept = kept_ * At(sums_.storage, sums_.residual, i);
    const float added = added_ * finite;
    return kept + added;
  }
  static float At(DataType type, const void* data, size_t i) {
    if (type == DataType::kFloat32) return static_cast<const float*>(data)[i];
    const uint16_t code = static_cast<const uint16_t*>(data)[i];
    return type == DataType::kBfloat16 ? Bf16::Decode(code) : Fp16::Decode(code);
  }
  // The bits of a value in memory.
  static uint32_t Bits(DataType type, float value) {
    if (type == DataType::kFloat32) return std::bit_cast<uint32_t>(value);
    return type == DataType::kBfloat16 ? Bf16::Encode(value) : Fp16::Encode(value);
  }
  static uint32_t BitsAt(DataType type, const std::vector<std::byte>& data, size_t i) {
    uint32_t bits = 0;
    std::memcpy(&bits, data.data() + i * SizeOf(type), SizeOf(type));
    return bits;
  }

 private:
  float Scaled(size_t i) const { return sums_.scale * At(sums_.storage, sums_.residual, i); }
  const Corrected& sums_;
  const float* const sent_;
  const float kept_, added_;
};

TEST(FeedbackKernels, EqualPlainLoopsOnEveryTarget) {
  constexpr size_t kMost = 77;
  Rng rng(test::TestSeed());
  const auto drawn = [&](DataType type, bool finite) {
    std::vector<float> values(kMost);
    for (size_t i = 0; i < kMost; ++i) {
      const uint64_t bits = rng.Next();
      values[i] = std::bit_cast<float>(static_cast<uint32_t>(bits));
      if (bits >> 63 != 0) values[i] = std::ldexp(1.0f + static_cast<float>(i), -20);
      if (finite && !std::isfinite(values[i])) values[i] = 0.5f;
    }
    std::vector<std::byte> bytes(kMost * SizeOf(type));
    FromFloat(type, values.data(), bytes.data(), kMost);
    return bytes;
  };
  for (const int64_t target : test::Targets()) {
    const test::ScopedTarget scoped(target);
    for (const DataType type : {DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16}) {
      for (const DataType storage : {DataType::kFloat32, DataType::kBfloat16}) {
        for (const size_t n : {size_t{0}, size_t{1}, size_t{31}, size_t{64}, kMost}) {
          const std::vector<std::byte> x = drawn(type, false), residual = drawn(storage, true);
          const std::vector<std::byte> sent_bytes = drawn(DataType::kFloat32, true);
          const auto* const sent = reinterpret_cast<const float*>(sent_bytes.data());
          for (const float scale : {1.0f, 0.3f}) {
            const Corrected sums{type, x.data(), storage, residual.data(), scale};
            std::vector<std::byte> out(kMost * SizeOf(type), std::byte{0x5A});
            AddResidual(sums, out.data(), n);
            const PlainFeedback plain(sums, nullptr, 0, 1);
            for (size_t i = 0; i < kMost; ++i) {
              const uint32_t got = PlainFeedback::BitsAt(type, out, i);
              const bool nan = i < n && std::isnan(plain.Sum(i));
              if (nan) {
                EXPECT_TRUE(std::isnan(PlainFeedback::At(type, out.data(), i)));
                continue;
              }
              const uint32_t untouched = type == DataType::kFloat32 ? 0x5A5A5A5A : 0x5A5A;
              ASSERT_EQ(got, i < n ? PlainFeedback::Bits(type, plain.Sum(i)) : untouched)
                  << hwy::TargetName(target) << " " << Name(type) << " " << n << " " << i;
            }
            for (const float kept : {0.0f, 0.25f}) {
              const float added = kept == 0 ? 1 : 0.75f;
              for (const float* const from : {sent, static_cast<const float*>(nullptr)}) {
                std::vector<std::byte> next(kMost * SizeOf(storage), std::byte{0x5A});
                StoreErrors(sums, from, kept, added, next.data(), n);
                const PlainFeedback errors(sums, from, kept, added);
                const float top = LargestOf(storage);
                for (size_t i = 0; i < n; ++i) {
                  const float wanted = std::fmin(std::fmax(errors.Error(i), -top), top);
                  ASSERT_EQ(PlainFeedback::BitsAt(storage, next, i),
                            PlainFeedback::Bits(storage, wanted))
                      << hwy::TargetName(target) << " " << Name(type) << " " << Name(storage) << " "
                      << kept << " " << i;
                }
                const uint32_t untouched = storage == DataType::kFloat32 ? 0x5A5A5A5A : 0x5A5A;
                for (size_t i = n; i < kMost; ++i) {
                  ASSERT_EQ(PlainFeedback::BitsAt(storage, next, i), untouched) << i;
                }
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace inccl
