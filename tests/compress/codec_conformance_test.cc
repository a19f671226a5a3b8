// SPDX-License-Identifier: Apache-2.0
//
// What every codec promises, of whole calls over every algorithm: sums within the codec's own bound
// of the sum in double precision, the same bytes on all ranks, elements that are not numbers, every
// length around a block and a superblock, every type, calls in place. The rows of codec_table.h.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "compress/checked_state.h"
#include "compress/codec.h"
#include "compress/codec_table.h"
#include "compress/codec_world.h"
#include "compress/kernels/convert.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

using Bytes = std::vector<std::byte>;
using Doubles = std::vector<double>;

constexpr Algorithm kAlgorithms[] = {
    Algorithm::kRing,    Algorithm::kTree,    Algorithm::kRecursiveDoubling,
    Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kHierarchical};
constexpr size_t kCounts[] = {0, 1, 31, 32, 33, 255, 256, 257, 3000};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// kLargest: up to the largest value that MakeCall names, of one sign on all ranks.
enum class Kind { kGauss, kLayered, kZero, kTiny, kSpecial, kLargest };

// One call: what every rank sends, as elements of `type`.
struct Call {
  std::string name;  // unlike other calls'
  Collective collective;
  DataType type;
  ReduceOp op;
  size_t count;  // of a segment
  bool in_place;
  std::vector<Bytes> inputs;
  std::vector<Bytes> outputs;
  double error_bound = 0;
};

std::string Describe(const Call& c) {
  return fmt::format("{} {} {} of {}{}", Name(c.collective), Name(c.type), Name(c.op), c.count,
                     c.in_place ? ", in place" : "");
}

float TowardZero(double x) {
  const auto nearest = static_cast<float>(x);
  const bool away = std::fabs(static_cast<double>(nearest)) > std::fabs(x);
  return away ? std::nextafter(nearest, 0.0f) : nearest;
}

float Draw(Kind kind, size_t i, double largest, Rng* rng) {
  double gauss = -6;
  for (int k = 0; k < 12; ++k) gauss += rng->Uniform();
  // No sum of five leaves the range.
  const double top = std::min(largest / 64, 16.0);
  switch (kind) {
    case Kind::kGauss: return static_cast<float>(gauss * top / 8);
    case Kind::kLayered:
      return static_cast<float>(std::ldexp(gauss * top / 8, -static_cast<int>(i / 256 * 5 % 24)));
    case Kind::kZero: return rng->Below(2) == 0 ? 0.0f : -0.0f;
    case Kind::kTiny: return static_cast<float>(gauss * 1e-41);
    case Kind::kLargest: {
      const double magnitude = rng->Below(2) == 0 ? largest : largest * (1 - rng->Uniform() / 64);
      return TowardZero(i % 2 == 0 ? magnitude : -magnitude);
    }
    case Kind::kSpecial: break;
  }
  constexpr float kValues[] = {kNan, kInf, -kInf, -0.0f, 1e-42f};
  return rng->Below(50) == 0 ? kValues[rng->Below(5)] : static_cast<float>(gauss * top / 8);
}

Call MakeCall(Collective collective, DataType type, ReduceOp op, size_t count, int n, Kind kind,
              double largest, Rng* rng) {
  Call call{std::to_string(rng->Next()), collective, type, op, count, rng->Below(3) == 0, {}, {}};
  const auto ranks = static_cast<size_t>(n);
  const size_t sent = collective == Collective::kReduceScatter ? count * ranks : count;
  const size_t received = collective == Collective::kAllGather ? count * ranks : count;
  for (size_t r = 0; r < ranks; ++r) {
    std::vector<float> x(sent);
    for (size_t i = 0; i < sent; ++i) x[i] = Draw(kind, i, largest, rng);
    call.inputs.emplace_back(sent * SizeOf(type));
    FromFloat(type, x.data(), call.inputs.back().data(), sent);
    call.outputs.emplace_back(received * SizeOf(type), std::byte{0x77});
  }
  return call;
}

// Where a rank reads and writes; `both` holds its buffer in place.
CodecBuffers Place(Call* call, size_t r, Bytes* both) {
  Bytes& out = call->outputs[r];
  const Bytes& in = call->inputs[r];
  const size_t segment = call->count * SizeOf(call->type);
  if (!call->in_place) return {in.data(), out.data()};
  if (call->collective == Collective::kAllGather) {
    std::copy(in.begin(), in.end(), out.begin() + static_cast<std::ptrdiff_t>(r * segment));
    return {out.data() + r * segment, out.data()};
  }
  *both = in;
  return {both->data(),
          both->data() + (call->collective == Collective::kReduceScatter ? r * segment : 0)};
}

