// SPDX-License-Identifier: Apache-2.0
//
// The ranks of a benchmark as its launcher made them, apart from the library under test: who am I,
// start together, exchange results. All ranks make the same calls in the same order. Not
// thread-safe: one rank is one thread.
#ifndef INCCL_PERF_SUPPORT_WORLD_H_
#define INCCL_PERF_SUPPORT_WORLD_H_

#include <cstddef>
#include <span>
#include <vector>

#include "base/status.h"

namespace inccl::perf {

class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Returns on every rank when all ranks have called it, at nearly the same time. kRemoteError when
  // another rank has died or given up.
  virtual Status Barrier() = 0;

  // all[r * mine.size()] = rank r's `mine`, on every rank; all holds size() * mine.size() bytes.
  virtual Status AllGather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;

  // Hands rank 0's bytes to the others, by a channel that only they can read.
  virtual Status Broadcast(std::span<std::byte> bytes) = 0;
};

// AllGather of one trivially copyable value for each rank.
template <typename T>
Result<std::vector<T>> Gather(World& world, const T& mine) {
  std::vector<T> all(static_cast<size_t>(world.size()));
  Status s =
      world.AllGather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  if (!s.ok()) return s;
  return all;
}

// How a benchmark ends.
enum ExitCode : int {
  kExitOk = 0,
  kExitWrong = 1,     // ran to its end, but a result was wrong or ranks differ
  kExitUsage = 2,     // the command line
  kExitFailed = 3,    // an error of the library or the system, or a rank that died
  kExitNoDevice = 4,  // --device, and there is none
};

// Whether a rank that ends with this code ends the others. Where there is no device, all see that.
constexpr bool EndsTheRun(int code) { return code >= kExitFailed && code != kExitNoDevice; }

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_WORLD_H_
