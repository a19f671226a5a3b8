// SPDX-License-Identifier: Apache-2.0
#include "perf/kernels/codec_cases.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/rng.h"
#include "base/types.h"
#include "compress/codec.h"
#include "compress/kernels/convert.h"
#include "perf/support/output.h"

namespace inccl::perf {
namespace {

constexpr uint32_t kElements = kCaseSuperblocks * kSuperblock;
constexpr int kRanks = 4;

using Bytes = std::vector<std::byte>;

void Require(const std::string& spec, const Status& status) {
  if (status.ok()) return;
  PrintError("codec_bench: {}: {}\n", spec, status.message());
  std::exit(EXIT_FAILURE);
}

// Normal, every 16 superblocks with a magnitude of their own, as layers of gradients have.
Bytes Elements(DataType type, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(kElements);
  for (uint32_t i = 0; i < kElements; ++i) {
    const double radius = std::sqrt(-2 * std::log(1 - rng.Uniform()));
    const int octave = -static_cast<int>(i / (16 * kSuperblock));
    x[i] = static_cast<float>(std::ldexp(radius * std::cos(2 * M_PI * rng.Uniform()), octave));
  }
  Bytes elements(kElements * SizeOf(type));
  FromFloat(type, x.data(), elements.data(), kElements);
  return elements;
}

// One call on one rank: its sides agreed, payloads of all lengths made once.
class CodecRun {
 public:
  CodecRun(const std::string& spec, DataType type)
      : spec_(spec), type_(type), own_(Elements(type, 1)), other_(Elements(type, 2)) {
    Result<std::shared_ptr<const Codec>> codec = MakeCodec(spec);
    Require(spec, codec.ok() ? Status::Ok() : codec.status());
    codec_ = *codec;
    state_ = codec_->NewState();
    const CollectiveArgs call{.type = type, .nranks = kRanks, .rank = 0, .count = kElements};
    Require(spec, state_->Begin(call));
    for (uint16_t phase = 0; phase < codec_->side_phases().size(); ++phase) Agree(phase);
    const uint32_t most = codec_->MaxBytes(type, kRanks, kElements) + 64;
    for (Bytes* bytes : {&encoded_, &hopped_}) bytes->resize(most);
    decoded_.resize(kElements * SizeOf(type));
  }

  void Encode(uint32_t superblocks) {
    const Term in = Own(superblocks, own_);
    Term out = Sum(encoded_, 1);
    Combine(superblocks, {&in, 1}, {&out, 1});
  }
  void Hop(uint32_t superblocks) {
    const Payloads& sent = Sent(superblocks);
    const Term in[] = {Sum(sent.sum, 1), Own(superblocks, own_)};
    Term out = Sum(hopped_, 2);
    Combine(superblocks, in, {&out, 1});
  }
  void Decode(uint32_t superblocks) {
    const Payloads& sent = Sent(superblocks);
    const Term in{{Form::kResult}, At(sent.result), static_cast<uint32_t>(sent.result.size())};
    Term out{{Form::kOutput}, decoded_.data(), ElementBytes(superblocks)};
    Combine(superblocks, {&in, 1}, {&out, 1});
  }
  double PayloadBytes() {  // of an element, of one rank
    return static_cast<double>(Sent(kCaseSuperblocks).sum.size()) / kElements;
  }
  double Size() const { return static_cast<double>(SizeOf(type_)); }

 private:
  struct Payloads {
    Bytes sum, result;
  };

