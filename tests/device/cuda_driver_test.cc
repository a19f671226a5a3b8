// SPDX-License-Identifier: Apache-2.0
//
// libinccl_cuda.so over a fake of CUDA's driver (fakes/driver.cc) that is as strict with contexts,
// streams and captures as the real one: calls on memory of devices give what they should, the
// calling thread's device stays, captures are neither used nor disturbed.
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "build_paths.h"
#include "device/device.h"
#include "device/runtime.h"
#include "inccl/ccl.h"
#include "memory/device_allocator.h"
#include "world/error_format.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 3;
constexpr size_t kCount = 100'000;

#define FAKE_TEXT(x) #x
#define FAKE_SYMBOL(name) FAKE_TEXT(name)
// A function of the fake, by the name that cuda.h has for it.
#define DRIVER(name) (reinterpret_cast<decltype(&(name))>(Symbol(FAKE_SYMBOL(name))))

void* Symbol(const char* name) {
  static void* const driver =
      dlopen(INCCL_BINARY_DIR "/tests/fake_driver/libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  EXPECT_NE(driver, nullptr) << dlerror();
  void* const found = dlsym(driver, name);
  EXPECT_NE(found, nullptr) << name;
  return found;
}

Device* CudaDevice() {
  static Device* const device = []() -> Device* {
    (void)Symbol("cuInit");  // the process has loaded the driver
    void* const library = dlopen(INCCL_BINARY_DIR "/src/libinccl_cuda.so.0", RTLD_NOW);
    if (library == nullptr) return nullptr;
    std::array<char, 256> why{};
    const auto entry = reinterpret_cast<DeviceEntry>(dlsym(library, kDeviceEntry));
    bool later = false;
    Device* const made = entry(Device::kVersion, true, &later, why.data(), why.size());
    EXPECT_NE(made, nullptr) << why.data();
    return made;
  }();
  return device;
}

class CudaDriverTest : public ::testing::Test {
 protected:
  CudaDriverTest() {
    device_ = CudaDevice();
    SetDevice(device_);
    CUdevice one = 0;
    EXPECT_EQ(DRIVER(cuDeviceGet)(&one, 1), CUDA_SUCCESS);
    EXPECT_EQ(DRIVER(cuDevicePrimaryCtxRetain)(&own_, one), CUDA_SUCCESS);
    EXPECT_EQ(DRIVER(cuCtxSetCurrent)(own_), CUDA_SUCCESS);  // as cudaSetDevice(1)
    EXPECT_EQ(ccl_comm_init_all(comms_.data(), kRanks, kDevices.data()), CCL_SUCCESS)
        << ccl_get_last_error(nullptr);
    for (size_t i = 0; i < kRanks; ++i) {
      CUcontext context = nullptr;
      EXPECT_EQ(DRIVER(cuDevicePrimaryCtxRetain)(&context, kDevices[i]), CUDA_SUCCESS);
      EXPECT_EQ(DRIVER(cuCtxPushCurrent)(context), CUDA_SUCCESS);
      EXPECT_EQ(DRIVER(cuStreamCreate)(&streams_[i], CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
      EXPECT_EQ(DRIVER(cuCtxPopCurrent)(&context), CUDA_SUCCESS);
      void* memory = nullptr;
      EXPECT_EQ(ccl_mem_alloc_device(&memory, kCount * sizeof(float), kDevices[i]), CCL_SUCCESS);
      data_[i] = static_cast<float*>(memory);
      EXPECT_EQ(device_->DeviceOf(memory), kDevices[i]);
    }
  }
  ~CudaDriverTest() override {
    CUcontext now = nullptr;
    EXPECT_EQ(DRIVER(cuCtxGetCurrent)(&now), CUDA_SUCCESS);
    EXPECT_EQ(now, own_) << "the thread's device is another one";
    for (ccl_comm_t comm : comms_) EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
    for (float* data : data_) EXPECT_EQ(ccl_mem_free(data), CCL_SUCCESS);
    EXPECT_EQ(DRIVER(cuCtxGetCurrent)(&now), CUDA_SUCCESS);
    EXPECT_EQ(now, own_);
    SetDevice(nullptr);
  }

  void Fill(size_t rank, float value) {
    const std::vector<float> values(kCount, value);
    EXPECT_TRUE(device_->Copy(data_[rank], values.data(), kCount * sizeof(float)).ok());
  }
  ccl_result_t AllReduce(size_t rank, CUstream stream) {
    return ccl_allreduce(data_[rank], data_[rank], kCount, CCL_FLOAT32, CCL_SUM, comms_[rank],
                         reinterpret_cast<ccl_stream_t>(stream));
  }
  // Waits for the ranks' streams; true if every element on every rank is `value`.
  bool AllAre(float value) {
    for (size_t rank = 0; rank < kRanks; ++rank) {
      std::thread([&] {
        CUcontext context = nullptr;
        EXPECT_EQ(DRIVER(cuDevicePrimaryCtxRetain)(&context, kDevices[rank]), CUDA_SUCCESS);
        EXPECT_EQ(DRIVER(cuCtxSetCurrent)(context), CUDA_SUCCESS);
        EXPECT_EQ(DRIVER(cuStreamSynchronize)(streams_[rank]), CUDA_SUCCESS);
      }).join();
      std::vector<float> got(kCount);
      EXPECT_TRUE(device_->Copy(got.data(), data_[rank], kCount * sizeof(float)).ok());
      if (got != std::vector<float>(kCount, value)) return false;
    }
    return true;
  }
  static CUcontext ContextOf(int device) {
    CUcontext context = nullptr;
    EXPECT_EQ(DRIVER(cuDevicePrimaryCtxRetain)(&context, device), CUDA_SUCCESS);
    return context;
  }
  void ExpectNoError() {
    for (ccl_comm_t comm : comms_) {
      ccl_result_t error = CCL_INTERNAL_ERROR;
      EXPECT_EQ(ccl_comm_get_async_error(comm, &error), CCL_SUCCESS);
      EXPECT_EQ(error, CCL_SUCCESS) << ccl_get_last_error(comm);
    }
  }

  static constexpr std::array<int, kRanks> kDevices = {0, 0, 1};  // two ranks share one
  Device* device_ = nullptr;
  CUcontext own_ = nullptr;
  std::array<ccl_comm_t, kRanks> comms_{};
  std::array<CUstream, kRanks> streams_{};
  std::array<float*, kRanks> data_{};
};

TEST_F(CudaDriverTest, CallsOnStreams) {
  float expected = 0;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    Fill(rank, static_cast<float>(rank + 1));
    expected += static_cast<float>(rank + 1);
  }
  for (int round = 0; round < 3; ++round, expected *= kRanks) {
    for (size_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(AllReduce(rank, streams_[rank]), CCL_SUCCESS) << ccl_get_last_error(comms_[rank]);
    }
  }
  EXPECT_TRUE(AllAre(expected / kRanks));
  ExpectNoError();
}

// Ranks share a device: what one still allocated when it makes its first call could wait for the
// stream of another, which waits for that call.
TEST_F(CudaDriverTest, FirstCallsAllocateNothingThatWaits) {
  const auto allocations_wait =
      reinterpret_cast<int (*)(int)>(Symbol("fake_cuda_allocations_wait"));
  for (size_t rank = 0; rank < kRanks; ++rank) Fill(rank, 1);
  const int before = allocations_wait(1);
  for (int round = 0; round < 2; ++round) {
    for (size_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(AllReduce(rank, streams_[rank]), CCL_SUCCESS) << ccl_get_last_error(comms_[rank]);
    }
  }
  EXPECT_TRUE(AllAre(kRanks * kRanks));
  EXPECT_EQ(allocations_wait(0), before);
  ExpectNoError();
}

// As peers' slots are mapped: the device reaches them, and the processor still only reads.
TEST_F(CudaDriverTest, WhatIsMappedForReadingIsReached) {
  constexpr size_t kBytes = 8192;
  const int file = memfd_create("slots", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, kBytes), 0);
  const auto map = [file](int rights) {
    return mmap(nullptr, kBytes, rights, MAP_SHARED, file, 0);
  };
  void* const written = map(PROT_READ | PROT_WRITE);
  void* const read = map(PROT_READ);
  ASSERT_NE(read, MAP_FAILED);
  static_cast<int*>(written)[0] = 17;
  EXPECT_TRUE(device_->Register(read, kBytes).ok());
  EXPECT_NE(device_->AddressOf(0, read), nullptr);
  EXPECT_EQ(static_cast<int*>(read)[0], 17);
  EXPECT_EQ(pread(file, read, 4, 0), -1) << "it can be written";
  EXPECT_EQ(errno, EFAULT);
  device_->Unregister(read);
  // A file that no other user may write stays so.
  ASSERT_EQ(munmap(read, kBytes), 0);
  const int other = open(("/proc/self/fd/" + std::to_string(file)).c_str(), O_RDONLY | O_CLOEXEC);
  void* const foreign = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, other, 0);
  EXPECT_FALSE(device_->Register(foreign, kBytes).ok());
  close(other);
  close(file);
}