// A rank that has the inputs of all can compute what the others get.
void CheckSumOfInputs(const Codec& codec, CollectiveArgs args, const Call& call) {
  if (call.collective != Collective::kAllReduce || codec.side_phases().empty() ||
      codec.route().group != 0 || codec.route().sums_hosts) {
    return;
  }
  Bytes all;
  for (const Bytes& input : call.inputs) all.insert(all.end(), input.begin(), input.end());
  for (int rank : {0, args.nranks - 1}) {
    args.rank = rank;
    Bytes output(call.outputs[0].size());
    CodecStats stats;
    const Status status = SumOfInputs(codec, args, all, output.data(), &stats);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(output, call.outputs[static_cast<size_t>(rank)]) << "rank " << rank;
    ASSERT_EQ(stats.error_bound, call.error_bound);
  }
}

void Make(Algorithm algorithm, CodecWorld* world, Call* call) {
  const size_t n = call->inputs.size();
  std::vector<Bytes> both(n);
  std::vector<CodecBuffers> buffers;
  for (size_t r = 0; r < n; ++r) buffers.push_back(Place(call, r, &both[r]));
  const CollectiveArgs args{.collective = call->collective,
                            .type = call->type,
                            .op = call->op,
                            .nranks = static_cast<int>(n),
                            .count = call->count,
                            .seed = 5,
                            .step = 3};
  world->Run(args, algorithm, buffers);
  for (size_t r = 0; r < n; ++r) {
    if (!both[r].empty())
      std::copy_n(buffers[r].output, call->outputs[r].size(), call->outputs[r].data());
    // All ranks promise the same.
    ASSERT_EQ(world->stats(static_cast<int>(r)).error_bound, world->stats(0).error_bound);
  }
  call->error_bound = world->stats(0).error_bound;
  CheckSumOfInputs(world->codec(), args, *call);
}

bool Admits(const Route& route, Algorithm algorithm) {
  return route.group == 0 || algorithm == Algorithm::kTwoShot || algorithm == Algorithm::kOneShot;
}

// Those calls that the codec takes and that have a schedule of this kind.
std::vector<Call> RunAll(const char* spec, Algorithm algorithm, int n, std::vector<Call> calls) {
  const auto codec = *MakeCodec(spec);
  const HostMap hosts = CodecWorld::HostsFor(n);
  std::erase_if(calls, [&](const Call& c) {
    return !HasSchedule(c.collective, algorithm, n, &hosts) || !Admits(codec->route(), algorithm) ||
           !codec->Fits(c.collective, n).ok();
  });
  CodecWorld world(*MakeCodec(spec), n);
  for (Call& call : calls) {
    SCOPED_TRACE(Describe(call));
    Make(algorithm, &world, &call);
    if (testing::Test::HasFatalFailure()) break;
  }
  return calls;
}

