// SPDX-License-Identifier: Apache-2.0
//
// An error that only some ranks may have becomes the same error on all ranks.
#ifndef INCCL_PERF_BENCH_AGREE_H_
#define INCCL_PERF_BENCH_AGREE_H_

#include <array>
#include <cstring>

#include "perf/support/world.h"

namespace inccl::perf {

// The first rank's that has one.
inline Status Agree(World& world, const Status& mine) {
  struct Report {
    int code;
    std::array<char, 500> text;
  };
  Report report{static_cast<int>(mine.code()), {}};
  std::strncpy(report.text.data(), mine.message().c_str(), report.text.size() - 1);
  Result<std::vector<Report>> all = Gather(world, report);
  if (!all.ok()) return all.status();
  for (const Report& one : *all) {
    if (one.code != 0) return {static_cast<Code>(one.code), one.text.data()};
  }
  return {};
}

}  // namespace inccl::perf

#endif  // INCCL_PERF_BENCH_AGREE_H_
