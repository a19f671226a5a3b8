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
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "api/world.h"
#include "base/rng.h"
#include "compress/codec.h"
#include "compress/codec_table.h"
#include "compress/kernels/convert.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

using Bytes = std::vector<std::byte>;
using Doubles = std::vector<double>;

constexpr const char* kAlgorithms[] = {"ring", "tree", "recursive_doubling", "direct_one_shot",
                                       "direct_two_shot"};
constexpr size_t kCounts[] = {0, 1, 31, 32, 33, 255, 256, 257, 3000};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

enum class Kind { kGauss, kLayered, kZero, kTiny, kSpecial };

// One call: what every rank sends, as elements of `type`.
struct Call {
  Collective collective;
  DataType type;
  ReduceOp op;
  size_t count;  // of a segment
  bool in_place;
  std::vector<Bytes> inputs;
  std::vector<Bytes> outputs;
  std::vector<ccl_compression_stats_t> stats;
};

std::string Describe(const Call& c) {
  return fmt::format("{} {} {} of {}{}", Name(c.collective), Name(c.type), Name(c.op), c.count,
                     c.in_place ? ", in place" : "");
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
    case Kind::kSpecial: break;
  }
  constexpr float kValues[] = {kNan, kInf, -kInf, -0.0f, 1e-42f};
  return rng->Below(50) == 0 ? kValues[rng->Below(5)] : static_cast<float>(gauss * top / 8);
}

Call MakeCall(Collective collective, DataType type, ReduceOp op, size_t count, int n, Kind kind,
              double largest, Rng* rng) {
  Call call{collective, type, op, count, rng->Below(3) == 0, {}, {}, {}};
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
  call.stats.assign(ranks, CCL_COMPRESSION_STATS_INIT);
  return call;
}

// One rank's part.
void Make(Call* call, int rank, ccl_codec_t codec, ccl_comm_t comm) {
  const auto r = static_cast<size_t>(rank);
  Bytes& out = call->outputs[r];
  Bytes both = call->inputs[r];
  const size_t segment = call->count * SizeOf(call->type);
  const std::byte* send = both.data();
  std::byte* recv = out.data();
  if (call->in_place && call->collective == Collective::kAllGather) {
    std::copy(both.begin(), both.end(), out.begin() + static_cast<std::ptrdiff_t>(r * segment));
    send = out.data() + r * segment;
  } else if (call->in_place) {
    recv = both.data() + (call->collective == Collective::kReduceScatter ? r * segment : 0);
  }
  ccl_compression_t how = CCL_COMPRESSION_INIT;
  how.codec = codec;
  how.seed = 5;
  how.step = 3;
  how.stats = &call->stats[r];
  const auto type = static_cast<ccl_datatype_t>(call->type);
  const auto op = static_cast<ccl_redop_t>(call->op);
  ccl_result_t result = CCL_SUCCESS;
  if (call->collective == Collective::kAllReduce) {
    result = ccl_allreduce_compressed(send, recv, call->count, type, op, &how, comm, nullptr);
  } else if (call->collective == Collective::kReduceScatter) {
    result = ccl_reduce_scatter_compressed(send, recv, call->count, type, op, &how, comm, nullptr);
  } else {
    result = ccl_allgather_compressed(send, recv, call->count, type, &how, comm, nullptr);
  }
  EXPECT_EQ(result, CCL_SUCCESS) << Describe(*call) << ": " << ccl_get_last_error(comm);
  if (recv != out.data() && call->collective != Collective::kAllGather) {
    std::copy_n(recv, out.size(), out.begin());
  }
}

// All calls on one communicator of n ranks.
void RunAll(const char* spec, const char* algorithm, int n, std::vector<Call>* calls) {
  const ScopedEnv env({{"INCCL_ALGO", algorithm}, {"INCCL_SLICE_BYTES", "4096"}});
  RunThreads(n, [&](int rank, ccl_comm_t comm) {
    ccl_codec_t codec = nullptr;
    ASSERT_EQ(ccl_codec_create(&codec, spec), CCL_SUCCESS) << ccl_get_last_error(nullptr);
    for (Call& call : *calls) Make(&call, rank, codec, comm);
    EXPECT_EQ(ccl_codec_destroy(codec), CCL_SUCCESS);
  });
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
  return {i / kBlock * kBlock, std::min(count, i / kBlock * kBlock + kBlock)};
}

