// SPDX-License-Identifier: Apache-2.0
//
// Ranks of one process, each with a stream of a fake device.
#ifndef INCCL_TESTS_DEVICE_DEVICE_WORLD_H_
#define INCCL_TESTS_DEVICE_DEVICE_WORLD_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "fakes/fake_device.h"
#include "inccl/ccl.h"
#include "world/clock.h"
#include "world/limits.h"

namespace inccl::test {

// Empty: none.
class Compression {
 public:
  explicit Compression(const std::string& codec) : given_(!codec.empty()) {
    if (given_) {
      EXPECT_EQ(ccl_codec_create(&options_.codec, codec.c_str()), CCL_SUCCESS);
    }
    options_.seed = 7;
    options_.step = 9;
  }
  ~Compression() {
    if (given_) {
      EXPECT_EQ(ccl_codec_destroy(options_.codec), CCL_SUCCESS);
    }
  }
  Compression(const Compression&) = delete;
  Compression& operator=(const Compression&) = delete;
  const ccl_compression_t* get() const { return given_ ? &options_ : nullptr; }

 private:
  const bool given_;
  ccl_compression_t options_ = CCL_COMPRESSION_INIT;
};

class DeviceWorld {
 public:
  explicit DeviceWorld(int nranks, bool two_devices = false, size_t bytes = size_t{256} << 20)
      : two_devices_(two_devices), device_(bytes), comms_(static_cast<size_t>(nranks)) {
    EXPECT_EQ(ccl_comm_init_all(comms_.data(), nranks, nullptr), CCL_SUCCESS)
        << ccl_get_last_error(nullptr);
    for (int rank = 0; rank < nranks; ++rank) streams_.push_back(device_.MakeStream());
  }
  ~DeviceWorld() {
    for (ccl_comm_t comm : comms_) {
      if (comm != nullptr) {
        EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
      }
    }
    EXPECT_EQ(device_.opened, 0u) << "by the library, and not closed";
    for (void* memory : shared_) EXPECT_EQ(ccl_mem_free(memory), CCL_SUCCESS);
    EXPECT_EQ(device_.host_bytes, 0u) << "of the library, and not given back";
    EXPECT_EQ(device_.registered, 0u) << "of the library, and not given back";
  }
  DeviceWorld(const DeviceWorld&) = delete;
  DeviceWorld& operator=(const DeviceWorld&) = delete;

  FakeDevice& device() { return device_; }
  int nranks() const { return static_cast<int>(comms_.size()); }
  size_t Count() const { return comms_.size(); }
  ccl_comm_t& comm(int rank) { return comms_[static_cast<size_t>(rank)]; }
  void* stream(int rank) { return streams_[static_cast<size_t>(rank)]; }
  ccl_stream_t handle(int rank) { return static_cast<ccl_stream_t>(stream(rank)); }
  int DeviceOf(int rank) const { return two_devices_ ? rank % FakeDevice::kDevices : 0; }
  float* Floats(size_t count, int device = 0) {
    return reinterpret_cast<float*>(device_.Allocate(count * sizeof(float), device));
  }
  // Memory of ccl_mem_alloc_device, which peers import.
  float* SharedFloats(size_t count, int device = 0) {
    void* memory = nullptr;
    EXPECT_EQ(ccl_mem_alloc_device(&memory, count * sizeof(float), device), CCL_SUCCESS)
        << ccl_get_last_error(nullptr);
    shared_.push_back(memory);
    return static_cast<float*>(memory);
  }
  template <typename Call>
  void ForAll(const Call& call) {
    for (int rank = 0; rank < nranks(); ++rank) {
      EXPECT_EQ(call(rank), CCL_SUCCESS) << ccl_get_last_error(comm(rank));
    }
  }
  void Synchronize() {
    for (void* stream : streams_) device_.Synchronize(stream);
  }
  // Waits for it, a while.
  ccl_result_t AsyncError(int rank) {
    ccl_result_t error = CCL_SUCCESS;
    const double limit = Seconds() + 10.0 * kSlowness;
    while (error == CCL_SUCCESS && Seconds() < limit) {
      EXPECT_EQ(ccl_comm_get_async_error(comm(rank), &error), CCL_SUCCESS);
    }
    return error;
  }
  std::string ErrorOf(int rank) { return ccl_get_last_error(comm(rank)); }

 private:
  const bool two_devices_;
  FakeDevice device_;
  std::vector<ccl_comm_t> comms_;
  std::vector<void*> streams_;
  std::vector<void*> shared_;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_DEVICE_DEVICE_WORLD_H_