Doubles ToDoubles(DataType type, const Bytes& bytes) {
  const size_t count = bytes.size() / SizeOf(type);
  Doubles values(count);
  if (type == DataType::kFloat64) {
    if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<float> floats(count);
  ToFloat(type, bytes.data(), floats.data(), count);
  std::copy(floats.begin(), floats.end(), values.begin());
  return values;
}

double TopOf(DataType type) {
  if (type == DataType::kFloat16) return 65504;
  if (type == DataType::kBfloat16) return 0x1.FEp127;
  return static_cast<double>(std::numeric_limits<float>::max());  // codecs compute in fp32
}

// The largest element that a codec's format has.
double TopOf(const CodecRow& row) {
  if (std::string_view(row.spec) == "bf16") return 0x1.FEp127;
  const bool any = row.largest >= 1e30;
  return any ? static_cast<double>(std::numeric_limits<float>::max()) : row.largest;
}

// The largest number of the type that is not above x.
double NotAbove(double x, DataType type) {
  const int bits = type == DataType::kFloat16 ? 11 : type == DataType::kBfloat16 ? 8 : 24;
  int exponent = 0;
  const double mantissa = std::frexp(x, &exponent);
  return std::ldexp(std::floor(std::ldexp(mantissa, bits)), exponent - bits);
}

// Half a unit in the last place of a result, and of fp64 inputs that become fp32.
double TypeError(DataType type, double value) {
  const double v = std::fabs(value);
  if (type == DataType::kFloat16) return v * 0x1p-11 + 0x1p-25;
  if (type == DataType::kBfloat16) return v * 0x1p-8 + 0x1p-134;
  return 0;
}

// The elements of a vector that element i shares something with.
std::pair<size_t, size_t> Sharing(Share share, size_t i, size_t count) {
  if (share == Share::kElement) return {i, i + 1};
  if (share == Share::kVector) return {0, count};
  const size_t together = share == Share::kBlock ? kBlock : kSuperblock;
  const size_t first = i / together * together;
  return {first, std::min(count, first + together)};
}

// A vector that was summed (or sent by one rank): the ranks' vectors and what came of them.
struct Vector {
  std::vector<Doubles> parts;
  Doubles result;
  double divide;
};

void CheckVector(const CodecRow& row, const Call& call, double relative, const Vector& v) {
  const size_t count = v.result.size();
  const auto n = static_cast<double>(v.parts.size());
  std::vector<double> largest(count);
  std::vector<char> finite(count, 1);
  for (const Doubles& part : v.parts) {
    for (size_t i = 0; i < count; ++i) {
      largest[i] = std::max(largest[i], std::isfinite(part[i]) ? std::fabs(part[i]) : 0);
      finite[i] = finite[i] != 0 && std::isfinite(part[i]) ? 1 : 0;
    }
  }
  // The largest of everything a vector has, where that is what counts.
  const double top = count == 0 ? 0 : *std::max_element(largest.begin(), largest.end());
  const bool all_finite = std::find(finite.begin(), finite.end(), 0) == finite.end();
  for (size_t i = 0; i < count; ++i) {
    double sum = 0;
    for (const Doubles& part : v.parts) sum += part[i];
    if (std::isnan(sum)) {
      ASSERT_TRUE(std::isnan(v.result[i])) << "element " << i << " is " << v.result[i];
      continue;
    }
    const auto [from, to] = Sharing(row.poison, i, count);
    const bool poisoned = row.poison == Share::kVector
                              ? !all_finite
                              : std::find(finite.begin() + static_cast<std::ptrdiff_t>(from),
                                          finite.begin() + static_cast<std::ptrdiff_t>(to),
                                          0) != finite.begin() + static_cast<std::ptrdiff_t>(to);
    if (poisoned && std::isnan(v.result[i])) continue;
    if (std::isinf(sum)) {
      ASSERT_EQ(v.result[i], sum) << "element " << i;
      continue;
    }
    ASSERT_TRUE(!poisoned || row.poison == Share::kElement) << "element " << i << " is a number";
    const auto [first, last] = Sharing(row.bound, i, count);
    double max = top;
    if (row.bound != Share::kVector) {
      max = *std::max_element(largest.begin() + static_cast<std::ptrdiff_t>(first),
                              largest.begin() + static_cast<std::ptrdiff_t>(last));
    }
    const double rounding = TypeError(call.type, v.result[i]) + n * n * max * 0x1p-23;
    const double allowed =
        (relative * n * max + 2 * n * row.floor) / v.divide + 2 * n * row.floor + rounding;
    const double error = std::fabs(v.result[i] - sum / v.divide);
    ASSERT_LE(error, allowed) << "element " << i << ": " << v.result[i] << " for "
                              << sum / v.divide;
    if (!row.lossless) {
      ASSERT_LE(error, call.error_bound + rounding) << "the call's own bound, element " << i;
    }
  }
}

Doubles Part(const Doubles& x, size_t segment, size_t count) {
  const auto first = x.begin() + static_cast<std::ptrdiff_t>(segment * count);
  return {first, first + static_cast<std::ptrdiff_t>(count)};
}

void CheckCall(const CodecRow& row, const Call& call) {
  const size_t n = call.inputs.size();
  double bits = 0, relative = 0;
  (*MakeCodec(row.spec))->Bound(call.collective, static_cast<int>(n), &bits, &relative);
  const double divide = call.op == ReduceOp::kAvg && call.collective != Collective::kAllGather
                            ? static_cast<double>(n)
                            : 1;
  std::vector<Doubles> inputs, outputs;
  for (size_t r = 0; r < n; ++r) {
    inputs.push_back(ToDoubles(call.type, call.inputs[r]));
    outputs.push_back(ToDoubles(call.type, call.outputs[r]));
  }
  const bool scatters = call.collective == Collective::kReduceScatter;
  if (!scatters) {
    for (const Bytes& output : call.outputs) ASSERT_EQ(output, call.outputs[0]) << "ranks differ";
  }
  if (call.collective == Collective::kAllReduce) {
    CheckVector(row, call, relative, {inputs, outputs[0], divide});
    return;
  }
  for (size_t s = 0; s < n; ++s) {
    Vector v{{}, {}, divide};
    if (scatters) {
      for (const Doubles& x : inputs) v.parts.push_back(Part(x, s, call.count));
      v.result = outputs[s];
    } else {
      v.parts = {inputs[s]};
      v.result = Part(outputs[0], s, call.count);
    }
    CheckVector(row, call, relative, v);
  }
}

// One rank's first element is larger than all others, and the others' is 0.
void SetLoneElement(double value, Call* call) {
  for (Bytes& input : call->inputs) {
    const float first = &input == call->inputs.data() ? TowardZero(value) : 0.0f;
    FromFloat(call->type, &first, input.data(), 1);
  }
}

class CodecConformance : public testing::TestWithParam<CodecRow> {
 protected:
  // Every collective, in every length.
  std::vector<Call> Calls(int n, const std::vector<Kind>& kinds) {
    std::vector<Call> calls;
    for (const Kind kind : kinds) Append(n, kind, &calls);
    return calls;
  }
  void Append(int n, Kind kind, std::vector<Call>* calls) {
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
      for (const size_t count : kCounts) {
        const ReduceOp op = rng_.Below(3) == 0 ? ReduceOp::kAvg : ReduceOp::kSum;
        calls->push_back(MakeCall(collective, DataType::kFloat32, op, count, n, kind,
                                  GetParam().largest, &rng_));
      }
    }
  }

  void RunAndCheck(int n, const std::vector<Call>& calls) {
    std::map<std::string, std::vector<Bytes>> first, in_order;  // by call
    for (const Algorithm algorithm : kAlgorithms) {
      SCOPED_TRACE(fmt::format("{} {} n={}", GetParam().spec, Name(algorithm), n));
      const std::vector<Call> made = RunAll(GetParam().spec, algorithm, n, calls);
      if (HasFatalFailure()) return;
      std::vector<Call> plain;
      if (GetParam().lossless) plain = RunAll("none", algorithm, n, calls);
      for (size_t i = 0; i < made.size(); ++i) {
        SCOPED_TRACE(Describe(made[i]));
        if (!GetParam().lossless || made[i].type == DataType::kFloat32) {
          CheckCall(GetParam(), made[i]);
          if (HasFatalFailure()) return;
        }
        if (GetParam().lossless) {
          ASSERT_TRUE(made[i].outputs == plain[i].outputs);
        }
        // What both add in rank order is the same.
        if (algorithm == Algorithm::kOneShot) in_order.emplace(made[i].name, made[i].outputs);
        const auto same_order = in_order.find(made[i].name);
        if (algorithm == Algorithm::kTwoShot && same_order != in_order.end()) {
          ASSERT_TRUE(same_order->second == made[i].outputs) << "one and two shots differ";
        }
        if (!GetParam().any_order) continue;
        const auto [same, is_new] = first.emplace(made[i].name, made[i].outputs);
        ASSERT_TRUE(is_new || same->second == made[i].outputs) << "algorithms differ";
      }
    }
  }

  Rng rng_{TestSeed()};
};

