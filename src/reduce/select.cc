// SPDX-License-Identifier: Apache-2.0
#include "reduce/select.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "compress/kernels/select_kernels.h"
#include "reduce/methods.h"

namespace inccl {
namespace {

constexpr size_t kSelectTile = 4096;  // elements that a kernel collects from at a time
// Of the sample that bounds the candidates of SelectLargest: a random element from each stretch of
// kStretch elements or more.
constexpr uint64_t kMostSamples = 16384, kStretch = 64, kLeastSamples = 64;

constexpr std::array kDigits = {11, 10, 10};  // bits, from the upper ones of a magnitude
using Table = std::array<uint32_t, size_t{1} << kDigits[0]>;

// How often the elements whose magnitude begins with `prefix`, above bit `shift + bits`, have each
// value of the `bits` bits from `shift` on.
Table CountDigits(std::span<const float> x, uint32_t prefix, int shift, int bits) {
  std::array<Table, 4> tables{};  // neighbours in different tables do not wait for each other
  const uint32_t mask = (1u << bits) - 1;
  const auto count = [&](size_t i, Table* table) {
    const uint32_t magnitude = MagnitudeOf(x[i]) >> shift;
    (*table)[magnitude & mask] += magnitude >> bits == prefix ? 1 : 0;
  };
  size_t i = 0;
  for (; i + tables.size() <= x.size(); i += tables.size()) {
    for (size_t t = 0; t < tables.size(); ++t) count(i + t, &tables[t]);
  }
  for (; i < x.size(); ++i) count(i, tables.data());
  for (size_t t = 1; t < tables.size(); ++t) {
    for (size_t digit = 0; digit <= mask; ++digit) tables[0][digit] += tables[t][digit];
  }
  return tables[0];
}

// What is selected: all elements of larger magnitude and the first `ties` ones of this magnitude.
struct Cut {
  uint32_t magnitude = 0;
  uint64_t ties = 0;
};

// The cut that leaves `count` elements; 0 < count <= x.size().
Cut CutAt(std::span<const float> x, uint64_t count) {
  uint32_t prefix = 0;
  int shift = 31;
  for (const int bits : kDigits) {
    shift -= bits;
    const Table counts = CountDigits(x, prefix, shift, bits);
    uint32_t digit = (1u << bits) - 1;
    for (; counts[digit] < count; --digit) count -= counts[digit];
    prefix = prefix << bits | digit;
  }
  return {.magnitude = prefix, .ties = count};
}

// What is collected from one block of x.
struct Block {
  std::array<uint32_t, kSelectTile> indices;
  std::array<float, kSelectTile> values;
  size_t count = 0;

