// SPDX-License-Identifier: Apache-2.0
//
// Lists of algorithms (INCCL_ALGO) for tests that call every collective under each of them.
#ifndef INCCL_TESTS_WORLD_ALGORITHMS_H_
#define INCCL_TESTS_WORLD_ALGORITHMS_H_

#include <string>

namespace inccl::test {

// The algorithm for the collectives that have it; the others choose as ever. "": no choice.
inline std::string WhereItExists(const std::string& algorithm) {
  std::string list = algorithm.empty() ? "" : "allreduce:" + algorithm;
  const auto add = [&](const char* collective) {
    list += ";" + std::string(collective) + ":" + algorithm;
  };
  if (algorithm == "ring" || algorithm == "tree") {
    add("broadcast");
    add("reduce");
  }
  if (algorithm == "ring") {
    add("reduce_scatter");
    add("allgather");
  }
  return list;  // the direct ones are the default of all others
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_WORLD_ALGORITHMS_H_
