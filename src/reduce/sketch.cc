// SPDX-License-Identifier: Apache-2.0
#include "reduce/sketch.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/rng.h"
#include "reduce/methods.h"
#include "reduce/select.h"

namespace inccl {
namespace {

uint64_t CellsOfRow(uint64_t support) {
  const auto size = static_cast<double>(support);
  return static_cast<uint64_t>(std::ceil((1.23 * size + 3 * std::sqrt(size) + 24) / 3));
}

uint32_t CellOf(uint64_t hash, uint64_t row) {
  return static_cast<uint32_t>((static_cast<unsigned __int128>(hash) * row) >> 64);
}

}  // namespace

void Sketch::SetSupport(std::span<const uint32_t> support, uint64_t key) {
  row_ = CellsOfRow(support.size());
  cells_.resize(support.size());
  for (size_t place = 0; place < support.size(); ++place) {
    uint64_t hash = Mix64(key ^ Mix64(support[place]));
    for (size_t row = 0; row < kRows; ++row, hash = Mix64(hash)) {
      cells_[place][row] = static_cast<uint32_t>(row * row_) + CellOf(hash, row_);
    }
  }
}

void Sketch::Add(std::span<const uint64_t> values, std::span<uint64_t> cells) const {
  for (size_t place = 0; place < values.size(); ++place) {
    for (const uint32_t cell : cells_[place]) cells[cell] += values[place];
  }
}

void Sketch::Peel(std::span<uint64_t> cells, std::span<uint64_t> values,
                  std::vector<uint32_t>* rest) const {
  // By cell: how many places are left in it, and the exclusive or of these places.
  std::vector<uint32_t> left(cells.size()), places(cells.size());
  for (uint32_t place = 0; place < cells_.size(); ++place) {
    for (const uint32_t cell : cells_[place]) {
      ++left[cell];
      places[cell] ^= place;
    }
  }
  std::vector<uint32_t> single;
  for (uint32_t cell = 0; cell < cells.size(); ++cell) {
    if (left[cell] == 1) single.push_back(cell);
  }
  std::vector<bool> peeled(cells_.size());
  while (!single.empty()) {
    const uint32_t from = single.back();
    single.pop_back();
    if (left[from] != 1) continue;
    const uint32_t place = places[from];
    const uint64_t value = cells[from];
    values[place] = value;
    peeled[place] = true;
    for (const uint32_t cell : cells_[place]) {
      cells[cell] -= value;
      places[cell] ^= place;
      if (--left[cell] == 1) single.push_back(cell);
    }
  }
  rest->clear();
  for (uint32_t place = 0; place < peeled.size(); ++place) {
    if (!peeled[place]) rest->push_back(place);
  }
}

// count_sketch: the exact sum of sparse tensors (lossless homomorphic compression, arXiv
// 2402.07529). All ranks learn which elements are not zero somewhere (select.h). They turn
// these elements into integers on one grid and add up sketches of them (sketch.h); the few elements
// that cannot be peeled off travel once more, by themselves. Nothing is estimated.

namespace {

struct CountSketchConfig {};

// Sums of n integers below 2^62 / n fit 63 bits.
constexpr int kGridBits = 62;

// sum / divisor * 2^-shift, rounded once: what the quotient drops makes its last bit odd, which
// lies below all that count in fp32.
float RoundedOnce(int64_t sum, int divisor, int shift) {
  using Wide = unsigned __int128;
  constexpr int kEnough = 32, kMany = 60, kMantissa = 53;  // bits
  const uint64_t magnitude = sum < 0 ? 0 - static_cast<uint64_t>(sum) : static_cast<uint64_t>(sum);
  const auto by = static_cast<uint64_t>(divisor);
  uint64_t quotient = magnitude / by, rest = magnitude % by;
  int more = 0;
  if (const int width = std::bit_width(quotient); rest != 0 && width < kEnough) {
    more = kMany - width;
    const Wide dividend = Wide{magnitude} << more;
    quotient = static_cast<uint64_t>(dividend / by);
    rest = static_cast<uint64_t>(dividend % by);
  }
  const int dropped = std::max(0, static_cast<int>(std::bit_width(quotient)) - kMantissa);
  const uint64_t kept = quotient >> dropped;
  const uint64_t odd = rest != 0 || kept << dropped != quotient ? 1 : 0;
  const double value = std::ldexp(static_cast<double>(kept | odd), dropped - more - shift);
  return static_cast<float>(sum < 0 ? -value : value);
}

class CountSketchState final : public ReducerState {
 public:
  CountSketchState(std::string identity, const TensorDesc& desc,
                   const CountSketchConfig& /*config*/, const RoundCodec& /*codec*/)
      : ReducerState({.identity = std::move(identity), .tensor = desc}),
        bitmaps_(desc.count(), 1) {}

  int rounds() const override { return rest_.empty() ? kRest : kRest + 1; }

  Status Produce(int round, std::vector<std::byte>* out) override {
    switch (round) {
      case kBitmaps: WriteBitmap(bitmaps_.MakeBitmap(out)); break;
      case kUnion: bitmaps_.MakeMerged(out)[0] = largest_; break;
      case kSketch:
        if (all_finite() && dense()) {
          std::ranges::copy(codes_, ResizeFor<uint64_t>(out, codes_.size()).begin());
        } else if (all_finite()) {
          const std::span<uint64_t> cells = ResizeFor<uint64_t>(out, sketch_.cells());
          std::fill(cells.begin(), cells.end(), uint64_t{0});
          sketch_.Add(codes_, cells);
        } else {
          const std::span<float> values = ResizeFor<float>(out, support_.size());
          for (size_t i = 0; i < values.size(); ++i) values[i] = open()[support_[i]];
        }
        break;
      default: {
        const std::span<uint64_t> values = ResizeFor<uint64_t>(out, rest_.size());
        for (size_t i = 0; i < values.size(); ++i) values[i] = codes_[rest_[i]];
      }
    }
    return Status::Ok();
  }

