// SPDX-License-Identifier: Apache-2.0
//
// topk: each rank sends its own largest elements as (index, value) pairs by an all-gather, and all
// ranks add them up in the order of the ranks. Indices have 32 bits. Values go through the codec,
// indices do not; without a codec both travel in one round. Selectors that find a threshold instead
// of a number first agree on the largest number of any rank, to which the others pad.
//
// In blocks: each rank selects the blocks of largest norm, and all ranks sum the elements of every
// block that some rank has selected, through any codec.
//
// With a momentum the ranks send velocities, with masking and warm-up as in "Deep Gradient
// Compression" (arXiv 1712.01887).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "reduce/methods.h"
#include "reduce/select.h"

namespace inccl {
namespace {

constexpr uint32_t kNoIndex = std::numeric_limits<uint32_t>::max();

struct TopkConfig {
  double k = 0;
  uint64_t block = 1;
  bool residual = false;
  SelectorKind select = SelectorKind::kExact;
  float momentum = 0;
  bool mask = false;
  uint64_t warm = 0;
};

ReducerState::Options OptionsOf(std::string identity, const TensorDesc& desc,
                                const TopkConfig& config) {
  return {.identity = std::move(identity),
          .tensor = desc,
          .residual = config.residual,
          .momentum = config.momentum,
          .mask = config.mask};
}

// The share that a call selects: in seven equal parts of the first `warm` steps k to the power of
// 1/8, 2/8, and so on. Roots and products are the same on all machines.
double ShareAt(const TopkConfig& config, uint64_t step) {
  if (step >= config.warm) return config.k;
  const double root = std::sqrt(std::sqrt(std::sqrt(config.k)));
  double share = root;
  for (uint64_t part = 7 * step / config.warm; part > 0; --part) share *= root;
  return share;
}

class TopkState final : public ReducerState {
 public:
  TopkState(std::string identity, const TensorDesc& desc, const TopkConfig& config,
            RoundCodec codec)
      : ReducerState(OptionsOf(std::move(identity), desc, config)),
        config_(config),
        selector_(config.select),
        pairs_(codec->spec() == "none"),
        codec_(std::move(codec)) {}

  int rounds() const override { return (selector_.exact() ? 0 : 1) + (pairs_ ? 1 : 2); }

  Status Produce(int round, std::vector<std::byte>* out) override {
    switch (KindOf(round)) {
      case Kind::kLength: ResizeFor<uint32_t>(out, 1)[0] = length_; break;
      case Kind::kIndices: WriteIndices(ResizeFor<uint32_t>(out, length_)); break;
      case Kind::kValues: WriteValues(ResizeFor<float>(out, length_)); break;
      case Kind::kPairs: {
        const std::span<uint32_t> words = ResizeFor<uint32_t>(out, 2 * size_t{length_});
        WriteIndices(words.first(length_));
        std::vector<float> values(length_);
        WriteValues(values);
        if (length_ > 0) std::memcpy(&words[length_], values.data(), length_ * sizeof(float));
      }
    }
    return Status::Ok();
  }

  InnerCall Call(int round) const override {
    switch (KindOf(round)) {
      case Kind::kLength: return {.op = ReduceOp::kMax, .type = DataType::kUint32, .count = 1};
      case Kind::kIndices:
        return {.collective = Collective::kAllGather, .type = DataType::kUint32, .count = length_};
      case Kind::kValues:
        return {.collective = Collective::kAllGather, .count = length_, .codec = codec_};
      case Kind::kPairs: break;
    }
    return {.collective = Collective::kAllGather,
            .type = DataType::kUint32,
            .count = 2 * uint64_t{length_}};
  }

  Status Consume(int round, std::span<const std::byte> reduced,
                 std::span<const float> /*errors*/) override {
    const auto ranks = static_cast<size_t>(args().nranks), length = size_t{length_};
    switch (KindOf(round)) {
      case Kind::kLength: length_ = ElementsOf<uint32_t>(reduced)[0]; return CheckLength();
      case Kind::kIndices: {
        const std::span<const uint32_t> all = ElementsOf<uint32_t>(reduced);
        gathered_.assign(all.begin(), all.end());
        for (size_t rank = 0; rank < ranks; ++rank) {
          Status status = CheckIndices(rank, all.subspan(rank * length, length));
          if (!status.ok()) return status;
        }
        return Status::Ok();
      }
      case Kind::kValues: {
        const std::span<const uint32_t> indices(gathered_);
        const std::span<const float> values = ElementsOf<float>(reduced);
        for (size_t rank = 0; rank < ranks; ++rank) {
          Add(rank, indices.subspan(rank * length, length), values.subspan(rank * length, length));
        }
        return Status::Ok();
      }
      case Kind::kPairs: break;
    }
    const std::span<const uint32_t> indices = ElementsOf<uint32_t>(reduced);
    const std::span<const float> values = ElementsOf<float>(reduced);
    for (size_t rank = 0; rank < ranks; ++rank) {
      Status status = CheckIndices(rank, indices.subspan(2 * rank * length, length));
      if (!status.ok()) return status;
    }
    for (size_t rank = 0; rank < ranks; ++rank) {
      Add(rank, indices.subspan(2 * rank * length, length),
          values.subspan((2 * rank + 1) * length, length));
    }
    return Status::Ok();
  }

