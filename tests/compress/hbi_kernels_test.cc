// SPDX-License-Identifier: Apache-2.0
//
// Every instruction set against the scalar reference, byte for byte: every width, every pair of
// widths of the fused sum, every number of levels. What the reference itself must do is held to
// definitions here and to the oracle in hbi_state_test.cc.
#include "compress/kernels/hbi_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/hbi/format.h"
#include "compress/hbi/hull.h"
#include "compress/hbi/plan.h"
#include "compress/simd.h"
#include "support/seed.h"

namespace inccl::hbi {
namespace {

constexpr uint32_t kMaxPacked = PackedBytes(16);

class HbiKernelsTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const Status status = SetSimdTarget(GetParam());
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(SimdTargetName(), GetParam());
  }
  void TearDown() override { ASSERT_TRUE(SetSimdTarget("best").ok()); }

  const Kernels& reference_ = ScalarKernels();
  Rng rng_{test::TestSeed()};
};

struct Tile {
  alignas(64) uint16_t fields[kSuperblock];
  friend bool operator==(const Tile& a, const Tile& b) {
    return std::memcmp(a.fields, b.fields, sizeof a.fields) == 0;
  }
};

// Packed bytes with slack on both sides; the guard in front must survive.
struct Stream {
  static constexpr size_t kFront = 3;  // unaligned on purpose
  std::vector<uint8_t> bytes = std::vector<uint8_t>(kFront + kMaxPacked + kReadSlack, 0xa5);
  uint8_t* data() { return bytes.data() + kFront; }
  bool FrontIntact() const { return bytes[0] == 0xa5 && bytes[1] == 0xa5 && bytes[2] == 0xa5; }
};

Tile RandomTile(Rng* rng, uint32_t width) {
  Tile tile;
  for (uint16_t& field : tile.fields) field = static_cast<uint16_t>(rng->Below(1u << width));
  return tile;
}

// A superblock of elements, its scale codes and multipliers for k levels.
struct Elements {
  alignas(64) float x[kSuperblock];
  uint8_t codes[kBlocks];
  float factor[256] = {};
  float step[256] = {};

  Elements(Rng* rng, uint32_t k) {
    for (uint32_t b = 0; b < kBlocks; ++b) {
      const int octave = static_cast<int>(rng->Below(60)) - 40;
      for (uint32_t j = 0; j < kBlock; ++j) {
        x[b * kBlock + j] = static_cast<float>(std::ldexp(2 * rng->Uniform() - 1, octave));
      }
    }
    // Edges: zeros of both signs, a denormal, the block's maximum twice.
    x[0] = -0.0f;
    x[1] = 0.0f;
    x[2] = std::numeric_limits<float>::denorm_min();
    x[34] = -x[35];
    ScalarKernels().block_codes(x, 1, codes);
    for (int c = 1; c <= kLastCode; ++c) {
      factor[c] = static_cast<float>(k * 65536.0 / Magnitude(c));
      step[c] = static_cast<float>(Magnitude(c) / k);
    }
    step[kPoison] = std::numeric_limits<float>::quiet_NaN();
  }

  QuantizeArgs Args(Rng* rng, uint32_t k) const {
    return {.x = x,
            .codes = codes,
            .factor = factor,
            .k = k,
            .counter = static_cast<uint32_t>(rng->Next()),
            .shift = static_cast<uint16_t>(rng->Next())};
  }
};

TEST_P(HbiKernelsTest, PackAndUnpackEveryWidth) {
  for (uint32_t width = 1; width <= 16; ++width) {
    SCOPED_TRACE(width);
    for (int round = 0; round < 8; ++round) {
      Tile tile = RandomTile(&rng_, width);
      if (round == 0) {
        std::fill(std::begin(tile.fields), std::end(tile.fields),
                  static_cast<uint16_t>((1u << width) - 1));
      }
      Stream expected, packed;
      reference_.pack(tile.fields, width, expected.data());
      BestKernels().pack(tile.fields, width, packed.data());
      ASSERT_EQ(std::memcmp(packed.data(), expected.data(), PackedBytes(width)), 0);
      ASSERT_TRUE(packed.FrontIntact());
      for (size_t i = PackedBytes(width) + kWriteSlack; i < kMaxPacked + kReadSlack; ++i) {
        ASSERT_EQ(packed.data()[i], 0xa5) << "written beyond the slack, at " << i;
      }
      Tile unpacked, reference;
      BestKernels().unpack(expected.data(), width, unpacked.fields);
      ASSERT_EQ(unpacked, tile);
      reference_.unpack(expected.data(), width, reference.fields);
      ASSERT_EQ(reference, tile);
      Tile sum = RandomTile(&rng_, 16), reference_sum = sum;
      BestKernels().unpack_add(expected.data(), width, sum.fields);
      reference_.unpack_add(expected.data(), width, reference_sum.fields);
      ASSERT_EQ(sum, reference_sum);
      ASSERT_NE(sum, tile);
    }
  }
}