  InnerCall Call(int round) const override {
    switch (round) {
      case kBitmaps:
      case kUnion: return bitmaps_.Call(round);
      case kSketch:
        if (all_finite()) {
          return {.type = DataType::kUint64, .count = dense() ? codes_.size() : sketch_.cells()};
        }
        return {.op = args().op, .count = support_.size()};
      default: return {.type = DataType::kUint64, .count = rest_.size()};
    }
  }

  Status Consume(int round, std::span<const std::byte> reduced,
                 std::span<const float> /*errors*/) override {
    switch (round) {
      case kBitmaps: bitmaps_.Merge(reduced); break;
      case kUnion: return SetSupport(reduced);
      case kSketch:
        if (all_finite() && dense()) {
          std::ranges::copy(ElementsOf<uint64_t>(reduced), codes_sum_.begin());
          WriteSums();
        } else if (all_finite()) {
          const std::span<const uint64_t> sums = ElementsOf<uint64_t>(reduced);
          cells_.assign(sums.begin(), sums.end());
          sketch_.Peel(cells_, codes_sum_, &rest_);
          if (rest_.empty()) WriteSums();
        } else {
          const std::span<const float> sums = ElementsOf<float>(reduced);
          const std::span<float> sum = result();
          for (size_t i = 0; i < sums.size(); ++i) sum[support_[i]] = sums[i];
        }
        break;
      default: {
        const std::span<const uint64_t> sums = ElementsOf<uint64_t>(reduced);
        for (size_t i = 0; i < sums.size(); ++i) codes_sum_[rest_[i]] = sums[i];
        WriteSums();
      }
    }
    return Status::Ok();
  }

 private:
  enum Round : int { kBitmaps, kUnion, kSketch = BitmapUnion::kRounds, kRest };

  size_t Ranks() const { return static_cast<size_t>(args().nranks); }
  // Else values travel as they are, and NaN and infinity stay where they are.
  bool all_finite() const { return largest_ < kInfinity; }

  // Then the integers travel without a sketch, which would not be smaller, and is slow.
  bool dense() const { return support_.size() > tensor().count() / 3; }

  void OnBegin() override {
    bitmaps_.Begin(args().nranks);
    largest_ = largest();
    rest_.clear();
    support_.clear();
  }

  void WriteBitmap(std::span<uint32_t> words) {
    for (size_t i = 0; i < open().size(); ++i) {
      words[i / 32] |= MagnitudeOf(open()[i]) != 0 ? 1u << (i % 32) : 0u;
    }
  }

  Status SetSupport(std::span<const std::byte> gathered) {
    if (Status status = bitmaps_.Read(gathered, "count_sketch", &support_); !status.ok()) {
      return status;
    }
    for (size_t rank = 0; rank < Ranks(); ++rank) {
      largest_ = std::max(largest_, bitmaps_.Extra(gathered, rank)[0]);
    }
    if (all_finite()) SetCodes();
    return Status::Ok();
  }

  void SetCodes() {
    if (!dense()) sketch_.SetSupport(support_, args().seed ^ Mix64(args().step));
    // The largest magnitude is below 2^exponent.
    const int exponent = std::ilogb(std::bit_cast<float>(std::max(largest_, 1u))) + 1;
    shift_ = kGridBits - static_cast<int>(std::bit_width(Ranks() - 1)) - exponent;
    codes_.resize(support_.size());
    codes_sum_.resize(support_.size());
    for (size_t i = 0; i < support_.size(); ++i) {
      const double scaled = std::ldexp(static_cast<double>(open()[support_[i]]), shift_);
      codes_[i] = static_cast<uint64_t>(static_cast<int64_t>(std::nearbyint(scaled)));
    }
  }

  void WriteSums() {
    const int divisor = args().op == ReduceOp::kAvg ? args().nranks : 1;
    const std::span<float> all = result();
    for (size_t i = 0; i < support_.size(); ++i) {
      all[support_[i]] = RoundedOnce(static_cast<int64_t>(codes_sum_[i]), divisor, shift_);
    }
  }

  BitmapUnion bitmaps_;
  uint32_t largest_ = 0;                     // magnitude: of this rank, then of all
  std::vector<uint32_t> support_;            // indices that are not zero on some rank
  int shift_ = 0;                            // an integer stands for itself times 2^-shift
  std::vector<uint64_t> codes_, codes_sum_;  // by place in the support: of this rank, of all
  Sketch sketch_;
  std::vector<uint64_t> cells_;
  std::vector<uint32_t> rest_;  // places that were not peeled off
};

}  // namespace

MadeReducer MakeCountSketch(const CodecSpec& spec, RoundCodec codec) {
  if (Status status = spec.AllowOnly({}); !status.ok()) return status;
  if (codec->spec() != "none") {
    return InvalidArgument(fmt::format(
        "reducer count_sketch: it sums integers, which travel as they are: none, not the codec {}",
        codec->spec()));
  }
  return std::shared_ptr<const Reducer>(
      std::make_shared<const MethodReducer<CountSketchState, CountSketchConfig>>(
          "count_sketch", CountSketchConfig(), std::move(codec)));
}

}  // namespace inccl
