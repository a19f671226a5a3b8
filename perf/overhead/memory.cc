// SPDX-License-Identifier: Apache-2.0
#include "perf/overhead/memory.h"

#include <charconv>
#include <fstream>
#include <iterator>
#include <string_view>

namespace inccl::perf {

Result<uint64_t> ParseProportionalSize(const std::string& smaps_rollup) {
  constexpr std::string_view kName = "\nPss:";
  const size_t line = smaps_rollup.find(kName);
  if (line == std::string::npos) return SystemError("smaps_rollup: no line \"Pss:\"");
  const size_t first = smaps_rollup.find_first_not_of(' ', line + kName.size());
  uint64_t kilobytes = 0;
  const char* end = smaps_rollup.data() + smaps_rollup.size();
  const auto parsed = std::from_chars(
      first == std::string::npos ? end : smaps_rollup.data() + first, end, kilobytes);
  if (parsed.ec != std::errc() || !std::string_view(parsed.ptr, end).starts_with(" kB")) {
    return SystemError("smaps_rollup: the line \"Pss:\" has no number of kB");
  }
  return kilobytes * 1024;
}

Result<uint64_t> ProportionalSize() {
  std::ifstream file("/proc/self/smaps_rollup");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.empty()) return SystemError("/proc/self/smaps_rollup cannot be read");
  return ParseProportionalSize(text);
}

}  // namespace inccl::perf