TEST_P(HbiKernelsTest, QuantizeEveryK) {
  for (uint32_t k = 1; k <= kMaxLevels; k += k < 40 ? 1 : 37) {
    SCOPED_TRACE(k);
    const Elements elements(&rng_, k);
    const QuantizeArgs args = elements.Args(&rng_, k);
    Tile expected, found;
    reference_.quantize(args, expected.fields);
    BestKernels().quantize(args, found.fields);
    ASSERT_EQ(found, expected);
    Tile sum = RandomTile(&rng_, 15), reference_sum = sum;
    BestKernels().quantize_add(args, sum.fields);
    reference_.quantize_add(args, reference_sum.fields);
    ASSERT_EQ(sum, reference_sum);
    reference_.quantize_nearest(args, expected.fields);
    BestKernels().quantize_nearest(args, found.fields);
    ASSERT_EQ(found, expected);
    const uint32_t width = Width(1, k);
    Stream packed, encoded;
    reference_.encode(args, width, packed.data());
    BestKernels().encode(args, width, encoded.data());
    ASSERT_EQ(std::memcmp(encoded.data(), packed.data(), PackedBytes(width)), 0);
  }
}

TEST_P(HbiKernelsTest, AddEncodeEveryPairOfWidths) {
  // Every (h, K) whose sum has a width of its own: K runs over the widths of one contribution.
  for (uint32_t k = 1; k <= kMaxLevels; k = 2 * k + 1) {
    const Elements elements(&rng_, k);
    for (uint32_t h = 1; 2 * (h + 1) * k < kFieldLimit; h = h < 4 ? h + 1 : 2 * h) {
      SCOPED_TRACE(testing::Message() << "K " << k << ", contributions " << h);
      const uint32_t in_width = Width(h, k), out_width = Width(h + 1, k);
      Tile incoming;
      for (uint16_t& field : incoming.fields) {
        field = static_cast<uint16_t>(rng_.Below(2 * h * k + 1));
      }
      Stream in, expected, found;
      reference_.pack(incoming.fields, in_width, in.data());
      const QuantizeArgs args = elements.Args(&rng_, k);
      reference_.add_encode(args, in.data(), in_width, out_width, expected.data());
      BestKernels().add_encode(args, in.data(), in_width, out_width, found.data());
      ASSERT_EQ(std::memcmp(found.data(), expected.data(), PackedBytes(out_width)), 0);
      // The reference is the sum of the two tiles.
      Tile own, sum;
      reference_.quantize(args, own.fields);
      reference_.unpack(expected.data(), out_width, sum.fields);
      for (uint32_t i = 0; i < kSuperblock; ++i) {
        ASSERT_EQ(sum.fields[i], own.fields[i] + incoming.fields[i]);
      }
    }
  }
}

TEST_P(HbiKernelsTest, DecodeEveryWidth) {
  for (uint32_t width = 1; width <= 16; ++width) {
    SCOPED_TRACE(width);
    const uint32_t zero = (1u << (width - 1)) - (width > 1 ? 1 : 0);
    Elements elements(&rng_, 1);
    elements.codes[3] = kPoison;
    elements.codes[5] = kZeroCode;
    const Tile tile = RandomTile(&rng_, width);
    const DecodeArgs args{.codes = elements.codes, .step = elements.step, .zero = zero};
    float expected[kSuperblock], found[kSuperblock], fused[kSuperblock];
    reference_.decode(args, tile.fields, expected);
    BestKernels().decode(args, tile.fields, found);
    ASSERT_EQ(std::memcmp(found, expected, sizeof expected), 0);
    Stream packed;
    reference_.pack(tile.fields, width, packed.data());
    BestKernels().unpack_decode(args, packed.data(), width, fused);
    ASSERT_EQ(std::memcmp(fused, expected, sizeof expected), 0);
  }
}

