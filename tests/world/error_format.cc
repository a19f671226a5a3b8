// SPDX-License-Identifier: Apache-2.0
#include "world/error_format.h"

#include <fmt/format.h>
#include <regex.h>

namespace inccl::test {

bool Matches(const std::string& text, const std::string& pattern) {
  regex_t compiled;
  if (regcomp(&compiled, pattern.c_str(), REG_EXTENDED | REG_NOSUB) != 0) return false;
  const bool matches = regexec(&compiled, text.c_str(), 0, nullptr, 0) == 0;
  regfree(&compiled);
  return matches;
}

std::string MissingFromError(const std::string& text, ccl_result_t result,
                             const ErrorNames& names) {
  std::string missing;
  const auto require = [&](const std::string& pattern) {
    if (!Matches(text, pattern)) missing += fmt::format("\"{}\" ", pattern);
  };
  require(fmt::format("^rank {}/{}", names.rank, names.nranks));
  if (names.during_init) {
    require(": init: ");
  } else {
    require("(in|after) op [0-9]+|before any op");
  }
  if (!names.peers.empty()) {
    const std::string pid = names.peer_pid == 0 ? "[0-9]+" : std::to_string(names.peer_pid);
    require(fmt::format("(peer|rank) ({})@[^ :]+:{}", fmt::join(names.peers, "|"), pid));
  }
  if (result == CCL_TIMEOUT) require("[0-9]+ ms");
  return missing.empty() ? "" : fmt::format("\"{}\" lacks {}", text, missing);
}

}  // namespace inccl::test
