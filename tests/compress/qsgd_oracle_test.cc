// SPDX-License-Identifier: Apache-2.0
//
// qsgd and qsgd_ms against the second implementation (support/qsgd_oracle.h), byte for byte:
// both agreements, what a rank sends, sums at every hop, results and what is decoded; and against
// the golden rows.
#include "support/qsgd_oracle.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/rng.h"
#include "build_paths.h"
#include "compress/codec.h"
#include "compress/hbi_driver.h"
#include "compress/simd.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

using Vectors = std::vector<std::vector<float>>;

struct Spec {
  const char* text;
  QsgdOptions options;  // without what belongs to the call
};

const Spec kSpecs[] = {
    {"qsgd:q=1", {.q = {1}}},
    {"qsgd:q=3", {.q = {3}}},
    {"qsgd", {.q = {8}}},
    {"qsgd:q=16", {.q = {16}}},
    {"qsgd_ms", {.q = {4, 8}}},
    {"qsgd_ms:q=2+5+7", {.q = {2, 5, 7}}},
    {"qsgd_ms:q=1+3+9+16", {.q = {1, 3, 9, 16}}},
};

// All ranks' states of one call.
class Call {
 public:
  Call(const char* spec, const CollectiveArgs& call, int ranks)
      : codec_(*MakeCodec(spec)), call_(call) {
    for (int r = 0; r < ranks; ++r) {
      states_.push_back(codec_->NewState());
      call_.nranks = ranks;
      call_.rank = r;
      EXPECT_TRUE(states_.back()->Begin(call_).ok());
    }
  }