// A vector that was summed (or sent by one rank): the ranks' vectors and what came of them.
struct Vector {
  std::vector<Doubles> parts;
  Doubles result;
  double divide;
};

void CheckVector(const CodecRow& row, const Call& call, double relative, const Vector& v,
                 double call_bound) {
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
    if (row.sparse && v.result[i] == 0) continue;
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
    if (poisoned && (row.sparse || std::isnan(v.result[i]))) continue;
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
      ASSERT_LE(error, call_bound + rounding) << "the call's own bound, element " << i;
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
  const double bound = call.stats[0].error_bound;
  const bool scatters = call.collective == Collective::kReduceScatter;
  if (!scatters) {
    for (const Bytes& output : call.outputs) ASSERT_EQ(output, call.outputs[0]) << "ranks differ";
  }
  if (call.collective == Collective::kAllReduce) {
    CheckVector(row, call, relative, {inputs, outputs[0], divide}, bound);
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
    CheckVector(row, call, relative, v, bound);
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
    std::vector<Bytes> first;
    for (const char* algorithm : kAlgorithms) {
      SCOPED_TRACE(fmt::format("{} {} n={}", GetParam().spec, algorithm, n));
      std::vector<Call> made = calls, plain = calls;
      RunAll(GetParam().spec, algorithm, n, &made);
      if (GetParam().lossless) RunAll("none", algorithm, n, &plain);
      for (size_t i = 0; i < made.size(); ++i) {
        SCOPED_TRACE(Describe(made[i]));
        CheckCall(GetParam(), made[i]);
        if (HasFatalFailure()) return;
        if (GetParam().lossless) {
          ASSERT_EQ(made[i].outputs, plain[i].outputs);
        }
        if (!GetParam().any_order) continue;
        Bytes all;
        for (const Bytes& output : made[i].outputs) {
          all.insert(all.end(), output.begin(), output.end());
        }
        if (first.size() == i) first.push_back(all);
        ASSERT_EQ(all, first[i]) << "algorithms differ";
      }
    }
  }

  Rng rng_{TestSeed()};
};

TEST_P(CodecConformance, SumsAreWithinTheBoundOnAllRanksAlike) {
  RunAndCheck(5, Calls(5, {Kind::kGauss, Kind::kLayered}));
  RunAndCheck(2, Calls(2, {Kind::kGauss}));
}

TEST_P(CodecConformance, ZerosDenormalsAndWhatIsNotANumber) {
  RunAndCheck(3, Calls(3, {Kind::kZero, Kind::kTiny, Kind::kSpecial}));
}

TEST_P(CodecConformance, ZerosStayZero) {
  std::vector<Call> calls = Calls(3, {Kind::kZero});
  RunAll(GetParam().spec, "direct", 3, &calls);
  for (const Call& call : calls) {
    for (const Bytes& output : call.outputs) {
      for (const double x : ToDoubles(call.type, output)) ASSERT_EQ(x, 0) << Describe(call);
    }
  }
}

TEST_P(CodecConformance, EveryTypeOfFloat) {
  std::vector<Call> calls;
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat64}) {
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        // Narrow sums of "none" round at each hop as bf16 does.
        calls.push_back(
            MakeCall(collective, type, op, 1000, 4, Kind::kGauss, GetParam().largest, &rng_));
      }
    }
  }
  CodecRow row = GetParam();
  std::vector<Bytes> first;
  for (const char* algorithm : kAlgorithms) {
    SCOPED_TRACE(fmt::format("{} {}", row.spec, algorithm));
    std::vector<Call> made = calls, plain = calls;
    RunAll(row.spec, algorithm, 4, &made);
    if (row.lossless) RunAll("none", algorithm, 4, &plain);
    for (size_t i = 0; i < made.size(); ++i) {
      SCOPED_TRACE(Describe(made[i]));
      if (row.lossless) {
        ASSERT_EQ(made[i].outputs, plain[i].outputs);
      } else {
        CheckCall(row, made[i]);
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, CodecConformance, testing::ValuesIn(kCodecTable), CodecRowName);

}  // namespace
}  // namespace inccl::test
