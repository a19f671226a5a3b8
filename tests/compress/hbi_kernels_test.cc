// SPDX-License-Identifier: Apache-2.0
//
// Every instruction set against the scalar reference, byte for byte: every width, every pair of
// widths of the fused sum, every number of levels. What the reference itself must do is held to
// definitions here and to the oracle in hbi_state_test.cc.
#include "compress/kernels/hbi_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/hbi/format.h"
#include "compress/hbi/plan.h"
#include "compress/hbi/side_words.h"
#include "compress/simd.h"
#include "support/hbi_oracle.h"
#include "support/seed.h"

namespace inccl::hbi {
namespace {

constexpr uint32_t kMaxPacked = PackedBytes(kMostHalfBits);

// Every width that a field can have, in half-bits.
std::vector<uint32_t> Widths() {
  std::vector<uint32_t> widths;
  for (uint32_t width = 2; width <= kMostHalfBits; ++width) {
    if (width % 2 == 0 || PairBase(width) != 0) widths.push_back(width);
  }
  return widths;
}

// One more than the largest value in a field.
uint32_t Values(uint32_t width) { return PairBase(width) != 0 ? PairBase(width) : 1u << width / 2; }

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
  for (uint16_t& field : tile.fields) field = static_cast<uint16_t>(rng->Below(Values(width)));
  return tile;
}

Offsets RandomOffsets(Rng* rng) {
  const int n = 2 + static_cast<int>(rng->Below(rng->Below(2) == 0 ? 10 : 32766));
  return OffsetsOf(static_cast<int>(rng->Below(static_cast<uint64_t>(n))), n, rng->Below(3) == 0);
}

// A superblock of elements, its side word and multipliers for k levels.
struct Elements {
  alignas(64) float x[kSuperblock];
  uint8_t word[kWordBytes];
  float factor[kTableCodes] = {};
  float step[kTableCodes] = {};

  // The blocks' scales: near each other or far apart.
  Elements(Rng* rng, uint32_t k) {
    // Sometimes where superblocks have outer words.
    const int middle = static_cast<int>(rng->Below(rng->Below(4) == 0 ? 180 : 60)) - 40 -
                       (rng->Below(8) == 0 ? 55 : 0);
    for (uint32_t b = 0; b < kBlocks; ++b) {
      const int octave =
          std::min(middle + static_cast<int>(rng->Below(rng->Below(4) == 0 ? 60 : 3)), 100);
      for (uint32_t j = 0; j < kBlock; ++j) {
        x[b * kBlock + j] = static_cast<float>(std::ldexp(2 * rng->Uniform() - 1, octave));
      }
    }
    // Edges: zeros of both signs, a denormal, the block's maximum twice.
    x[0] = -0.0f;
    x[1] = 0.0f;
    x[2] = std::numeric_limits<float>::denorm_min();
    x[34] = -x[35];
    ScalarKernels().side_words(x, 1, 1.0f, word);
    for (uint32_t c = 1; c <= kLastCode; ++c) {
      factor[c] = static_cast<float>(k * 65536.0 / Magnitude(c));
      step[c] = static_cast<float>(Magnitude(c) / k);
    }
    step[kPoison] = std::numeric_limits<float>::quiet_NaN();
  }