// The application has registered the first half only.
TEST_F(CudaDriverTest, WhatIsRegisteredInPartIsRefused) {
  constexpr size_t kPage = 4096;
  void* const memory =
      mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_EQ(DRIVER(cuMemHostRegister)(memory, kPage, 0), CUDA_SUCCESS);
  EXPECT_TRUE(device_->Register(memory, kPage).ok());
  device_->Unregister(memory);
  const Status status = device_->Register(memory, 2 * kPage);
  EXPECT_EQ(status.code(), Code::kUnhandledCudaError);
  EXPECT_TRUE(Matches(status.message(), "8192 bytes: cuMemHostRegister")) << status.message();
  EXPECT_EQ(DRIVER(cuMemHostUnregister)(memory), CUDA_SUCCESS);
  munmap(memory, 2 * kPage);
}

// A capture keeps CUDA from waiting for a device, so work may still use what is freed meanwhile.
TEST_F(CudaDriverTest, MemoryThatWasNotWaitedForIsNotGivenOutAgain) {
  constexpr size_t kBytes = size_t{4} << 20;
  const auto allocate = [&] {
    void* memory = nullptr;
    EXPECT_EQ(ccl_mem_alloc_device(&memory, kBytes, 1), CCL_SUCCESS);
    EXPECT_NE(DeviceAllocator::Instance().Find(memory, kBytes).id, 0u) << "it was not shared";
    return memory;
  };
  void* const idle = allocate();
  EXPECT_EQ(ccl_mem_free(idle), CCL_SUCCESS);
  void* const busy = allocate();
  EXPECT_EQ(busy, idle) << "nothing uses it";
  CUgraph graph = nullptr;
  CUcontext context = nullptr;
  EXPECT_EQ(DRIVER(cuCtxPushCurrent)(own_), CUDA_SUCCESS);
  ASSERT_EQ(DRIVER(cuStreamBeginCapture)(streams_[2], CU_STREAM_CAPTURE_MODE_RELAXED),
            CUDA_SUCCESS);
  EXPECT_EQ(ccl_mem_free(busy), CCL_SUCCESS);
  EXPECT_EQ(DRIVER(cuStreamEndCapture)(streams_[2], &graph), CUDA_SUCCESS);
  EXPECT_EQ(DRIVER(cuCtxPopCurrent)(&context), CUDA_SUCCESS);
  void* const other = allocate();
  EXPECT_NE(other, busy);
  EXPECT_EQ(ccl_mem_free(other), CCL_SUCCESS);
}

