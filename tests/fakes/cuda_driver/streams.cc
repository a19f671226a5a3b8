// SPDX-License-Identifier: Apache-2.0
//
// Of the fake driver: streams and captures.
#include <atomic>

#include "fakes/cuda_driver/machine.h"

// NOLINTNEXTLINE(google-build-using-namespace): of this file's other half
using namespace inccl::test;

// ---------------------------------------------------------------- streams

FAKE cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int /*priority*/) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  HoldIfAsked("cuStreamCreateWithPriority");
  Machine& m = Fake();
  const std::lock_guard lock(m.mutex);
  *stream = new CUstream_st(Current(), m.next_id++);
  m.streams.insert(*stream);
  return CUDA_SUCCESS;
}

FAKE cuStreamCreate(CUstream* stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

// It is never used again, and does what it has.
FAKE cuStreamDestroy(CUstream stream) {
  const std::lock_guard lock(Fake().mutex);
  return Fake().streams.erase(stream) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

FAKE cuStreamQuery(CUstream handle) {
  CUstream stream = nullptr;
  if (const CUresult result = Find(handle, &stream); result != CUDA_SUCCESS) return result;
  stream->Begin();
  return stream->Idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

FAKE cuStreamSynchronize(CUstream handle) {
  CUstream stream = nullptr;
  if (const CUresult result = ForWork(handle, &stream); result != CUDA_SUCCESS) return result;
  stream->Wait();
  return CUDA_SUCCESS;
}

FAKE cuCtxSynchronize() {
  const CUcontext context = Current();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult result = Unsafe(); result != CUDA_SUCCESS) return result;
  if (IsCapturing(context)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  while (!IsIdle(context)) usleep(100);
  return CUDA_SUCCESS;
}

// NOLINTNEXTLINE(google-runtime-int): the driver's type
FAKE cuStreamGetId(CUstream handle, unsigned long long* id) {
  CUstream stream = nullptr;
  const CUresult result = Find(handle, &stream);
  if (result == CUDA_SUCCESS) *id = stream->id;
  return result;
}

// Of a stream that was made, any thread may ask.
FAKE cuStreamGetCtx(CUstream handle, CUcontext* context) {
  if (handle != nullptr) {
    const std::lock_guard lock(Fake().mutex);
    if (Fake().streams.count(handle) == 0) return CUDA_ERROR_INVALID_HANDLE;
    *context = handle->context;
    return CUDA_SUCCESS;
  }
  CUstream stream = nullptr;
  const CUresult result = Find(handle, &stream);
  if (result == CUDA_SUCCESS) *context = stream->context;
  return result;
}

FAKE cuStreamWriteValue32(CUstream handle, CUdeviceptr address, cuuint32_t value,
                          unsigned /*flags*/) {
  CUstream stream = nullptr;
  if (const CUresult result = ForWork(handle, &stream); result != CUDA_SUCCESS) return result;
  uint32_t* word = nullptr;
  if (const CUresult result = WordOf(address, &word); result != CUDA_SUCCESS) return result;
  stream->Append([word, value] { std::atomic_ref(*word).store(value, std::memory_order_release); });
  return CUDA_SUCCESS;
}

FAKE cuStreamWaitValue32(CUstream handle, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  CUstream stream = nullptr;
  if (const CUresult result = ForWork(handle, &stream); result != CUDA_SUCCESS) return result;
  uint32_t* word = nullptr;
  if (const CUresult result = WordOf(address, &word); result != CUDA_SUCCESS) return result;
  if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_INVALID_VALUE;
  if (Fake().failing_waits > 0) {
    --Fake().failing_waits;
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  stream->Append([word, value] {
    const std::atomic_ref seen(*word);
    while (static_cast<int32_t>(seen.load(std::memory_order_acquire) - value) < 0) usleep(20);
  });
  return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- kernels

// Of one kind, which does nothing. Where code is loaded lazily, its first launch waits for all work
// of the context, and calls of other threads wait for it, as an H100's driver has it. A stream
// takes 1024 launches at a time, and then keeps the thread that launches; with
// FAKE_CUDA_LAUNCHES_LOCK other threads' calls, too.

FAKE cuModuleLoadData(CUmodule* module, const void* /*image*/) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *module = reinterpret_cast<CUmodule>(Current());
  return CUDA_SUCCESS;
}

FAKE cuModuleGetFunction(CUfunction* function, CUmodule module, const char* /*name*/) {
  *function = reinterpret_cast<CUfunction>(module);
  return CUDA_SUCCESS;
}

FAKE cuLaunchKernel(CUfunction /*function*/, unsigned, unsigned, unsigned, unsigned, unsigned,
                    unsigned, unsigned, CUstream handle, void** /*arguments*/, void** /*extra*/) {
  CUstream stream = nullptr;
  if (const CUresult result = ForWork(handle, &stream); result != CUDA_SUCCESS) return result;
  CUcontext const context = Current();
  if (!context->loaded.exchange(true)) {
    CUmoduleLoadingMode mode = CU_MODULE_EAGER_LOADING;
    cuModuleGetLoadingMode(&mode);
    const std::lock_guard loads(context->loading);
    while (mode == CU_MODULE_LAZY_LOADING && !IsIdle(context)) {
      Fake().launch_waits = true;
      usleep(100);
    }
  }
  constexpr size_t kRoom = 1024;
  std::unique_lock holds(context->loading, std::defer_lock);
  if (std::getenv("FAKE_CUDA_LAUNCHES_LOCK") != nullptr) holds.lock();
  while (stream->Length() >= kRoom) {
    Fake().launch_waits = true;
    usleep(20);
  }
  stream->Append([] {});
  return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- for tests

// From now on allocations wait, or do not; how often one has waited in vain so far.
extern "C" __attribute__((visibility("default"))) int fake_cuda_allocations_wait(int wait) {
  Fake().allocations_wait = wait != 0;
  return Fake().waited_in_vain;
}

// From now on streams begin what is put on them when they are queried or waited for, or at once.
extern "C" __attribute__((visibility("default"))) void fake_cuda_collect(int collect) {
  CUstream_st::collects = collect != 0;
}

// Whether a launch has waited since the last call of this.
extern "C" __attribute__((visibility("default"))) int fake_cuda_launch_waits() {
  return Fake().launch_waits.exchange(false) ? 1 : 0;
}

// Whether cuInit has been called; how often a device's primary context was asked for.
extern "C" __attribute__((visibility("default"))) int fake_cuda_started() {
  return Fake().started ? 1 : 0;
}
extern "C" __attribute__((visibility("default"))) int fake_cuda_retained(int device) {
  return Fake().retained[device];
}

// The next call of this name waits until nullptr is given. Returns whether one waited so far.
extern "C" __attribute__((visibility("default"))) int fake_cuda_hold(const char* call) {
  Fake().to_hold = call;
  return call == nullptr && Fake().holding.exchange(false) ? 1 : 0;
}
extern "C" __attribute__((visibility("default"))) int fake_cuda_holds() {
  return Fake().holding ? 1 : 0;
}

// The next waits of streams for a value are refused.
extern "C" __attribute__((visibility("default"))) void fake_cuda_fail_waits(int count) {
  Fake().failing_waits = count;
}

// ---------------------------------------------------------------- captures

FAKE cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return CUDA_SUCCESS;
}

FAKE cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  const std::lock_guard lock(Fake().mutex);
  if (Fake().streams.count(stream) == 0 || stream->capturing) return CUDA_ERROR_INVALID_VALUE;
  stream->capturing = true;
  stream->invalidated = false;
  if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL) Fake().captures.insert(stream);
  return CUDA_SUCCESS;
}

FAKE cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  const std::lock_guard lock(Fake().mutex);
  *graph = nullptr;
  if (!stream->capturing) return CUDA_ERROR_ILLEGAL_STATE;
  stream->capturing = false;
  Fake().captures.erase(stream);
  return stream->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

FAKE cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  {
    const std::lock_guard lock(Fake().mutex);
    // Work on the legacy stream would be part of every capture.
    if (handle == nullptr && !Fake().captures.empty()) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  CUstream stream = nullptr;
  const CUresult result = Find(handle, &stream);
  if (result != CUDA_SUCCESS) return result;
  *status = stream->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
