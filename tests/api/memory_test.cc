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
