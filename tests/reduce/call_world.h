// SPDX-License-Identifier: Apache-2.0
//
// Calls with reducers through the C API, on ranks that are threads.
#ifndef INCCL_TESTS_REDUCE_CALL_WORLD_H_
#define INCCL_TESTS_REDUCE_CALL_WORLD_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "api/check.h"
#include "base/bytes.h"
#include "reduce/local_ranks.h"
#include "world/world.h"

namespace inccl::test {

struct FreeState {
  void operator()(ccl_reducer_state_t state) const { ccl_reducer_state_destroy(state); }
};
using OwnedState = std::unique_ptr<ccl_reducer_state, FreeState>;

inline OwnedState MakeState(const std::string& spec, size_t rows, size_t cols,
                            ccl_datatype_t type = CCL_FLOAT32) {
  ccl_reducer_t reducer = nullptr;
  EXPECT_EQ(ccl_reducer_create(&reducer, spec.c_str()), CCL_SUCCESS) << ccl_get_last_error(nullptr);
  ccl_reducer_state_t state = nullptr;
  EXPECT_EQ(ccl_reducer_state_create(&state, reducer, rows, cols, type), CCL_SUCCESS)
      << ccl_get_last_error(nullptr);
  EXPECT_EQ(ccl_reducer_destroy(reducer), CCL_SUCCESS);
  return OwnedState(state);
}

inline std::vector<std::byte> Exported(const OwnedState& state) {
  size_t size = 0;
  EXPECT_EQ(ccl_reducer_state_export(state.get(), nullptr, &size), CCL_SUCCESS);
  std::vector<std::byte> bytes(size);
  EXPECT_EQ(ccl_reducer_state_export(state.get(), bytes.data(), &size), CCL_SUCCESS);
  return bytes;
}

inline std::vector<float> ResidualOf(const OwnedState& state) {
  const std::vector<std::byte> bytes = Exported(state);
  ByteReader reader(bytes);
  std::string identity;
  uint64_t length = 0;
  EXPECT_TRUE(reader.Skip(6) && reader.String(&identity) && reader.Skip(8));
  EXPECT_TRUE(reader.U64(&length));
  std::vector<float> values(length);
  EXPECT_TRUE(reader.Raw(std::as_writable_bytes(std::span(values))));
  return values;
}

inline void ExpectError(ccl_result_t result, ccl_result_t expected, const char* text) {
  EXPECT_EQ(result, expected);
  EXPECT_NE(std::string(ccl_get_last_error(nullptr)).find(text), std::string::npos)
      << ccl_get_last_error(nullptr);
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_REDUCE_CALL_WORLD_H_
