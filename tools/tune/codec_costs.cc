// SPDX-License-Identifier: Apache-2.0
#include "tools/tune/codec_costs.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "compress/codec.h"
#include "perf/support/statistics.h"
#include "perf/support/streaming.h"

namespace inccl::tools {
namespace {

constexpr uint32_t kElements = 64 * kSuperblock;
constexpr uint32_t kBytes = kElements * sizeof(float);
constexpr int kRanks = 4;
constexpr double kPsPerUs = 1e6;

using Bytes = std::vector<std::byte>;

// One call on one rank, whose side information is agreed with a rank that has the same elements.
class CodecRun {
 public:
  static Result<std::unique_ptr<CodecRun>> Create(const std::string& spec) {
    Result<std::shared_ptr<const Codec>> codec = MakeCodec(spec);
    if (!codec.ok()) return codec.status();
    std::unique_ptr<CodecRun> run(new CodecRun(*std::move(codec)));
    if (Status s = run->Begin(); !s.ok()) return s;
    return run;
  }

  Status Encode() {
    sum_.bytes = capacity();
    const Term in = Own();
    return Combine({&in, 1}, &sum_);
  }
  Status Hop() {
    const Term in[] = {sum_, Own()};
    hopped_.bytes = capacity();
    return Combine(in, &hopped_);
  }
  // With two payloads more than Hop.
  Status Fold() {
    const Term in[] = {sum_, Own(), sum_, sum_};
    folded_.bytes = capacity();
    return Combine(in, &folded_);
  }
  // From now on the payloads of Encode are short ones, and Decode has one.
  Status Shorten() {
    state_->set_shortens(true);
    return Complete();
  }
  Status Decode() {
    Term out{{Form::kOutput, 0}, decoded_.data(), kBytes};
    return Combine({&result_, 1}, &out);
  }

  bool only_one_length() const { return codec_->ShorterBits() == 0; }

 private:
  explicit CodecRun(std::shared_ptr<const Codec> codec)
      : codec_(std::move(codec)), state_(codec_->NewState()), own_(kElements), decoded_(kBytes) {
    Rng rng(1);
    for (float& x : own_) x = static_cast<float>(rng.Below(1 << 20)) / (1 << 19) - 1;
    for (size_t i = 0; i < 4; ++i) payloads_[i].resize(capacity());
    sum_ = {{Form::kSum, 1}, payloads_[0].data(), 0};
    hopped_ = {{Form::kSum, 2}, payloads_[1].data(), 0};
    result_ = {{Form::kResult, 0}, payloads_[2].data(), 0};
    folded_ = {{Form::kSum, kRanks}, payloads_[3].data(), 0};
  }

  // Room for any payload.
  uint32_t capacity() const { return codec_->MaxBytes(DataType::kFloat32, kRanks, kElements) + 64; }
  Term Own() const {
    return {
        {Form::kInput, 0}, reinterpret_cast<std::byte*>(const_cast<float*>(own_.data())), kBytes};
  }
  Status Combine(std::span<const Term> in, Term* out) {
    return state_->Combine({0, 0, kElements}, in, {out, 1});
  }

  Status Begin() {
    Status status = state_->Begin({.nranks = kRanks, .rank = 0, .count = kElements});
    if (!status.ok()) return status;
    for (uint16_t phase = 0; phase < codec_->side_phases().size(); ++phase) {
      Bytes words(codec_->SideBytes(kElements));
      Term sent{{Form::kSide, phase}, words.data(), static_cast<uint32_t>(words.size())};
      const Term in = Own();
      if (status = Combine({&in, 1}, &sent); !status.ok()) return status;
      Term agreed{{Form::kSide, phase}, nullptr, 0};
      const Term all[] = {sent, sent};
      if (status = Combine(all, &agreed); !status.ok()) return status;
    }
    return Complete();
  }
  // Makes the payloads.
  Status Complete() {
    if (Status status = Encode(); !status.ok()) return status;
    const Term all[] = {Own(), Own(), Own(), Own()};
    result_.bytes = capacity();
    return Combine(all, &result_);
  }

  const std::shared_ptr<const Codec> codec_;
  const std::unique_ptr<CodecState> state_;
  std::vector<float> own_;
  Bytes decoded_;
  Bytes payloads_[4];
  Term sum_, hopped_, result_, folded_;
};

Status TimeOf(CodecRun* run, Status (CodecRun::*operation)(), uint64_t iterations, double* ps) {
  std::vector<double> times;
  for (uint64_t i = 0; i < iterations + 1; ++i) {
    const double start = perf::SharedMicroseconds();
    if (Status s = (run->*operation)(); !s.ok()) return s;
    const double took = perf::SharedMicroseconds() - start;
    if (i > 0) times.push_back(took * kPsPerUs / kElements);
  }
  *ps = perf::Median(std::move(times));
  return {};
}

}  // namespace

Result<CodecTimes> TimeCodec(const std::string& spec, uint64_t iterations) {
  Result<std::unique_ptr<CodecRun>> run = CodecRun::Create(spec);
  if (!run.ok()) return run.status();
  CodecTimes times;
  Status status = TimeOf(run->get(), &CodecRun::Encode, iterations, &times.encode_ps);
  if (status.ok()) status = TimeOf(run->get(), &CodecRun::Hop, iterations, &times.hop_ps);
  if (status.ok()) status = TimeOf(run->get(), &CodecRun::Decode, iterations, &times.decode_ps);
  double folded_ps = 0;
  if (status.ok()) status = TimeOf(run->get(), &CodecRun::Fold, iterations, &folded_ps);
  if (!status.ok()) return status;
  times.fold_ps = std::max(0.0, (folded_ps - times.hop_ps) / 2);
  if ((*run)->only_one_length()) return times;
  double encode_ps = 0, decode_ps = 0;
  status = (*run)->Shorten();
  if (status.ok()) status = TimeOf(run->get(), &CodecRun::Encode, iterations, &encode_ps);
  if (status.ok()) status = TimeOf(run->get(), &CodecRun::Decode, iterations, &decode_ps);
  if (!status.ok()) return status;
  const double extra_ps = encode_ps - times.encode_ps + decode_ps - times.decode_ps;
  times.shorten_ps = std::max(0.0, extra_ps / 2);
  return times;
}

}  // namespace inccl::tools
