// SPDX-License-Identifier: Apache-2.0
//
// The factory functions that reducer.cc lists. Each makes a reducer from the specification of its
// method and the codec of its rounds; errors name the key and the value.
#ifndef INCCL_REDUCE_METHODS_H_
#define INCCL_REDUCE_METHODS_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "compress/codecs.h"
#include "reduce/reducer.h"

namespace inccl {

using MadeReducer = Result<std::shared_ptr<const Reducer>>;
using RoundCodec = std::shared_ptr<const Codec>;

MadeReducer MakeCltK(const CodecSpec& spec, RoundCodec codec);         // clt_k.cc
MadeReducer MakeCountSketch(const CodecSpec& spec, RoundCodec codec);  // sketch.cc
MadeReducer MakePowerSgd(const CodecSpec& spec, RoundCodec codec);     // powersgd.cc
MadeReducer MakeRandomK(const CodecSpec& spec, RoundCodec codec);      // random_k.cc
MadeReducer MakeTopk(const CodecSpec& spec, RoundCodec codec);         // topk.cc

// What a method's keys say about residuals, and of how many elements its blocks are.
Result<bool> ParseResidual(const CodecSpec& spec, bool fallback);
Result<uint64_t> ParseBlock(const CodecSpec& spec);

// A reducer that makes states as State(identity, tensor, config, codec).
template <typename State, typename Config>
class MethodReducer final : public Reducer {
 public:
  MethodReducer(std::string method, Config config, RoundCodec codec)
      : Reducer(std::move(codec)), method_(std::move(method)), config_(std::move(config)) {}

  std::unique_ptr<ReducerState> NewState(const TensorDesc& tensor) const override {
    return std::make_unique<State>(identity(), tensor, config_, codec());
  }

 private:
  const std::string& method() const override { return method_; }

  const std::string method_;
  const Config config_;
};

// The number of elements that are k of `count`: rounded, at least 1 of a tensor that is not empty.
inline uint64_t SelectedOf(double k, uint64_t count) {
  const double wanted = std::round(k * static_cast<double>(count));
  if (count == 0) return 0;
  return wanted < 1 ? 1 : std::min(count, static_cast<uint64_t>(wanted));
}

// Elements of a round as bytes, and back.
template <typename T>
std::span<T> ResizeFor(std::vector<std::byte>* bytes, size_t count) {
  bytes->resize(count * sizeof(T));
  return {reinterpret_cast<T*>(bytes->data()), count};
}
template <typename T>
std::span<const T> ElementsOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

// A pseudo-random permutation of [0, size) that computes any place without a table: a Feistel
// network over the next power of two, walked until the place lies in range, then a rotation, which
// makes every place equally likely.
class Permutation {
 public:
  // size > 0
  Permutation(uint64_t size, uint64_t key)
      : size_(size),
        key_(Mix64(key)),
        rotation_(Rng(key_).Below(size)),
        low_bits_((static_cast<unsigned>(std::bit_width(size - 1)) + 1) / 2),
        low_mask_((uint64_t{1} << low_bits_) - 1),
        high_mask_((uint64_t{1} << (static_cast<unsigned>(std::bit_width(size - 1)) - low_bits_)) -
                   1) {}

  // The image of place < size.
  uint64_t operator()(uint64_t place) const {
    do {
      place = Shuffle(place);
    } while (place >= size_);
    place += rotation_;
    return place >= size_ ? place - size_ : place;
  }

 private:
  static constexpr uint64_t kRounds = 3;

  uint64_t Shuffle(uint64_t place) const {
    uint64_t low = place & low_mask_, high = place >> low_bits_;
    for (uint64_t round = 0; round < kRounds; ++round) {
      low ^= Mix64(key_ ^ (high << 3 | 2 * round)) & low_mask_;
      high ^= Mix64(key_ ^ (low << 3 | (2 * round + 1))) & high_mask_;
    }
    return high << low_bits_ | low;
  }

  uint64_t size_, key_, rotation_;
  unsigned low_bits_;
  uint64_t low_mask_, high_mask_;
};

// What methods share that sum the values at positions which all ranks have.

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
      MaskVelocity(positions_[i]);
    }
    return Status::Ok();
  }

 private:
  const RoundCodec codec_;
  std::vector<uint32_t> positions_;  // without repetition
};

}  // namespace inccl

#endif  // INCCL_REDUCE_METHODS_H_