TEST_P(HbiKernelsTest, Rotations) {
  for (int round = 0; round < 40; ++round) {
    const auto counter = static_cast<uint32_t>(rng_.Next());
    Elements elements(&rng_, 1), expected = elements;
    const Elements before = elements;
    const bool special = round % 4 == 3;
    if (special) {  // only some of the superblock overflows, or what is not finite is there
      elements.x[17 * round % 256] = std::numeric_limits<float>::max();
      elements.x[18 * round % 256] = round % 8 == 3 ? std::numeric_limits<float>::max()
                                                    : -std::numeric_limits<float>::infinity();
      expected = elements;
    }
    BestKernels().rotate(elements.x, counter);
    reference_.rotate(expected.x, counter);
    double length = 0, rotated_length = 0;
    for (uint32_t i = 0; i < kSuperblock; ++i) {
      if (!std::isnan(expected.x[i])) {  // of NaN the codec asks no more than that it is one
        ASSERT_EQ(std::bit_cast<uint32_t>(elements.x[i]), std::bit_cast<uint32_t>(expected.x[i]));
      }
      ASSERT_EQ(std::isnan(elements.x[i]), std::isnan(expected.x[i]));
      length += std::pow(double{before.x[i]}, 2);
      rotated_length += std::pow(double{elements.x[i]}, 2);
    }
    elements = expected;
    BestKernels().rotate_back(elements.x, counter);
    reference_.rotate_back(expected.x, counter);
    for (uint32_t i = 0; i < kSuperblock; ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(elements.x[i]), std::bit_cast<uint32_t>(expected.x[i]));
    }
    if (special) continue;
    ASSERT_NEAR(rotated_length / length, 1, 1e-5);
    for (uint32_t i = 0; i < kSuperblock; ++i) {
      ASSERT_NEAR(elements.x[i], before.x[i], 1e-6 * std::sqrt(length));
    }
  }
}

TEST_P(HbiKernelsTest, BlockCodesOfEveryScale) {
  // All exponents, mantissas around the four thresholds, non-finite values: one per block.
  std::vector<uint32_t> magnitudes = {0,          1,          2,          0x7fffff,
                                      0x7f800000, 0x7f800001, 0x7fc00000, 0x7fffffff};
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const uint32_t mantissa : kMantissaBits) {
      for (int delta = -1; delta <= 1; ++delta) {
        magnitudes.push_back((exponent << 23) +
                             ((mantissa + static_cast<uint32_t>(delta)) & 0x7fffff));
      }
    }
  }
  while (magnitudes.size() % kBlocks != 0) magnitudes.push_back(1);
  std::vector<float> x(magnitudes.size() * kBlock);
  for (size_t b = 0; b < magnitudes.size(); ++b) {
    const uint32_t sign = static_cast<uint32_t>(rng_.Next()) & 0x80000000;
    const float largest = std::bit_cast<float>(magnitudes[b] | sign);
    for (size_t j = 0; j < kBlock; ++j) {
      x[b * kBlock + j] =
          std::isfinite(largest) ? -largest * static_cast<float>(rng_.Uniform()) : 0;
    }
    x[b * kBlock + rng_.Below(kBlock)] = largest;
  }
  const size_t superblocks = magnitudes.size() / kBlocks;
  std::vector<uint8_t> expected(magnitudes.size()), found(magnitudes.size());
  reference_.block_codes(x.data(), superblocks, expected.data());
  BestKernels().block_codes(x.data(), superblocks, found.data());
  EXPECT_EQ(found, expected);
  for (size_t b = 0; b < magnitudes.size(); ++b) {
    // The definition: the smallest code whose M is not below the magnitude.
    const uint8_t code = expected[b];
    ASSERT_FALSE(IsReserved(code));
    const double magnitude = std::fabs(double{std::bit_cast<float>(magnitudes[b])});
    if (!std::isfinite(magnitude)) {
      ASSERT_EQ(code, kPoison);
    } else if (magnitude == 0) {
      ASSERT_EQ(code, kZeroCode);
    } else {
      ASSERT_GE(Magnitude(code), magnitude);
      if (code > 1) {
        ASSERT_LT(Magnitude(code - 1), magnitude);
      }
    }
  }
}

