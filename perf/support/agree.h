// SPDX-License-Identifier: Apache-2.0
//
// What one rank has for all: an error that only some ranks may have becomes the same error on all,
// and so does a unique id.
#ifndef INCCL_PERF_SUPPORT_AGREE_H_
#define INCCL_PERF_SUPPORT_AGREE_H_

#include <array>
#include <cstring>
#include <span>
#include <string>

#include "base/status.h"
#include "inccl/ccl.h"
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

// A new id, made by rank 0, on all ranks; or on all ranks why it could make none.
inline Result<ccl_unique_id_t> ShareUniqueId(World& world) {
  ccl_unique_id_t id{};
  const ccl_result_t made = world.rank() == 0 ? ccl_get_unique_id(&id) : CCL_SUCCESS;
  Status mine;
  if (made != CCL_SUCCESS) {
    mine = {static_cast<Code>(made),
            std::string("ccl_get_unique_id: ") + ccl_get_last_error(nullptr)};
  }
  if (Status s = Agree(world, mine); !s.ok()) return s;
  if (Status s = world.Broadcast(std::as_writable_bytes(std::span(&id, 1))); !s.ok()) return s;
  return id;
}

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_AGREE_H_
