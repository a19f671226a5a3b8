// SPDX-License-Identifier: Apache-2.0
//
// Bounds of compressed calls under attack: random codecs, types, operations, collectives and sizes
// over adversarial data, on ranks that are threads and on ranks of several hosts. Every element of
// every result is compared with the exact sum; its error must stay within the statistics'
// error_bound and, where magnitudes are in the codec's range, within that of ccl_codec_bound. All
// ranks get the same bytes. INCCL_TEST_OPERATIONS: calls of each communicator; INCCL_TEST_SEED
// replays.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "api/random_operations.h"
#include "api/values.h"
#include "base/rng.h"
#include "base/types.h"
#include "integration/compressed_world.h"
#include "integration/hosts_world.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

uint64_t Calls(uint64_t by_default) {
  const char* text = std::getenv("INCCL_TEST_OPERATIONS");
  if (text != nullptr) return std::strtoull(text, nullptr, 10);
  return kSanitized ? by_default / 10 : by_default;
}

// ---------------------------------------------------------------- types

struct FloatType {
  ccl_datatype_t type;
  int mantissa_bits, exponent_bits;
  double largest;
  int Smallest() const { return 2 - (1 << (exponent_bits - 1)) - mantissa_bits; }  // its log2
  // Half a unit in the last place of results of this magnitude, and a unit of denormal ones.
  double HalfUnit(double magnitude) const {
    return std::ldexp(magnitude, -mantissa_bits - 1) + std::ldexp(1, Smallest());
  }
};

constexpr FloatType kTypes[] = {{CCL_FLOAT32, 23, 8, FLT_MAX},
                                {CCL_BFLOAT16, 7, 8, 0x1.fep127},
                                {CCL_FLOAT16, 10, 5, 65504},
                                {CCL_FLOAT64, 52, 11, DBL_MAX}};

// The element nearest to v; what is beyond the largest becomes that.
double Rounded(const FloatType& type, double v) {
  if (v == 0 || !std::isfinite(v)) return v;
  const int unit = std::max(std::ilogb(v) - type.mantissa_bits, type.Smallest());
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(v, -unit)), unit);
  return std::clamp(rounded, -type.largest, type.largest);
}

// Writes an element, which holds v.
void Put(const FloatType& type, void* buffer, size_t index, double v) {
  auto* const bytes = static_cast<std::byte*>(buffer);
  if (type.type == CCL_FLOAT64) {
    std::memcpy(bytes + index * sizeof v, &v, sizeof v);
    return;
  }
  if (type.type == CCL_FLOAT32 || type.type == CCL_BFLOAT16) {
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(v));
    const auto upper = static_cast<uint16_t>(bits >> 16 | (std::isnan(v) ? 1 : 0));
    if (type.type == CCL_FLOAT32) std::memcpy(bytes + index * sizeof bits, &bits, sizeof bits);
    if (type.type == CCL_BFLOAT16) std::memcpy(bytes + index * sizeof upper, &upper, sizeof upper);
    return;
  }
  uint16_t bits = std::signbit(v) ? 0x8000 : 0;
  if (!std::isfinite(v)) {
    bits |= std::isnan(v) ? 0x7e00 : 0x7c00;
  } else if (std::fabs(v) < 0x1p-14) {
    bits |= static_cast<uint16_t>(std::ldexp(std::fabs(v), 24));
  } else if (v != 0) {
    bits = static_cast<uint16_t>(EncodeSmallFloat(v, 5, 10));
  }
  std::memcpy(bytes + index * sizeof bits, &bits, sizeof bits);
}

double Get(const FloatType& type, const void* buffer, size_t index) {
  const double v = Load(type.type, buffer, index);
  // values.h knows no numbers that are not finite.
  return type.type != CCL_FLOAT64 && std::fabs(v) > type.largest
             ? std::numeric_limits<double>::infinity()
             : v;
}

// ---------------------------------------------------------------- codecs

// A codec as this test draws it. Another codec gets a row in kCodecs.
struct Codec {
  std::string (*draw)(Draw* draw);
  // The elements whose largest magnitude the bound of ccl_codec_bound is relative to, and where it
  // holds: these magnitudes, and n times them, lie between low and high.
  size_t together;
  double low, high;
  bool lossless = false;  // errors are those of an uncompressed call
};

