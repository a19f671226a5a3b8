// SPDX-License-Identifier: Apache-2.0
//
// A rank's buffers, allocated once for the largest size, with guards behind what a row uses.
#ifndef INCCL_PERF_BENCH_BUFFERS_H_
#define INCCL_PERF_BENCH_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/fd.h"
#include "base/status.h"
#include "inccl/ccl.h"
#include "perf/support/gpu.h"

namespace inccl::perf {

inline constexpr size_t kGuardBytes = 256;

// Memory with room for `bytes` and a guard, aligned to pages. That of a GPU has a mirror in the
// host, in which the program writes inputs and reads results.
class Buffer {
 public:
  // `mem_alloc`: of ccl_mem_alloc, or ccl_mem_alloc_device. gpu: nullptr for memory of the host;
  // must outlive the buffer.
  static Result<Buffer> Allocate(uint64_t bytes, bool mem_alloc, Gpu* gpu);

  // For the calls that are measured.
  std::byte* data() const { return memory_ != nullptr ? memory_.get() : mapping_.data(); }
  // For this program. The same memory, or its mirror.
  std::byte* host() const { return gpu_ == nullptr ? data() : mapping_.data(); }
  // The guard behind the first `used` bytes, as host().
  std::span<std::byte> Guard(uint64_t used) const { return {host() + used, kGuardBytes}; }

  // What lies in the host goes to the device, or the other way; nothing for memory of the host.
  Status Push(uint64_t at, uint64_t bytes) const;
  Status Pull(uint64_t at, uint64_t bytes) const;
  // Within the kind of memory; in order with Push and Pull, waits for nothing on a device.
  Status CopyFrom(const Buffer& from, uint64_t from_at, uint64_t at, uint64_t bytes) const;

 private:
  static Result<Mapping> Map(size_t bytes);

  Gpu* gpu_ = nullptr;
  Mapping mapping_;
  std::unique_ptr<std::byte, std::function<void(std::byte*)>> memory_;  // else mapping_
};

}  // namespace inccl::perf

#endif  // INCCL_PERF_BENCH_BUFFERS_H_