  // Those of x[first, first + kSelectTile) whose magnitude exceeds `above`.
  void Collect(std::span<const float> x, size_t first, int32_t above) {
    count = select::BestKernels().collect(x.data() + first, std::min(kSelectTile, x.size() - first),
                                          above, static_cast<uint32_t>(first),
                                          {indices.data(), values.data()});
  }
};

struct Elements {
  std::vector<uint32_t> indices;
  std::vector<float> values;
};

// Sets *to to the elements whose magnitude exceeds `above`; false if there are more than `most`.
bool CollectAbove(std::span<const float> x, int32_t above, uint64_t most, Elements* to) {
  to->indices.clear();
  to->values.clear();
  Block block;
  for (size_t i = 0; i < x.size(); i += kSelectTile) {
    block.Collect(x, i, above);
    if (to->indices.size() + block.count > most) return false;
    to->indices.insert(to->indices.end(), block.indices.data(), block.indices.data() + block.count);
    to->values.insert(to->values.end(), block.values.data(), block.values.data() + block.count);
  }
  return true;
}

// Appends the indices of what the cut leaves of these elements, and subtracts the ties.
void Append(const uint32_t* indices, const float* values, size_t count, Cut* cut,
            std::vector<uint32_t>* to) {
  size_t n = to->size();
  to->resize(n + count);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t magnitude = MagnitudeOf(values[i]);
    const bool tie = magnitude == cut->magnitude && cut->ties > 0;
    cut->ties -= tie ? 1 : 0;
    (*to)[n] = indices[i];
    n += magnitude > cut->magnitude || tie ? 1 : 0;
  }
  to->resize(n);
}

void AppendFrom(std::span<const float> x, Cut cut, std::vector<uint32_t>* to) {
  Block block;
  for (size_t i = 0; i < x.size(); i += kSelectTile) {
    block.Collect(x, i, static_cast<int32_t>(cut.magnitude) - (cut.ties > 0 ? 1 : 0));
    Append(block.indices.data(), block.values.data(), block.count, &cut, to);
  }
}

// Finds the `count` largest elements among those that exceed a bound from a sample. False if the
// sample says too little.
bool SelectBySample(std::span<const float> x, uint64_t count, std::vector<uint32_t>* indices) {
  const uint64_t samples = std::min(kMostSamples, x.size() / kStretch);
  if (samples < kLeastSamples || count > x.size() / 4) return false;
  const double each = static_cast<double>(x.size()) / static_cast<double>(samples);
  // Four standard deviations and a few more than what the sample should have of the largest.
  const double expected = static_cast<double>(count) / each;
  const auto rank = static_cast<uint64_t>(expected + 4 * std::sqrt(expected) + 4);
  const std::vector<float> sample = SampleOf(x, samples, 0);
  const auto bound = static_cast<int32_t>(MagnitudeAt(sample, std::min(rank, samples)));
  const auto most = static_cast<uint64_t>(2 * static_cast<double>(rank) * each) + kSelectTile;
  Elements candidates;
  candidates.indices.reserve(most / 2);
  candidates.values.reserve(most / 2);
  // Too many at the bound: perhaps equal ones, such as zeros.
  for (const int32_t above : {bound - 1, bound}) {
    if (!CollectAbove(x, above, most, &candidates)) continue;
    const uint64_t found = candidates.indices.size();
    if (found >= count) {
      Cut cut = CutAt(candidates.values, count);
      Append(candidates.indices.data(), candidates.values.data(), found, &cut, indices);
      return true;
    }
    if (above < bound) return false;
    AppendFrom(x, {.magnitude = static_cast<uint32_t>(bound), .ties = count - found}, indices);
    return true;
  }
  return false;
}

}  // namespace

std::vector<float> SampleOf(std::span<const float> x, uint64_t size, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> sample(size);
  uint64_t first = 0;
  for (uint64_t i = 0; i < size; ++i) {
    const uint64_t end = (i + 1) * x.size() / size;
    sample[i] = x[first + rng.Below(end - first)];
    first = end;
  }
  return sample;
}

uint32_t MagnitudeAt(std::span<const float> x, uint64_t count) { return CutAt(x, count).magnitude; }

void SelectFrom(std::span<const float> x, uint32_t magnitude, std::vector<uint32_t>* indices) {
  indices->clear();
  Block block;
  for (size_t i = 0; i < x.size(); i += kSelectTile) {
    block.Collect(x, i, static_cast<int32_t>(magnitude) - 1);
    indices->insert(indices->end(), block.indices.data(), block.indices.data() + block.count);
  }
}

void SelectLargest(std::span<const float> x, uint64_t count, std::vector<uint32_t>* indices) {
  indices->clear();
  if (count == 0 || SelectBySample(x, count, indices)) return;
  AppendFrom(x, CutAt(x, count), indices);
}

}  // namespace inccl

namespace inccl::sidco {
namespace {

constexpr size_t kSidcoTile = 4096;   // elements that a kernel takes at a time
constexpr uint64_t kSamples = 16384;  // of the first stage

// Exceedances over a threshold: their number and the sums of them and of their squares.
struct Exceedances {
  size_t count = 0;
  double sum = 0, squares = 0;

