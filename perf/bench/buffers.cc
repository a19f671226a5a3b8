// SPDX-License-Identifier: Apache-2.0
#include "perf/bench/buffers.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>

namespace inccl::perf {

Result<Buffer> Buffer::Allocate(uint64_t bytes, bool mem_alloc) {
  const size_t size = bytes + kGuardBytes;
  Buffer buffer;
  if (mem_alloc) {
    void* memory = nullptr;
    if (ccl_mem_alloc(&memory, size) != CCL_SUCCESS) {
      return SystemError(fmt::format("ccl_mem_alloc: {}", ccl_get_last_error(nullptr)));
    }
    buffer.library_.reset(static_cast<std::byte*>(memory));
    return buffer;
  }
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return SystemErrorErrno(fmt::format("mmap of a buffer of {} bytes", size), errno);
  }
  buffer.mapping_ = Mapping(data, size);
  return buffer;
}

}  // namespace inccl::perf