 private:
  enum class Kind : uint8_t { kLength, kIndices, kValues, kPairs };

  Kind KindOf(int round) const {
    if (!selector_.exact() && round-- == 0) return Kind::kLength;
    if (pairs_) return Kind::kPairs;
    return round == 0 ? Kind::kIndices : Kind::kValues;
  }

  void OnBegin() override {
    selector_.Select(open(), ShareAt(config_, args().step), args().step, &selected_);
    length_ = static_cast<uint32_t>(selected_.size());
  }

  Status CheckLength() const {
    if (length_ >= selected_.size() && length_ <= tensor().count()) return Status::Ok();
    return InternalError(
        fmt::format("topk: the ranks agreed on {} elements; this rank has {} of {}", length_,
                    selected_.size(), tensor().count()));
  }

  void WriteIndices(std::span<uint32_t> to) const {
    std::copy(selected_.begin(), selected_.end(), to.begin());
    std::fill(to.begin() + static_cast<std::ptrdiff_t>(selected_.size()), to.end(), kNoIndex);
  }

  void WriteValues(std::span<float> to) {
    for (size_t i = 0; i < to.size(); ++i) {
      to[i] = i < selected_.size() ? open()[selected_[i]] : 0.0f;
    }
  }

  Status CheckIndices(size_t rank, std::span<const uint32_t> indices) const {
    for (const uint32_t index : indices) {
      if (index < tensor().count() || index == kNoIndex) continue;
      return InternalError(
          fmt::format("topk: rank {} sent index {} of {} elements", rank, index, tensor().count()));
    }
    return Status::Ok();
  }

  // An average of finite elements is finite.
  float Sum(float a, float b) const {
    const float sum = a + b;
    if (args().op != ReduceOp::kAvg || std::isfinite(sum)) return sum;
    const bool rounded = std::isfinite(a) && std::isfinite(b);
    return rounded ? std::copysign(std::numeric_limits<float>::max(), sum) : sum;
  }

  void Add(size_t rank, std::span<const uint32_t> indices, std::span<const float> values) {
    const bool own = rank == static_cast<size_t>(args().rank);
    const float factor = share();
    const std::span<float> sum = result(), left = open();
    for (size_t i = 0; i < indices.size(); ++i) {
      const uint32_t index = indices[i];
      if (index == kNoIndex) continue;
      sum[index] = Sum(sum[index], factor * values[i]);
      if (!own) continue;
      left[index] -= values[i];
      MaskVelocity(index);
    }
  }

