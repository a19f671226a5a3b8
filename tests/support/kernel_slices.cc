// SPDX-License-Identifier: Apache-2.0
#include "support/kernel_slices.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "compress/cuda/layout.h"
#include "compress/hbi/format.h"
#include "compress/hbi/side_words.h"
#include "compress/hbi/slice.h"
#include "compress/kernels/convert.h"
#include "compress/kernels/hbi_kernels.h"

namespace inccl::test {
namespace {

using Bytes = std::vector<uint8_t>;

cuda::ElementType TypeOf(DataType type) {
  switch (type) {
    case DataType::kFloat16: return cuda::ElementType::kFloat16;
    case DataType::kBfloat16: return cuda::ElementType::kBfloat16;
    case DataType::kFloat64: return cuda::ElementType::kFloat64;
    default: return cuda::ElementType::kFloat32;
  }
}

// Scales that differ between superblocks and blocks, zeros, now and then what is special.
float RandomElement(Rng* rng, int octave) {
  static const float kSpecial[] = {std::numeric_limits<float>::quiet_NaN(),
                                   -std::numeric_limits<float>::infinity(),
                                   std::numeric_limits<float>::infinity(),
                                   -0.0f,
                                   0.0f,
                                   std::numeric_limits<float>::denorm_min(),
                                   -std::numeric_limits<float>::max(),
                                   1e-38f};
  if (rng->Below(2000) == 0) return kSpecial[rng->Below(8)];
  return static_cast<float>(std::ldexp(2 * rng->Uniform() - 1, octave));
}

Bytes RandomElements(DataType type, uint32_t count, Rng* rng) {
  std::vector<float> x(count);
  const int middle = rng->Below(8) == 0 ? static_cast<int>(rng->Below(250)) - 125 : -3;
  for (uint32_t i = 0; i < count;) {
    const int octave = middle + static_cast<int>(rng->Below(20)) - 10;
    const bool zero = rng->Below(12) == 0;
    const uint32_t end = std::min(count, i / kBlock * kBlock + kBlock);
    for (; i < end; ++i) x[i] = zero ? 0.0f : RandomElement(rng, octave);
  }
  Bytes bytes(count * SizeOf(type));
  FromFloat(type, x.data(), bytes.data(), count);
  return bytes;
}

std::byte* AsBytes(Bytes* bytes) { return reinterpret_cast<std::byte*>(bytes->data()); }
const std::byte* AsBytes(const Bytes& bytes) {
  return reinterpret_cast<const std::byte*>(bytes.data());
}

void ExpectSame(const Bytes& found, const Bytes& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i], expected[i]) << what << ", byte " << i << " of " << found.size();
  }
}

// The reference's slice and the target's copy of what describes it.
class Slice {
 public:
  Slice(KernelTarget* target, const SliceCase& which, const hbi::Kernels& kernels, Rng* rng);

  void CheckWords();
  void CheckEncode();
  void CheckRing();
  void CheckAdd();
  void CheckFold();

 private:
  hbi::SliceContext Of(int rank) const {
    hbi::SliceContext context = context_;
    context.offsets = hbi::OffsetsOf(rank, case_.nranks, case_.config.unbiased);
    return context;
  }
  cuda::SliceArgs ArgsOf(int rank) const {
    cuda::SliceArgs args = args_;
    args.offsets = hbi::OffsetsOf(rank, case_.nranks, case_.config.unbiased);
    return args;
  }
  // The packed sum of the ranks first .. first + h - 1, by the reference.
  Bytes Sum(int first, int h) const;
  hbi::Source Payload(const Bytes& bytes, int h) const {
    return {.at = bytes.data(),
            .end = bytes.data() + bytes.size(),
            .contributions = static_cast<uint32_t>(h)};
  }
  // A packed sum of h in fields as wide as those of all ranks' sum.
  Bytes Widened(const Bytes& sum, int h) const;
  Bytes Folded(int rank, std::vector<hbi::Source> sources, int h) const;
  const uint32_t* Starts(int h);  // 0: of the result
  cuda::PackedArgs Packed(TargetBytes* bytes, int h, size_t offset = 0) {
    return {bytes->data() + offset, Starts(h), static_cast<uint32_t>(std::max(h, 1))};
  }
  void Succeeds(int error) { ASSERT_EQ(error, 0) << target_->launchers().error_name(error); }
  void CheckDecode(const Bytes& payload, bool result);