// Nothing tells a call's turn then.
TEST_F(CudaDriverTest, AStreamThatCannotWaitTakesNoMore) {
  Result<std::unique_ptr<DeviceOrder>> order = device_->OrderOf(streams_[2]);
  ASSERT_TRUE(order.ok());
  reinterpret_cast<void (*)(int)>(Symbol("fake_cuda_fail_waits"))(1);
  for (int i = 0; i < 2; ++i) {
    const Status status = (*order)->Append(0);
    EXPECT_EQ(status.code(), Code::kUnhandledCudaError);
    EXPECT_TRUE(Matches(status.message(), "cuStreamWaitValue32: ")) << status.message();
  }
}

// Calls that are behind it on its stream are, too, and later ones refused.
TEST_F(CudaDriverTest, AStuckRankReleasesItsStream) {
  for (size_t rank = 0; rank < kRanks; ++rank) {
    Fill(rank, 1);
    EXPECT_EQ(ccl_comm_set_timeout(comms_[rank], 2000), CCL_SUCCESS);
  }
  const auto hold = reinterpret_cast<int (*)(const char*)>(Symbol("fake_cuda_hold"));
  hold("cuMemcpyAsync");
  for (int round = 0; round < 3; ++round) {
    for (size_t rank = 0; rank < kRanks; ++rank) (void)AllReduce(rank, streams_[rank]);
  }
  for (size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(DRIVER(cuCtxSetCurrent)(ContextOf(kDevices[rank])), CUDA_SUCCESS);
    EXPECT_EQ(DRIVER(cuStreamSynchronize)(streams_[rank]), CUDA_SUCCESS) << rank;
    ccl_result_t error = CCL_SUCCESS;
    EXPECT_EQ(ccl_comm_get_async_error(comms_[rank], &error), CCL_SUCCESS);
    EXPECT_NE(error, CCL_SUCCESS);
    EXPECT_TRUE(Matches(ccl_get_last_error(comms_[rank]), "driver"))
        << rank << " " << ccl_get_last_error(comms_[rank]);
    EXPECT_NE(AllReduce(rank, streams_[rank]), CCL_SUCCESS) << "it takes no more";
  }
  EXPECT_EQ(DRIVER(cuCtxSetCurrent)(own_), CUDA_SUCCESS);
  EXPECT_EQ(hold(nullptr), 1) << "the thread came back before";
}

