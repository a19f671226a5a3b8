// SPDX-License-Identifier: Apache-2.0
//
// What every text of a fatal error has to name: the rank it came to, the operation (or that it was
// init, or between operations), the peer with host and process, and for a timeout how long was
// waited and what the limit is.
#ifndef INCCL_TESTS_WORLD_ERROR_FORMAT_H_
#define INCCL_TESTS_WORLD_ERROR_FORMAT_H_

#include <string>
#include <vector>

#include "inccl/ccl.h"

namespace inccl::test {

// POSIX extended regular expression, anywhere in `text`.
bool Matches(const std::string& text, const std::string& pattern);

struct ErrorNames {
  int rank = 0, nranks = 1;
  bool during_init = false;
  // One of these must be named as "peer N@host:pid"; empty: none need be.
  std::vector<int> peers = {};
  int peer_pid = 0;  // 0: any
};
// What is missing; "" if nothing is.
std::string MissingFromError(const std::string& text, ccl_result_t result, const ErrorNames& names);

}  // namespace inccl::test

#endif  // INCCL_TESTS_WORLD_ERROR_FORMAT_H_