  KernelTarget* target_;
  const SliceCase case_;
  Rng* rng_;
  const hbi::Planner planner_;
  std::vector<Bytes> inputs_;  // by rank
  Bytes words_, points_;
  hbi::SliceContext context_;
  cuda::SliceArgs args_;
  std::vector<std::unique_ptr<TargetBytes>> elements_;  // the target's inputs_
  std::unique_ptr<TargetBytes> target_words_, target_points_, tables_, choices_;
  std::vector<std::unique_ptr<TargetBytes>> starts_;  // by contributions
};

Slice::Slice(KernelTarget* target, const SliceCase& which, const hbi::Kernels& kernels, Rng* rng)
    : target_(target),
      case_(which),
      rng_(rng),
      planner_(Collective::kAllReduce, which.nranks, which.config) {
  context_ = {.kernels = &kernels,
              .planner = &planner_,
              .type = case_.type,
              .average = case_.average,
              .unbiased = case_.config.unbiased,
              .counter = static_cast<uint32_t>(rng->Next()),
              .result_counter = static_cast<uint32_t>(rng->Next()),
              .count = case_.count};
  const size_t superblocks = context_.superblocks();
  words_.resize(superblocks * hbi::kWordBytes);
  points_.resize(superblocks);
  for (int r = 0; r < case_.nranks; ++r) {
    inputs_.push_back(RandomElements(case_.type, case_.count, rng));
    hbi::FoldOwnWords(context_, AsBytes(inputs_.back()), r == 0, words_.data());
    elements_.push_back(std::make_unique<TargetBytes>(target, inputs_.back(), case_.misaligned));
  }
  if (case_.planned) {
    hbi::PlanSummary summary;
    planner_.Plan(words_.data(), points_, &summary);
  } else {
    for (uint8_t& point : points_) {
      const auto s = static_cast<size_t>(&point - points_.data());
      const bool live = hbi::IsLive(hbi::LoadWord(words_.data(), s));
      point = static_cast<uint8_t>(live ? rng->Below(planner_.points().size()) : 0);
    }
  }
  context_.words = words_.data();
  context_.points = points_.data();
  target_words_ = std::make_unique<TargetBytes>(target, words_);
  target_points_ = std::make_unique<TargetBytes>(target, points_);
  planner_.MakeTables();
  std::vector<hbi::LevelTable> tables;
  for (const hbi::Point& point : planner_.points()) {
    tables.push_back(*point.sum);
    tables.push_back(*point.result);
  }
  tables_ = std::make_unique<TargetBytes>(target, tables);
  std::vector<cuda::LevelChoice> choices;
  for (const hbi::Point& point : planner_.points()) {
    const auto* table = tables_->data<hbi::LevelTable>() + 2 * choices.size();
    choices.push_back({point.k, point.k2, table, table + 1});
  }
  choices_ = std::make_unique<TargetBytes>(target, choices);
  starts_.resize(static_cast<size_t>(case_.nranks) + 1);
  args_ = {.words = target_words_->data<uint32_t>(),
           .points = target_points_->data(),
           .choices = choices_->data<cuda::LevelChoice>(),
           .count = case_.count,
           .counter = context_.counter,
           .result_counter = context_.result_counter,
           .unbiased = context_.unbiased,
           .average = context_.average};
}