// As under WSL: nobody queries the caller's stream but the library.
TEST_F(CudaDriverTest, StreamsThatCollectTheirWorkBeginIt) {
  const auto collect = reinterpret_cast<void (*)(int)>(Symbol("fake_cuda_collect"));
  for (size_t rank = 0; rank < kRanks; ++rank) Fill(rank, 1);
  collect(1);
  for (size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(AllReduce(rank, streams_[rank]), CCL_SUCCESS) << ccl_get_last_error(comms_[rank]);
  }
  uint64_t done = 0;
  for (int i = 0; i < 10'000 && done < kRanks; ++i) {
    usleep(1000);
    done = 0;
    for (ccl_comm_t comm : comms_) {
      uint64_t operations = 0;
      EXPECT_EQ(ccl_comm_last_completed(comm, &operations), CCL_SUCCESS);
      done += operations;
    }
  }
  EXPECT_EQ(done, uint64_t{kRanks}) << "the calls wait for streams that have not begun";
  collect(0);
  EXPECT_TRUE(AllAre(kRanks));
  ExpectNoError();
}

// A rank that waits for its peers is in no call of the driver.
TEST_F(CudaDriverTest, ALateRankIsNoStuckDriver) {
  for (size_t rank = 0; rank < kRanks; ++rank) {
    Fill(rank, 1);
    EXPECT_EQ(ccl_comm_set_timeout(comms_[rank], 100), CCL_SUCCESS);
  }
  EXPECT_EQ(AllReduce(0, streams_[0]), CCL_SUCCESS);
  EXPECT_EQ(DRIVER(cuCtxSetCurrent)(ContextOf(0)), CUDA_SUCCESS);
  EXPECT_EQ(DRIVER(cuStreamSynchronize)(streams_[0]), CUDA_SUCCESS);
  EXPECT_EQ(DRIVER(cuCtxSetCurrent)(own_), CUDA_SUCCESS);
  EXPECT_FALSE(Matches(ccl_get_last_error(comms_[0]), "driver")) << ccl_get_last_error(comms_[0]);
  EXPECT_TRUE(Matches(ccl_get_last_error(comms_[0]), "no progress for .* waiting for peer 1@"))
      << ccl_get_last_error(comms_[0]);
}

