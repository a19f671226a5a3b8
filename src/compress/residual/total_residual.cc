// SPDX-License-Identifier: Apache-2.0
#include "compress/residual/total_residual.h"

#include <algorithm>
#include <cmath>

namespace inccl {

const TotalResidual::Entry* TotalResidual::Find(uint64_t superblock) const {
  if (superblock >= index_.size() || index_[superblock] == 0) return nullptr;
  return &entries_[index_[superblock] - 1];
}

void TotalResidual::AddTo(uint64_t superblock, float factor, std::span<float> sum) const {
  const Entry* entry = Find(superblock);
  if (entry == nullptr) return;
  const auto& errors = entry->rows[entry->now];
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += factor * errors[i];
}

void TotalResidual::Set(uint64_t superblock, float factor, std::span<const float> sum,
                        const float* sent) {
  if (superblock >= index_.size()) index_.resize(superblock + 1, 0);
  uint32_t& index = index_[superblock];
  if (index == 0) {
    entries_.emplace_back().superblock = superblock;
    index = static_cast<uint32_t>(entries_.size());
  }
  Entry& entry = entries_[index - 1];
  entry.pending = true;
  auto& next = entry.rows[(entry.now + 1) % 3];
  for (size_t i = 0; i < sum.size(); ++i) {
    const float error = (sum[i] - sent[i]) / factor;
    next[i] = std::isfinite(error) ? error : 0.0f;
  }
}

void TotalResidual::Rollback(uint64_t operation) {
  for (Entry& entry : entries_) {
    if (entry.operation == operation) {
      entry.now = (entry.now + 2) % 3;
      entry.empty = false;
    }
    entry.operation = 0;
  }
}

void TotalResidual::Clear() {
  index_.clear();
  entries_.clear();
}

void TotalResidual::AddAll(std::span<float> values) const {
  for (const Entry& entry : entries_) {
    const uint64_t first = entry.superblock * kSuperblock;
    if (first >= values.size()) continue;
    const size_t count = std::min<size_t>(kSuperblock, values.size() - first);
    for (size_t i = 0; i < count; ++i) values[first + i] += entry.rows[entry.now][i];
  }
}

}  // namespace inccl
