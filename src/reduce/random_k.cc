// SPDX-License-Identifier: Apache-2.0
//
// random_k: all ranks derive the same k * d elements of d from seed and step and sum their values.
// A permutation of the tensor is split into slices, one for each step, so a sweep of ceil(1 / k)
// steps visits every element once; the next sweep has another permutation (GlobalRandK of
// arXiv 2109.12497).
#include <fmt/format.h>

#include <algorithm>

#include "base/rng.h"
#include "reduce/methods.h"
#include "reduce/permutation.h"

namespace inccl {
namespace {

struct Config {
  double k = 0;
  bool residual = false, unbiased = false;
};

class RandomKState final : public ReducerState {
 public:
  RandomKState(std::string identity, const TensorDesc& desc, const Config& config, RoundCodec codec)
      : ReducerState(
            {.identity = std::move(identity), .tensor = desc, .residual = config.residual}),
        config_(config),
        codec_(std::move(codec)) {}

  int rounds() const override { return 1; }

  Status Produce(int /*round*/, std::vector<std::byte>* out) override {
    const std::span<float> values = ResizeFor<float>(out, indices_.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = factor_ * open()[indices_[i]];
    return Status::Ok();
  }

  InnerCall Call(int /*round*/) const override {
    return {.op = args().op,
            .count = indices_.size(),
            .codec = codec_,
            .asks_errors = config_.residual};
  }

  Status Consume(int /*round*/, std::span<const std::byte> reduced,
                 std::span<const float> errors) override {
    const std::span<const float> sums = ElementsOf<float>(reduced);
    const std::span<float> sum = result();
    for (size_t i = 0; i < sums.size(); ++i) {
      sum[indices_[i]] = sums[i];
      open()[indices_[i]] = errors.empty() ? 0.0f : errors[i];
    }
    return Status::Ok();
  }

 private:
  void OnBegin() override {
    const uint64_t count = tensor().count(), most = SelectedOf(config_.k, count);
    indices_.clear();
    if (count == 0) return;
    const uint64_t steps = (count + most - 1) / most, slice = args().step % steps;
    const Permutation places(count, args().seed ^ Mix64(args().step / steps));
    const uint64_t first = slice * most, end = std::min(count, first + most);
    for (uint64_t place = first; place < end; ++place) {
      indices_.push_back(static_cast<uint32_t>(places(place)));
    }
    factor_ =
        config_.unbiased
            ? static_cast<float>(static_cast<double>(count) / static_cast<double>(indices_.size()))
            : 1.0f;
  }

  const Config config_;
  const RoundCodec codec_;
  std::vector<uint32_t> indices_;  // of the call, without repetition
  float factor_ = 1;
};

}  // namespace

MadeReducer MakeRandomK(const CodecSpec& spec, RoundCodec codec) {
  static constexpr std::string_view kKeys[] = {"k", "residual", "unbiased"};
  if (Status status = spec.AllowOnly(kKeys); !status.ok()) return status;
  Config config;
  const Result<double> k = spec.Fraction("k", 0.01);
  if (!k.ok()) return k.status();
  const Result<uint64_t> unbiased = spec.Integer("unbiased", 0, 0, 1);
  if (!unbiased.ok()) return unbiased.status();
  const Result<bool> residual = ParseResidual(spec, *unbiased == 0);
  if (!residual.ok()) return residual.status();
  if (*residual && *unbiased == 1) {
    return InvalidArgument(
        "reducer random_k: unbiased=1 and residual=1: what the factor d/k stands for must not come "
        "again from a residual");
  }
  config = {.k = *k, .residual = *residual, .unbiased = *unbiased == 1};
  std::string text = fmt::format("random_k:k={},residual={},unbiased={}", config.k,
                                 config.residual ? 1 : 0, config.unbiased ? 1 : 0);
  return std::shared_ptr<const Reducer>(std::make_shared<const MethodReducer<RandomKState, Config>>(
      std::move(text), config, std::move(codec)));
}

}  // namespace inccl
