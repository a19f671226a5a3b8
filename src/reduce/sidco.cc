// SPDX-License-Identifier: Apache-2.0
#include "reduce/sidco.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "compress/kernels/select_kernels.h"
#include "reduce/select.h"

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

// The value that a fraction `ratio` of a generalized Pareto distribution exceeds.
double Quantile(const Exceedances& over, double ratio) {
  const auto count = static_cast<double>(over.count);
  const double mean = over.sum / count, square = mean * mean;
  const double variance = over.squares / count - square;
  if (!(variance > 0)) return mean;
  const double scale = mean * (square / variance + 1) / 2;
  const double shape = (square / variance - 1) / 2;
  if (std::fabs(shape) < 1e-6) return -scale * std::log(ratio);  // exponential
  return scale * (1 - std::exp(shape * std::log(ratio))) / shape;
}

}  // namespace

double Threshold(std::span<const float> x, double ratio, std::vector<float>* scratch, int stages) {
  if (ratio >= kFirstRatio) stages = 1;
  const double wanted = ratio * static_cast<double>(x.size());
  // The first of several stages only aims, and the next one counts: a sample is enough.
  const bool sampled = stages > 1 && x.size() > 4 * kSamples;
  Exceedances left = sampled ? All(SampleOf(x, kSamples, 0)) : All(x);
  double threshold = 0;
  for (int stage = 0; left.count > 0; ++stage) {
    const double part = std::min(1.0, wanted / static_cast<double>(left.count));
    const double aim = stages == 1  ? ratio
                       : stage == 0 ? kFirstRatio
                                    : std::pow(part, 1.0 / (stages - stage));
    threshold += Quantile(left, aim);
    if (stage + 1 == stages || !(threshold <= std::numeric_limits<float>::max())) break;
    left = Keep(stage == 0 ? x : std::span<const float>(*scratch).first(left.count), threshold,
                scratch);
  }
  return threshold;
}

}  // namespace inccl::sidco