const uint32_t* Slice::Starts(int h) {
  std::unique_ptr<TargetBytes>& starts = starts_[static_cast<size_t>(h)];
  if (starts == nullptr) {
    std::vector<uint32_t> values(args_.tiles());
    const auto width = [&](uint8_t point) {
      const hbi::Point& levels = planner_.points()[point];
      return h == 0 ? hbi::Width(1, levels.k2) : hbi::Width(static_cast<uint32_t>(h), levels.k);
    };
    const uint64_t bytes = cuda::TileStarts(points_, width, values.data());
    if (h > 0) {
      EXPECT_EQ(bytes, hbi::SumBytes(context_, static_cast<uint32_t>(h)));
    }
    starts = std::make_unique<TargetBytes>(target_, values);
  }
  return starts->data<uint32_t>();
}

Bytes Slice::Folded(int rank, std::vector<hbi::Source> sources, int h) const {
  Bytes sum(hbi::SumBytes(context_, static_cast<uint32_t>(h)));
  hbi::FoldSlice(Of(rank), sources, {.sum = {sum.data(), sum.data() + sum.size()}, .result = {}});
  return sum;
}

Bytes Slice::Widened(const Bytes& sum, int h) const {
  const hbi::Kernels& kernels = hbi::ScalarKernels();
  Bytes wide(hbi::SumBytes(context_, static_cast<uint32_t>(case_.nranks)) + hbi::kWriteSlack);
  const uint8_t* in = sum.data();
  uint8_t* out = wide.data();
  for (const uint8_t point : points_) {
    const uint32_t k = planner_.points()[point].k;
    if (k == 0) continue;
    const uint32_t from = hbi::Width(static_cast<uint32_t>(h), k);
    const uint32_t to = hbi::Width(static_cast<uint32_t>(case_.nranks), k);
    uint16_t tile[kSuperblock];
    kernels.unpack(in, from, tile, 1);
    kernels.pack(tile, to, out, 1);
    in += hbi::PackedBytes(from);
    out += hbi::PackedBytes(to);
  }
  wide.resize(wide.size() - hbi::kWriteSlack);
  return wide;
}

Bytes Slice::Sum(int first, int h) const {
  Bytes sum;
  for (int i = 0; i < h; ++i) {
    const int rank = (first + i) % case_.nranks;
    const hbi::Source own{.elements = AsBytes(inputs_[static_cast<size_t>(rank)])};
    sum = i == 0 ? Folded(rank, {own}, 1) : Folded(rank, {Payload(sum, i), own}, i + 1);
  }
  return sum;
}

void Slice::CheckWords() {
  TargetBytes words(target_, words_.size());
  Bytes expected(words_.size());
  const auto rank = rng_->Below(inputs_.size());
  Succeeds(target_->launchers().side_words(TypeOf(case_.type), elements_[rank]->data(), case_.count,
                                           words.data<uint32_t>(), nullptr));
  hbi::FoldOwnWords(context_, AsBytes(inputs_[rank]), true, expected.data());
  ExpectSame(words.Take(), expected, "side words");
}

void Slice::CheckEncode() {
  const int rank = static_cast<int>(rng_->Below(inputs_.size()));
  for (const bool nearest : {false, true}) {
    hbi::SliceContext context = Of(rank);
    context.nearest = nearest;
    const auto& input = inputs_[static_cast<size_t>(rank)];
    std::vector<hbi::Source> own = {{.elements = AsBytes(input)}};
    Bytes expected(hbi::SumBytes(context, 1));
    hbi::FoldSlice(context, own,
                   {.sum = {expected.data(), expected.data() + expected.size()}, .result = {}});
    TargetBytes out(target_, expected.size(), 4 * rng_->Below(4));
    cuda::EncodeArgs args{.slice = ArgsOf(rank),
                          .elements = elements_[static_cast<size_t>(rank)]->data(),
                          .out = Packed(&out, 1)};
    args.slice.nearest = nearest;
    Succeeds(target_->launchers().encode(TypeOf(case_.type), args, nullptr));
    ExpectSame(out.Take(), expected, nearest ? "encode to nearest" : "encode");
  }
}

