// SPDX-License-Identifier: Apache-2.0
//
// A rank's buffers, allocated once for the largest size, with guards behind what a row uses.
#ifndef INCCL_PERF_BENCH_BUFFERS_H_
#define INCCL_PERF_BENCH_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/fd.h"
#include "base/status.h"
#include "inccl/ccl.h"

namespace inccl::perf {

inline constexpr size_t kGuardBytes = 256;

// Page-aligned memory with room for `bytes` and a guard.
class Buffer {
 public:
  // `mem_alloc`: of ccl_mem_alloc.
  static Result<Buffer> Allocate(uint64_t bytes, bool mem_alloc);
  std::byte* data() const { return library_ != nullptr ? library_.get() : mapping_.data(); }
  // The guard behind the first `used` bytes.
  std::span<std::byte> Guard(uint64_t used) const { return {data() + used, kGuardBytes}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ccl_mem_free(memory); }
  };

  Mapping mapping_;
  std::unique_ptr<std::byte, Free> library_;
};

}  // namespace inccl::perf

#endif  // INCCL_PERF_BENCH_BUFFERS_H_