  static std::byte* At(const Bytes& bytes) { return const_cast<std::byte*>(bytes.data()); }
  Term Own(uint32_t superblocks, const Bytes& elements) const {
    return {{Form::kInput}, At(elements), ElementBytes(superblocks)};
  }
  static Term Sum(const Bytes& bytes, uint16_t contributions) {
    return {{Form::kSum, contributions}, At(bytes), static_cast<uint32_t>(bytes.size())};
  }
  uint32_t ElementBytes(uint32_t superblocks) const {
    return superblocks * kSuperblock * static_cast<uint32_t>(SizeOf(type_));
  }
  void Combine(uint32_t superblocks, std::span<const Term> in, std::span<Term> out) {
    Require(spec_, state_->Combine({0, 0, superblocks * kSuperblock}, in, out));
  }
  void Agree(uint16_t phase) {
    Bytes sides[2] = {Bytes(codec_->SideBytes(kElements)), Bytes(codec_->SideBytes(kElements))};
    Term sent[2], agreed{{Form::kSide, phase}, nullptr, 0};
    for (size_t i = 0; i < 2; ++i) {
      const Term in = Own(kCaseSuperblocks, i == 0 ? own_ : other_);
      sent[i] = {{Form::kSide, phase}, sides[i].data(), static_cast<uint32_t>(sides[i].size())};
      Combine(kCaseSuperblocks, {&in, 1}, {&sent[i], 1});
    }
    Combine(kCaseSuperblocks, sent, {&agreed, 1});
  }
  // Payloads of the other ranks' elements.
  const Payloads& Sent(uint32_t superblocks) {
    Payloads& sent = sent_[superblocks];
    if (!sent.sum.empty()) return sent;
    sent.sum.resize(codec_->MaxBytes(type_, kRanks, kElements) + 64);
    sent.result = sent.sum;
    const Term own = Own(superblocks, other_);
    Term sum = Sum(sent.sum, 1);
    Combine(superblocks, {&own, 1}, {&sum, 1});
    const Term all[] = {own, own, own, own};
    Term result{{Form::kResult}, sent.result.data(), static_cast<uint32_t>(sent.result.size())};
    Combine(superblocks, all, {&result, 1});
    sent.sum.resize(sum.bytes);
    sent.result.resize(result.bytes);
    return sent;
  }

  const std::string spec_;
  const DataType type_;
  const Bytes own_, other_;
  std::shared_ptr<const Codec> codec_;
  std::unique_ptr<CodecState> state_;
  Bytes encoded_, hopped_, decoded_;
  std::array<Payloads, kCaseSuperblocks + 1> sent_;
};

struct Row {
  const char* name;
  const char* spec;
  DataType type;
};
constexpr Row kRows[] = {
    {"none", "none", DataType::kFloat32},
    {"hbi6", "hbi:bits=6", DataType::kFloat32},
    {"hbi6_coded", "hbi:bits=6,code=entropy", DataType::kFloat32},
    {"hbi3_coded", "hbi:bits=3,code=entropy", DataType::kFloat32},
    {"bf16", "bf16", DataType::kFloat32},
    {"fp16", "fp16", DataType::kFloat32},
    {"fp8", "fp8", DataType::kFloat32},
    {"fp8_e5m2", "fp8:format=e5m2", DataType::kFloat32},
    {"mxfp8", "mxfp8", DataType::kFloat32},
    {"lossless", "lossless", DataType::kFloat32},
    {"lossless_bf16", "lossless", DataType::kBfloat16},
    {"lossless_fp16", "lossless", DataType::kFloat16},
    {"dither4", "dither:bits=4", DataType::kFloat32},
    {"dither_pow2", "dither:bits=4,levels=pow2", DataType::kFloat32},
    {"dither_sparse", "dither:bits=2,norm=l2,sparse=1", DataType::kFloat32},
    {"onebit", "onebit", DataType::kFloat32},
    {"onebit_bf16", "onebit", DataType::kBfloat16},
    {"qsgd8", "qsgd:q=8", DataType::kFloat32},
    {"qsgd_ms", "qsgd_ms:q=4+8", DataType::kFloat32},
};

}  // namespace

std::vector<KernelCase> CodecCases() {
  std::vector<KernelCase> cases;
  for (const Row& row : kRows) {
    const auto run = std::make_shared<CodecRun>(row.spec, row.type);
    const double size = run->Size(), payload = run->PayloadBytes();
    const auto add = [&](const char* what, double bytes, auto function) {
      cases.push_back({.name = fmt::format("{}_{}", row.name, what),
                       .bytes = bytes,
                       .counts_exactly = false,  // they copy
                       .run = function});
    };
    add("encode", size + payload, [run](uint32_t n) { run->Encode(n); });
    add("hop", size + 2 * payload, [run](uint32_t n) { run->Hop(n); });
    add("decode", size + payload, [run](uint32_t n) { run->Decode(n); });
  }
  return cases;
}

}  // namespace inccl::perf
