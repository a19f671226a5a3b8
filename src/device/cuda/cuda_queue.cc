// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_queue.h"

#include <fmt/format.h>

#include <new>

namespace inccl::cuda {
namespace {

// The word does not show errors, only the driver does. Asking it costs a microsecond, so Reached
// asks once in this many calls.
constexpr uint32_t kLooksPerQuestion = 256;

}  // namespace

Result<std::unique_ptr<CudaQueue>> CudaQueue::Create(const Driver& driver, CUcontext context,
                                                     const Launchers* kernels) {
  const Within within(driver, context);
  if (!within.status().ok()) return within.status();
  std::unique_ptr<CudaQueue> queue(new CudaQueue(driver, context, kernels));
  void* word = nullptr;
  Status status =
      driver.Check(driver.host_alloc(&word, sizeof *queue->passed_,
                                     CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                   "cuMemHostAlloc");
  if (!status.ok()) return status;
  queue->passed_ = new (word) std::atomic<uint32_t>(0);
  // Out-of-range priorities are clamped: the lowest number is the highest priority.
  constexpr int kHighest = -5;
  status = driver.Check(driver.stream_create(&queue->stream_, CU_STREAM_NON_BLOCKING, kHighest),
                        "cuStreamCreateWithPriority");
  if (!status.ok()) return status;
  return queue;
}

CudaQueue::~CudaQueue() {
  const Within within(driver_, context_);
  if (!within.status().ok()) return;
  if (stream_ != nullptr) {
    driver_.stream_synchronize(stream_);
    driver_.stream_destroy(stream_);
  }
  if (passed_ != nullptr) driver_.host_free(passed_);
}

Status CudaQueue::Copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return Status::Ok();
  const Within within(driver_, context_);
  if (!within.status().ok()) return within.status();
  return driver_.Check(driver_.copy(Address(to), Address(from), bytes, stream_), "cuMemcpyAsync");
}

Status CudaQueue::Run(const Launch& launch) {
  const Within within(driver_, context_);
  if (!within.status().ok()) return within.status();
  const int error = launch(*kernels_, stream_);
  if (error == 0) return Status::Ok();
  return {Code::kUnhandledCudaError,
          fmt::format("a kernel could not be launched: CUDA error {}", error)};
}

Result<uint64_t> CudaQueue::Mark() {
  const Within within(driver_, context_);
  if (!within.status().ok()) return within.status();
  Status status = driver_.Check(
      driver_.stream_write(stream_, Address(passed_), static_cast<uint32_t>(marks_ + 1),
                           CU_STREAM_WRITE_VALUE_DEFAULT),
      "cuStreamWriteValue32");
  if (!status.ok()) return status;
  return ++marks_;
}

Result<bool> CudaQueue::Reached(uint64_t mark) {
  const uint32_t passed = passed_->load(std::memory_order_acquire);
  if (static_cast<int32_t>(passed - static_cast<uint32_t>(mark)) >= 0) return true;
  if (++looks_ % kLooksPerQuestion != 0) return false;
  const Within within(driver_, context_);
  if (!within.status().ok()) return within.status();
  const CUresult result = driver_.stream_query(stream_);
  if (result == CUDA_ERROR_NOT_READY) return false;
  if (Status status = driver_.Check(result, "cuStreamQuery"); !status.ok()) return status;
  return true;
}

}  // namespace inccl::cuda