  bool several() const { return codec_->side_phases().size() > 1; }
  Payload Make(int rank, const Range& range, const std::vector<Term>& inputs, Format format) {
    Payload made(std::max(codec_->MaxBytes(DataType::kFloat32, call_.nranks, range.count),
                          std::max<uint32_t>(range.count * 4, codec_->SideBytes(range.count))));
    std::vector<Term> outputs = {HbiDriver::Of(format, &made)};
    const Status status = states_[static_cast<size_t>(rank)]->Combine(range, inputs, outputs);
    EXPECT_TRUE(status.ok()) << status.message();
    made.resize(outputs[0].bytes);
    return made;
  }
  // What a rank has agreed to.
  void Keep(int rank, const Range& range, Format side, const std::vector<Term>& inputs) {
    std::vector<Term> own = {{side, nullptr, 0}};
    const Status status = states_[static_cast<size_t>(rank)]->Combine(range, inputs, own);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  static Term Input(const std::vector<float>& x, uint64_t first, uint32_t count) {
    return {{Form::kInput},
            reinterpret_cast<std::byte*>(const_cast<float*>(x.data() + first)),
            static_cast<uint32_t>(count * sizeof(float))};
  }

 private:
  std::shared_ptr<const Codec> codec_;
  CollectiveArgs call_;
  std::vector<std::unique_ptr<CodecState>> states_;
};

constexpr Format kFirst{Form::kSide, 0}, kSecond{Form::kSide, 1};

template <typename Value>
bool Same(const Payload& found, const std::vector<Value>& expected) {
  return found.size() == expected.size() * sizeof(Value) &&
         (found.empty() || std::memcmp(found.data(), expected.data(), found.size()) == 0);
}

bool SameMagnitude(const Payload& found, uint32_t expected) {
  return Same(found, std::vector<uint32_t>{expected});
}

// Ranges of whole superblocks that cut [0, count), none across windows.
std::vector<Range> Slices(uint32_t segment, uint64_t count, Rng* rng) {
  std::vector<Range> slices;
  for (uint64_t first = 0; first < count;) {
    const uint64_t window_end = (first / kWindow + 1) * kWindow;
    const uint64_t most = std::min(count, window_end) - first;
    const uint64_t wanted = rng->Below(4) == 0 ? most : (1 + rng->Below(5)) * kSuperblock;
    const uint64_t here = std::min(most, wanted);
    slices.push_back({segment, first, static_cast<uint32_t>(here)});
    first += here;
  }
  return slices;
}

// One agreement of one vector: payloads of all `inputs` (at rank who of `ranks`) are the oracle's,
// and all n ranks keep what they agree on.
void Agree(Call* call, const Vectors& inputs, const std::vector<int>& ranks, int n,
           const std::vector<Range>& slices, bool second, const QsgdVector& oracle) {
  const Format side = second ? kSecond : kFirst;
  for (const Range& range : slices) {
    SCOPED_TRACE(fmt::format("agreement {} at {}", second ? 2 : 1, range.first));
    std::vector<Payload> sent(inputs.size());
    std::vector<Term> terms;
    for (size_t who = 0; who < inputs.size(); ++who) {
      const Term input = Call::Input(inputs[who], range.first, range.count);
      sent[who] = call->Make(ranks[who], range, {input}, side);
      if (second) {
        ASSERT_TRUE(Same(sent[who], oracle.IndicesOf(who, range.first, range.count)));
      } else {
        ASSERT_TRUE(SameMagnitude(sent[who], oracle.LargestOf(who, range.first, range.count)));
      }
      terms.push_back(HbiDriver::Of(side, &sent[who]));
    }
    Payload agreed = call->Make(ranks[0], range, terms, side);
    if (second) {
      ASSERT_TRUE(Same(agreed, oracle.Indices(range.first, range.count)));
    }
    for (int r = 0; r < n; ++r) call->Keep(r, range, side, {HbiDriver::Of(side, &agreed)});
  }
}

void AgreeOnAll(Call* call, const Vectors& inputs, const std::vector<int>& ranks, int n,
                const std::vector<Range>& slices, const QsgdVector& oracle) {
  Agree(call, inputs, ranks, n, slices, false, oracle);
  if (call->several()) Agree(call, inputs, ranks, n, slices, true, oracle);
}

QsgdOptions OptionsOf(const Spec& spec, const CollectiveArgs& desc) {
  QsgdOptions options = spec.options;
  options.average = desc.op == ReduceOp::kAvg;
  options.seed = desc.seed;
  options.step = desc.step;
  return options;
}

std::vector<int> AllRanks(size_t n) {
  std::vector<int> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// A sum of all ranks' vectors, on a chain of hops and at once; `segment` is that of inputs.
void CheckSum(const Spec& spec, const CollectiveArgs& desc, uint32_t segment, const Vectors& inputs,
              Rng* rng) {
  const auto n = static_cast<int>(inputs.size());
  const QsgdVector oracle(inputs, AllRanks(inputs.size()), segment, OptionsOf(spec, desc));
  Call call(spec.text, desc, n);
  const std::vector<float> expected = oracle.Result();
  ASSERT_NO_FATAL_FAILURE(AgreeOnAll(&call, inputs, AllRanks(inputs.size()), n,
                                     Slices(segment, desc.count, rng), oracle));
  for (const Range& range : Slices(segment, desc.count, rng)) {
    SCOPED_TRACE(fmt::format("segment {} at {} of {}", segment, range.first, desc.count));
    const auto input = [&](int r) {
      return Call::Input(inputs[static_cast<size_t>(r)], range.first, range.count);
    };
    Payload chain = call.Make(0, range, {input(0)}, HbiDriver::Sum(1));
    std::vector<size_t> in = {0};
    ASSERT_TRUE(Same(chain, oracle.Sum(in, range.first, range.count)));
    for (int r = 1; r < n; ++r) {
      Payload own = call.Make(r, range, {input(r)}, HbiDriver::Sum(1));
      ASSERT_TRUE(Same(own, oracle.Sum({static_cast<size_t>(r)}, range.first, range.count)));
      // Another's elements where they are, or its payload.
      const Term mine = r % 2 == 0 ? input(r) : HbiDriver::Of(HbiDriver::Sum(1), &own);
      chain = call.Make(r, range, {HbiDriver::Of(HbiDriver::Sum(r), &chain), mine},
                        HbiDriver::Sum(r + 1));
      in.push_back(static_cast<size_t>(r));
      ASSERT_TRUE(Same(chain, oracle.Sum(in, range.first, range.count))) << "hop " << r;
    }
    const std::vector<float> part(expected.begin() + static_cast<long>(range.first),
                                  expected.begin() + static_cast<long>(range.first + range.count));
    const Term full = HbiDriver::Of(HbiDriver::Sum(n), &chain);
    ASSERT_TRUE(Same(call.Make(n - 1, range, {full}, {Form::kOutput}), part));
    if (desc.collective != Collective::kAllReduce) continue;
    Payload result = call.Make(n - 1, range, {full}, {Form::kResult});
    ASSERT_EQ(result, chain);
    const Term sent = HbiDriver::Of({Form::kResult}, &result);
    ASSERT_TRUE(Same(call.Make(0, range, {sent}, {Form::kOutput}), part));
  }
}

void CheckGather(const Spec& spec, const CollectiveArgs& desc, const Vectors& inputs, Rng* rng) {
  const auto n = static_cast<int>(inputs.size());
  Call call(spec.text, desc, n);
  for (int sender = 0; sender < n; ++sender) {
    const auto segment = static_cast<uint32_t>(sender);
    const Vectors own = {inputs[segment]};
    const QsgdVector oracle(own, {sender}, segment, OptionsOf(spec, desc));
    const std::vector<float> expected = oracle.Result();
    const std::vector<Range> slices = Slices(segment, desc.count, rng);
    ASSERT_NO_FATAL_FAILURE(AgreeOnAll(&call, own, {sender}, n, slices, oracle));
    for (const Range& range : Slices(segment, desc.count, rng)) {
      SCOPED_TRACE(fmt::format("segment {} at {} of {}", segment, range.first, desc.count));
      const Term input = Call::Input(own[0], range.first, range.count);
      Payload sent = call.Make(sender, range, {input}, {Form::kResult});
      ASSERT_TRUE(Same(sent, oracle.Sum({0}, range.first, range.count)));
      const std::vector<float> part(
          expected.begin() + static_cast<long>(range.first),
          expected.begin() + static_cast<long>(range.first + range.count));
      for (int r = 0; r < n; ++r) {
        const Term in = r == sender ? input : HbiDriver::Of({Form::kResult}, &sent);
        ASSERT_TRUE(Same(call.Make(r, range, {in}, {Form::kOutput}), part)) << "rank " << r;
      }
    }
  }
}

enum class Kind { kUniform, kTails, kSpecial, kNotFinite, kZero };

std::vector<float> Elements(Kind kind, size_t count, Rng* rng) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kLargest = std::numeric_limits<float>::max();
  constexpr float kFinite[] = {0.0f,      -0.0f,      0x1p-149f, -0x1p-149f, 0x1.8p-127f,
                               0x1p-126f, -0x1p-100f, kLargest,  -kLargest,  1.0f};
  constexpr float kNone[] = {NAN, -NAN, kInfinity, -kInfinity};
  std::vector<float> x(count);
  for (float& e : x) {
    const double uniform = rng->Uniform() * 2 - 1;
    e = static_cast<float>(kind == Kind::kTails ? uniform / (1e-3 + rng->Uniform()) : uniform);
    if (kind == Kind::kZero) e = rng->Below(2) == 0 ? 0.0f : -0.0f;
    if (kind == Kind::kSpecial && rng->Below(3) == 0) e = kFinite[rng->Below(std::size(kFinite))];
  }
  if (kind == Kind::kNotFinite) x[rng->Below(count)] = kNone[rng->Below(std::size(kNone))];
  return x;
}

Vectors RandomInputs(int n, size_t count, Rng* rng) {
  constexpr Kind kKinds[] = {Kind::kUniform, Kind::kTails, Kind::kTails,
                             Kind::kSpecial, Kind::kZero,  Kind::kNotFinite};
  const Kind kind = kKinds[rng->Below(std::size(kKinds))];
  Vectors inputs;
  for (int r = 0; r < n; ++r) {
    const bool special = kind != Kind::kNotFinite || r == n / 2;
    inputs.push_back(Elements(special ? kind : Kind::kUniform, count, rng));
  }
  return inputs;
}

class QsgdOracle : public testing::TestWithParam<size_t> {
 protected:
  const Spec& spec() const { return kSpecs[GetParam()]; }
  Rng rng_{TestSeed()};
};

using QsgdOracleWindows = QsgdOracle;

constexpr uint64_t kLengths[] = {1,   7,   31,  33,  63,  64,   65,  100,
                                 255, 256, 257, 511, 700, 1791, 5000};

TEST_P(QsgdOracle, AllReduces) {
  for (int n = 2; n <= 5; ++n) {
    for (const uint64_t count : kLengths) {
      const CollectiveArgs desc{.op = rng_.Below(2) == 0 ? ReduceOp::kSum : ReduceOp::kAvg,
                                .count = count,
                                .seed = rng_.Next(),
                                .step = rng_.Below(3) == 0 ? rng_.Next() : rng_.Below(20)};
      SCOPED_TRACE(fmt::format("{} ranks, step {}", n, desc.step));
      ASSERT_NO_FATAL_FAILURE(CheckSum(spec(), desc, 0, RandomInputs(n, count, &rng_), &rng_));
    }
  }
}

TEST_P(QsgdOracle, ReduceScattersAndAllGathers) {
  for (int n = 2; n <= 5; ++n) {
    for (const uint64_t count : {uint64_t{1}, uint64_t{100}, uint64_t{257}, uint64_t{1500}}) {
      CollectiveArgs desc{.collective = Collective::kReduceScatter,
                          .count = count,
                          .seed = rng_.Next(),
                          .step = rng_.Below(20)};
      const auto segment = static_cast<uint32_t>(rng_.Below(static_cast<uint64_t>(n)));
      ASSERT_NO_FATAL_FAILURE(
          CheckSum(spec(), desc, segment, RandomInputs(n, count, &rng_), &rng_));
      desc.collective = Collective::kAllGather;
      ASSERT_NO_FATAL_FAILURE(CheckGather(spec(), desc, RandomInputs(n, count, &rng_), &rng_));
    }
  }
}

// Each window has its own largest magnitude and its own random numbers.
TEST_P(QsgdOracleWindows, SecondWindow) {
  const uint64_t count = kWindow + 300;
  const CollectiveArgs desc{.count = count, .seed = rng_.Next(), .step = 1};
  Vectors inputs = {Elements(Kind::kTails, count, &rng_), Elements(Kind::kTails, count, &rng_)};
  for (size_t i = kWindow; i < count; ++i) inputs[1][i] *= 1e3f;
  const QsgdVector oracle(inputs, {0, 1}, 0, OptionsOf(spec(), desc));
  Call call(spec().text, desc, 2);
  const std::vector<Range> windows = {{0, 0, kWindow}, {0, kWindow, 300}};
  ASSERT_NO_FATAL_FAILURE(AgreeOnAll(&call, inputs, {0, 1}, 2, windows, oracle));
  const std::vector<float> expected = oracle.Result();
  for (const Range& range : {Range{0, kWindow - 512, 512}, Range{0, kWindow, 300}}) {
    Payload sum =
        call.Make(1, range, {Call::Input(inputs[1], range.first, range.count)}, HbiDriver::Sum(1));
    EXPECT_TRUE(Same(sum, oracle.Sum({1}, range.first, range.count))) << range.first;
    const Payload output = call.Make(
        0, range,
        {HbiDriver::Of(HbiDriver::Sum(1), &sum), Call::Input(inputs[0], range.first, range.count)},
        {Form::kOutput});
    EXPECT_EQ(std::memcmp(output.data(), expected.data() + range.first, output.size()), 0);
  }
}

std::string SpecName(const testing::TestParamInfo<size_t>& row) {
  std::string name = kSpecs[row.param].text;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) == 0 ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Specs, QsgdOracle, testing::Range(size_t{0}, std::size(kSpecs)), SpecName);
