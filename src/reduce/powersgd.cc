// SPDX-License-Identifier: Apache-2.0
//
// powersgd (arXiv 1905.13727): one step of subspace iteration. The ranks sum P = M Q, make its
// columns orthonormal, sum Q = M^T P, and take P Q^T for the sum of their matrices M; Q is the
// start of the next call. Tensors whose factors are no smaller than themselves travel whole.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "reduce/matrix.h"
#include "reduce/methods.h"

namespace inccl {
namespace {

constexpr uint64_t kMostRank = 1024;

struct PowerSgdConfig {
  uint64_t rank = 0;
  bool residual = false;
};

// The rank of the factors of a tensor; 0: it travels whole.
uint64_t RankOf(const TensorDesc& tensor, uint64_t rank) {
  const uint64_t least = std::min({rank, tensor.rows, tensor.cols});
  return (tensor.rows + tensor.cols) * least < tensor.count() ? least : 0;
}

// Column c of the first Q, as a row.
void FirstColumn(const TensorDesc& tensor, uint64_t c, std::span<float> to) {
  Rng rng(Mix64(tensor.rows) ^ Mix64(tensor.cols + 1) ^ Mix64(c + 2));
  for (float& value : to) value = static_cast<float>(2 * rng.Uniform() - 1);
}

std::vector<float> FirstColumns(const TensorDesc& tensor, uint64_t rank) {
  std::vector<float> columns(rank * tensor.cols);
  for (uint64_t c = 0; c < rank; ++c) {
    FirstColumn(tensor, c, std::span(columns).subspan(c * tensor.cols, tensor.cols));
  }
  return columns;
}

class PowerSgdState final : public ReducerState {
 public:
  PowerSgdState(std::string identity, const TensorDesc& desc, const PowerSgdConfig& config,
                RoundCodec codec)
      : ReducerState({.identity = std::move(identity),
                      .tensor = desc,
                      .residual = config.residual,
                      .warm = FirstColumns(desc, RankOf(desc, config.rank))}),
        rank_(RankOf(desc, config.rank)),
        codec_(std::move(codec)) {}

  int rounds() const override { return rank_ == 0 ? 1 : 2; }

  Status Produce(int round, std::vector<std::byte>* out) override {
    const std::span<float> values = ResizeFor<float>(out, LengthOf(round));
    if (rank_ == 0) {
      std::copy(open().begin(), open().end(), values.begin());
    } else if (round == 0) {
      MultiplyByColumns(open(), tensor().rows, kept().warm, rank_, values);
    } else {
      MultiplyTransposed(open(), tensor().rows, p_, rank_, values);
    }
    return Status::Ok();
  }

  InnerCall Call(int round) const override {
    if (rank_ == 0) {
      return {.op = args().op,
              .count = LengthOf(round),
              .codec = codec_,
              .asks_errors = has_residual()};
    }
    return {
        .op = round == 0 ? ReduceOp::kSum : args().op, .count = LengthOf(round), .codec = codec_};
  }

  Status Consume(int round, std::span<const std::byte> reduced,
                 std::span<const float> errors) override {
    const std::span<const float> values = ElementsOf<float>(reduced);
    if (rank_ == 0) {
      std::copy(values.begin(), values.end(), result().begin());
      for (size_t i = 0; i < values.size(); ++i) open()[i] = errors.empty() ? 0.0f : errors[i];
    } else if (round == 0) {
      p_.assign(values.begin(), values.end());
      Orthonormalize(p_, tensor().rows, rank_);
    } else {
      const std::span<float> product = result();
      MultiplyFactors(p_, tensor().rows, values, rank_, product);
      // Each rank has contributed the mean of all.
      const float part =
          args().op == ReduceOp::kAvg ? 1.0f : 1.0f / static_cast<float>(args().nranks);
      for (size_t i = 0; i < open().size(); ++i) open()[i] -= part * product[i];
      SetWarmStart(values);
    }
    return Status::Ok();
  }

 private:
  uint64_t LengthOf(int round) const {
    if (rank_ == 0) return tensor().count();
    return rank_ * (round == 0 ? tensor().rows : tensor().cols);
  }

  // Scales columns by powers of two, so that no product of a later call overflows; columns that are
  // zero or not finite start again.
  void SetWarmStart(std::span<const float> qt) {
    next_warm()->assign(qt.begin(), qt.end());
    for (uint64_t c = 0; c < rank_; ++c) {
      const std::span<float> column =
          std::span(*next_warm()).subspan(c * tensor().cols, tensor().cols);
      float largest = 0;
      bool finite = true;
      for (const float value : column) {
        largest = std::max(largest, std::fabs(value));
        finite = finite && std::isfinite(value);
      }
      if (largest == 0 || !finite) {
        FirstColumn(tensor(), c, column);
        continue;
      }
      const int exponent = std::ilogb(largest);
      for (float& value : column) value = std::ldexp(value, -exponent);
    }
  }

  const uint64_t rank_;
  const RoundCodec codec_;
  std::vector<float> p_;
};

}  // namespace

MadeReducer MakePowerSgd(const CodecSpec& spec, RoundCodec codec) {
  static constexpr std::string_view kKeys[] = {"rank", "residual"};
  if (Status status = spec.AllowOnly(kKeys); !status.ok()) return status;
  const Result<uint64_t> rank = spec.Integer("rank", 4, 1, kMostRank);
  if (!rank.ok()) return rank.status();
  const Result<bool> residual = ParseResidual(spec, true);
  if (!residual.ok()) return residual.status();
  std::string text = fmt::format("powersgd:rank={},residual={}", *rank, *residual ? 1 : 0);
  return std::shared_ptr<const Reducer>(
      std::make_shared<const MethodReducer<PowerSgdState, PowerSgdConfig>>(
          std::move(text), PowerSgdConfig{.rank = *rank, .residual = *residual}, std::move(codec)));
}

}  // namespace inccl
