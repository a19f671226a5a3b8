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

struct CltConfig {
  double k = 0, beta = 1;
  bool residual = false;
};

class CltState final : public SharedPositionsState {
 public:
  CltState(std::string identity, const TensorDesc& desc, const CltConfig& config, RoundCodec codec)
      : SharedPositionsState({.identity = std::move(identity),
                              .tensor = desc,
                              .residual = config.residual,
                              .low_pass = static_cast<float>(config.beta)},
                             std::move(codec)),
        selected_(SelectedOf(config.k, desc.count())) {}

  int rounds() const override { return 2; }

  Status Produce(int round, std::vector<std::byte>* out) override {
    if (round == 1) return ProduceValues(out);
    const bool leads = args().rank == Leader();
    if (leads) SelectLargest(open(), selected_, positions());
    const std::span<uint32_t> words = ResizeFor<uint32_t>(out, leads ? selected_ : 0);
    std::copy_n(positions()->begin(), words.size(), words.begin());
    return Status::Ok();
  }

  InnerCall Call(int round) const override {
    if (round == 0) {
      return {.collective = Collective::kBroadcast,
              .type = DataType::kUint32,
              .count = selected_,
              .root = Leader()};
    }
    return SumCall();
  }

  Status Consume(int round, std::span<const std::byte> reduced,
                 std::span<const float> errors) override {
    if (round == 1) return ConsumeSums(reduced, errors);
    const std::span<const uint32_t> words = ElementsOf<uint32_t>(reduced);
    positions()->assign(words.begin(), words.end());
    for (const uint32_t index : words) {
      if (index < tensor().count()) continue;
      return InternalError(fmt::format("clt_k: rank {} sent index {} of {} elements", Leader(),
                                       index, tensor().count()));
    }
    return Status::Ok();
  }

 private:
  int Leader() const {
    return static_cast<int>(args().step % static_cast<uint64_t>(args().nranks));
  }

  const uint64_t selected_;
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
  return std::shared_ptr<const Reducer>(std::make_shared<const MethodReducer<CltState, CltConfig>>(
      std::move(text), CltConfig{.k = *k, .beta = *beta, .residual = *residual}, std::move(codec)));
}

}  // namespace inccl