TEST_F(CudaDriverTest, DevicesAreKnown) {
  EXPECT_EQ(device_->Count(), 2);
  EXPECT_EQ(device_->Current(), 1);
  for (size_t rank = 0; rank < kRanks; ++rank) {
    int number = -1;
    EXPECT_EQ(ccl_comm_device(comms_[rank], &number), CCL_SUCCESS);
    EXPECT_EQ(number, kDevices[rank]);
  }
  std::thread([&] { EXPECT_EQ(device_->Current(), 0) << "that of a thread without one"; }).join();
  int here = 0;
  EXPECT_EQ(device_->DeviceOf(&here), -1);
  void* memory = nullptr;
  EXPECT_EQ(ccl_mem_alloc_device(&memory, size_t{1} << 40, 1), CCL_UNHANDLED_CUDA_ERROR);
  EXPECT_TRUE(Matches(ccl_get_last_error(nullptr), "device 1: .*out of memory"))
      << ccl_get_last_error(nullptr);
}

TEST_F(CudaDriverTest, WhatIsNoStreamIsRefused) {
  int nothing = 0;
  EXPECT_EQ(AllReduce(0, reinterpret_cast<CUstream>(&nothing)), CCL_INVALID_ARGUMENT);
  EXPECT_TRUE(Matches(ccl_get_last_error(comms_[0]), "rank 0/3: stream: .*cuStreamGetCtx"))
      << ccl_get_last_error(comms_[0]);
}

TEST_F(CudaDriverTest, ACapturedStreamTakesNothingAndItsCaptureLives) {
  CUgraph graph = nullptr;
  for (size_t rank = 0; rank < kRanks; ++rank) Fill(rank, 1);
  ASSERT_EQ(DRIVER(cuStreamBeginCapture)(streams_[2], CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  // The stream is new to the library.
  EXPECT_EQ(AllReduce(2, streams_[2]), CCL_INVALID_ARGUMENT);
  EXPECT_TRUE(Matches(ccl_get_last_error(comms_[2]), "rank 2/3: stream: is being captured"));
  // Work on the legacy stream would be in the capture.
  EXPECT_EQ(AllReduce(2, nullptr), CCL_INVALID_ARGUMENT);
  EXPECT_TRUE(Matches(ccl_get_last_error(comms_[2]), "stream: NULL, the legacy stream"))
      << ccl_get_last_error(comms_[2]);
  EXPECT_EQ(ccl_group_start(), CCL_SUCCESS);
  EXPECT_EQ(AllReduce(0, streams_[0]), CCL_SUCCESS);
  EXPECT_EQ(AllReduce(2, streams_[2]), CCL_INVALID_ARGUMENT);
  EXPECT_EQ(ccl_group_end(), CCL_INVALID_ARGUMENT);
  EXPECT_EQ(DRIVER(cuStreamEndCapture)(streams_[2], &graph), CUDA_SUCCESS) << "invalidated";
  // Known to it, and captured again.
  for (size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(AllReduce(rank, streams_[rank]), CCL_SUCCESS) << ccl_get_last_error(comms_[rank]);
  }
  EXPECT_TRUE(AllAre(3));
  ASSERT_EQ(DRIVER(cuStreamBeginCapture)(streams_[2], CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(AllReduce(2, streams_[2]), CCL_INVALID_ARGUMENT);
  EXPECT_EQ(DRIVER(cuStreamEndCapture)(streams_[2], &graph), CUDA_SUCCESS) << "invalidated";
  ExpectNoError();
}

// All that the library allocates and copies meanwhile is allowed, and no part of it.
TEST_F(CudaDriverTest, ACaptureElsewhereDisturbsNoCall) {
  CUstream other = nullptr;
  CUgraph graph = nullptr;
  ASSERT_EQ(DRIVER(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(DRIVER(cuStreamBeginCapture)(other, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  for (size_t rank = 0; rank < kRanks; ++rank) {
    Fill(rank, 2);
    EXPECT_EQ(AllReduce(rank, streams_[rank]), CCL_SUCCESS) << ccl_get_last_error(comms_[rank]);
  }
  EXPECT_TRUE(AllAre(6));
  void* memory = nullptr;
  EXPECT_EQ(ccl_mem_alloc_device(&memory, 100, 0), CCL_SUCCESS) << ccl_get_last_error(nullptr);
  EXPECT_EQ(ccl_mem_free(memory), CCL_SUCCESS);
  ExpectNoError();
  EXPECT_EQ(DRIVER(cuStreamEndCapture)(other, &graph), CUDA_SUCCESS) << "invalidated";
}

}  // namespace
}  // namespace inccl::test