  void Add(const float* values, size_t n, double over) {
    const select::Moments moments = select::BestKernels().moments(values, n, over);
    count += n;
    sum += moments.sum;
    squares += moments.squares;
  }
};

Exceedances All(std::span<const float> x) {
  Exceedances all;
  for (size_t i = 0; i < x.size(); i += kSidcoTile) {
    all.Add(x.data() + i, std::min(kSidcoTile, x.size() - i), 0);
  }
  return all;
}

// Moves the elements of x whose magnitude reaches the threshold, finite, to *to, which may be what
// x is in.
Exceedances Keep(std::span<const float> x, double threshold, std::vector<float>* to) {
  const auto rounded = static_cast<float>(threshold);
  const auto above = static_cast<int32_t>(MagnitudeOf(rounded)) -
                     (static_cast<double>(rounded) >= threshold ? 1 : 0);
  std::array<uint32_t, kSidcoTile> indices;
  Exceedances kept;
  for (size_t i = 0; i < x.size(); i += kSidcoTile) {
    const size_t n = std::min(kSidcoTile, x.size() - i), room = kept.count + n;
    if (to->size() < room) to->resize(std::max(room, x.size() * 3 / 10));
    float* const next = to->data() + kept.count;
    const size_t collected =
        select::BestKernels().collect(x.data() + i, n, above, 0, {indices.data(), next});
    kept.Add(next, collected, threshold);
  }
  return kept;
}

// The value that a fraction `ratio` of a gamma distribution of these magnitudes exceeds, by the
// approximations of the paper. Zeros, which it does not have, lie below.
double GammaQuantile(std::span<const float> x, double ratio) {
  double sum = 0, logs = 0, count = 0;
  for (const float value : x) {
    const auto magnitude = std::fabs(static_cast<double>(value));
    if (!(magnitude > 0 && magnitude <= std::numeric_limits<float>::max())) continue;
    sum += magnitude;
    logs += std::log(magnitude);
    ++count;
  }
  const double mean = sum / count, spread = std::log(mean) - logs / count;
  if (!(spread > 0)) return mean;
  const double shape =
      (3 - spread + std::sqrt((spread - 3) * (spread - 3) + 24 * spread)) / (12 * spread);
  int sign = 0;
  const double part = std::min(1.0, ratio * static_cast<double>(x.size()) / count);
  return std::max(0.0, -mean / shape * (std::log(part) + lgamma_r(shape, &sign)));
}

// The value that a fraction `ratio` of such a distribution exceeds.
double Quantile(const Exceedances& over, double ratio, Fit fit) {
  const auto count = static_cast<double>(over.count);
  const double mean = over.sum / count, square = mean * mean;
  if (fit == Fit::kExponential) return -mean * std::log(ratio);
  const double variance = over.squares / count - square;
  if (!(variance > 0)) return mean;
  const double scale = mean * (square / variance + 1) / 2;
  const double shape = (square / variance - 1) / 2;
  if (std::fabs(shape) < 1e-6) return -scale * std::log(ratio);  // exponential
  return scale * (1 - std::exp(shape * std::log(ratio))) / shape;
}

}  // namespace

double Threshold(std::span<const float> x, double ratio, std::vector<float>* scratch, int stages,
                 Fit fit) {
  if (ratio >= kFirstRatio) stages = 1;
  const double wanted = ratio * static_cast<double>(x.size());
  // The first of several stages only aims, and the next one counts: a sample is enough.
  const bool sampled = stages > 1 && x.size() > 4 * kSamples;
  const std::vector<float> sample = sampled ? SampleOf(x, kSamples, 0) : std::vector<float>();
  const std::span<const float> first = sampled ? std::span<const float>(sample) : x;
  Exceedances left = All(first);
  double threshold = 0;
  for (int stage = 0; left.count > 0; ++stage) {
    const double part = std::min(1.0, wanted / static_cast<double>(left.count));
    const double aim = stages == 1  ? ratio
                       : stage == 0 ? kFirstRatio
                                    : std::pow(part, 1.0 / (stages - stage));
    threshold +=
        stage == 0 && fit == Fit::kGamma ? GammaQuantile(first, aim) : Quantile(left, aim, fit);
    if (stage + 1 == stages || !(threshold <= std::numeric_limits<float>::max())) break;
    left = Keep(stage == 0 ? x : std::span<const float>(*scratch).first(left.count), threshold,
                scratch);
  }
  return threshold;
}

}  // namespace inccl::sidco