TEST_P(HbiKernelsTest, TopCodes) {
  for (size_t superblocks = 1; superblocks < 40; ++superblocks) {
    std::vector<uint8_t> codes(superblocks * kBlocks), found(superblocks), expected(superblocks);
    for (uint8_t& code : codes) {
      const uint64_t kind = rng_.Below(4);
      code = kind == 0 ? kZeroCode : kind == 1 ? kPoison : static_cast<uint8_t>(rng_.Below(246));
    }
    std::fill_n(codes.begin(), kBlocks, kPoison);
    reference_.top_codes(codes.data(), superblocks, expected.data());
    BestKernels().top_codes(codes.data(), superblocks, found.data());
    ASSERT_EQ(found, expected);
    ASSERT_EQ(found[0], kZeroCode);
    for (size_t s = 1; s < superblocks; ++s) {
      int largest = 0;
      for (size_t b = s * kBlocks; b < (s + 1) * kBlocks; ++b) {
        if (codes[b] != kPoison) largest = std::max(largest, int{codes[b]});
      }
      ASSERT_EQ(found[s], largest);
    }
  }
}

// n ranks at +M, at -M and alternating between them, every K that n allows: fields never exceed
// 2 n K and are exact, and never touch their neighbours.
TEST_P(HbiKernelsTest, SumsOfExtremesAreExact) {
  const Kernels& kernels = BestKernels();
  for (const uint32_t n : {2u, 3u, 8u, 64u, 1024u}) {
    const uint32_t most = std::min(kMaxLevels, (kFieldLimit - 1) / (2 * n));
    for (uint32_t k = 1; k <= most; k = k < 8 || k == most ? k + 1 : std::min(most, k + k / 2)) {
      SCOPED_TRACE(testing::Message() << n << " ranks, K " << k);
      Elements elements(&rng_, k);
      const int code = 150;
      std::fill(std::begin(elements.codes), std::end(elements.codes), uint8_t{code});
      const auto m = static_cast<float>(Magnitude(code));
      Stream streams[2];
      for (uint32_t rank = 0; rank < n; ++rank) {
        for (uint32_t i = 0; i < kSuperblock; ++i) {
          const bool negative = i % 4 == 1 || (i % 4 == 2 && rank % 2 != 0);
          elements.x[i] = negative ? -m : m;
        }
        QuantizeArgs args = elements.Args(&rng_, k);
        args.shift = RankShift(static_cast<int>(rank), static_cast<int>(n));
        uint8_t* out = streams[rank % 2].data();
        const uint32_t width = Width(rank + 1, k);
        if (rank == 0) {
          kernels.encode(args, width, out);
        } else {
          kernels.add_encode(args, streams[1 - rank % 2].data(), Width(rank, k), width, out);
        }
      }
      Tile sum;
      kernels.unpack(streams[(n - 1) % 2].data(), Width(n, k), sum.fields);
      for (uint32_t i = 0; i < kSuperblock; ++i) {
        const uint32_t positive = i % 4 == 1 ? 0 : i % 4 == 2 ? (n + 1) / 2 : n;
        // M itself may round to 65536 K - 1 in fp32, and then to 2 K - 1.
        const uint32_t slack = std::bit_cast<uint32_t>(elements.factor[code] * m) ==
                                       std::bit_cast<uint32_t>(65536.0f * static_cast<float>(k))
                                   ? 0
                                   : n;
        ASSERT_LE(sum.fields[i], 2 * positive * k + slack) << "element " << i;
        ASSERT_GE(sum.fields[i] + slack, 2 * positive * k) << "element " << i;
        ASSERT_LE(sum.fields[i], 2 * n * k);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, HbiKernelsTest, testing::ValuesIn(SimdTargets()),
                         [](const auto& target) { return target.param; });

// ---------------------------------------------------------------- without targets

TEST(HbiFormat, CodesAtTheScaleStayInRange) {
  // Every K, every mantissa of M, x at +-M and its neighbours, the smallest and largest offsets.
  Rng rng(test::TestSeed());
  for (uint32_t k = 1; k <= kMaxLevels; ++k) {
    for (int code = 100; code < 104; ++code) {
      const auto m = static_cast<float>(Magnitude(code));
      Elements elements(&rng, k);
      std::fill(std::begin(elements.codes), std::end(elements.codes), static_cast<uint8_t>(code));
      const float near[4] = {m, std::nextafter(m, 0.0f), -m, std::nextafter(-m, 0.0f)};
      for (uint32_t i = 0; i < kSuperblock; ++i) elements.x[i] = near[i % 4];
      // 16 shifts spread the offsets of every element evenly.
      const QuantizeArgs base = elements.Args(&rng, k);
      for (uint32_t shift = 0; shift < 65536; shift += k < 16 ? 4096 : 32768) {
        QuantizeArgs args = base;
        args.shift = static_cast<uint16_t>(base.shift + shift);
        for (const Kernels* kernels : {&ScalarKernels(), &BestKernels()}) {
          Tile tile;
          kernels->quantize(args, tile.fields);
          for (uint32_t i = 0; i < kSuperblock; ++i) {
            const uint32_t field = tile.fields[i];
            ASSERT_LE(field, 2 * k) << "K " << k << " code " << code;
            // At the scale itself every offset gives the outermost code.
            if (i % 4 == 0) {
              ASSERT_GE(field, 2 * k - 1);
            }
            if (i % 4 == 2) {
              ASSERT_LE(field, 1u);
            }
          }
        }
      }
    }
  }
}

TEST(HbiFormat, AddPackedIsTheSumOfTheFields) {
  Rng rng(test::TestSeed());
  for (uint32_t width = 1; width <= 16; ++width) {
    for (const size_t superblocks : {size_t{1}, size_t{3}}) {
      std::vector<uint8_t> a, b;
      std::vector<Tile> sums;
      for (size_t s = 0; s < superblocks; ++s) {
        Tile x = RandomTile(&rng, width), y = RandomTile(&rng, width), sum;
        for (uint32_t i = 0; i < kSuperblock; ++i) {
          // Any pair whose sum still fits; often the largest.
          y.fields[i] =
              static_cast<uint16_t>(rng.Below(4) == 0 ? (1u << width) - 1 - x.fields[i]
                                                      : rng.Below((1u << width) - x.fields[i]));
          sum.fields[i] = static_cast<uint16_t>(x.fields[i] + y.fields[i]);
        }
        a.resize((s + 1) * PackedBytes(width));
        b.resize(a.size());
        ScalarKernels().pack(x.fields, width, a.data() + s * PackedBytes(width));
        ScalarKernels().pack(y.fields, width, b.data() + s * PackedBytes(width));
        sums.push_back(sum);
      }
      AddPacked(a.data(), b.data(), a.size() / 8, width, a.data());
      for (size_t s = 0; s < superblocks; ++s) {
        Tile found;
        ScalarKernels().unpack(a.data() + s * PackedBytes(width), width, found.fields);
        ASSERT_EQ(found, sums[s]) << "width " << width;
      }
    }
  }
}

TEST(HbiFormat, HashMeetsItsDefinition) {
  // Pinned, from the format's first definition: a change of these bits changes every result.
  EXPECT_EQ(LowBias32(0), 0u);
  EXPECT_EQ(LowBias32(1), 0x688990c0u);
  EXPECT_EQ(LowBias32(0xffffffff), 0x6768824au);
  const auto hash16 = [](uint64_t element) {
    const uint32_t hash =
        LowBias32(HashCounter(7, 3, element / 32) + static_cast<uint32_t>(element % 16));
    return element % 32 < 16 ? hash & 0xffff : hash >> 16;
  };
  EXPECT_EQ(hash16(0), 0xfb70u);
  EXPECT_EQ(hash16(1), 0x04b6u);
  EXPECT_EQ(hash16(16), 0x20aeu);
  EXPECT_EQ(hash16(31), 0x2a6du);
  EXPECT_EQ(hash16((uint64_t{1} << 33) + 64), 0x0050u);
  EXPECT_EQ(hash16((uint64_t{1} << 33) + 81), 0x3163u);
  EXPECT_EQ(RankShift(0, 3), 0);
  EXPECT_EQ(RankShift(1, 3), 21845);
  EXPECT_EQ(RankShift(2, 3), 43690);
  EXPECT_EQ(HashCounter(5, 6, 1) - HashCounter(5, 6, 0), 16u);
  EXPECT_NE(HashCounter(5, 6, 1u << 28), HashCounter(5, 6, 0));
}

TEST(Simd, UnknownTargetsAreNamed) {
  const Status status = SetSimdTarget("avx1024");
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("avx1024"), std::string::npos);
  EXPECT_NE(status.message().find("scalar"), std::string::npos);
  EXPECT_TRUE(SetSimdTarget("scalar").ok());
  EXPECT_STREQ(SimdTargetName(), "scalar");
  EXPECT_EQ(&BestKernels(), &ScalarKernels());
  EXPECT_TRUE(SetSimdTarget("best").ok());
  EXPECT_EQ(SimdTargetName(), SimdTargets().front());
}

}  // namespace
}  // namespace inccl::hbi
