// SPDX-License-Identifier: Apache-2.0
//
// Random calls of the codec hbi: data of many kinds, all options.
#ifndef INCCL_TESTS_COMPRESS_HBI_CASES_H_
#define INCCL_TESTS_COMPRESS_HBI_CASES_H_

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/hbi_driver.h"
#include "support/hbi_oracle.h"

namespace inccl::test {

using Vectors = std::vector<std::vector<float>>;

inline double Normal(Rng* rng) {
  const double u = rng->Uniform() + 0x1p-54, v = rng->Uniform();
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v);
}

// Data of one kind: what matters is the spread of scales, zeros and special values.
enum class Kind { kGauss, kScales, kSparse, kSpecial, kTiny, kHuge, kZero, kConstant };
inline constexpr int kKinds = 8;

inline float Element(Kind kind, Rng* rng, double scale) {
  switch (kind) {
    case Kind::kGauss: return static_cast<float>(Normal(rng));
    case Kind::kScales: return static_cast<float>(scale * Normal(rng));
    case Kind::kSparse: return rng->Below(50) == 0 ? static_cast<float>(Normal(rng)) : 0.0f;
    case Kind::kSpecial: {
      static const float kSpecial[] = {std::numeric_limits<float>::quiet_NaN(),
                                       -std::numeric_limits<float>::infinity(),
                                       -0.0f,
                                       std::numeric_limits<float>::denorm_min(),
                                       -std::numeric_limits<float>::max(),
                                       1e-38f,
                                       3.0f};
      return rng->Below(300) == 0 ? kSpecial[rng->Below(7)] : static_cast<float>(Normal(rng));
    }
    case Kind::kTiny: return static_cast<float>(Normal(rng) * 1e-38);
    case Kind::kHuge: return static_cast<float>(Normal(rng) * 1e37);
    case Kind::kZero: return rng->Below(2) == 0 ? 0.0f : -0.0f;
    case Kind::kConstant: return 0.7f;
  }
  return 0;
}

inline Vectors MakeInputs(int n, size_t count, Kind kind, Rng* rng) {
  Vectors inputs(static_cast<size_t>(n), std::vector<float>(count));
  for (size_t e = 0, superblocks = count / 256 + 1; superblocks > 0; --superblocks) {
    const double scale = std::exp(3 * Normal(rng));
    const bool dead = rng->Below(5) == 0;
    for (const size_t end = std::min(count, e + 256); e < end; ++e) {
      for (std::vector<float>& input : inputs) {
        input[e] = kind == Kind::kScales && dead ? 0.0f : Element(kind, rng, scale);
      }
    }
  }
  return inputs;
}

inline int BitWidth(int x) { return x == 0 ? 0 : 1 + BitWidth(x / 2); }

struct Case {
  int n = 2;
  size_t count = 0;
  Kind kind = Kind::kGauss;
  HbiOptions options;
  std::string spec;
};

// Nothing may be dropped, so `bits` must be enough for that.
inline void MakeUnbiased(Case* c) {
  c->options.unbiased = true;
  c->spec += ",unbiased=1";
  if (c->options.k > 0) return;
  const int least8 = c->options.ring ? 8 * (BitWidth(2 * c->n) + 1) : 20;
  if (c->options.bits8 >= least8) return;
  const size_t at = c->spec.find("bits="), end = c->spec.find(',', at);
  c->options.bits8 = least8;
  c->spec.replace(at, end - at, fmt::format("bits={}", least8 / 8.0));
}