namespace inccl {
namespace {

constexpr uint64_t kLeastSample = 4096;
constexpr uint64_t kSampleShare = 100;  // one element of so many

// The magnitude that about k of the elements reach, from one random element of each stretch of x.
uint32_t SampledThreshold(std::span<const float> x, double k, uint64_t seed) {
  const uint64_t size =
      std::min<uint64_t>(x.size(), std::max(kLeastSample, x.size() / kSampleShare));
  return MagnitudeAt(SampleOf(x, size, seed), SelectedOf(k, size));
}

}  // namespace

void Selector::Select(std::span<const float> x, double k, uint64_t seed,
                      std::vector<uint32_t>* indices) {
  const uint64_t wanted = SelectedOf(k, x.size());
  if (kind_ == SelectorKind::kExact || x.empty()) return SelectLargest(x, wanted, indices);
  const sidco::Fit fit = kind_ == SelectorKind::kSidcoGamma         ? sidco::Fit::kGamma
                         : kind_ == SelectorKind::kSidcoExponential ? sidco::Fit::kExponential
                                                                    : sidco::Fit::kPareto;
  const uint32_t threshold =
      kind_ == SelectorKind::kSampled
          ? SampledThreshold(x, k, seed)
          : MagnitudeOf(static_cast<float>(sidco::Threshold(x, k, &scratch_, sidco::kStages, fit)));
  SelectFrom(x, threshold, indices);
  // A bad estimate must not send everything, or nothing.
  const uint64_t selected = indices->size();
  if (selected > 2 * wanted || 2 * selected < wanted) SelectLargest(x, wanted, indices);
}

InnerCall BitmapUnion::Call(int round) const {
  if (round == 0) {
    return {
        .collective = Collective::kAllToAll, .type = DataType::kUint32, .count = SegmentWords()};
  }
  return {.collective = Collective::kAllGather,
          .type = DataType::kUint32,
          .count = SegmentWords() + extra_};
}

std::span<uint32_t> BitmapUnion::MakeBitmap(std::vector<std::byte>* out) const {
  const std::span<uint32_t> words = ResizeFor<uint32_t>(out, SegmentWords() * ranks_);
  std::fill(words.begin(), words.end(), 0u);
  return words;
}

void BitmapUnion::Merge(std::span<const std::byte> parts) {
  const std::span<const uint32_t> words = ElementsOf<uint32_t>(parts);
  segment_.assign(SegmentWords(), 0u);
  for (size_t i = 0; i < words.size(); ++i) segment_[i % segment_.size()] |= words[i];
}

std::span<uint32_t> BitmapUnion::MakeMerged(std::vector<std::byte>* out) const {
  const std::span<uint32_t> words = ResizeFor<uint32_t>(out, segment_.size() + extra_);
  std::copy(segment_.begin(), segment_.end(), words.begin());
  return words.last(extra_);
}

Status BitmapUnion::Read(std::span<const std::byte> gathered, const char* method,
                         std::vector<uint32_t>* members) const {
  const std::span<const uint32_t> words = ElementsOf<uint32_t>(gathered);
  const size_t segment = SegmentWords();
  members->clear();
  for (size_t rank = 0; rank < ranks_; ++rank) {
    const std::span<const uint32_t> part = words.subspan(rank * (segment + extra_), segment);
    for (size_t i = 0; i < segment; ++i) {
      for (uint32_t bits = part[i]; bits != 0; bits &= bits - 1) {
        const uint64_t bit =
            (rank * segment + i) * 32 + static_cast<uint64_t>(std::countr_zero(bits));
        if (bit >= bits_) {
          return InternalError(
              fmt::format("{}: rank {} sent bit {} of {}", method, rank, bit, bits_));
        }
        members->push_back(static_cast<uint32_t>(bit));
      }
    }
  }
  return Status::Ok();
}

std::span<const uint32_t> BitmapUnion::Extra(std::span<const std::byte> gathered,
                                             size_t rank) const {
  const size_t segment = SegmentWords();
  return ElementsOf<uint32_t>(gathered).subspan(rank * (segment + extra_) + segment, extra_);
}

}  // namespace inccl