// Slow, and of few codecs enough.
INSTANTIATE_TEST_SUITE_P(Specs, QsgdOracleWindows, testing::Values(2, 4), SpecName);

// ---------------------------------------------------------------- golden rows

// Signed hashes times a power of two that varies.
std::vector<float> GoldenInput(int rank, size_t count) {
  std::vector<float> x(count);
  for (size_t e = 0; e < count; ++e) {
    uint64_t z = (e + 1) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(rank) * 0xd1342543de82ef95u;
    z = (z ^ z >> 32) * 0xd6e8feb86659fd93u;
    z ^= z >> 32;
    const auto value = static_cast<float>(static_cast<int32_t>(z >> 8 & 0xffffff) - (1 << 23));
    x[e] = std::ldexp(value, -23 - static_cast<int>(z & 7));
  }
  return x;
}

struct GoldenCall {
  const Spec* spec;
  int n;
  uint64_t count, seed, step;
  bool average;
};

std::vector<GoldenCall> GoldenCalls() {
  std::vector<GoldenCall> calls;
  for (const Spec& spec : kSpecs) {
    for (const int n : {2, 3, 5}) {
      for (const uint64_t count : {uint64_t{100}, uint64_t{256}, uint64_t{3000}}) {
        const auto salt = static_cast<uint64_t>(n) * 1000 + count;
        calls.push_back({&spec, n, count, salt * 77, salt % 13, n == 3});
      }
    }
  }
  return calls;
}

