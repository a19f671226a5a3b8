// SPDX-License-Identifier: Apache-2.0
//
// In the place of CUDA's driver, for the benchmarks' own way with it: "devices" whose memory is the
// host's, and the one stream NULL, on which everything is done at once. It has what
// perf/support/gpu.cc needs and no more, so that the library finds no device and takes the buffers
// for what they are.
//
// FAKE_CUDA_DEVICES: how many (1); 0: cuInit fails as without a GPU. FAKE_CUDA_SPOIL: the last byte
// of what is copied to the host arrives as another one.
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace {

constexpr int kFirstHandle = 70;  // a handle is not a number
constexpr int kNoDevice = 100;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;

int Devices() {
  const char* given = std::getenv("FAKE_CUDA_DEVICES");
  return given == nullptr ? 1 : std::atoi(given);
}

std::mutex mutex;
std::map<const char*, size_t>& Pieces() {
  static auto* const pieces = new std::map<const char*, size_t>;
  return *pieces;
}

bool OnDevice(const void* memory) {
  const std::lock_guard lock(mutex);
  const auto* at = static_cast<const char*>(memory);
  auto after = Pieces().upper_bound(at);
  if (after == Pieces().begin()) return false;
  --after;
  return at < after->first + after->second;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the driver's
extern "C" {

int cuInit(unsigned /*flags*/) { return Devices() == 0 ? kNoDevice : 0; }

int cuGetErrorString(int error, const char** text) {
  *text = error == kNoDevice ? "no CUDA-capable device is detected" : "an error of the fake";
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = Devices();
  return 0;
}

int cuDeviceGet(int* device, int number) {
  *device = number + kFirstHandle;
  return number < Devices() ? 0 : kInvalidValue;
}

int cuDeviceGetName(char* name, int bytes, int device) {
  std::strncpy(name, ("Fake " + std::to_string(device - kFirstHandle)).c_str(),
               static_cast<size_t>(bytes));
  return 0;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  static char contexts[64];
  *context = contexts + (device - kFirstHandle);
  return 0;
}

int cuCtxSetCurrent(void* context) { return context == nullptr ? kInvalidValue : 0; }

int cuMemAlloc_v2(void** memory, size_t bytes) {
  *memory = std::malloc(bytes);
  if (*memory == nullptr) return kOutOfMemory;
  const std::lock_guard lock(mutex);
  Pieces()[static_cast<const char*>(*memory)] = bytes;
  return 0;
}

int cuMemFree_v2(void* memory) {
  const std::lock_guard lock(mutex);
  if (Pieces().erase(static_cast<const char*>(memory)) == 0) return kInvalidValue;
  std::free(memory);
  return 0;
}

int cuMemcpyAsync(void* to, const void* from, size_t bytes, void* stream) {
  if (stream != nullptr || (!OnDevice(to) && !OnDevice(from))) return kInvalidValue;
  std::memcpy(to, from, bytes);
  if (!OnDevice(to) && std::getenv("FAKE_CUDA_SPOIL") != nullptr) {
    static_cast<char*>(to)[bytes - 1] ^= 1;
  }
  return 0;
}

int cuStreamCreate(void** stream, unsigned flags) {
  *stream = nullptr;
  return flags == 1 ? 0 : kInvalidValue;
}

int cuStreamDestroy_v2(void* /*stream*/) { return 0; }
int cuStreamSynchronize(void* stream) { return stream == nullptr ? 0 : kInvalidValue; }

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
