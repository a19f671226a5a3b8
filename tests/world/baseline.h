// SPDX-License-Identifier: Apache-2.0
//
// What a process holds, to be the same after a test as before: descriptors, threads, shared memory
// with a name, and (within an allowance) resident memory.
#ifndef INCCL_TESTS_WORLD_BASELINE_H_
#define INCCL_TESTS_WORLD_BASELINE_H_

#include <cstddef>
#include <set>
#include <string>

namespace inccl::test {

struct Holdings {
  size_t fds = 0;
  size_t threads = 0;
  size_t rss_kib = 0;
  std::set<std::string> shm;  // names below /dev/shm that could be ours

  static Holdings Now();
};

class Baseline {
 public:
  // A sanitizer's runtime or the C library may keep some of what was freed.
  static constexpr size_t kAnyRss = static_cast<size_t>(-1);
  explicit Baseline(size_t rss_allowance_kib = kAnyRss);
  // Expects to find the same again, unless Difference has been asked for.
  ~Baseline();
  Baseline(const Baseline&) = delete;
  Baseline& operator=(const Baseline&) = delete;

  // What is there more than before; "" if nothing is. Waits up to `seconds` for what ends by itself
  // (threads, above all).
  std::string Difference(double seconds);

 private:
  std::string Compare() const;

  const size_t rss_allowance_kib_;
  const Holdings before_;
  bool asked_ = false;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_WORLD_BASELINE_H_
