// SPDX-License-Identifier: Apache-2.0
//
// libinccl_cuda.so in a process that has no driver at first, then one that it has not started, then
// one at whose calls threads wait.
#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

#include "build_paths.h"
#include "device/device.h"
#include "device/runtime.h"
#include "device/sharing_peer.h"
#include "stream/stream.h"
#include "world/error_format.h"

namespace inccl::test {
namespace {

TEST(CudaLibraryTest, SaysWhyThereIsNoDevice) {
  if (CudaHasStarted()) GTEST_SKIP() << kNeedsOwnProcess;
  void* const library = dlopen(INCCL_BINARY_DIR "/src/libinccl_cuda.so.0", RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto entry = reinterpret_cast<DeviceEntry>(dlsym(library, kDeviceEntry));
  ASSERT_NE(entry, nullptr) << dlerror();
  std::array<char, 256> why{};
  bool later = true;
  EXPECT_EQ(entry(Device::kVersion + 1, false, &later, why.data(), why.size()), nullptr);
  EXPECT_FALSE(later);
  EXPECT_NE(std::string(why.data()).find("another version"), std::string::npos) << why.data();
  // A process that has not loaded the driver has no device, whatever the machine has.
  EXPECT_EQ(entry(Device::kVersion, false, &later, why.data(), why.size()), nullptr);
  EXPECT_NE(std::string(why.data()).find("libcuda.so.1 is not loaded"), std::string::npos)
      << why.data();
  EXPECT_FALSE(later);

  // It has loaded the driver: starting it would keep the process from forking.
  ASSERT_NE(Symbol("cuInit"), nullptr);
  EXPECT_EQ(entry(Device::kVersion, false, &later, why.data(), why.size()), nullptr);
  EXPECT_NE(std::string(why.data()).find("has not started CUDA"), std::string::npos) << why.data();
  EXPECT_TRUE(later);
  EXPECT_EQ(LookForDevice(), nullptr);
  EXPECT_EQ(CurrentDevice(), nullptr);
  EXPECT_EQ(WhyNoDevice(), "libinccl_cuda.so.0: this process has not started CUDA");
  EXPECT_EQ(Fake("fake_cuda_started"), 0);

  // Now it does so: the next call finds the device.
  ASSERT_EQ(DRIVER(cuInit)(0), CUDA_SUCCESS);
  EXPECT_NE(CurrentDevice(), nullptr);
  EXPECT_EQ(CurrentDevice(), entry(Device::kVersion, false, &later, why.data(), why.size()));
}

CUstream StreamOn(int device) {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  EXPECT_EQ(DRIVER(cuDevicePrimaryCtxRetain)(&context, device), CUDA_SUCCESS);
  EXPECT_EQ(DRIVER(cuCtxPushCurrent)(context), CUDA_SUCCESS);
  EXPECT_EQ(DRIVER(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  EXPECT_EQ(DRIVER(cuCtxPopCurrent)(&context), CUDA_SUCCESS);
  return stream;
}

class CudaThreadsTest : public ::testing::Test {
 protected:
  // A new stream then has to allocate words.
  void TakeAllWords() {
    constexpr int kAtOnce = 512;  // words of one allocation
    CUstream stream = StreamOn(1);
    const auto take = [&] { EXPECT_TRUE(device_->OrderOf(stream).ok()); };
    std::atomic<bool> allocates{false};
    WhileHeld(
        "cuMemHostAlloc",
        [&] {
          while (!allocates) take();
          for (int i = 1; i < kAtOnce; ++i) take();  // the rest of the new words, too
        },
        [&] { allocates = true; });
  }

  Device* const device_ = CudaDevice();
};

// A thread that has no device gives a stream of device 1: device 0 is not started for it.
TEST_F(CudaThreadsTest, AStreamTellsItsDevice) {
  CUstream stream = StreamOn(1);
  const int before = Fake("fake_cuda_retained", 0);
  std::thread([&] {
    EXPECT_TRUE(device_->IdOf(stream).ok());
    EXPECT_TRUE(device_->OrderOf(stream).ok());
  }).join();
  EXPECT_EQ(Fake("fake_cuda_retained", 0), before);
}

// Two threads use new streams, and the words of these streams have to be allocated.
TEST_F(CudaThreadsTest, NobodyWaitsForAnothersAllocation) {
  CUstream streams[] = {StreamOn(1), StreamOn(1)};
  TakeAllWords();
  WhileHeld(
      "cuMemHostAlloc", [&] { EXPECT_TRUE(DeviceStreamOf(device_, streams[0]).ok()); },
      [&] { EXPECT_TRUE(DeviceStreamOf(device_, streams[1]).ok()); });
}

// But for a moment the second one does: an allocation of its own might wait for the stream of the
// first, and that for what the second thread is about to do.
TEST_F(CudaThreadsTest, OneAllocationServesTwoNewStreams) {
  CUstream streams[] = {StreamOn(1), StreamOn(1)};
  TakeAllWords();
  std::atomic<bool> served{false};
  std::thread second;
  WhileHeld(
      "cuMemHostAlloc", [&] { EXPECT_TRUE(DeviceStreamOf(device_, streams[0]).ok()); },
      [&] {
        second = std::thread([&] {
          EXPECT_TRUE(DeviceStreamOf(device_, streams[1]).ok());
          served = true;
        });
        usleep(50'000);
        EXPECT_FALSE(served);
      });
  second.join();
}

TEST_F(CudaThreadsTest, NobodyWaitsForAnothersFirstStream) {
  ASSERT_TRUE(device_->AllocateOn(1, 8).ok());  // device 1 is in use, device 0 is not
  int value = 7;
  const Result<std::byte*> memory = device_->AllocateOn(1, sizeof value);
  ASSERT_TRUE(memory.ok());
  WhileHeld(
      "cuStreamCreateWithPriority", [&] { EXPECT_TRUE(device_->NewQueue(0).ok()); },
      [&] { EXPECT_TRUE(device_->Copy(*memory, &value, sizeof value).ok()); });
}

TEST_F(CudaThreadsTest, SettingsThatLetCallsHangAreNamed) {
  const auto has = [&](const char* text) {
    int found = 0;
    for (const std::string& warning : device_->Warnings()) found += Matches(warning, text) ? 1 : 0;
    return found;
  };
  unsetenv("CUDA_MODULE_LOADING");
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  EXPECT_EQ(has("CUDA_MODULE_LOADING=EAGER"), 1);
  EXPECT_EQ(has("CUDA_DEVICE_MAX_CONNECTIONS"), 0);
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  EXPECT_EQ(has("CUDA_MODULE_LOADING"), 0);
  EXPECT_EQ(has("CUDA_DEVICE_MAX_CONNECTIONS=1"), 1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  EXPECT_EQ(has("CUDA_DEVICE_MAX_CONNECTIONS"), 0);
}

}  // namespace
}  // namespace inccl::test