std::string OneOf(Draw* draw, std::initializer_list<const char*> texts) {
  return *(texts.begin() + draw->Below(texts.size()));
}

std::string Hbi(Draw* draw, const char* more) {
  std::string spec = "hbi:";
  if (draw->Below(4) == 0) {
    constexpr int kLevels[] = {1, 2, 3, 7, 15, 31, 127, 511};
    spec += fmt::format("k={}", kLevels[draw->Below(8)]);
    if (draw->Below(2) == 0) spec += fmt::format(",k2={}", kLevels[draw->Below(8)]);
  } else {
    const uint64_t eighths = draw->Below(2) == 0 ? 4 + draw->Below(125) : 24 + 8 * draw->Below(6);
    spec += fmt::format("bits={}", static_cast<double>(eighths) / 8);
  }
  if (draw->Below(4) == 0) spec += ",unbiased=1";
  if (draw->Below(6) == 0) {
    spec += OneOf(draw, {",m=2", ",m=3"});
  } else {
    spec += OneOf(draw, {"", "", ",ag=exact", ",ref=ring"});
  }
  return spec + OneOf(draw, {"", "", "", ",checksum=1"}) + OneOf(draw, {"", ",min_bytes=0"}) + more;
}

constexpr size_t kWholeVector = size_t{1} << 20;

std::string Dither(Draw* draw) {
  return fmt::format("dither:bits={},norm={},levels={},sparse={}", 2 + draw->Below(5),
                     OneOf(draw, {"max", "l2"}), OneOf(draw, {"linear", "pow2"}), draw->Below(2));
}

const Codec kCodecs[] = {
    {.draw = [](Draw* draw) { return Hbi(draw, ""); },
     .together = 256,
     .low = 0x1p-30,
     .high = 0x1p10},
    {.draw = [](Draw* draw) { return Hbi(draw, ",rht=1"); },
     .together = 256,
     .low = 0x1p-30,
     .high = 0x1p6},
    {.draw = [](Draw* draw) { return Hbi(draw, ",local=fp32"); },
     .together = 256,
     .low = 0x1p-30,
     .high = 0x1p10},
    {.draw =
         [](Draw* draw) {
           return OneOf(draw, {"none", "lossless"});
         },
     .together = 32,
     .low = 0,
     .high = DBL_MAX,
     .lossless = true},
    {.draw = [](Draw* draw) { return OneOf(draw, {"bf16"}); },
     .together = 32,
     .low = 0x1p-126,
     .high = 0x1p127},
    {.draw = [](Draw* draw) { return OneOf(draw, {"fp16"}); },
     .together = 32,
     .low = 0x1p-14,
     .high = 65504},
    {.draw = [](Draw* draw) { return OneOf(draw, {"fp8"}); },
     .together = 32,
     .low = 0x1p-6,
     .high = 448},
    {.draw = [](Draw* draw) { return OneOf(draw, {"fp8:format=e5m2"}); },
     .together = 32,
     .low = 0x1p-14,
     .high = 57344},
    {.draw =
         [](Draw* draw) {
           return OneOf(draw, {"mxfp8", "mxfp8:format=e5m2"});
         },
     .together = 32,
     .low = 0x1p-119,
     .high = 0x1p127},
    {.draw = [](Draw* draw) { return Dither(draw); },
     .together = 256,
     .low = 0x1p-100,
     .high = 0x1p120},
    {.draw = [](Draw* draw) { return OneOf(draw, {"onebit"}); },
     .together = 256,
     .low = 0x1p-126,
     .high = 0x1p120},
    {.draw = [](Draw* draw) { return fmt::format("qsgd:q={}", 1 + draw->Below(16)); },
     .together = kWholeVector,
     .low = 0x1p-126,
     .high = 0x1p120},
    {.draw =
         [](Draw* draw) {
           return OneOf(draw, {"qsgd_ms", "qsgd_ms:q=2+5+9"});
         },
     .together = kWholeVector,
     .low = 0x1p-126,
     .high = 0x1p120},
};
// Those of several hosts: with sums of hosts, and without.
const Codec* const kOfHosts[] = {&kCodecs[0], &kCodecs[2], &kCodecs[2]};

// ---------------------------------------------------------------- data