void Slice::CheckRing() {
  const int h = 1 + static_cast<int>(rng_->Below(static_cast<uint64_t>(case_.nranks) - 1));
  const int first = static_cast<int>(rng_->Below(inputs_.size()));
  const Bytes incoming = Sum(first, h);
  const int rank = (first + h) % case_.nranks;
  const auto own = static_cast<size_t>(rank);
  const Bytes expected =
      Folded(rank, {Payload(incoming, h), {.elements = AsBytes(inputs_[own])}}, h + 1);
  TargetBytes in(target_, incoming, 4 * rng_->Below(4));
  TargetBytes out(target_, expected.size(), 4 * rng_->Below(4));
  const cuda::EncodeArgs args{.slice = ArgsOf(rank),
                              .elements = elements_[own]->data(),
                              .in = Packed(&in, h),
                              .out = Packed(&out, h + 1)};
  Succeeds(target_->launchers().encode(TypeOf(case_.type), args, nullptr));
  ExpectSame(out.Take(), expected, fmt::format("encode and add to {}", h));
}

void Slice::CheckAdd() {
  const int of_a = 1 + static_cast<int>(rng_->Below(static_cast<uint64_t>(case_.nranks) - 1));
  const int of_b = 1 + static_cast<int>(rng_->Below(static_cast<uint64_t>(case_.nranks - of_a)));
  const Bytes a = Sum(0, of_a), b = Sum(of_a, of_b);
  const Bytes expected = Folded(0, {Payload(a, of_a), Payload(b, of_b)}, of_a + of_b);
  TargetBytes in_a(target_, a), in_b(target_, b), out(target_, expected.size());
  cuda::AddArgs args{.slice = ArgsOf(0),
                     .a = Packed(&in_a, of_a),
                     .b = Packed(&in_b, of_b),
                     .out = Packed(&out, of_a + of_b)};
  Succeeds(target_->launchers().add(args, nullptr));
  ExpectSame(out.Take(), expected, fmt::format("sum of {} and {}", of_a, of_b));
  if (testing::Test::HasFatalFailure()) return;
  // In fields of one width, which have room for the sum; also in place.
  const int n = case_.nranks;
  TargetBytes wide_a(target_, Widened(a, of_a)), wide_b(target_, Widened(b, of_b));
  const Bytes wide = Widened(expected, of_a + of_b);
  TargetBytes wide_out(target_, wide.size());
  args.a = Packed(&wide_a, n);
  args.b = Packed(&wide_b, n);
  for (TargetBytes* to : {&wide_out, &wide_a}) {
    args.out = Packed(to, n);
    Succeeds(target_->launchers().add(args, nullptr));
    ExpectSame(to->Take(), wide, fmt::format("sum of {} and {} in fields for {}", of_a, of_b, n));
  }
}

