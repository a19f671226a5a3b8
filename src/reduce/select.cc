// SPDX-License-Identifier: Apache-2.0
#include "reduce/select.h"

#include <algorithm>
#include <array>
#include <functional>

namespace inccl {
namespace {

constexpr int kBinShift = 20;  // 2^11 bins of magnitudes with equal exponent and 3 bits more
constexpr size_t kBins = size_t{1} << (31 - kBinShift);
constexpr size_t kTables = 4;  // neighbours in different tables do not wait for each other

std::array<uint64_t, kBins> CountBins(std::span<const float> x) {
  std::array<std::array<uint64_t, kBins>, kTables> tables{};
  size_t i = 0;
  for (; i + kTables <= x.size(); i += kTables) {
    for (size_t t = 0; t < kTables; ++t) ++tables[t][MagnitudeOf(x[i + t]) >> kBinShift];
  }
  for (; i < x.size(); ++i) ++tables[0][MagnitudeOf(x[i]) >> kBinShift];
  for (size_t t = 1; t < kTables; ++t) {
    for (size_t bin = 0; bin < kBins; ++bin) tables[0][bin] += tables[t][bin];
  }
  return tables[0];
}

// The magnitude of the element number `count` in descending order; count > 0.
uint32_t MagnitudeAt(std::span<const float> x, uint64_t count) {
  const std::array<uint64_t, kBins> bins = CountBins(x);
  size_t bin = kBins - 1;
  for (; bins[bin] < count; --bin) count -= bins[bin];
  std::vector<uint32_t> inside;
  inside.reserve(bins[bin]);
  for (const float value : x) {
    const uint32_t magnitude = MagnitudeOf(value);
    if (magnitude >> kBinShift == bin) inside.push_back(magnitude);
  }
  const auto nth = inside.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(inside.begin(), nth, inside.end(), std::greater<>());
  return *nth;
}

}  // namespace

void SelectFrom(std::span<const float> x, uint32_t magnitude, std::vector<uint32_t>* indices) {
  indices->clear();
  for (size_t i = 0; i < x.size(); ++i) {
    if (MagnitudeOf(x[i]) >= magnitude) indices->push_back(static_cast<uint32_t>(i));
  }
}

void SelectLargest(std::span<const float> x, uint64_t count, std::vector<uint32_t>* indices) {
  indices->clear();
  if (count == 0) return;
  const uint32_t least = MagnitudeAt(x, count);
  SelectFrom(x, least, indices);
  if (indices->size() == count) return;
  // More elements have the least magnitude than there is room for: the last of them go.
  uint64_t excess = indices->size() - count;
  auto to = indices->end();
  for (auto from = indices->end(); from != indices->begin();) {
    const uint32_t index = *--from;
    if (excess > 0 && MagnitudeOf(x[index]) == least) {
      --excess;
    } else {
      *--to = index;
    }
  }
  indices->erase(indices->begin(), to);
}

}  // namespace inccl
