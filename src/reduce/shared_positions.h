// SPDX-License-Identifier: Apache-2.0
//
// What methods share that sum the values at positions which all ranks have.
#ifndef INCCL_REDUCE_SHARED_POSITIONS_H_
#define INCCL_REDUCE_SHARED_POSITIONS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "reduce/methods.h"

namespace inccl {

// A tensor cut into blocks of `size` elements; the last one may be shorter.
struct Blocks {
  uint64_t elements = 0, size = 1;

  uint64_t count() const { return (elements + size - 1) / size; }
  uint64_t first(uint64_t block) const { return block * size; }
  uint64_t end(uint64_t block) const { return std::min(elements, first(block) + size); }
  void AppendTo(std::vector<uint32_t>* positions, uint64_t block) const {
    for (uint64_t i = first(block); i < end(block); ++i) {
      positions->push_back(static_cast<uint32_t>(i));
    }
  }
};

// The round of the sum. The ranks have set equal positions() before.
class SharedPositionsState : public ReducerState {
 protected:
  SharedPositionsState(Options options, RoundCodec codec)
      : ReducerState(std::move(options)), codec_(std::move(codec)) {}

  std::vector<uint32_t>* positions() { return &positions_; }

  InnerCall SumCall() const {
    return {.op = args().op,
            .count = positions_.size(),
            .codec = codec_,
            .asks_errors = has_residual()};
  }

  // What is not finite reaches all ranks at once: where no position holds it, the first value is
  // NaN instead.
  Status ProduceValues(std::vector<std::byte>* out, float factor = 1) {
    const std::span<float> values = ResizeFor<float>(out, positions_.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = factor * open()[positions_[i]];
    const auto is_finite = [](float value) { return std::isfinite(value); };
    if (!finite() && !values.empty() && std::ranges::all_of(values, is_finite)) {
      values[0] = std::numeric_limits<float>::quiet_NaN();
    }
    return Status::Ok();
  }

  Status ConsumeSums(std::span<const std::byte> reduced, std::span<const float> errors) {
    const std::span<const float> sums = ElementsOf<float>(reduced);
    const std::span<float> all = result();
    for (size_t i = 0; i < sums.size(); ++i) {
      all[positions_[i]] = sums[i];
      open()[positions_[i]] = errors.empty() ? 0.0f : errors[i];
    }
    return Status::Ok();
  }

 private:
  const RoundCodec codec_;
  std::vector<uint32_t> positions_;  // without repetition
};

}  // namespace inccl

#endif  // INCCL_REDUCE_SHARED_POSITIONS_H_