void Slice::CheckFold() {
  const int n = case_.nranks;
  const int rank = static_cast<int>(rng_->Below(inputs_.size()));
  const bool owns = rng_->Below(4) != 0;
  const bool requant = planner_.requantizes();
  // A sum of several, then the others one by one, then maybe the rank's own elements.
  const int others = owns ? n - 1 : n;
  const int together = 1 + static_cast<int>(rng_->Below(static_cast<uint64_t>(others)));
  std::vector<Bytes> payloads = {Sum(rank + 1, together)};
  std::vector<int> counts = {together};
  for (int i = together; i < others; ++i) {
    payloads.push_back(Sum(rank + 1 + i, 1));
    counts.push_back(1);
  }
  std::vector<hbi::Source> sources;
  std::vector<std::unique_ptr<TargetBytes>> inputs;
  cuda::FoldArgs args{.slice = ArgsOf(rank), .requantize = requant};
  for (size_t i = 0; i < payloads.size(); ++i) {
    sources.push_back(Payload(payloads[i], counts[i]));
    inputs.push_back(std::make_unique<TargetBytes>(target_, payloads[i], 4 * rng_->Below(4)));
    args.sources[args.source_count++] = Packed(inputs.back().get(), counts[i]);
  }
  if (owns) {
    sources.push_back({.elements = AsBytes(inputs_[static_cast<size_t>(rank)])});
    args.own = elements_[static_cast<size_t>(rank)]->data();
  }
  // Any of the outputs.
  const uint64_t any = 1 + rng_->Below(7);
  const uint64_t wanted = any == 2 && !requant ? 4 : any;
  Bytes sum(wanted & 1 ? hbi::SumBytes(context_, static_cast<uint32_t>(n)) : 0);
  Bytes result(wanted & 2 && requant ? hbi::ResultBytes(context_) : 0);
  Bytes elements(case_.count * SizeOf(case_.type));
  hbi::SliceOutputs outputs;
  if (!sum.empty()) outputs.sum = {sum.data(), sum.data() + sum.size()};
  if (!result.empty()) outputs.result = {result.data(), result.data() + result.size()};
  if (wanted & 4) outputs.elements = AsBytes(&elements);
  hbi::FoldSlice(Of(rank), sources, outputs);

  TargetBytes to_sum(target_, sum.size()), to_result(target_, result.size());
  TargetBytes to_elements(target_, elements.size(), case_.misaligned);
  const size_t words_bytes = words_.size();
  if (!sum.empty()) args.sum = Packed(&to_sum, n);
  if (!result.empty()) {
    args.result_words = to_result.data<uint32_t>();
    args.result = Packed(&to_result, 0, words_bytes);
  }
  if (wanted & 4) args.elements = to_elements.data();
  Succeeds(target_->launchers().fold(TypeOf(case_.type), args, nullptr));
  if (!sum.empty()) ExpectSame(to_sum.Take(), sum, "fold, sum");
  if (!result.empty()) ExpectSame(to_result.Take(), result, "fold, result");
  if (wanted & 4) ExpectSame(to_elements.Take(), elements, "fold, elements");
  if (testing::Test::HasFatalFailure()) return;
  if (!result.empty()) CheckDecode(result, true);
  if (!sum.empty() && !requant) CheckDecode(sum, false);
}

void Slice::CheckDecode(const Bytes& payload, bool result) {
  Bytes expected(case_.count * SizeOf(case_.type));
  hbi::DecodeResult(context_, payload.data(), AsBytes(&expected));
  TargetBytes in(target_, payload);
  TargetBytes out(target_, expected.size(), case_.misaligned);
  const cuda::DecodeArgs args{
      .slice = args_,
      .words = (result ? in : *target_words_).data<uint32_t>(),
      .in = Packed(&in, result ? 0 : case_.nranks, result ? words_.size() : 0),
      .result = result,
      .elements = out.data()};
  Succeeds(target_->launchers().decode(TypeOf(case_.type), args, nullptr));
  ExpectSame(out.Take(), expected, result ? "decode a result" : "decode a sum");
}

}  // namespace

std::string SliceCase::Description() const {
  return fmt::format("{} of {} ranks, {} elements of {}, {} bytes beside{}{}", config.Canonical(),
                     nranks, count, Name(type), misaligned, average ? ", average" : "",
                     planned ? "" : ", any levels");
}

SliceCase RandomSlice(Rng* rng, uint32_t most_elements) {
  static const DataType kTypes[] = {DataType::kFloat32, DataType::kFloat32, DataType::kBfloat16,
                                    DataType::kFloat16, DataType::kFloat64};
  static const int kRanks[] = {2, 2, 3, 4, 5, 8, 16, 33};
  SliceCase which;
  which.nranks = kRanks[rng->Below(8)];
  which.type = kTypes[rng->Below(5)];
  which.average = rng->Below(3) == 0;
  which.count = 1 + static_cast<uint32_t>(rng->Below(most_elements));
  if (rng->Below(3) == 0) which.count = (which.count + kSuperblock - 1) / kSuperblock * kSuperblock;
  if (rng->Below(4) == 0) which.misaligned = static_cast<uint32_t>(SizeOf(which.type));
  which.config.unbiased = rng->Below(3) == 0;
  which.config.all_gather = rng->Below(3) == 0 ? hbi::AllGather::kExact : hbi::AllGather::kRequant;
  if (rng->Below(2) == 0) {
    const uint32_t most = std::min(4095u, 32767u / static_cast<uint32_t>(which.nranks));
    which.config.bits8 = 0;
    which.config.k = 1 + static_cast<uint32_t>(rng->Below(rng->Below(2) == 0 ? 8 : most));
    which.config.k2 = 1 + static_cast<uint32_t>(rng->Below(rng->Below(2) == 0 ? 8 : 4095));
  } else {
    which.config.bits8 = 20 + static_cast<uint32_t>(rng->Below(60));
    which.planned = rng->Below(2) == 0;
  }
  return which;
}

