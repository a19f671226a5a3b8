// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/device_levels.h"

#include <algorithm>
#include <span>

namespace inccl::hbi {

DeviceLevels::DeviceLevels(const Planner& planner) {
  std::vector<const LevelTable*> known;
  std::vector<LevelTable> tables;
  const auto index = [&](const LevelTable* table) {
    const auto found = std::find(known.begin(), known.end(), table);
    const auto at = static_cast<size_t>(found - known.begin());
    if (found == known.end()) {
      known.push_back(table);
      tables.push_back(*table);
    }
    return at;
  };
  planner.MakeTables();
  for (const Point& point : planner.points()) {
    levels_.push_back(
        {.k = point.k, .k2 = point.k2, .sum = index(point.sum), .result = index(point.result)});
  }
  tables_ = std::make_shared<const std::vector<LevelTable>>(std::move(tables));
}

DeviceLevels::Choices DeviceLevels::WithTablesAt(const LevelTable* tables) {
  const MutexLock lock(&mutex_);
  for (const auto& [address, choices] : choices_) {
    if (address == tables) return choices;
  }
  std::vector<cuda::LevelChoice> choices;
  for (const Levels& levels : levels_) {
    choices.push_back({.k = levels.k,
                       .k2 = levels.k2,
                       .sum = tables + levels.sum,
                       .result = tables + levels.result});
  }
  choices_.emplace_back(tables,
                        std::make_shared<const std::vector<cuda::LevelChoice>>(std::move(choices)));
  return choices_.back().second;
}

Result<const cuda::LevelChoice*> DeviceLevels::On(DeviceWork* work) {
  const Result<const std::byte*> tables =
      work->Constant(std::as_bytes(std::span(*tables_)), tables_);
  if (!tables.ok()) return tables.status();
  const Choices choices = WithTablesAt(reinterpret_cast<const LevelTable*>(*tables));
  const Result<const std::byte*> there =
      work->Constant(std::as_bytes(std::span(*choices)), choices);
  if (!there.ok()) return there.status();
  return reinterpret_cast<const cuda::LevelChoice*>(*there);
}

}  // namespace inccl::hbi
