// SPDX-License-Identifier: Apache-2.0
//
// Prints schedules.
#ifndef INCCL_TOOLS_INFO_DUMP_H_
#define INCCL_TOOLS_INFO_DUMP_H_

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/types.h"
#include "collectives/schedule.h"

namespace inccl::tools {

struct DumpRequest {
  ScheduleRequest schedule;  // rank: ignored
  std::optional<int> rank;   // nullopt: all
  HostMap hosts;             // of the ranks; without ranks: one host
  enum class As { kText, kDot, kJson } as = As::kText;
};
// kInvalidArgument if there is no such schedule.
Result<std::string> Dump(const DumpRequest& request);

// By name; letter case does not matter. kInvalidArgument listing the names.
Result<Collective> ParseCollective(std::string_view name);
Result<Algorithm> ParseAlgorithm(std::string_view name);
Result<DataType> ParseDataType(std::string_view name);
Result<ReduceOp> ParseReduceOp(std::string_view name);
// "4,2/1": the numbers of ranks of the hosts, which hold the ranks in order; a slash begins another
// site. kInvalidArgument if
// they are not `nranks` together; no ranks if the text is empty.
Result<HostMap> ParseHosts(std::string_view text, int nranks);
// "4096", "64K", "1M", "2G": powers of 1024.
Result<uint64_t> ParseSize(std::string_view text);

}  // namespace inccl::tools

#endif  // INCCL_TOOLS_INFO_DUMP_H_