void CheckSlice(KernelTarget* target, const SliceCase& slice, Rng* rng,
                const hbi::Kernels& kernels) {
  SCOPED_TRACE(slice.Description());
  Slice checked(target, slice, kernels, rng);
  const auto failed = [] { return testing::Test::HasFatalFailure(); };
  if (!failed()) checked.CheckWords();
  if (!failed()) checked.CheckEncode();
  if (!failed()) checked.CheckRing();
  if (!failed()) checked.CheckAdd();
  if (!failed()) checked.CheckFold();
}

void CheckEveryWidth(KernelTarget* target, Rng* rng) {
  for (uint32_t k = 1; k <= hbi::kMaxLevels; k = 2 * k + 1) {
    for (const uint32_t n : {2u, 3u, 4u, 7u}) {
      if (2 * n * k >= hbi::kFieldLimit) continue;
      SliceCase slice;
      slice.config.bits8 = 0;
      slice.config.k = k;
      slice.config.k2 = 1 + static_cast<uint32_t>(rng->Below(k));
      slice.nranks = static_cast<int>(n);
      slice.count = 1 + static_cast<uint32_t>(rng->Below(1500));
      CheckSlice(target, slice, rng);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

void CheckSideWords(KernelTarget* target, Rng* rng) {
  std::vector<uint32_t> magnitudes = {0,          1,          2,          0x7fffff,
                                      0x7f800000, 0x7f800001, 0x7fc00000, 0x7fffffff};
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const uint32_t mantissa : hbi::kFifthBits) {
      for (const uint32_t delta : {0u, 1u, 2u}) {
        magnitudes.push_back((exponent << 23) + ((mantissa + delta - 1) & 0x7fffff));
      }
    }
  }
  std::vector<float> x(magnitudes.size() * kBlock);
  for (size_t b = 0; b < magnitudes.size(); ++b) {
    const uint32_t sign = static_cast<uint32_t>(rng->Next()) & 0x80000000;
    for (size_t j = 0; j < kBlock; ++j) {
      x[b * kBlock + j] = std::bit_cast<float>(magnitudes[b] / 3 * static_cast<uint32_t>(j % 3));
    }
    x[b * kBlock + rng->Below(kBlock)] = std::bit_cast<float>(magnitudes[b] | sign);
  }
  const auto count = static_cast<uint32_t>(x.size());
  Bytes expected((count + kSuperblock - 1) / kSuperblock * hbi::kWordBytes);
  for (const DataType type : {DataType::kFloat32, DataType::kFloat64, DataType::kBfloat16}) {
    Bytes elements(count * SizeOf(type));
    FromFloat(type, x.data(), elements.data(), count);
    hbi::FoldOwnWords({.kernels = &hbi::ScalarKernels(), .type = type, .count = count},
                      AsBytes(elements), true, expected.data());
    const TargetBytes in(target, elements), out(target, expected.size());
    ASSERT_EQ(target->launchers().side_words(TypeOf(type), in.data(), count, out.data<uint32_t>(),
                                             nullptr),
              0);
    ExpectSame(out.Take(), expected, "side words of every scale");
  }
}

}  // namespace inccl::test