enum class Kind : uint8_t {
  kNormal,
  kConstant,
  kHalfSteps,
  kOutliers,
  kDenormals,
  kLargest,
  kMixedElements,
  kMixedSuperblocks,
  kCancelling,
  kSparse,
  kScales,  // where scale codes change
  kNotFinite,
  kKinds
};
constexpr const char* kKindNames[] = {"normal",     "constant", "half steps", "outliers",
                                      "denormals",  "largest",  "mixed",      "superblocks",
                                      "cancelling", "sparse",   "scales",     "not finite"};
static_assert(std::size(kKindNames) == static_cast<size_t>(Kind::kKinds));

// What all ranks know of one call.
struct Case {
  uint64_t number = 0;
  const Codec* codec = nullptr;
  std::string spec;
  Collective collective = Collective::kAllReduce;
  FloatType type = kTypes[0];
  ccl_redop_t op = CCL_SUM;
  size_t count = 0;  // of a segment
  Kind kind = Kind::kNormal;
  int exponent = 0;  // of most magnitudes
  uint64_t data = 0;
  bool in_place = false;
};

std::string Describe(const Case& c, int nranks) {
  return fmt::format("call {} of {} ranks: {} {} type {} op {} count {}, {} data of 2^{}", c.number,
                     nranks, Name(c.collective), c.spec, static_cast<int>(c.type.type),
                     static_cast<int>(c.op), c.count, kKindNames[static_cast<size_t>(c.kind)],
                     c.exponent);
}

Case MakeCase(uint64_t seed, uint64_t number, std::span<const Codec* const> codecs) {
  Draw draw(seed, number);
  Case c;
  c.number = number;
  c.codec = codecs[draw.Below(codecs.size())];
  c.spec = c.codec->draw(&draw);
  constexpr Collective kCollectives[] = {Collective::kAllReduce, Collective::kAllReduce,
                                         Collective::kReduceScatter, Collective::kAllGather};
  c.collective = kCollectives[draw.Below(4)];
  c.type = kTypes[draw.Below(4)];
  c.op = draw.Below(3) == 0 ? CCL_AVG : CCL_SUM;
  const uint64_t size = draw.Below(64);
  constexpr size_t kAround[] = {1, 2, 31, 33, 255, 256, 257, 512, 513};
  c.count = size < 16 ? kAround[draw.Below(9)] : 1 + draw.Below(size == 63 ? 20'000 : 1500);
  c.kind = static_cast<Kind>(draw.Below(static_cast<uint64_t>(Kind::kKinds)));
  const int top = std::ilogb(c.type.largest);
  const auto between = [&draw](int low, int high) {
    return low + static_cast<int>(draw.Below(static_cast<uint64_t>(high - low + 1)));
  };
  if (c.type.type == CCL_FLOAT64 && draw.Below(8) != 0) {
    c.exponent = between(-170, 127);
  } else {
    c.exponent = between(c.type.Smallest(), top);
  }
  if (draw.Below(3) != 0) c.exponent = between(-24, 8);
  c.data = Mix64(seed ^ Mix64(number));
  c.in_place = draw.Below(3) == 0;
  return c;
}

// Of variance 1, roughly.
double Gauss(Draw* draw) {
  uint64_t bits = draw->Below(uint64_t{1} << 60);
  double sum = -2;
  for (int k = 0; k < 4; ++k, bits >>= 15) sum += static_cast<double>(bits & 0x7fff) * 0x1p-15;
  return sum * 1.75;
}

// Element i of a rank's buffer. `shared` draws alike on all ranks.
double Element(const Case& c, int nranks, int rank, size_t i, Draw* shared, Draw* own) {
  const double scale = std::ldexp(1.0, c.exponent);
  const double sign = own->Below(2) == 0 ? 1 : -1;
  const auto gauss = [&] { return Gauss(own); };
  constexpr int kLevels[] = {1, 2, 3, 7, 15, 31, 63, 127};
  constexpr double kFifths[] = {1, 1.148698354997035, 1.3195079107728942, 1.515716566510398,
                                1.7411011265922482};
  switch (c.kind) {
    case Kind::kConstant:
      return scale * (1 + static_cast<double>(c.data % 256) / 256) * (c.data >> 20 & 1 ? -1 : 1);
    case Kind::kHalfSteps: {
      const int k = kLevels[c.data % 8];
      const auto step = static_cast<double>(own->Below(static_cast<uint64_t>(k) + 1));
      const double half = std::min(step + 0.5, static_cast<double>(k));
      const double ulp = own->Below(3) == 0 ? 1 + sign * 0x1p-22 : 1;
      return i % 32 == 0 ? scale : sign * scale * half / k * ulp;
    }
    case Kind::kOutliers: {
      const bool outlier = own->Below(c.data % 2 == 0 ? 32 : 300) == 0;
      return gauss() * scale * (outlier ? 1 : std::ldexp(1.0, -static_cast<int>(c.data % 30)));
    }
    case Kind::kDenormals:
      return sign * std::ldexp(static_cast<double>(own->Below(c.data % 2 == 0 ? 3 : 2000)),
                               c.type.Smallest());
    case Kind::kLargest: {
      const double parts[] = {1, 0.5, 1.0 / nranks, 0.999, 0.125};
      const double largest =
          c.type.type == CCL_FLOAT64 && c.data % 4 != 0 ? FLT_MAX : c.type.largest;
      // Of equal signs, or not.
      return (c.data % 3 == 0 ? sign : 1) * largest * parts[c.data % 5];
    }
    case Kind::kMixedElements:
      return gauss() * std::ldexp(scale, -static_cast<int>(own->Below(40)));
    case Kind::kMixedSuperblocks:
      return gauss() * std::ldexp(scale, -static_cast<int>(i / 256 * 7 % 60));
    case Kind::kCancelling: {
      const double common = Gauss(shared);
      return (rank % 2 == 0 ? common : -common) * scale + gauss() * scale * 0x1p-12;
    }
    case Kind::kSparse: return own->Below(20) == 0 ? gauss() * scale : 0.0;
    case Kind::kScales: {
      const double at = scale * kFifths[own->Below(5)];
      return sign * at * (own->Below(3) == 0 ? 1 + 0x1p-23 : 1);
    }
    case Kind::kNotFinite:
      if (own->Below(200) == 0) {
        return own->Below(2) == 0 ? std::numeric_limits<double>::quiet_NaN()
                                  : sign * std::numeric_limits<double>::infinity();
      }
      return gauss() * scale;
    default: return gauss() * scale;
  }
}

using Vector = std::vector<double>;

Vector Input(const Case& c, int nranks, int rank) {
  const auto n = static_cast<size_t>(nranks);
  Vector values(c.collective == Collective::kReduceScatter ? c.count * n : c.count);
  Draw shared(c.data, 0), own(c.data, static_cast<uint64_t>(rank) + 1);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = Rounded(c.type, Element(c, nranks, rank, i, &shared, &own));
  }
  return values;
}

