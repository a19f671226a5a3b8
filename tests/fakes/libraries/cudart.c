/* SPDX-License-Identifier: Apache-2.0
 *
 * In the place of CUDA's runtime: FAKE_CUDA_DEVICES (2) devices whose memory is the host's, and
 * streams on which everything is done at once. Device memory begins as garbage; a host pointer
 * where a device's is due is an error, and the other way round. */
#include <cuda_runtime.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { kPieces = 1024 };
static struct {
  char* begin;
  size_t bytes;
} pieces[kPieces];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static __thread int current;

static int Devices(void) {
  const char* given = getenv("FAKE_CUDA_DEVICES");
  return given == NULL ? 2 : atoi(given);
}

/* 1: [memory, memory + bytes) is in one allocation. */
static int OnDevice(const void* memory, size_t bytes) {
  int found = 0;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < kPieces; ++i) {
    const size_t offset = (size_t)((const char*)memory - pieces[i].begin);
    if (pieces[i].begin != NULL && (const char*)memory >= pieces[i].begin &&
        offset <= pieces[i].bytes && bytes <= pieces[i].bytes - offset) {
      found = 1;
    }
  }
  pthread_mutex_unlock(&mutex);
  return found;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = Devices();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= Devices()) return cudaErrorInvalidDevice;
  current = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  cudaError_t result = cudaErrorInvalidValue;
  *memory = malloc(bytes + 1);
  if (*memory == NULL) return result;
  memset(*memory, 0xa5, bytes);
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < kPieces && result != cudaSuccess; ++i) {
    if (pieces[i].begin != NULL) continue;
    pieces[i].begin = *memory;
    pieces[i].bytes = bytes;
    result = cudaSuccess;
  }
  pthread_mutex_unlock(&mutex);
  return result;
}

cudaError_t cudaFree(void* memory) {
  cudaError_t result = memory == NULL ? cudaSuccess : cudaErrorInvalidValue;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < kPieces && memory != NULL; ++i) {
    if (pieces[i].begin != memory) continue;
    pieces[i].begin = NULL;
    free(memory);
    result = cudaSuccess;
    break;
  }
  pthread_mutex_unlock(&mutex);
  return result;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const int to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const int from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind != cudaMemcpyDefault &&
      (OnDevice(to, bytes) != to_device || OnDevice(from, bytes) != from_device)) {
    return cudaErrorInvalidValue;
  }
  memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  (void)stream;
  return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = malloc(1); /* a number of its own */
  return *stream == NULL ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  free(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  (void)stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  (void)stream;
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "an error of the stand-in";
}