// `coded`: some with code=entropy, whose results, but not payloads, an oracle knows.
inline Case RandomCase(Rng* rng, bool coded = false) {
  static const int kRanks[] = {2, 2, 3, 4, 5, 8, 16, 33};
  Case c;
  c.n = kRanks[rng->Below(8)];
  const size_t small = 1 + rng->Below(3000), large = 1 + rng->Below(40000);
  c.count = rng->Below(3) == 0 && c.n <= 8 ? large : small;
  if (rng->Below(4) == 0) c.count = (c.count + 255) / 256 * 256;
  c.kind = static_cast<Kind>(rng->Below(kKinds));
  c.options.seed = rng->Below(3) == 0 ? rng->Next() : rng->Below(2);
  c.options.step = rng->Below(3) == 0 ? rng->Next() : rng->Below(5);
  c.options.ring = rng->Below(3) == 0;
  c.options.exact = rng->Below(3) == 0;
  c.options.average = rng->Below(3) == 0;
  if (rng->Below(4) == 0) {
    c.options.k = static_cast<int>(1 + rng->Below(rng->Below(2) == 0 ? 8 : 65535 / (2 * c.n)));
    c.options.k = std::min(c.options.k, 4095);
    c.options.k2 = static_cast<int>(1 + rng->Below(rng->Below(2) == 0 ? 16 : 4095));
    c.spec = fmt::format("hbi:k={},k2={}", c.options.k, c.options.k2);
  } else {
    c.options.bits8 = static_cast<int>(4 + rng->Below(rng->Below(4) == 0 ? 124 : 70));
    c.options.energy = rng->Below(3) == 0;
    c.spec = fmt::format("hbi:bits={}{}", c.options.bits8 / 8.0,
                         c.options.energy ? ",levels=energy" : "");
  }
  c.options.entropy = coded && rng->Below(3) == 0;
  if (c.options.entropy) {
    c.options.ring = c.options.exact = false;
    c.spec += ",code=entropy";
  }
  c.spec += c.options.ring ? ",ref=ring" : "";
  c.spec += c.options.exact ? ",ag=exact" : "";
  if (rng->Below(3) == 0) MakeUnbiased(&c);
  c.options.rht = rng->Below(4) == 0;
  c.spec += c.options.rht ? ",rht=1" : "";
  return c;
}

inline std::string Describe(const Case& c) {
  return fmt::format("{} n={} count={} kind={} seed={} step={} average={}", c.spec, c.n, c.count,
                     static_cast<int>(c.kind), c.options.seed, c.options.step, c.options.average);
}

inline HbiDriver MakeDriver(const Case& c, DataType type = DataType::kFloat32,
                            Collective collective = Collective::kAllReduce) {
  return HbiDriver(c.spec, c.n, type, c.options.average ? ReduceOp::kAvg : ReduceOp::kSum, c.count,
                   c.options.seed, c.options.step, collective);
}

// ---------------------------------------------------------------- segments

inline constexpr Collective kScatter = Collective::kReduceScatter, kGather = Collective::kAllGather;

// A random call whose oracle does not take long.
inline Case RandomSegments(Rng* rng, bool coded = false) {
  Case c = RandomCase(rng, coded);
  const size_t n = static_cast<size_t>(c.n);
  c.count = std::min(c.count, std::max<size_t>(1, 250000 / n / n));
  return c;
}

// What the ranks of a reduce-scatter send: n segments.
inline Vectors ScatterInputs(const Case& c, Rng* rng) {
  return MakeInputs(c.n, c.count * static_cast<size_t>(c.n), c.kind, rng);
}

inline std::vector<float> Segment(const std::vector<float>& x, size_t segment, size_t count) {
  const auto first = x.begin() + static_cast<std::ptrdiff_t>(segment * count);
  return {first, first + static_cast<std::ptrdiff_t>(count)};
}

// In every `together` elements the error of the sum is at most `relative` times the number of ranks
// times the largest magnitude that any rank has there.
inline void ExpectWithinBound(const std::vector<float>& result, const Vectors& inputs,
                              size_t together, double relative) {
  ASSERT_EQ(result.size() % together, 0u);
  for (size_t b = 0; b < result.size(); b += together) {
    double largest = 0, error = 0;
    for (size_t e = b; e < b + together; ++e) {
      double sum = 0;
      for (const std::vector<float>& x : inputs) {
        largest = std::max(largest, std::fabs(double{x[e]}));
        sum += double{x[e]};
      }
      error = std::max(error, std::fabs(double{result[e]} - sum));
    }
    ASSERT_LE(error, relative * static_cast<double>(inputs.size()) * largest) << "from " << b;
  }
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_COMPRESS_HBI_CASES_H_