// ---------------------------------------------------------------- checks

// What of a result comes of these contributions, `first` onwards of each.
struct Part {
  std::vector<const Vector*> from;
  size_t first = 0;
};

class Checker {
 public:
  Checker(const Case& c, int nranks, const ccl_compression_stats_t& stats, double relative)
      : c_(c), nranks_(nranks), stats_(stats), relative_(relative) {}

  void Check(const Part& part, const std::byte* result) {
    const auto n = static_cast<double>(part.from.size());
    const double divide = c_.op == CCL_AVG ? n : 1;
    for (size_t i = 0; i < c_.count; ++i) {
      if (i % c_.codec->together == 0) Survey(part, i);
      long double sum = 0;
      double magnitudes = 0;
      bool finite = true;
      for (const Vector* from : part.from) {
        const double x = (*from)[part.first + i];
        finite = finite && std::isfinite(x);
        sum += x;
        magnitudes += std::fabs(x);
      }
      const double got = Get(c_.type, result, i);
      const auto where = [&] {
        return fmt::format("{}, element {}: {} for {}, bound {}, relative {}",
                           Describe(c_, nranks_), i, got, static_cast<double>(sum / divide),
                           stats_.error_bound, relative_);
      };
      if (!finite) {
        ASSERT_FALSE(std::isfinite(got)) << where();
        continue;
      }
      const auto error = static_cast<double>(std::fabs(got - sum / divide));
      if (stats_.compressed == 0 || c_.codec->lossless) {
        // As uncompressed: elements, sums and averages are rounded in the type at each rank. Whose
        // sum leaves the type may be infinite, but not an average of finite elements.
        if (magnitudes / divide >= c_.type.largest) {
          ASSERT_TRUE(divide == 1 || std::isfinite(got)) << where();
          continue;
        }
        ASSERT_LE(error, 2 * n * c_.type.HalfUnit(magnitudes)) << where();
        continue;
      }
      if (std::isfinite(got)) {
        ASSERT_LE(error, stats_.error_bound * (1 + 1e-9) + InsideHosts(magnitudes)) << where();
      } else {
        ASSERT_FALSE(std::isfinite(stats_.error_bound)) << where();
      }
      if (largest_ == 0 && all_finite_) {
        ASSERT_EQ(got, 0) << where();
      }
      // In the codec's range.
      const double high = std::min(c_.codec->high, c_.type.largest);
      if (!all_finite_ || largest_ < c_.codec->low || !(n * largest_ <= high)) continue;
      if ((1 + relative_) * n * largest_ / divide > c_.type.largest) continue;
      const double rounding =
          c_.type.HalfUnit(n * largest_ / divide) + n * n * largest_ * 0x1p-22 / divide;
      ASSERT_LE(error, relative_ * n * largest_ * (1 + 1e-9) / divide + rounding) << where();
    }
  }

