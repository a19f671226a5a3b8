// SPDX-License-Identifier: Apache-2.0
//
// random_k: all ranks derive the same k * d elements of d from seed and step and sum their values.
// A permutation of the tensor's blocks, of one element each by default, is split into slices, one
// for each step, so a sweep of ceil(1 / k) steps visits every element once; the next sweep has
// another permutation (GlobalRandK of arXiv 2109.12497).
#include <fmt/format.h>

#include <algorithm>

#include "base/rng.h"
#include "reduce/methods.h"

namespace inccl {
namespace {

struct RandomKConfig {
  double k = 0;
  uint64_t block = 1;
  bool residual = false, unbiased = false;
};

class RandomKState final : public SharedPositionsState {
 public:
  RandomKState(std::string identity, const TensorDesc& desc, const RandomKConfig& config,
               RoundCodec codec)
      : SharedPositionsState({.identity = std::move(identity),
                              .tensor = desc,
                              .residual = config.residual,
                              .amplifies = config.unbiased},
                             std::move(codec)),
        config_(config),
        blocks_({.elements = desc.count(), .size = config.block}) {}

  int rounds() const override { return 1; }
  Status Produce(int /*round*/, std::vector<std::byte>* out) override {
    return ProduceValues(out, factor_);
  }
  InnerCall Call(int /*round*/) const override { return SumCall(); }
  Status Consume(int /*round*/, std::span<const std::byte> reduced,
                 std::span<const float> errors) override {
    return ConsumeSums(reduced, errors);
  }

 private:
  void OnBegin() override {
    const uint64_t count = blocks_.count(), most = SelectedOf(config_.k, count);
    positions()->clear();
    if (count == 0) return;
    const uint64_t steps = (count + most - 1) / most, slice = args().step % steps;
    const Permutation places(count, args().seed ^ Mix64(args().step / steps));
    const uint64_t first = slice * most, end = std::min(count, first + most);
    for (uint64_t place = first; place < end; ++place) {
      blocks_.AppendTo(positions(), places(place));
    }
    // Each block is one of the selected with probability (end - first) / count.
    if (config_.unbiased) {
      factor_ = static_cast<float>(static_cast<double>(count) / static_cast<double>(end - first));
    }
  }

  const RandomKConfig config_;
  const Blocks blocks_;
  float factor_ = 1;
};

}  // namespace

MadeReducer MakeRandomK(const CodecSpec& spec, RoundCodec codec) {
  static constexpr std::string_view kKeys[] = {"block", "k", "residual", "unbiased"};
  if (Status status = spec.AllowOnly(kKeys); !status.ok()) return status;
  const Result<uint64_t> block = ParseBlock(spec);
  if (!block.ok()) return block.status();
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
  const RandomKConfig config = {
      .k = *k, .block = *block, .residual = *residual, .unbiased = *unbiased == 1};
  std::string text = fmt::format("random_k:block={},k={},residual={},unbiased={}", *block, *k,
                                 *residual ? 1 : 0, *unbiased);
  return std::shared_ptr<const Reducer>(
      std::make_shared<const MethodReducer<RandomKState, RandomKConfig>>(std::move(text), config,
                                                                         std::move(codec)));
}

}  // namespace inccl