// What is left out above is refused, and something is left.
TEST_P(CodecConformance, WhatDoesNotFitIsRefused) {
  const auto codec = *MakeCodec(GetParam().spec);
  EXPECT_TRUE(codec->Fits(Collective::kAllReduce, 5).ok());
  for (const Collective collective : {Collective::kReduceScatter, Collective::kAllGather}) {
    const Status fits = codec->Fits(collective, 5);
    const Status begun =
        codec->NewState()->Begin({.collective = collective, .nranks = 5, .count = 100});
    EXPECT_EQ(fits.ok(), begun.ok()) << begun.message();
    EXPECT_EQ(fits.code(), begun.code());
  }
  const auto admitted = std::count_if(std::begin(kAlgorithms), std::end(kAlgorithms),
                                      [&](Algorithm a) { return Admits(codec->route(), a); });
  EXPECT_EQ(admitted, codec->route().group == 0 ? 6 : 2);
}

TEST_P(CodecConformance, SumsAreWithinTheBoundOnAllRanksAlike) {
  RunAndCheck(5, Calls(5, {Kind::kGauss, Kind::kLayered}));
  RunAndCheck(2, Calls(2, {Kind::kGauss}));
}

TEST_P(CodecConformance, ZerosDenormalsAndWhatIsNotANumber) {
  RunAndCheck(3, Calls(3, {Kind::kZero, Kind::kTiny, Kind::kSpecial}));
}

TEST_P(CodecConformance, ZerosStayZero) {
  const std::vector<Call> calls =
      RunAll(GetParam().spec, Algorithm::kTwoShot, 3, Calls(3, {Kind::kZero}));
  for (const Call& call : calls) {
    for (const Bytes& output : call.outputs) {
      for (const double x : ToDoubles(call.type, output)) ASSERT_EQ(x, 0) << Describe(call);
    }
  }
}

