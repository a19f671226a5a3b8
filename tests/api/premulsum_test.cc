// SPDX-License-Identifier: Apache-2.0
//
// Operations of ccl_redop_create_premulsum as a user has them: scalars that differ between ranks,
// where and when they are read, one rank, and operations that are not (or no longer) there. What is
// computed in every type: premulsum_test.cc of the integration tests.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "api/world.h"

namespace inccl::test {
namespace {

constexpr size_t kCount = 1031;

int32_t ValueOf(int rank, size_t i) { return static_cast<int32_t>(i % 97) - 40 * rank; }

std::vector<int32_t> InputOf(int rank, size_t count) {
  std::vector<int32_t> input(count);
  for (size_t i = 0; i < count; ++i) input[i] = ValueOf(rank, i);
  return input;
}

// Sums of elements first, first + 1, ... with factor step * (rank + 1).
std::vector<int32_t> SumOf(int n, size_t first, int32_t step) {
  std::vector<int32_t> sums(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    for (int rank = 0; rank < n; ++rank) sums[i] += step * (rank + 1) * ValueOf(rank, first + i);
  }
  return sums;
}

// As a caller in C passes it; a cast of a number that is no enumerator is undefined in C++.
template <typename T>
__attribute__((no_sanitize("enum"))) T Enum(int number) {
  T value;
  std::memcpy(&value, &number, sizeof value);
  return value;
}

ccl_redop_t MakeOp(int32_t* scalar, ccl_scalar_residence_t residence, ccl_comm_t comm) {
  ccl_redop_t op = CCL_SUM;
  EXPECT_EQ(ccl_redop_create_premulsum(&op, scalar, CCL_INT32, residence, comm), CCL_SUCCESS)
      << ccl_get_last_error(comm);
  EXPECT_GT(static_cast<int64_t>(op), int64_t{CCL_AVG});
  return op;
}

void ExpectInvalid(ccl_result_t result, const char* what) {
  EXPECT_EQ(result, CCL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ccl_get_last_error(nullptr)).find(what), std::string::npos)
      << "\"" << ccl_get_last_error(nullptr) << "\" does not say " << what;
}

TEST(PreMulSumTest, EveryRankHasItsOwnScalars) {
  for (const int n : {1, 2, 5}) {
    RunThreads(n, [&](int rank, ccl_comm_t comm) {
      const size_t mine = static_cast<size_t>(rank) * kCount;
      int32_t scalar = 2 * (rank + 1);
      const ccl_redop_t twice = MakeOp(&scalar, CCL_SCALAR_HOST_IMMEDIATE, comm);
      scalar = -3 * (rank + 1);  // read already
      const ccl_redop_t thrice = MakeOp(&scalar, CCL_SCALAR_HOST_IMMEDIATE, comm);
      scalar = 0;
      std::vector<int32_t> in = InputOf(rank, kCount), out(kCount);
      ASSERT_EQ(ccl_allreduce(in.data(), out.data(), kCount, CCL_INT32, twice, comm, nullptr),
                CCL_SUCCESS)
          << ccl_get_last_error(comm);
      EXPECT_EQ(out, SumOf(n, 0, 2));
      ASSERT_EQ(ccl_reduce(in.data(), out.data(), kCount, CCL_INT32, thrice, n - 1, comm, nullptr),
                CCL_SUCCESS);
      EXPECT_EQ(out, SumOf(n, 0, rank == n - 1 ? -3 : 2));  // elsewhere it is as it was
      std::vector<int32_t> all = InputOf(rank, kCount * static_cast<size_t>(n));
      ASSERT_EQ(ccl_reduce_scatter(all.data(), all.data() + mine, kCount, CCL_INT32, thrice, comm,
                                   nullptr),
                CCL_SUCCESS);
      EXPECT_EQ(std::vector<int32_t>(all.begin() + static_cast<long>(mine),
                                     all.begin() + static_cast<long>(mine + kCount)),
                SumOf(n, mine, -3));
      ASSERT_EQ(ccl_allreduce(in.data(), in.data(), kCount, CCL_INT32, twice, comm, nullptr),
                CCL_SUCCESS);
      EXPECT_EQ(in, SumOf(n, 0, 2));
      EXPECT_EQ(ccl_redop_destroy(twice, comm), CCL_SUCCESS);
      EXPECT_EQ(ccl_redop_destroy(thrice, comm), CCL_SUCCESS);
    });
  }
}

TEST(PreMulSumTest, AScalarInMemoryIsReadWhenACallRuns) {
  for (const int n : {1, 3}) {
    RunThreads(n, [&](int rank, ccl_comm_t comm) {
      int32_t scalar = 0;
      const ccl_redop_t op = MakeOp(&scalar, CCL_SCALAR_DEVICE, comm);
      const std::vector<int32_t> in = InputOf(rank, kCount);
      std::vector<int32_t> out(kCount);
      for (const int32_t step : {1, 7, -2}) {
        scalar = step * (rank + 1);
        ASSERT_EQ(ccl_allreduce(in.data(), out.data(), kCount, CCL_INT32, op, comm, nullptr),
                  CCL_SUCCESS)
            << ccl_get_last_error(comm);
        EXPECT_EQ(out, SumOf(n, 0, step));
      }
      EXPECT_EQ(ccl_redop_destroy(op, comm), CCL_SUCCESS);
    });
  }
}

TEST(PreMulSumTest, WrongOperationsAreNamedAndHarmless) {
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    int32_t scalar = rank + 1;
    const auto call = [&](ccl_datatype_t type, ccl_redop_t op) {
      std::vector<int64_t> data(kCount);
      return ccl_allreduce(data.data(), data.data(), kCount, type, op, comm, nullptr);
    };
    ccl_redop_t op = CCL_SUM;
    const auto create = [&](ccl_redop_t* to, void* from, int type, int residence) {
      return ccl_redop_create_premulsum(to, from, Enum<ccl_datatype_t>(type),
                                        Enum<ccl_scalar_residence_t>(residence), comm);
    };
    ExpectInvalid(create(nullptr, &scalar, CCL_INT32, CCL_SCALAR_HOST_IMMEDIATE), "op: NULL");
    ExpectInvalid(create(&op, nullptr, CCL_INT32, CCL_SCALAR_HOST_IMMEDIATE), "scalar: NULL");
    ExpectInvalid(create(&op, &scalar, 12, CCL_SCALAR_HOST_IMMEDIATE), "type: 12");
    ExpectInvalid(create(&op, &scalar, CCL_INT32, 2), "residence: 2");
    ExpectInvalid(ccl_redop_destroy(CCL_AVG, comm), "op: 4");
    const ccl_redop_t first = static_cast<ccl_redop_t>(CCL_AVG + 1);
    ExpectInvalid(call(CCL_INT32, first), "op: 5");
    ExpectInvalid(ccl_redop_destroy(first, comm), "op: 5");

    op = MakeOp(&scalar, CCL_SCALAR_HOST_IMMEDIATE, comm);
    ExpectInvalid(call(CCL_INT64, op), "type");
    ExpectInvalid(call(CCL_INT32, static_cast<ccl_redop_t>(op + 1)), "op");
    ASSERT_EQ(call(CCL_INT32, op), CCL_SUCCESS) << ccl_get_last_error(comm);
    ASSERT_EQ(ccl_redop_destroy(op, comm), CCL_SUCCESS);
    ExpectInvalid(ccl_redop_destroy(op, comm), "op");
    ExpectInvalid(call(CCL_INT32, op), "op");
    // A number is not used twice.
    EXPECT_NE(MakeOp(&scalar, CCL_SCALAR_HOST_IMMEDIATE, comm), op);
    ASSERT_EQ(call(CCL_INT32, CCL_SUM), CCL_SUCCESS);
  });
}

}  // namespace
}  // namespace inccl::test