  const TopkConfig config_;
  Selector selector_;
  const bool pairs_;
  const RoundCodec codec_;
  std::vector<uint32_t> selected_;  // of this rank
  uint32_t length_ = 0;             // elements that each rank sends, with padding
  std::vector<uint32_t> gathered_;  // indices of all ranks
};

// The root of the mean square of a block, as one of `size` elements; squares in fp64 are finite and
// not zero. The sum has a fixed order, of kLanes sums that a vector register can hold.
float MagnitudeOfBlock(std::span<const float> block, uint64_t size) {
  constexpr size_t kLanes = 8;
  double lanes[kLanes] = {}, sum = 0;
  size_t i = 0;
  for (; i + kLanes <= block.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(block[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (; i < block.size(); ++i) lanes[0] += static_cast<double>(block[i]) * block[i];
  for (const double lane : lanes) sum += lane;
  return static_cast<float>(std::sqrt(sum / static_cast<double>(size)));
}

class BlockTopkState final : public SharedPositionsState {
 public:
  BlockTopkState(std::string identity, const TensorDesc& desc, const TopkConfig& config,
                 RoundCodec codec)
      : SharedPositionsState(OptionsOf(std::move(identity), desc, config), std::move(codec)),
        config_(config),
        selector_(config.select),
        blocks_({.elements = desc.count(), .size = config.block}),
        bitmaps_(blocks_.count()) {}

  int rounds() const override { return kSum + 1; }

  Status Produce(int round, std::vector<std::byte>* out) override {
    switch (round) {
      case kBitmaps: {
        const std::span<uint32_t> words = bitmaps_.MakeBitmap(out);
        for (const uint32_t block : selected_) words[block / 32] |= 1u << (block % 32);
        break;
      }
      case kUnion: (void)bitmaps_.MakeMerged(out); break;
      default: return ProduceValues(out);
    }
    return Status::Ok();
  }

  InnerCall Call(int round) const override {
    return round == kSum ? SumCall() : bitmaps_.Call(round);
  }

  Status Consume(int round, std::span<const std::byte> reduced,
                 std::span<const float> errors) override {
    switch (round) {
      case kBitmaps: bitmaps_.Merge(reduced); return Status::Ok();
      case kUnion: {
        Status status = bitmaps_.Read(reduced, "topk", &selected_);
        if (!status.ok()) return status;
        positions()->clear();
        for (const uint32_t block : selected_) blocks_.AppendTo(positions(), block);
        return Status::Ok();
      }
      default: return ConsumeSums(reduced, errors);
    }
  }

 private:
  enum Round : int { kBitmaps, kUnion, kSum = BitmapUnion::kRounds };

  void OnBegin() override {
    bitmaps_.Begin(args().nranks);
    magnitudes_.resize(blocks_.count());
    for (uint64_t block = 0; block < blocks_.count(); ++block) {
      const uint64_t first = blocks_.first(block);
      magnitudes_[block] =
          MagnitudeOfBlock(open().subspan(first, blocks_.end(block) - first), blocks_.size);
    }
    selector_.Select(magnitudes_, ShareAt(config_, args().step), args().step, &selected_);
  }

  const TopkConfig config_;
  Selector selector_;
  const Blocks blocks_;
  BitmapUnion bitmaps_;
  std::vector<float> magnitudes_;   // of blocks
  std::vector<uint32_t> selected_;  // blocks: of this rank, then of all
};

}  // namespace

MadeReducer MakeTopk(const CodecSpec& spec, RoundCodec codec) {
  static constexpr std::string_view kKeys[] = {"block",    "k",      "mask", "momentum",
                                               "residual", "select", "warm"};
  if (Status status = spec.AllowOnly(kKeys); !status.ok()) return status;
  const Result<uint64_t> block = ParseBlock(spec);
  if (!block.ok()) return block.status();
  const Result<double> k = spec.Fraction("k", 0.01);
  if (!k.ok()) return k.status();
  const Result<bool> residual = ParseResidual(spec, true);
  if (!residual.ok()) return residual.status();
  const Result<size_t> select = spec.Choice("select", 0, kSelectorNames);
  if (!select.ok()) return select.status();
  const Result<double> momentum = spec.Fraction("momentum", 0);
  if (!momentum.ok()) return momentum.status();
  if (*momentum == 1 || (*momentum != 0 && !*residual)) {
    return InvalidArgument(
        fmt::format("reducer topk: momentum={}: it is below 1, and needs residual=1", *momentum));
  }
  const Result<uint64_t> mask = spec.Integer("mask", *momentum != 0 ? 1 : 0, 0, 1);
  if (!mask.ok()) return mask.status();
  if (*mask == 1 && *momentum == 0) {
    return InvalidArgument("reducer topk: mask=1 is about a velocity, which needs momentum");
  }
  constexpr uint64_t kMostWarm = 1'000'000'000;
  const Result<uint64_t> warm = spec.Integer("warm", 0, 0, kMostWarm);
  if (!warm.ok()) return warm.status();
  const TopkConfig config = {.k = *k,
                             .block = *block,
                             .residual = *residual,
                             .select = static_cast<SelectorKind>(*select),
                             .momentum = static_cast<float>(*momentum),
                             .mask = *mask == 1,
                             .warm = *warm};
  std::string text =
      fmt::format("topk:block={},k={},mask={},momentum={},residual={},select={},warm={}", *block,
                  *k, *mask, *momentum, *residual ? 1 : 0, kSelectorNames[*select], *warm);
  if (*block > 1) {
    return std::shared_ptr<const Reducer>(
        std::make_shared<const MethodReducer<BlockTopkState, TopkConfig>>(std::move(text), config,
                                                                          std::move(codec)));
  }
  return std::shared_ptr<const Reducer>(
      std::make_shared<const MethodReducer<TopkState, TopkConfig>>(std::move(text), config,
                                                                   std::move(codec)));
}

}  // namespace inccl