// "allreduce spec=qsgd n=2 count=100 seed=154 step=3 avg=0 sides a1b2c3d4 payloads .. result ..":
// CRC-32 of what all ranks send in the agreements, of their contributions and all sums on a chain,
// and of the result.
std::string Row(const GoldenCall& call, const Payload& sides, const Payload& payloads,
                const Payload& result) {
  return fmt::format(
      "allreduce spec={} n={} count={} seed={} step={} avg={} sides {:08x} payloads {:08x} result "
      "{:08x}",
      call.spec->text, call.n, call.count, call.seed, call.step, call.average ? 1 : 0,
      Crc32(sides.data(), sides.size()), Crc32(payloads.data(), payloads.size()),
      Crc32(result.data(), result.size()));
}

template <typename Value>
void Append(const std::vector<Value>& more, Payload* to) {
  const auto* bytes = reinterpret_cast<const std::byte*>(more.data());
  to->insert(to->end(), bytes, bytes + more.size() * sizeof(Value));
}

Vectors GoldenInputs(const GoldenCall& golden) {
  Vectors inputs;
  for (int r = 0; r < golden.n; ++r) inputs.push_back(GoldenInput(r, golden.count));
  return inputs;
}

CollectiveArgs DescOf(const GoldenCall& golden) {
  return {.op = golden.average ? ReduceOp::kAvg : ReduceOp::kSum,
          .count = golden.count,
          .seed = golden.seed,
          .step = golden.step};
}

