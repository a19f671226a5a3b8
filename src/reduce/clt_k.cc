// SPDX-License-Identifier: Apache-2.0
//
// clt_k (ScaleCom, arXiv 2104.11125): the ranks take turns to lead. The leader broadcasts the
// indices of the largest elements of its own input + residual, and all ranks sum their values
// there, so the traffic does not grow with the ranks. The residual passes a low-pass filter, which
// keeps the ranks' residuals alike.
#include <fmt/format.h>

#include <algorithm>

#include "reduce/methods.h"
#include "reduce/select.h"

namespace inccl {
namespace {

struct Config {
  double k = 0, beta = 1;
  bool residual = false;
};

class CltState final : public ReducerState {
 public:
  CltState(std::string identity, const TensorDesc& desc, const Config& config, RoundCodec codec)
      : ReducerState({.identity = std::move(identity),
                      .tensor = desc,
                      .residual = config.residual,
                      .low_pass = static_cast<float>(config.beta)}),
        selected_(SelectedOf(config.k, desc.count())),
        codec_(std::move(codec)) {}

  int rounds() const override { return 2; }

  Status Produce(int round, std::vector<std::byte>* out) override {
    if (round == 0) {
      const bool leads = args().rank == Leader();
      if (leads) SelectLargest(open(), selected_, &indices_);
      const std::span<uint32_t> words = ResizeFor<uint32_t>(out, leads ? selected_ : 0);
      std::copy_n(indices_.begin(), words.size(), words.begin());
    } else {
      const std::span<float> values = ResizeFor<float>(out, selected_);
      for (size_t i = 0; i < values.size(); ++i) values[i] = open()[indices_[i]];
    }
    return Status::Ok();
  }

  InnerCall Call(int round) const override {
    if (round == 0) {
      return {.collective = Collective::kBroadcast,
              .type = DataType::kUint32,
              .count = selected_,
              .root = Leader()};
    }
    return {.op = args().op, .count = selected_, .codec = codec_, .asks_errors = has_residual()};
  }

  Status Consume(int round, std::span<const std::byte> reduced,
                 std::span<const float> errors) override {
    if (round == 0) {
      const std::span<const uint32_t> words = ElementsOf<uint32_t>(reduced);
      indices_.assign(words.begin(), words.end());
      for (const uint32_t index : indices_) {
        if (index < tensor().count()) continue;
        return InternalError(fmt::format("clt_k: rank {} sent index {} of {} elements", Leader(),
                                         index, tensor().count()));
      }
      return Status::Ok();
    }
    const std::span<const float> sums = ElementsOf<float>(reduced);
    const std::span<float> sum = result();
    for (size_t i = 0; i < sums.size(); ++i) {
      sum[indices_[i]] = sums[i];
      open()[indices_[i]] = errors.empty() ? 0.0f : errors[i];
    }
    return Status::Ok();
  }

 private:
  int Leader() const {
    return static_cast<int>(args().step % static_cast<uint64_t>(args().nranks));
  }

  const uint64_t selected_;
  const RoundCodec codec_;
  std::vector<uint32_t> indices_;
};

}  // namespace

MadeReducer MakeCltK(const CodecSpec& spec, RoundCodec codec) {
  static constexpr std::string_view kKeys[] = {"beta", "k", "residual"};
  if (Status status = spec.AllowOnly(kKeys); !status.ok()) return status;
  const Result<double> k = spec.Fraction("k", 0.01), beta = spec.Fraction("beta", 0.1);
  if (!k.ok()) return k.status();
  if (!beta.ok()) return beta.status();
  const Result<bool> residual = ParseResidual(spec, true);
  if (!residual.ok()) return residual.status();
  std::string text = fmt::format("clt_k:beta={},k={},residual={}", *beta, *k, *residual ? 1 : 0);
  return std::shared_ptr<const Reducer>(std::make_shared<const MethodReducer<CltState, Config>>(
      std::move(text), Config{.k = *k, .beta = *beta, .residual = *residual}, std::move(codec)));
}

}  // namespace inccl
