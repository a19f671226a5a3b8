// SPDX-License-Identifier: Apache-2.0
//
// What an application does on a GPU while a stream waits for a call: the first launch of a kernel,
// and more launches than the driver takes at once. Calls end, with the sum or with an error that
// says why (docs/cuda.md, "What can hang"). Over the fake driver it is known which; a GPU tells.
#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "inccl/ccl.h"
#include "world/error_format.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 3;
constexpr size_t kCount = 100'000;
constexpr const char* kNop =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nop() { ret; }\n";

#define HANGS_TEXT(x) #x
#define HANGS_SYMBOL(name) HANGS_TEXT(name)
#define DRIVER(name) (reinterpret_cast<decltype(&(name))>(dlsym(driver_, HANGS_SYMBOL(name))))

class CudaHangs : public ::testing::Test {
 protected:
  void SetUp() override {
    driver_ = dlopen("libcuda.so.1", RTLD_NOW);
    int devices = 0;
    if (driver_ == nullptr || DRIVER(cuInit)(0) != CUDA_SUCCESS ||
        DRIVER(cuDeviceGetCount)(&devices) != CUDA_SUCCESS || devices == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
    is_fake_ = DRIVER(cuDriverGetVersion) == nullptr;
    Must(DRIVER(cuDevicePrimaryCtxRetain)(&context_, 0));
    Must(DRIVER(cuCtxSetCurrent)(context_));
    const std::array<int, kRanks> on = {};  // all ranks on one device
    ASSERT_EQ(ccl_comm_init_all(comms_.data(), kRanks, on.data()), CCL_SUCCESS)
        << ccl_get_last_error(nullptr);
    for (size_t rank = 0; rank < kRanks; ++rank) {
      Must(DRIVER(cuStreamCreate)(&streams_[rank], CU_STREAM_NON_BLOCKING));
      void* memory = nullptr;
      ASSERT_EQ(ccl_mem_alloc_device(&memory, kCount * sizeof(float), 0), CCL_SUCCESS);
      data_[rank] = static_cast<float*>(memory);
    }
  }
  void TearDown() override {
    for (ccl_comm_t comm : comms_) EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
    for (float* data : data_) {
      EXPECT_EQ(data == nullptr ? CCL_SUCCESS : ccl_mem_free(data), CCL_SUCCESS);
    }
  }

  static void Must(CUresult result) { ASSERT_EQ(result, CUDA_SUCCESS); }
  CUfunction Load() {
    CUmodule module = nullptr;
    CUfunction nop = nullptr;
    EXPECT_EQ(DRIVER(cuModuleLoadData)(&module, kNop), CUDA_SUCCESS);
    EXPECT_EQ(DRIVER(cuModuleGetFunction)(&nop, module, "nop"), CUDA_SUCCESS);
    return nop;
  }
  void Launch(CUfunction nop, CUstream stream, int times) {
    for (int i = 0; i < times; ++i) {
      Must(DRIVER(cuLaunchKernel)(nop, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr));
    }
  }
  CUdeviceptr Address(size_t rank) const { return reinterpret_cast<CUdeviceptr>(data_[rank]); }
  void Copy(CUdeviceptr to, CUdeviceptr from, CUstream stream) {
    Must(DRIVER(cuMemcpyAsync)(to, from, kCount * sizeof(float), stream));
    Must(DRIVER(cuStreamSynchronize)(stream));
  }
  void AllReduce(size_t rank) {
    EXPECT_EQ(ccl_allreduce(data_[rank], data_[rank], kCount, CCL_FLOAT32, CCL_SUM, comms_[rank],
                            reinterpret_cast<ccl_stream_t>(streams_[rank])),
              CCL_SUCCESS)
        << ccl_get_last_error(comms_[rank]);
  }

  // The streams of all ranks but one wait for its call, which comes when a thread of the
  // application is in `work`. waits: over the fake driver it has to wait there. Returns the errors
  // of the ranks; none: the sum is right.
  template <typename Work>
  std::vector<std::string> WhileStreamsWait(bool waits, const Work& work) {
    std::vector<float> values(kCount, 1.0f);
    const auto host = reinterpret_cast<CUdeviceptr>(values.data());
    for (size_t rank = 0; rank < kRanks; ++rank) {
      Copy(Address(rank), host, streams_[rank]);
      EXPECT_EQ(ccl_comm_set_timeout(comms_[rank], rank == kRanks - 1 ? 30'000 : 2000),
                CCL_SUCCESS);
    }
    for (size_t rank = 0; rank + 1 < kRanks; ++rank) AllReduce(rank);
    std::thread application([&] {
      Must(DRIVER(cuCtxSetCurrent)(context_));
      work();
    });
    const auto waited = reinterpret_cast<int (*)()>(dlsym(driver_, "fake_cuda_launch_waits"));
    while (waits && waited != nullptr && waited() == 0) usleep(1000);
    usleep(50'000);
    AllReduce(kRanks - 1);
    application.join();
    std::vector<std::string> errors;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(DRIVER(cuStreamSynchronize)(streams_[rank]), CUDA_SUCCESS);
      ccl_result_t error = CCL_SUCCESS;
      EXPECT_EQ(ccl_comm_get_async_error(comms_[rank], &error), CCL_SUCCESS);
      if (error != CCL_SUCCESS) errors.emplace_back(ccl_get_last_error(comms_[rank]));
    }
    if (!errors.empty()) {
      EXPECT_EQ(errors.size(), size_t{kRanks}) << errors[0];
      return errors;
    }
    for (size_t rank = 0; rank < kRanks; ++rank) {
      Copy(host, Address(rank), streams_[rank]);
      EXPECT_EQ(values, std::vector<float>(kCount, kRanks)) << rank;
    }
    return errors;
  }
  // Ranks whose own calls of the driver wait say so. Where they were through before the application
  // kept the last rank from the driver, they wait for that rank.
  static void ExpectCauseNamed(const std::vector<std::string>& errors) {
    int named = 0;
    for (const std::string& error : errors) {
      if (Matches(error, "a call of CUDA's driver has not returned for .* ms") ||
          Matches(error, "waiting for peer 2@.*: it is alive, outside the library")) {
        ++named;
      }
    }
    EXPECT_GE(named, 1) << errors[0];
  }

  void* driver_ = nullptr;
  bool is_fake_ = false;
  CUcontext context_ = nullptr;
  std::array<ccl_comm_t, kRanks> comms_{};
  std::array<CUstream, kRanks> streams_{};
  std::array<float*, kRanks> data_{};
};

// DDP's first backward pass. With lazy loading it waits for the stream and keeps the ranks from the
// driver.
TEST_F(CudaHangs, AFirstLaunch) {
  const char* const given = std::getenv("CUDA_MODULE_LOADING");
  const bool eager = given != nullptr && std::strcmp(given, "EAGER") == 0;
  CUstream other = nullptr;
  Must(DRIVER(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING));
  const std::vector<std::string> errors =
      WhileStreamsWait(!eager, [&] { Launch(Load(), other, 1); });
  if (!errors.empty()) ExpectCauseNamed(errors);
  EXPECT_TRUE(!is_fake_ || errors.empty() == eager);
}

// The application waits for room in the stream, and its rank does not.
TEST_F(CudaHangs, ManyLaunchesBehindACall) {
  CUfunction const nop = Load();
  Launch(nop, streams_[0], 1);
  Must(DRIVER(cuStreamSynchronize)(streams_[0]));
  for (const int times : {500, 2000}) {
    const std::vector<std::string> errors =
        WhileStreamsWait(times > 1024, [&] { Launch(nop, streams_[0], times); });
    if (!errors.empty()) return ExpectCauseNamed(errors);
  }
  EXPECT_EQ(std::getenv("FAKE_CUDA_LAUNCHES_LOCK"), nullptr);
}

}  // namespace
}  // namespace inccl::test
