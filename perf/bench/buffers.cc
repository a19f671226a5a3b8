// SPDX-License-Identifier: Apache-2.0
#include "perf/bench/buffers.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>

namespace inccl::perf {

Result<Buffer> Buffer::Allocate(uint64_t bytes) {
  const size_t size = bytes + kGuardBytes;
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return SystemErrorErrno(fmt::format("mmap of a buffer of {} bytes", size), errno);
  }
  Buffer buffer;
  buffer.mapping_ = Mapping(data, size);
  return buffer;
}

}  // namespace inccl::perf