 private:
  // The elements that share a bound, from i on.
  void Survey(const Part& part, size_t i) {
    largest_ = 0;
    all_finite_ = true;
    const size_t end = std::min(c_.count, i + c_.codec->together);
    for (const Vector* from : part.from) {
      for (size_t j = i; j < end; ++j) {
        const double x = std::fabs((*from)[part.first + j]);
        all_finite_ = all_finite_ && x <= FLT_MAX;
        largest_ = std::max(largest_, x);
      }
    }
  }
  // local=fp32: the sums of hosts are uncompressed fp32 sums, whose rounding error_bound leaves
  // out.
  double InsideHosts(double magnitudes) const {
    if (c_.spec.find("local=fp32") == std::string::npos) return 0;
    return nranks_ * (magnitudes * 0x1p-24 + 0x1p-149);
  }

  const Case& c_;
  const int nranks_;
  const ccl_compression_stats_t& stats_;
  const double relative_;
  double largest_ = 0;
  bool all_finite_ = true;  // in fp32
};

// All ranks got the same bytes.
void CheckEqual(const std::vector<std::byte>& result, ccl_comm_t comm) {
  uint64_t hash = 0;
  for (size_t i = 0; i + 2 <= result.size(); i += 2) {
    uint16_t two = 0;
    std::memcpy(&two, result.data() + i, sizeof two);
    hash = (hash + two) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  uint64_t both[2] = {hash, ~hash};
  ASSERT_EQ(ccl_allreduce(both, both, 2, CCL_UINT64, CCL_MAX, comm, nullptr), CCL_SUCCESS);
  ASSERT_EQ(both[0], ~both[1]) << "ranks got different results";
}

// Returns whether the codec takes this call here.
bool RunCase(const Case& c, int rank, int nranks, ccl_comm_t comm) {
  ccl_codec_t codec = nullptr;
  if (ccl_codec_create(&codec, c.spec.c_str()) != CCL_SUCCESS) {
    ADD_FAILURE() << ccl_get_last_error(nullptr);
    return false;
  }
  std::vector<Vector> inputs;
  for (int r = 0; r < nranks; ++r) inputs.push_back(Input(c, nranks, r));
  const auto n = static_cast<size_t>(nranks), own = static_cast<size_t>(rank);
  const size_t size = SizeOfType(c.type.type), segment = c.count * size;
  const bool gathers = c.collective == Collective::kAllGather;
  const bool scatters = c.collective == Collective::kReduceScatter;
  std::vector<std::byte> send(inputs[own].size() * size), recv(gathers ? segment * n : segment);
  for (size_t i = 0; i < inputs[own].size(); ++i) Put(c.type, send.data(), i, inputs[own][i]);
  const std::byte* from = send.data();
  std::byte* to = recv.data();
  if (c.in_place && gathers) {
    std::copy(send.begin(), send.end(), recv.begin() + static_cast<std::ptrdiff_t>(own * segment));
    from = recv.data() + own * segment;
  } else if (c.in_place) {
    to = send.data() + (scatters ? own * segment : 0);
  }
  ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
  ccl_compression_t how = CCL_COMPRESSION_INIT;
  how.codec = codec;
  how.seed = c.data;
  how.step = c.number + 1;
  how.stats = &stats;
  const ccl_result_t result =
      CallCompressed(c.collective, from, to, c.count, c.type.type, c.op, &how, comm);
  double bits = 0, relative = 0;
  const ccl_result_t bounded = ccl_codec_bound(codec, c.count, nranks, &bits, &relative);
  ccl_codec_destroy(codec);
  if (result == CCL_INVALID_ARGUMENT) return false;  // on all ranks
  if (result != CCL_SUCCESS) {
    ADD_FAILURE() << Describe(c, nranks) << ": " << ccl_get_last_error(comm);
    return false;
  }
  // A sum of hosts of different sizes (three ranks, aab) has no bound a priori.
  const bool uneven = nranks == 3 && c.spec.find("local=fp32") != std::string::npos;
  if (bounded != CCL_SUCCESS || uneven) relative = std::numeric_limits<double>::infinity();
  if (c.in_place && !gathers) std::copy_n(to, segment, recv.data());
  Case checked = c;
  if (gathers) checked.op = CCL_SUM;
  Checker checker(checked, nranks, stats, relative);
  if (gathers) {
    for (size_t r = 0; r < n; ++r) checker.Check({{&inputs[r]}}, recv.data() + r * segment);
  } else {
    Part part{{}, scatters ? own * c.count : 0};
    for (const Vector& input : inputs) part.from.push_back(&input);
    checker.Check(part, recv.data());
  }
  if (!scatters) CheckEqual(recv, comm);
  return true;
}

void Fuzz(uint64_t seed, uint64_t calls, std::span<const Codec* const> codecs, int rank, int nranks,
          ccl_comm_t comm) {
  uint64_t taken = 0;
  for (uint64_t number = 0; number < calls; ++number) {
    const Case c = MakeCase(seed, number, codecs);
    if (RunCase(c, rank, nranks, comm)) ++taken;
    // All ranks stop at the first failure of any.
    int32_t failed = testing::Test::HasFailure() ? 1 : 0;
    if (ccl_allreduce(&failed, &failed, 1, CCL_INT32, CCL_MAX, comm, nullptr) != CCL_SUCCESS ||
        failed != 0) {
      return;
    }
  }
  EXPECT_GE(taken * 4, calls) << "few calls were possible";
}

std::vector<const Codec*> AllCodecs() {
  std::vector<const Codec*> codecs;
  for (const Codec& codec : kCodecs) codecs.push_back(&codec);
  for (int more = 0; more < 8; ++more) codecs.push_back(&kCodecs[more % 2]);
  return codecs;
}

TEST(BoundsFuzz, Threads) {
  const uint64_t seed = TestSeed();
  const std::vector<const Codec*> codecs = AllCodecs();
  struct World {
    int nranks;
    const char* algorithm;
  };
  constexpr World kWorlds[] = {{2, "ring,tree,recursive_doubling,direct"},
                               {3, "ring"},
                               {4, "direct_two_shot"},
                               {4, "recursive_doubling"},
                               {3, "direct_one_shot"},
                               {5, "tree"}};
  uint64_t world = 0;
  for (const auto& [nranks, algorithm] : kWorlds) {
    SCOPED_TRACE(algorithm);
    const ScopedEnv env(
        {{"INCCL_ALGO", algorithm}, {"INCCL_TRANSPORT", "loopback"}, {"INCCL_DEBUG", "NONE"}});
    RunThreads(nranks, [&, n = nranks](int rank, ccl_comm_t comm) {
      Fuzz(Mix64(seed) + world, Calls(120), codecs, rank, n, comm);
    });
    if (HasFailure()) return;
    ++world;
  }
}

// Hosts of equal size and not, whose ranks add up among themselves first.
TEST(BoundsFuzz, Hosts) {
  const uint64_t seed = TestSeed();
  const ScopedEnv env({{"INCCL_DEBUG", "NONE"}});  // calls that are refused
  for (const std::string hosts : {"aabb", "aab"}) {
    SCOPED_TRACE(hosts);
    RunHosts(hosts, [&](const Side& side, ccl_comm_t comm) {
      Fuzz(Mix64(seed) - hosts.size(), Calls(100), kOfHosts, side.rank(), Ranks(hosts), comm);
    });
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace inccl::test