  QuantizeArgs Args(Rng* rng, uint32_t k) const {
    return {.x = x,
            .words = word,
            .factor = factor,
            .k = k,
            .counter = static_cast<uint32_t>(rng->Next()),
            .offsets = RandomOffsets(rng)};
  }
};

TEST_P(HbiKernelsTest, PackAndUnpackEveryWidth) {
  for (const uint32_t width : Widths()) {
    SCOPED_TRACE(width);
    for (int round = 0; round < 8; ++round) {
      Tile tile = RandomTile(&rng_, width);
      if (round == 0) {
        std::fill(std::begin(tile.fields), std::end(tile.fields),
                  static_cast<uint16_t>(Values(width) - 1));
      }
      Stream expected, packed;
      reference_.pack(tile.fields, width, expected.data(), 1);
      BestKernels().pack(tile.fields, width, packed.data(), 1);
      ASSERT_EQ(std::memcmp(packed.data(), expected.data(), PackedBytes(width)), 0);
      ASSERT_TRUE(packed.FrontIntact());
      for (size_t i = PackedBytes(width) + kWriteSlack; i < kMaxPacked + kReadSlack; ++i) {
        ASSERT_EQ(packed.data()[i], 0xa5) << "written beyond the slack, at " << i;
      }
      Tile unpacked, reference;
      BestKernels().unpack(expected.data(), width, unpacked.fields, 1);
      ASSERT_EQ(unpacked, tile);
      reference_.unpack(expected.data(), width, reference.fields, 1);
      ASSERT_EQ(reference, tile);
      Tile sum = RandomTile(&rng_, 32), reference_sum = sum;
      BestKernels().unpack_add(expected.data(), width, sum.fields, 1);
      reference_.unpack_add(expected.data(), width, reference_sum.fields, 1);
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
    Tile sum = RandomTile(&rng_, 30), reference_sum = sum;
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
  for (const uint32_t k :
       {1u, 2u, 3u, 5u, 7u, 10u, 15u, 22u, 31u, 44u, 63u, 90u, 127u, 255u, 1023u, kMaxLevels}) {
    const Elements elements(&rng_, k);
    for (uint32_t h = 1; 2 * (h + 1) * k < kFieldLimit; h = h < 4 ? h + 1 : 2 * h) {
      SCOPED_TRACE(testing::Message() << "K " << k << ", contributions " << h);
      const uint32_t in_width = Width(h, k), out_width = Width(h + 1, k);
      Tile incoming;
      for (uint16_t& field : incoming.fields) {
        field = static_cast<uint16_t>(rng_.Below(2 * h * k + 1));
      }
      Stream in, expected, found;
      reference_.pack(incoming.fields, in_width, in.data(), 1);
      const QuantizeArgs args = elements.Args(&rng_, k);
      reference_.add_encode(args, in.data(), in_width, out_width, expected.data());
      BestKernels().add_encode(args, in.data(), in_width, out_width, found.data());
      ASSERT_EQ(std::memcmp(found.data(), expected.data(), PackedBytes(out_width)), 0);
      // The reference is the sum of the two tiles.
      Tile own, sum;
      reference_.quantize(args, own.fields);
      reference_.unpack(expected.data(), out_width, sum.fields, 1);
      for (uint32_t i = 0; i < kSuperblock; ++i) {
        ASSERT_EQ(sum.fields[i], own.fields[i] + incoming.fields[i]);
      }
    }
  }
}

TEST_P(HbiKernelsTest, DecodeEveryWidth) {
  for (const uint32_t width : Widths()) {
    SCOPED_TRACE(width);
    const uint32_t zero = Values(width) / 2;
    Elements elements(&rng_, 1);
    if (width % 5 == 0) StoreWord(width % 10 == 0 ? kPoison : kZeroCode, elements.word, 0);
    const Tile tile = RandomTile(&rng_, width);
    const DecodeArgs args{.words = elements.word, .step = elements.step, .zero = zero};
    float expected[kSuperblock], found[kSuperblock], fused[kSuperblock];
    reference_.decode(args, tile.fields, expected);
    BestKernels().decode(args, tile.fields, found);
    ASSERT_EQ(std::memcmp(found, expected, sizeof expected), 0);
    Stream packed;
    reference_.pack(tile.fields, width, packed.data(), 1);
    BestKernels().unpack_decode(args, packed.data(), width, fused);
    ASSERT_EQ(std::memcmp(fused, expected, sizeof expected), 0);
  }
}

TEST_P(HbiKernelsTest, RequantizeUpToEightSuperblocks) {
  constexpr uint32_t kMost = 8;
  int poisoned = 0;
  for (int round = 0; round < 200; ++round) {
    const auto count = 1 + static_cast<uint32_t>(rng_.Below(kMost));
    const auto zero = 1 + static_cast<uint32_t>(rng_.Below(rng_.Below(2) == 0 ? 40 : 32767));
    const auto k2 = 1 + static_cast<uint32_t>(rng_.Below(rng_.Below(2) == 0 ? 20 : 4095));
    Elements levels(&rng_, 1), own(&rng_, k2);
    std::vector<uint16_t> tile((count + 1) * kSuperblock, 0xa5a5);
    std::vector<uint8_t> words(count * kWordBytes), expected_words((count + 1) * kWordBytes, 0xa5);
    for (uint32_t s = 0; s < count; ++s) {
      StoreWord(LoadWord(Elements(&rng_, 1).word, 0), words.data(), s);
      const bool silent = rng_.Below(5) == 0;
      for (uint32_t i = 0; i < kSuperblock; ++i) {
        const uint64_t field = silent || rng_.Below(9) == 0 ? zero : rng_.Below(2 * zero + 1);
        tile[s * kSuperblock + i] = static_cast<uint16_t>(field);
      }
    }
    if (round % 4 == 0) {  // sums of this code's blocks overflow
      levels.step[CodeOf(LoadWord(words.data(), count - 1), round / 4 % kBlocks)] =
          std::numeric_limits<float>::max();
    }
    const RequantizeArgs args{
        .sum = {.words = words.data(), .step = levels.step, .zero = zero, .superblocks = count},
        .own = static_cast<float>(2.0 * k2 / (2.0 * k2 + 1)),
        .factor = own.factor,
        .k = k2};
    std::vector<uint16_t> expected_tile = tile;
    std::vector<uint8_t> own_words = expected_words;
    reference_.requantize(args, expected_tile.data(), expected_words.data());
    BestKernels().requantize(args, tile.data(), own_words.data());
    ASSERT_EQ(own_words, expected_words) << "round " << round;
    ASSERT_EQ(tile, expected_tile) << "round " << round;
    ASSERT_EQ(tile.back(), 0xa5a5);
    ASSERT_EQ(own_words.back(), 0xa5);
    for (uint32_t s = 0; s < count; ++s) {
      poisoned += IsPoison(LoadWord(own_words.data(), s)) ? 1 : 0;
    }
  }
  EXPECT_GT(poisoned, 0);
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

// The scales as docs/format.md has them, without the code's own tables.
constexpr uint32_t kFifths[5] = {0x3f800000, 0x3f93088c, 0x3fa8e5a3, 0x3fc20300, 0x3fdedc67};
double ScaleOf(int code) {
  const int q = code - 501;
  const auto octave = static_cast<int>(std::floor(q / 5.0));
  return std::ldexp(double{std::bit_cast<float>(kFifths[q - 5 * octave])}, octave);
}

// A superblock for each magnitude, in a block of it, with others far below; the scale of every
// kind.
TEST_P(HbiKernelsTest, SideWordsOfEveryScale) {
  // All exponents, mantissas around the five thresholds, non-finite values.
  std::vector<uint32_t> magnitudes = {0,          1,          2,          0x7fffff,
                                      0x7f800000, 0x7f800001, 0x7fc00000, 0x7fffffff};
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const uint32_t mantissa : kFifths) {
      for (int delta = -1; delta <= 1; ++delta) {
        magnitudes.push_back((exponent << 23) +
                             ((mantissa + static_cast<uint32_t>(delta)) & 0x7fffff));
      }
    }
  }
  std::vector<float> x(magnitudes.size() * kSuperblock);
  for (size_t s = 0; s < magnitudes.size(); ++s) {
    const uint32_t sign = static_cast<uint32_t>(rng_.Next()) & 0x80000000;
    const float largest = std::bit_cast<float>(magnitudes[s] | sign);
    for (size_t j = 0; j < kSuperblock; ++j) {
      const double below = std::exp2(-static_cast<double>(j / kBlock)) * rng_.Uniform();
      x[s * kSuperblock + j] =
          std::isfinite(largest) ? static_cast<float>(double{-largest} * below) : 0;
    }
    x[s * kSuperblock + rng_.Below(kSuperblock)] = largest;
  }
  for (const float scale : {1.0f, 2.0f / 3, 62.0f / 63}) {
    std::vector<uint8_t> expected(magnitudes.size() * kWordBytes), found = expected;
    reference_.side_words(x.data(), magnitudes.size(), scale, expected.data());
    BestKernels().side_words(x.data(), magnitudes.size(), scale, found.data());
    EXPECT_EQ(found, expected);
    for (size_t first = 0; first < 40; ++first) {  // every number of superblocks
      std::vector<uint8_t> few(first * kWordBytes);
      BestKernels().side_words(x.data() + 3 * kSuperblock, first, scale, few.data());
      ASSERT_TRUE(std::equal(few.begin(), few.end(), expected.begin() + 3 * kWordBytes));
    }
    for (size_t s = 0; s < magnitudes.size(); ++s) {
      // The definition: the smallest code whose M is not below the magnitude, by block; none more
      // than 7 below the largest or below 321, beyond the middle more than 3 or below 1.
      const uint32_t word = LoadWord(expected.data(), s);
      ASSERT_TRUE(IsValid(word));
      int codes[kBlocks], top = 0;
      for (uint32_t b = 0; b < kBlocks; ++b) {
        float largest = 0;
        for (uint32_t j = 0; j < kBlock; ++j) {
          const float y = std::fabs(x[s * kSuperblock + b * kBlock + j]);
          largest = std::isnan(y) ? std::numeric_limits<float>::infinity() : std::max(largest, y);
        }
        const double magnitude = double{largest * scale};
        codes[b] = magnitude == 0 ? 0 : 1;
        if (!std::isfinite(magnitude)) codes[b] = 1142;
        while (codes[b] > 0 && codes[b] < 1141 && ScaleOf(codes[b]) < magnitude) ++codes[b];
        top = std::max(top, codes[b]);
      }
      const bool middle = 321 <= top && top <= 569;
      uint16_t shared[kBlocks];
      for (uint32_t b = 0; b < kBlocks; ++b) {
        const int least = middle ? std::max(top - 7, 321) : std::max(top - 3, 1);
        const bool whole = top == 0 || top == 1142;
        shared[b] = static_cast<uint16_t>(whole ? top : std::max(codes[b], least));
        ASSERT_EQ(CodeOf(word, b), shared[b]) << s << " block " << b;
      }
      ASSERT_EQ(TopOf(word), static_cast<uint32_t>(top));
      ASSERT_EQ(word, test::HbiWord(shared)) << s;
    }
  }
}

uint32_t RandomWord(Rng* rng) {
  uint16_t codes[kBlocks];
  // Around the ends of the codes and of the middle ones, or anywhere.
  constexpr uint64_t kEnds[] = {1, kMiddleFirst - 8, kMiddleLast - 8, kLastCode - 8};
  const uint64_t kind = rng->Below(8);
  const uint64_t least = kind < 4 ? kEnds[kind] + rng->Below(10) : rng->Below(kLastCode);
  const uint64_t spread = rng->Below(3) == 0 ? 4 : 16;
  for (uint16_t& code : codes) {
    code = static_cast<uint16_t>(std::min<uint64_t>(kLastCode, least + rng->Below(spread)));
  }
  if (kind == 7) codes[rng->Below(kBlocks)] = kPoison;
  if (kind == 6) std::fill(std::begin(codes), std::end(codes), kZeroCode);
  return WordOf(codes);
}

TEST_P(HbiKernelsTest, MergedWords) {
  for (size_t superblocks = 0; superblocks < 100; ++superblocks) {
    std::vector<uint8_t> a(superblocks * kWordBytes), b = a;
    for (size_t s = 0; s < superblocks; ++s) {
      StoreWord(RandomWord(&rng_), a.data(), s);
      StoreWord(RandomWord(&rng_), b.data(), s);
    }
    std::vector<uint8_t> expected = a, found = a, other = b, again = a;
    reference_.merge_words(b.data(), superblocks, expected.data());
    BestKernels().merge_words(b.data(), superblocks, found.data());
    BestKernels().merge_words(a.data(), superblocks, other.data());
    BestKernels().merge_words(a.data(), superblocks, again.data());
    ASSERT_EQ(found, expected);
    ASSERT_EQ(other, expected);  // in either order
    ASSERT_EQ(again, a);
    BestKernels().merge_words(b.data(), superblocks, found.data());
    ASSERT_EQ(found, expected);
    for (size_t s = 0; s < superblocks; ++s) {
      const uint32_t merged = LoadWord(expected.data(), s);
      const uint32_t of_a = LoadWord(a.data(), s), of_b = LoadWord(b.data(), s);
      ASSERT_TRUE(IsValid(merged));
      const uint32_t top = std::max(TopOf(of_a), TopOf(of_b));
      ASSERT_EQ(TopOf(merged), top);
      for (uint32_t block = 0; block < kBlocks && IsLive(merged); ++block) {
        const uint32_t larger = std::max(CodeOf(of_a, block), CodeOf(of_b, block));
        const bool middle = 321 <= top && top <= 569;
        const uint32_t lowest = middle ? 321 : 1, most = middle ? 7 : 3;
        ASSERT_EQ(CodeOf(merged, block), std::max({larger, top - std::min(top, most), lowest}));
      }
    }
  }
}

// Any order and grouping of ranks gives the word of their largest magnitudes.
TEST(HbiFormat, AgreementOfAnyTree) {
  Rng rng(test::TestSeed());
  for (int round = 0; round < 3000; ++round) {
    std::vector<uint32_t> words;
    uint16_t largest[kBlocks] = {};
    constexpr uint64_t kFirsts[] = {1, kMiddleFirst - 10, kMiddleLast - 10, kLastCode - 19};
    const uint64_t first = kFirsts[rng.Below(4)];
    for (uint64_t ranks = 2 + rng.Below(6); ranks > 0; --ranks) {
      uint16_t codes[kBlocks];
      for (uint32_t b = 0; b < kBlocks; ++b) {
        const uint64_t any = round % 2 == 0 ? first + rng.Below(20) : 1 + rng.Below(kLastCode);
        codes[b] = static_cast<uint16_t>(rng.Below(4) == 0 ? 0 : any);
        if (rng.Below(200) == 0) codes[b] = kPoison;
        largest[b] = std::max(largest[b], codes[b]);
      }
      words.push_back(WordOf(codes));
    }
    while (words.size() > 1) {
      const size_t i = rng.Below(words.size());
      const uint32_t one = words[i];
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i));
      uint32_t& other = words[rng.Below(words.size())];
      other = rng.Below(2) == 0 ? Merged(one, other) : Merged(other, one);
    }
    ASSERT_EQ(words[0], WordOf(largest));
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
      const uint32_t code = 440;
      StoreWord(WordOfTop(code), elements.word, 0);
      const auto m = static_cast<float>(Magnitude(code));
      Stream streams[2];
      for (uint32_t rank = 0; rank < n; ++rank) {
        for (uint32_t i = 0; i < kSuperblock; ++i) {
          const bool negative = i % 4 == 1 || (i % 4 == 2 && rank % 2 != 0);
          elements.x[i] = negative ? -m : m;
        }
        QuantizeArgs args = elements.Args(&rng_, k);
        args.offsets = OffsetsOf(static_cast<int>(rank), static_cast<int>(n), k % 2 == 0);
        uint8_t* out = streams[rank % 2].data();
        const uint32_t width = Width(rank + 1, k);
        if (rank == 0) {
          kernels.encode(args, width, out);
        } else {
          kernels.add_encode(args, streams[1 - rank % 2].data(), Width(rank, k), width, out);
        }
      }
      Tile sum;
      kernels.unpack(streams[(n - 1) % 2].data(), Width(n, k), sum.fields, 1);
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
    for (const uint32_t code : {1u, 100u, 420u, 421u, 422u, 423u, 424u, 1140u}) {
      const auto m = static_cast<float>(Magnitude(code));
      Elements elements(&rng, k);
      StoreWord(WordOfTop(code), elements.word, 0);
      const float near[4] = {m, std::nextafter(m, 0.0f), -m, std::nextafter(-m, 0.0f)};
      for (uint32_t i = 0; i < kSuperblock; ++i) elements.x[i] = near[i % 4];
      // 16 shifts spread the offsets of every element evenly.
      const QuantizeArgs base = elements.Args(&rng, k);
      for (uint32_t shift = 0; shift < 65536; shift += k < 16 ? 4096 : 32768) {
        QuantizeArgs args = base;
        args.offsets.add = static_cast<uint16_t>(base.offsets.add + shift);
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
  for (const uint32_t width : Widths()) {
    const uint32_t most = Values(width) - 1;
    for (const size_t superblocks : {size_t{1}, size_t{3}}) {
      std::vector<uint8_t> a, b;
      std::vector<Tile> sums;
      for (size_t s = 0; s < superblocks; ++s) {
        Tile x = RandomTile(&rng, width), y = RandomTile(&rng, width), sum;
        for (uint32_t i = 0; i < kSuperblock; ++i) {
          // Any pair whose sum still fits; often the largest.
          y.fields[i] = static_cast<uint16_t>(
              rng.Below(4) == 0 ? most - x.fields[i] : rng.Below(most + 1 - x.fields[i]));
          sum.fields[i] = static_cast<uint16_t>(x.fields[i] + y.fields[i]);
        }
        a.resize((s + 1) * PackedBytes(width));
        b.resize(a.size());
        ScalarKernels().pack(x.fields, width, a.data() + s * PackedBytes(width), 1);
        ScalarKernels().pack(y.fields, width, b.data() + s * PackedBytes(width), 1);
        sums.push_back(sum);
      }
      AddPacked(a.data(), b.data(), a.size() / 8, width, a.data());
      for (size_t s = 0; s < superblocks; ++s) {
        Tile found;
        ScalarKernels().unpack(a.data() + s * PackedBytes(width), width, found.fields, 1);
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
  // mix64 and the salts, computed from docs/format.md.
  const struct {
    Salt salt;
    uint64_t block;
    uint32_t counter;
  } kCounters[] = {
      {Salt::kSum, 5, 0xae9e10c4u},    {Salt::kSum, (1u << 28) + 2, 0xd0c7744fu},
      {Salt::kResult, 5, 0x11908067u}, {Salt::kResult, (1u << 28) + 2, 0x148241efu},
      {Salt::kSigns, 5, 0x35fbfb59u},  {Salt::kSigns, (1u << 28) + 2, 0xc411cc72u},
      {Salt::kGroups, 5, 0x7d8760adu}, {Salt::kGroups, (1u << 28) + 2, 0x08695227u},
  };
  for (const auto& c : kCounters) EXPECT_EQ(HashCounter(7, 3, c.block, c.salt), c.counter);
  EXPECT_EQ(kRoundHalfUp, 32768u);
  EXPECT_EQ(RankShift(0, 3), 0);
  EXPECT_EQ(RankShift(1, 3), 21845);
  EXPECT_EQ(RankShift(2, 3), 43690);
  EXPECT_EQ(HashCounter(5, 6, 1) - HashCounter(5, 6, 0), 16u);
  EXPECT_NE(HashCounter(5, 6, 1u << 28), HashCounter(5, 6, 0));
}

// The n offsets of an element lie at (j + 1/2) / n.
TEST(HbiFormat, OffsetsOfNths) {
  Rng rng(test::TestSeed());
  for (const int n : {2, 3, 4, 5, 7, 8, 16, 61, 100, 255, 1000}) {
    for (int round = 0; round < 300; ++round) {
      const auto hash = static_cast<uint32_t>(rng.Next());
      std::vector<uint32_t> offsets;
      for (int i = 0; i < n; ++i) {
        offsets.push_back(RoundingOffset(hash, round % 32, OffsetsOf(i, n, false)));
      }
      std::sort(offsets.begin(), offsets.end());
      for (int j = 0; j < n; ++j) {
        ASSERT_NEAR(offsets[static_cast<size_t>(j)], (2 * j + 1) * 32768 / n, 2) << n;
      }
    }
  }
  // With unbiased=1 r stays.
  EXPECT_EQ(RoundingOffset(0x12345678, 3, OffsetsOf(1, 4, true)), 0x5678u + 16384u);
  EXPECT_EQ(RoundingOffset(0x12345678, 17, OffsetsOf(0, 3, true)), 0x1234u);
  EXPECT_EQ(RoundingOffset(0x12345678, 3, OffsetsOf(1, 4, false)), 0x4000u + 0x2000u + 0x4000u);
}

TEST(HbiFormat, WidthsAndPairs) {
  // The definition: twice the bits of the largest sum, or one less where two such values fit.
  for (uint32_t k = 1; k <= kMaxLevels; ++k) {
    for (const uint32_t h : {1u, 2u, 3u, 5u, 8u}) {
      const uint64_t most = 2 * h * k;
      if (most >= kFieldLimit) continue;
      uint32_t bits = 0;
      while (most >> bits != 0) ++bits;
      const uint32_t pair = 2 * bits - 1;
      const auto base = static_cast<uint64_t>(std::sqrt(std::exp2(pair)));
      const uint32_t expected = pair >= 5 && pair <= 15 && base > most ? pair : 2 * bits;
      ASSERT_EQ(Width(h, k), expected) << "K " << k << " times " << h;
    }
  }
  for (uint32_t width = 5; width <= 15; width += 2) {
    const PairInverse inverse = InverseOfBase(width);
    for (uint32_t v = 0; v < 1u << width; ++v) {
      ASSERT_EQ((v * inverse.times >> 16) >> inverse.shift, v / PairBase(width)) << width;
    }
  }
}

// M of every code, and the code of M and of its neighbours.
TEST(HbiFormat, EveryScaleIsTheDefinitions) {
  for (uint32_t code = 1; code <= 1140; ++code) {
    ASSERT_EQ(Magnitude(code), ScaleOf(static_cast<int>(code))) << code;
    ASSERT_NEAR(std::log2(Magnitude(code)), -100 + (code - 1) / 5.0, 1e-6) << code;
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(ScaleOf(code)));
    ASSERT_EQ(CodeOfMagnitude(bits - 1), code);
    ASSERT_EQ(CodeOfMagnitude(bits), code);
    ASSERT_EQ(CodeOfMagnitude(bits + 1), code + 1);
  }
  EXPECT_EQ(Magnitude(1141), 0x1p128);
  EXPECT_EQ(CodeOfMagnitude(0x7f7fffff), 1141);
  EXPECT_EQ(CodeOfMagnitude(0x7f800000), 1142);
  EXPECT_EQ(CodeOfMagnitude(1), 1);
  EXPECT_EQ(CodeOfMagnitude(0), 0);
}

// A peer may change a word in its memory after this rank has checked it.
TEST(HbiFormat, WordsThatAreNotValidStayWithinTheTables) {
  std::vector<uint8_t> words;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (const uint32_t rest : {0u, 0xffffffu, 0x249249u, 0x800001u, 0xffff00u, 0x0000ffu}) {
      const uint32_t word = byte | rest << 8;
      EXPECT_LT(TopOf(word), kTableCodes);
      for (uint32_t block = 0; block < kBlocks; ++block) {
        EXPECT_LT(CodeOf(word, block), kTableCodes);
      }
      words.resize(words.size() + kWordBytes);
      StoreWord(word, words.data(), words.size() / kWordBytes - 1);
    }
  }
  const Planner planner(Collective::kAllReduce, 4, Config{});
  std::vector<uint8_t> points(words.size() / kWordBytes);
  PlanSummary summary;
  planner.Plan(words.data(), points, &summary);
}

// Every set of eight differences, one of them zero, in a random order, below any top.
TEST(HbiFormat, EnergyOfEveryWord) {
  Rng rng(test::TestSeed());
  std::vector<int> below(kBlocks, 0);  // ascending
  const auto next = [&below] {
    for (size_t i = kBlocks - 1; i > 0; --i) {
      if (below[i] == 7) continue;
      std::fill(below.begin() + static_cast<std::ptrdiff_t>(i), below.end(), below[i] + 1);
      return true;
    }
    return false;
  };
  int words = 0;
  do {
    // Outer words have no more than three codes below the top.
    const uint32_t codes_below = static_cast<uint32_t>(below.back());
    uint32_t top =
        kMiddleFirst + 7 + static_cast<uint32_t>(rng.Below(kMiddleLast - kMiddleFirst - 6));
    if (codes_below < 4 && rng.Below(2) == 0) top = 4 + static_cast<uint32_t>(rng.Below(310));
    if (codes_below < 4 && rng.Below(4) == 0) top = 570 + static_cast<uint32_t>(rng.Below(572));
    uint16_t codes[kBlocks];
    const size_t first = rng.Below(kBlocks);
    for (size_t b = 0; b < kBlocks; ++b) {
      codes[(first + b) % kBlocks] = static_cast<uint16_t>(top - static_cast<uint32_t>(below[b]));
    }
    ASSERT_EQ(EnergyExponent(WordOf(codes)), test::HbiEnergy(codes)) << "top " << top;
    ++words;
  } while (next());
  EXPECT_EQ(words, 3432);
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