std::string RowOfOracle(const GoldenCall& golden) {
  const Vectors inputs = GoldenInputs(golden);
  const QsgdVector oracle(inputs, AllRanks(inputs.size()), 0,
                          OptionsOf(*golden.spec, DescOf(golden)));
  Payload sides, payloads, result;
  for (size_t r = 0; r < inputs.size(); ++r) {
    Append(std::vector<uint32_t>{oracle.LargestOf(r, 0, golden.count)}, &sides);
    if (golden.spec->options.q.size() > 1) Append(oracle.IndicesOf(r, 0, golden.count), &sides);
    std::vector<size_t> chain(r + 1);
    std::iota(chain.begin(), chain.end(), size_t{0});
    Append(oracle.Sum({r}, 0, golden.count), &payloads);
    Append(oracle.Sum(chain, 0, golden.count), &payloads);
  }
  Append(oracle.Result(), &result);
  return Row(golden, sides, payloads, result);
}

std::string RowOfLibrary(const GoldenCall& golden) {
  const Vectors inputs = GoldenInputs(golden);
  Call call(golden.spec->text, DescOf(golden), golden.n);
  const Range all{0, 0, static_cast<uint32_t>(golden.count)};
  const auto input = [&](int r) {
    return Call::Input(inputs[static_cast<size_t>(r)], 0, all.count);
  };
  std::vector<std::vector<Payload>> sent(2);
  for (const Format side : {kFirst, kSecond}) {
    if (side == kSecond && !call.several()) continue;
    std::vector<Payload>& parts = sent[side.contributions];
    std::vector<Term> terms;
    for (int r = 0; r < golden.n; ++r) parts.push_back(call.Make(r, all, {input(r)}, side));
    for (Payload& part : parts) terms.push_back(HbiDriver::Of(side, &part));
    for (int r = 0; r < golden.n; ++r) call.Keep(r, all, side, terms);
  }
  Payload sides, payloads, chain;
  for (int r = 0; r < golden.n; ++r) {
    Append(sent[0][static_cast<size_t>(r)], &sides);
    if (call.several()) Append(sent[1][static_cast<size_t>(r)], &sides);
    std::vector<Term> terms;
    if (r > 0) terms.push_back(HbiDriver::Of(HbiDriver::Sum(r), &chain));
    terms.push_back(input(r));
    Append(call.Make(r, all, {input(r)}, HbiDriver::Sum(1)), &payloads);
    chain = call.Make(r, all, terms, HbiDriver::Sum(r + 1));
    Append(chain, &payloads);
  }
  const Term full = HbiDriver::Of(HbiDriver::Sum(golden.n), &chain);
  return Row(golden, sides, payloads, call.Make(0, all, {full}, {Form::kOutput}));
}

TEST(QsgdGolden, LibraryAndOracleGiveTheRows) {
  std::ifstream file(INCCL_SOURCE_DIR "/tests/compress/qsgd_golden.txt");
  std::vector<std::string> rows;
  for (std::string line; std::getline(file, line);) rows.push_back(line);
  const std::vector<GoldenCall> calls = GoldenCalls();
  ASSERT_EQ(rows.size(), calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(RowOfOracle(calls[i]), rows[i]);
    for (const std::string& target : SimdTargets()) {
      ASSERT_TRUE(SetSimdTarget(target).ok());
      EXPECT_EQ(RowOfLibrary(calls[i]), rows[i]) << target;
    }
    ASSERT_TRUE(SetSimdTarget("best").ok());
  }
}

}  // namespace
}  // namespace inccl::test
