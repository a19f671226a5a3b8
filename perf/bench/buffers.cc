// SPDX-License-Identifier: Apache-2.0
#include "perf/bench/buffers.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace inccl::perf {

Result<Mapping> Buffer::Map(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return SystemErrorErrno(fmt::format("mmap of a buffer of {} bytes", bytes), errno);
  }
  return Mapping(data, bytes);
}

Result<Buffer> Buffer::Allocate(uint64_t bytes, bool mem_alloc, Gpu* gpu) {
  const size_t size = bytes + kGuardBytes;
  Buffer buffer;
  buffer.gpu_ = gpu;
  if (mem_alloc) {
    void* memory = nullptr;
    const ccl_result_t result = gpu == nullptr ? ccl_mem_alloc(&memory, size)
                                               : ccl_mem_alloc_device(&memory, size, gpu->number());
    if (result != CCL_SUCCESS) {
      return SystemError(fmt::format("--buffers mem_alloc: {}", ccl_get_last_error(nullptr)));
    }
    buffer.memory_ = {static_cast<std::byte*>(memory), [](std::byte* m) { ccl_mem_free(m); }};
  } else if (gpu != nullptr) {
    Result<void*> memory = gpu->Allocate(size);
    if (!memory.ok()) return memory.status();
    buffer.memory_ = {static_cast<std::byte*>(*memory), [gpu](std::byte* m) { gpu->Free(m); }};
  }
  if (buffer.memory_ == nullptr || gpu != nullptr) {
    Result<Mapping> mapping = Map(size);
    if (!mapping.ok()) return mapping.status();
    buffer.mapping_ = *std::move(mapping);
  }
  return buffer;
}

Status Buffer::Push(uint64_t at, uint64_t bytes) const {
  if (gpu_ == nullptr) return {};
  return gpu_->Copy(data() + at, host() + at, bytes);
}

Status Buffer::Pull(uint64_t at, uint64_t bytes) const {
  if (gpu_ == nullptr) return {};
  Status s = gpu_->Copy(host() + at, data() + at, bytes);
  return s.ok() ? gpu_->Synchronize() : s;
}

Status Buffer::CopyFrom(const Buffer& from, uint64_t from_at, uint64_t at, uint64_t bytes) const {
  if (gpu_ != nullptr) return gpu_->Copy(data() + at, from.data() + from_at, bytes);
  std::memcpy(data() + at, from.data() + from_at, bytes);
  return {};
}

}  // namespace inccl::perf
