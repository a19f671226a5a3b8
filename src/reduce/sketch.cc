// SPDX-License-Identifier: Apache-2.0
#include "reduce/sketch.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"

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

}  // namespace inccl
