// SPDX-License-Identifier: Apache-2.0
//
// libinccl_cuda.so where there is no driver: it can be loaded and says why there is no device.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "build_paths.h"
#include "device/device.h"
#include "device/sharing_peer.h"

namespace inccl::test {
namespace {

TEST(CudaLibraryTest, SaysWhyThereIsNoDevice) {
  if (CudaHasStarted()) GTEST_SKIP() << kNeedsOwnProcess;
  void* const library = dlopen(INCCL_BINARY_DIR "/src/libinccl_cuda.so.0", RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto entry = reinterpret_cast<DeviceEntry>(dlsym(library, kDeviceEntry));
  ASSERT_NE(entry, nullptr) << dlerror();
  std::array<char, 256> why{};
  EXPECT_EQ(entry(Device::kVersion + 1, why.data(), why.size()), nullptr);
  EXPECT_NE(std::string(why.data()).find("another version"), std::string::npos) << why.data();
  // A process that has not loaded the driver has no device, whatever the machine has.
  EXPECT_EQ(entry(Device::kVersion, why.data(), why.size()), nullptr);
  EXPECT_NE(std::string(why.data()).find("libcuda.so.1 is not loaded"), std::string::npos)
      << why.data();
}

}  // namespace
}  // namespace inccl::test