// (Narrow sums of "none" are rounded at each hop: lossless codecs are compared with it alone.)
TEST_P(CodecConformance, EveryTypeOfFloat) {
  std::vector<Call> calls;
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat64}) {
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        for (const Kind kind : {Kind::kGauss, Kind::kSpecial}) {
          const size_t count = kind == Kind::kGauss ? 1000 : 300;
          calls.push_back(
              MakeCall(collective, type, op, count, 4, kind, GetParam().largest, &rng_));
        }
      }
    }
  }
  RunAndCheck(4, calls);
}

// A result that the type holds is finite and within the bounds, up to the largest one: of averages
// of the largest elements, and of sums where n times the largest element is that result. (The sums
// of codecs that add up decoded elements in fp32 end before that by the bound. hbi: format.md.)
TEST_P(CodecConformance, ResultsReachTheLargestOfTheType) {
  const CodecRow& row = GetParam();
  const std::string_view spec = row.spec;
  if (spec.starts_with("hbi")) GTEST_SKIP() << "hbi has a range of its own";
  for (const int n : {2, 3, 5, 6, 7}) {
    std::vector<Call> calls;
    for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32}) {
      const double top = NotAbove(std::min(TopOf(type), TopOf(row)), type);
      for (const Collective collective :
           {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
        double bits = 0, relative = 0;
        (*MakeCodec(spec))->Bound(collective, n, &bits, &relative);
        double sums = TopOf(DataType::kFloat32);
        if (!spec.starts_with("qsgd")) sums /= 1 + relative + 1e-6;
        const double each = NotAbove(Reduces(collective) ? std::min(top, sums) / n : top, type);
        calls.push_back(
            MakeCall(collective, type, ReduceOp::kAvg, 70, n, Kind::kLargest, top, &rng_));
        if (row.lossless) continue;  // sums of narrow types round at each hop
        calls.push_back(
            MakeCall(collective, type, ReduceOp::kSum, 70, n, Kind::kLargest, each, &rng_));
        if (spec.starts_with("qsgd") && Reduces(collective)) {
          SetLoneElement(1.25 * each, &calls.back());
        }
      }
    }
    for (const Algorithm algorithm : kAlgorithms) {
      for (const Call& call : RunAll(row.spec, algorithm, n, calls)) {
        if (HasFatalFailure()) return;
        SCOPED_TRACE(fmt::format("{} {} n={} {}", row.spec, Name(algorithm), n, Describe(call)));
        for (const Bytes& output : call.outputs) {
          for (const double x : ToDoubles(call.type, output)) ASSERT_TRUE(std::isfinite(x)) << x;
        }
        if (!row.lossless) CheckCall(row, call);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// A codec that has no row is not tested.
TEST(CodecTable, HasEveryCodec) {
  const std::string message = MakeCodec("nothing").status().message();
  const size_t list = message.find("there are ");
  ASSERT_NE(list, std::string::npos) << message;
  std::istringstream names(message.substr(list + std::strlen("there are ")));
  for (std::string name; std::getline(names >> std::ws, name, ',');) {
    const auto has = [&](const CodecRow& row) {
      return std::string_view(row.spec).substr(0, std::string_view(row.spec).find(':')) == name;
    };
    EXPECT_TRUE(std::any_of(std::begin(kCodecTable), std::end(kCodecTable), has)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, CodecConformance, testing::ValuesIn(kCodecTable), CodecRowName);

// A state keeps the side information of all windows, which may all come before the first data.
TEST(CodecSideInformation, MayRunWindowsAheadOfTheData) {
  constexpr size_t kCount = 3 * kWindow + 777;
  for (const char* spec : {"hbi:bits=6", "qsgd:q=8", "qsgd_ms"}) {
    Rng rng(TestSeed());
    Call one_ahead = MakeCall(Collective::kAllReduce, DataType::kBfloat16, ReduceOp::kSum, kCount,
                              2, Kind::kGauss, 1e3, &rng);
    one_ahead.in_place = true;
    Call all_ahead = one_ahead;
    CodecWorld near(*MakeCodec(spec), 2), far(*MakeCodec(spec), 2, uint64_t{1} << 30);
    Make(Algorithm::kTwoShot, &near, &one_ahead);
    Make(Algorithm::kTwoShot, &far, &all_ahead);
    EXPECT_EQ(one_ahead.outputs, all_ahead.outputs) << spec;
  }
}

}  // namespace
}  // namespace inccl::test
