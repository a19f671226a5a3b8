// SPDX-License-Identifier: Apache-2.0
//
// What every thread of a process is doing, for a test that has run out of time: from gdb where it
// is installed, and from /proc.
#ifndef INCCL_TESTS_WORLD_STACKS_H_
#define INCCL_TESTS_WORLD_STACKS_H_

#include <sys/types.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace inccl::test {

std::string StacksOf(pid_t pid);

// Ends this process with its stacks if it still exists after `seconds`.
class Watchdog {
 public:
  explicit Watchdog(double seconds);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_WORLD_STACKS_H_
