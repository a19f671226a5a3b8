// SPDX-License-Identifier: Apache-2.0
//
// Runs vector code on every instruction set that was compiled and that this CPU has, scalar
// included.
#ifndef INCCL_TESTS_COMPRESS_REDUCE_TARGETS_H_
#define INCCL_TESTS_COMPRESS_REDUCE_TARGETS_H_

#include <cstdint>
#include <vector>

#include "hwy/highway.h"

namespace inccl::test {

// Kernels called while it lives are those of one target. Process-wide.
class ScopedTarget {
 public:
  explicit ScopedTarget(int64_t target) { Choose(target); }
  ~ScopedTarget() { Choose(0); }
  ScopedTarget(const ScopedTarget&) = delete;
  ScopedTarget& operator=(const ScopedTarget&) = delete;

 private:
  static void Choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);  // 0: what the CPU has
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

inline std::vector<int64_t> Targets() {
  std::vector<int64_t> targets;
  const int64_t available = (hwy::SupportedTargets() & HWY_TARGETS) | HWY_STATIC_TARGET;
  for (int bit = 0; bit < 63; ++bit) {
    const int64_t target = int64_t{1} << bit;
    if ((available & target) != 0) targets.push_back(target);
  }
  return targets;
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_COMPRESS_REDUCE_TARGETS_H_
