// SPDX-License-Identifier: Apache-2.0
#include "reduce/selector.h"

#include <algorithm>

#include "reduce/methods.h"
#include "reduce/select.h"
#include "reduce/sidco.h"

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

void Selector::Select(std::span<const float> x, uint64_t seed, std::vector<uint32_t>* indices) {
  const uint64_t wanted = SelectedOf(k_, x.size());
  if (kind_ == SelectorKind::kExact || x.empty()) return SelectLargest(x, wanted, indices);
  const uint32_t threshold =
      kind_ == SelectorKind::kSampled
          ? SampledThreshold(x, k_, seed)
          : MagnitudeOf(static_cast<float>(sidco::Threshold(x, k_, &scratch_)));
  SelectFrom(x, threshold, indices);
  // A bad estimate must not send everything, or nothing.
  const uint64_t selected = indices->size();
  if (selected > 2 * wanted || 2 * selected < wanted) SelectLargest(x, wanted, indices);
}

}  // namespace inccl
