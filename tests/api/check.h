// SPDX-License-Identifier: Apache-2.0
#ifndef INCCL_TESTS_API_CHECK_H_
#define INCCL_TESTS_API_CHECK_H_

#include <gtest/gtest.h>

#include "inccl/ccl.h"

// For functions that return nothing: ends them, with the library's words, if a call fails.
#define CHECK_OK(call)                                           \
  do {                                                           \
    ASSERT_EQ(call, CCL_SUCCESS) << ccl_get_last_error(nullptr); \
  } while (false)

#endif  // INCCL_TESTS_API_CHECK_H_
