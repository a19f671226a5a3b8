// SPDX-License-Identifier: Apache-2.0
//
// Memory of the library's and registered buffers: calls on them give what they give elsewhere, and
// every wrong pair is named.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "api/check.h"
#include "api/world.h"

namespace inccl::test {
namespace {

TEST(MemoryTest, CallsOnAllocatedMemory) {
  RunProcesses(2, [](int rank, ccl_comm_t comm) {
    const size_t count = 300001;
    void *send = nullptr, *recv = nullptr, *handle = nullptr;
    CHECK_OK(ccl_mem_alloc(&send, count * sizeof(float)));
    CHECK_OK(ccl_mem_alloc(&recv, count * sizeof(float)));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(send) % 4096, 0u);
    CHECK_OK(ccl_comm_register(comm, send, count * sizeof(float), &handle));
    auto* in = static_cast<float*>(send);
    auto* out = static_cast<float*>(recv);
    EXPECT_EQ(in[count - 1], 0.0f);
    for (size_t i = 0; i < count; ++i)
      in[i] = static_cast<float>(i % 100) + static_cast<float>(rank);
    CHECK_OK(ccl_allreduce(in, out, count, CCL_FLOAT32, CCL_SUM, comm, nullptr));
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(out[i], 2.0f * static_cast<float>(i % 100) + 1.0f);
    CHECK_OK(ccl_comm_deregister(comm, handle));
    EXPECT_EQ(ccl_comm_deregister(comm, handle), CCL_INVALID_ARGUMENT);
    CHECK_OK(ccl_mem_free(send));
    CHECK_OK(ccl_mem_free(recv));
  });
}

// As in NCCL: success and no handle, which can be deregistered.
TEST(MemoryTest, RegistrationOfMemoryThatPeersCannotMap) {
  RunProcesses(2, [](int, ccl_comm_t comm) {
    std::vector<float> ordinary(1 << 20);
    void* handle = &ordinary;
    CHECK_OK(ccl_comm_register(comm, ordinary.data(), ordinary.size() * sizeof(float), &handle));
    EXPECT_EQ(handle, nullptr);
    CHECK_OK(ccl_comm_deregister(comm, handle));
    EXPECT_EQ(ccl_comm_deregister(comm, &ordinary), CCL_INVALID_ARGUMENT);
    EXPECT_EQ(ccl_comm_register(comm, nullptr, 1, &handle), CCL_INVALID_ARGUMENT);
    EXPECT_EQ(ccl_comm_register(comm, ordinary.data(), 0, &handle), CCL_INVALID_ARGUMENT);
    EXPECT_EQ(ccl_comm_register(comm, ordinary.data(), 1, nullptr), CCL_INVALID_ARGUMENT);
    // Memory is registered once for each handle, with every communicator by itself.
    void* memory = nullptr;
    CHECK_OK(ccl_mem_alloc(&memory, size_t{2} << 20));
    void *first = nullptr, *second = nullptr;
    CHECK_OK(ccl_comm_register(comm, memory, size_t{2} << 20, &first));
    CHECK_OK(ccl_comm_register(comm, memory, 10000, &second));
    EXPECT_NE(first, nullptr);
    EXPECT_NE(second, nullptr);
    EXPECT_NE(first, second);
    CHECK_OK(ccl_comm_deregister(comm, first));
    EXPECT_EQ(ccl_comm_deregister(comm, first), CCL_INVALID_ARGUMENT);
    // An old handle is not that of a later registration.
    void* later = nullptr;
    CHECK_OK(ccl_comm_register(comm, memory, 10000, &later));
    EXPECT_EQ(ccl_comm_deregister(comm, first), CCL_INVALID_ARGUMENT);
    CHECK_OK(ccl_comm_deregister(comm, later));
    CHECK_OK(ccl_mem_free(memory));
    CHECK_OK(ccl_comm_deregister(comm, second));
    CHECK_OK(ccl_mem_alloc(&memory, size_t{2} << 20));
    CHECK_OK(ccl_comm_register(comm, memory, size_t{2} << 20, &first));
    CHECK_OK(ccl_mem_free(memory));  // the handle ends with `comm`
  });
}

TEST(MemoryTest, MisuseIsNamed) {
  const auto expect = [](ccl_result_t result, const char* text) {
    EXPECT_EQ(result, CCL_INVALID_ARGUMENT);
    EXPECT_NE(std::string(ccl_get_last_error(nullptr)).find(text), std::string::npos)
        << ccl_get_last_error(nullptr);
  };
  void* memory = nullptr;
  expect(ccl_mem_alloc(nullptr, 1), "ptr: NULL");
  expect(ccl_mem_alloc(&memory, 0), "size: 0");
  expect(ccl_mem_alloc(&memory, SIZE_MAX), "size");
  EXPECT_EQ(ccl_mem_alloc(&memory, SIZE_MAX / 4), CCL_SYSTEM_ERROR);
  EXPECT_EQ(memory, nullptr);
  CHECK_OK(ccl_mem_free(nullptr));
  std::vector<char> other(16);
  expect(ccl_mem_free(other.data()), "ccl_mem_alloc");
  expect(ccl_mem_alloc_device(nullptr, 1, 0), "ptr: NULL");
  expect(ccl_mem_alloc_device(&memory, 0, 0), "size: 0");
  expect(ccl_mem_alloc_device(&memory, 1, 3), "device: 3: there is none: this process has not");
  EXPECT_EQ(memory, nullptr);
  CHECK_OK(ccl_mem_alloc(&memory, 100));
  CHECK_OK(ccl_mem_free(memory));
  expect(ccl_mem_free(memory), "freed");
}

}  // namespace
}  // namespace inccl::test
