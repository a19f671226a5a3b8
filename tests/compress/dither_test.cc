// SPDX-License-Identifier: Apache-2.0
//
// dither against its definition, written here as plain loops: what every element becomes, sums over
// every algorithm, the bytes of the sparse form; unbiased results; the a-priori bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "compress/block_code_calls.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

struct Options {
  uint32_t bits;
  size_t block;
  bool powers, l2, sparse;
  double levels() const { return std::exp2(bits - 1) - 1; }
  std::string spec() const {
    return "dither:bits=" + std::to_string(bits) + ",block=" + std::to_string(block) +
           ",levels=" + (powers ? "pow2" : "linear") + ",norm=" + (l2 ? "l2" : "max") +
           ",sparse=" + (sparse ? "1" : "0");
  }
};

const Options kOptions[] = {
    {2, 256, false, false, false}, {2, 256, false, true, true},  {3, 64, true, false, true},
    {4, 256, false, false, true},  {4, 32, true, true, false},   {5, 128, false, true, false},
    {6, 256, true, false, false},  {8, 256, false, false, true}, {8, 32, false, true, false},
};

// ---------------------------------------------------------------- the definition

uint32_t Hash(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

float NormOf(const float* x, size_t count, bool l2) {
  double part[16] = {};
  float largest = 0;
  for (size_t i = 0; i < count; ++i) {
    part[i % 16] += double{x[i]} * double{x[i]};
    largest = std::max(largest, std::fabs(x[i]));
  }
  if (!l2) return largest;
  for (size_t n = 8; n > 0; n /= 2) {
    for (size_t i = 0; i < n; ++i) part[i] += part[i + n];
  }
  const double root = std::sqrt(part[0]);
  const auto near = static_cast<float>(root);
  return double{near} < root ? std::nextafter(near, INFINITY) : near;
}

// The level of a magnitude, from 0 to s.
double LevelOf(float magnitude, float norm, const Options& o, uint32_t hash) {
  const double s = o.levels(), uniform = std::floor(hash / 256.0) / 0x1p24;
  if (!o.powers) {
    const double scaled = std::min<double>(s, magnitude * (static_cast<float>(s) / norm));
    return std::floor(scaled) + (uniform < scaled - std::floor(scaled) ? 1 : 0);
  }
  const double scaled = std::min<double>(1, magnitude * (1 / norm));
  if (scaled < std::exp2(1 - s)) return uniform < scaled * std::exp2(s - 1) ? 1 : 0;
  int exponent = 0;
  const double fraction = 2 * std::frexp(scaled, &exponent) - 1;  // scaled = 2^(e-1) (1 + fraction)
  return exponent - 1 + s + (std::floor(hash / 512.0) / 0x1p23 + fraction >= 1 ? 1 : 0);
}

// What a vector becomes that `rank` encodes (the number of ranks: the owner of a total).
Floats Decoded(const Floats& x, const Options& o, uint64_t seed, uint64_t step, uint64_t rank) {
  const uint64_t key = Mix64(seed ^ Mix64(step ^ Mix64(Mix64(rank))));
  const double s = o.levels();
  Floats y(x.size());
  for (size_t at = 0; at < x.size(); at += o.block) {
    const size_t count = std::min(o.block, x.size() - at);
    const float norm = NormOf(&x[at], count, o.l2);
    if (norm < 0x1p-100f) continue;
    for (size_t i = at; i < at + count; ++i) {
      const auto random =
          static_cast<uint32_t>(Mix64(key + i / 256)) + static_cast<uint32_t>(i % 256);
      const double level = LevelOf(std::fabs(x[i]), norm, o, Hash(random));
      const float magnitude = !o.powers ? static_cast<float>(level) * (norm / static_cast<float>(s))
                              : level == 0 ? 0
                                           : static_cast<float>(std::exp2(level - s)) * norm;
      y[i] = std::signbit(x[i]) ? -magnitude : magnitude;
    }
  }
  return y;
}

Floats SumByDefinition(const Vectors& inputs, const Options& o, uint64_t seed, uint64_t step) {
  Floats total(inputs[0].size());
  for (size_t r = 0; r < inputs.size(); ++r) {
    const Floats y = Decoded(inputs[r], o, seed, step, r);
    for (size_t i = 0; i < y.size(); ++i) total[i] += y[i];
  }
  return Decoded(total, o, seed, step, inputs.size());
}

// ---------------------------------------------------------------- tests

TEST(Dither, ResultsAreTheDefinitions) {
  Rng rng(TestSeed());
  for (const Options& o : kOptions) {
    for (const size_t n : {2u, 3u, 8u}) {
      CodecWorld world(*MakeCodec(o.spec()), static_cast<int>(n));
      for (const size_t count : {1u, 33u, 256u, 3000u}) {
        const Vectors inputs = Inputs(n, count, &rng);
        const uint64_t seed = rng.Next(), step = rng.Below(100);
        const Floats expected = SumByDefinition(inputs, o, seed, step);
        // More bits of eight ranks travel as elements, which algorithms add in orders of their own.
        for (const Algorithm algorithm : kAll) {
          if (n * o.bits >= 28 && algorithm != Algorithm::kTwoShot) continue;
          const Floats result = Sum(&world, algorithm, inputs, seed, step);
          for (size_t i = 0; i < count; ++i) {
            ASSERT_EQ(result[i], expected[i])
                << o.spec() << " " << Name(algorithm) << " n " << n << " element " << i;
          }
        }
      }
    }
  }
}

// The same elements as without `sparse`, in fewer bytes; never more than the bound.
TEST(Dither, TheSparseFormHoldsTheSame) {
  Rng rng(TestSeed());
  for (Options o : kOptions) {
    o.sparse = true;
    Options dense = o;
    dense.sparse = false;
    for (const double kept : {0.0, 0.005, 0.05, 0.12, 0.3, 1.0}) {
      Vectors inputs = Inputs(2, 2500, &rng);
      for (Floats& x : inputs) {
        for (float& e : x) e = rng.Uniform() < kept ? e : 0;
      }
      CodecWorld plain(*MakeCodec(dense.spec()), 2), packed(*MakeCodec(o.spec()), 2);
      const uint64_t seed = rng.Next();
      ASSERT_EQ(Sum(&packed, Algorithm::kTwoShot, inputs, seed),
                Sum(&plain, Algorithm::kTwoShot, inputs, seed))
          << o.spec() << " " << kept;
      const uint64_t sent = packed.sent(0).payload_bytes, most = plain.sent(0).payload_bytes;
      EXPECT_LE(sent, most + 2 * 12 * 8);  // a byte per superblock, of a contribution and a result
      if (kept <= 0.05 && o.bits >= 4) {
        EXPECT_LT(sent, most * 2 / 3) << o.spec() << " " << kept;
      }
    }
  }
}

// Each value fills an eighth of every block, so the mean is over steps and copies.
TEST(Dither, ResultsAreUnbiased) {
  constexpr int kSteps = 1500, kValues = 8;
  constexpr size_t kCount = 512;
  const float values[kValues] = {1.0f, 0.77f, -0.5f, 0.26f, -0.1f, 0.031f, 0.002f, -1e-5f};
  Rng rng(TestSeed());
  for (const Options& o : kOptions) {
    Vectors inputs(2, Floats(kCount));
    for (size_t i = 0; i < kCount; ++i) {
      inputs[0][i] = values[i % kValues];
      inputs[1][i] = 0.3f * values[(i + 3) % kValues];
    }
    CodecWorld world(*MakeCodec(o.spec()), 2);
    double sums[kValues] = {}, squares[kValues] = {}, largest = 0;
    const uint64_t seed = rng.Next();
    for (int step = 0; step < kSteps; ++step) {
      const Floats result =
          Sum(&world, Algorithm::kTwoShot, inputs, seed, static_cast<uint64_t>(step));
      for (size_t i = 0; i < kCount; ++i) {
        const double error = double{result[i]} - double{inputs[0][i]} - double{inputs[1][i]};
        sums[i % kValues] += error;
        squares[i % kValues] += error * error;
        largest = std::max(largest, std::fabs(error));
      }
    }
    constexpr double kSamples = double{kSteps} * kCount / kValues;
    for (int v = 0; v < kValues; ++v) {
      const double sigma = std::sqrt(squares[v] / kSamples / kSamples);
      // Events too rare for the variance to show.
      EXPECT_LT(std::fabs(sums[v] / kSamples), 6 * sigma + 20 * largest / kSamples)
          << o.spec() << " value " << values[v];
    }
  }
}

// The bound is reached within a small factor, so it is not idle; any number of ranks.
TEST(Dither, ErrorsStayBelowTheBound) {
  Rng rng(TestSeed());
  for (const Options& o : kOptions) {
    for (const size_t n : {2u, 3u, 8u}) {
      const auto codec = *MakeCodec(o.spec());
      CodecWorld world(codec, static_cast<int>(n));
      double bits = 0, relative = 0, most = 0;
      codec->Bound(Collective::kAllReduce, static_cast<int>(n), &bits, &relative);
      for (int round = 0; round < 20; ++round) {
        const Vectors inputs = Inputs(n, 1000, &rng);
        const Floats result = Sum(&world, Algorithm::kTwoShot, inputs, rng.Next());
        for (size_t at = 0; at < result.size(); at += o.block) {
          const size_t end = std::min(result.size(), at + o.block);
          double largest = 0;
          for (const Floats& x : inputs) {
            for (size_t i = at; i < end; ++i) largest = std::max(largest, std::fabs(double{x[i]}));
          }
          for (size_t i = at; i < end; ++i) {
            double sum = 0;
            for (const Floats& x : inputs) sum += double{x[i]};
            most = std::max(most, std::fabs(result[i] - sum) / (static_cast<double>(n) * largest));
          }
        }
      }
      EXPECT_LE(most, relative) << o.spec() << " n " << n;
      EXPECT_GT(most, relative / (o.l2 ? 200 : 20)) << o.spec() << " n " << n;
    }
  }
}

TEST(Dither, SmallAndLargeBlocks) {
  const float top = std::numeric_limits<float>::max();
  for (const Options& o : kOptions) {
    CodecWorld world(*MakeCodec(o.spec()), 2);
    // Below the least norm elements are zero.
    Vectors inputs = {Floats(300, 0x1p-120f), Floats(300, -0x1p-149f)};
    for (const float x : Sum(&world, Algorithm::kTwoShot, inputs)) ASSERT_EQ(x, 0) << o.spec();
    // An L2 norm beyond the range is the largest number.
    inputs = {Floats(300, top / 4), Floats(300, 0)};
    for (const float x : Sum(&world, Algorithm::kTwoShot, inputs)) {
      ASSERT_TRUE(x >= 0 && x <= top) << o.spec() << " " << x;
    }
    inputs[1][280] = std::numeric_limits<float>::quiet_NaN();
    const Floats result = Sum(&world, Algorithm::kRing, inputs);
    const size_t first = 280 / o.block * o.block;
    for (size_t i = 0; i < 300; ++i) {
      ASSERT_EQ(std::isnan(result[i]), i >= first && i < first + o.block) << o.spec() << " " << i;
    }
  }
}

}  // namespace
}  // namespace inccl::test
