// SPDX-License-Identifier: Apache-2.0
//
// Premultiplied sums through the C API, against plain arithmetic: every rank's own factor, read at
// once or when the call runs.
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "api/check.h"
#include "api/world.h"

namespace inccl::test {
namespace {

TEST(RedopTest, EveryRankHasItsFactor) {
  RunProcesses(3, [](int rank, ccl_comm_t comm) {
    const double factors[] = {0.5, -2.0, 4.0};
    float factor = static_cast<float>(factors[rank]);
    ccl_redop_t op = CCL_SUM;
    CHECK_OK(
        ccl_redop_create_premulsum(&op, &factor, CCL_FLOAT32, CCL_SCALAR_HOST_IMMEDIATE, comm));
    EXPECT_GT(static_cast<int>(op), static_cast<int>(CCL_AVG));
    factor = 1000;  // has been read
    for (const size_t count : {size_t{1}, size_t{777}, size_t{500000}}) {
      std::vector<float> in(count), out(count);
      for (size_t i = 0; i < count; ++i) in[i] = static_cast<float>(i % 64 + 1) * (rank + 1);
      CHECK_OK(ccl_allreduce(in.data(), out.data(), count, CCL_FLOAT32, op, comm, nullptr));
      for (size_t i = 0; i < count; ++i) {
        const double x = static_cast<double>(i % 64 + 1);
        ASSERT_EQ(out[i], 0.5 * x - 2.0 * 2 * x + 4.0 * 3 * x) << i;
      }
    }
    CHECK_OK(ccl_redop_destroy(op, comm));
  });
}

TEST(RedopTest, IntegersWrap) {
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    uint8_t factor = rank == 0 ? 200 : 3;
    ccl_redop_t op = CCL_SUM;
    CHECK_OK(ccl_redop_create_premulsum(&op, &factor, CCL_UINT8, CCL_SCALAR_HOST_IMMEDIATE, comm));
    std::vector<uint8_t> in(1000), out(1000);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint8_t>(i + 5 * rank);
    CHECK_OK(ccl_allreduce(in.data(), out.data(), in.size(), CCL_UINT8, op, comm, nullptr));
    for (size_t i = 0; i < in.size(); ++i) {
      const unsigned a = static_cast<uint8_t>(i), b = static_cast<uint8_t>(i + 5);
      ASSERT_EQ(out[i], static_cast<uint8_t>(a * 200 + b * 3)) << i;
    }
  });
}

TEST(RedopTest, DeviceScalarsAreReadWhenTheCallRuns) {
  RunThreads(2, [](int, ccl_comm_t comm) {
    double factor = 0;
    ccl_redop_t op = CCL_SUM;
    CHECK_OK(ccl_redop_create_premulsum(&op, &factor, CCL_FLOAT64, CCL_SCALAR_DEVICE, comm));
    for (int i = 1; i < 5; ++i) {
      factor = i;
      double value = 3;
      CHECK_OK(ccl_allreduce(&value, &value, 1, CCL_FLOAT64, op, comm, nullptr));
      EXPECT_EQ(value, 6.0 * i);
    }
  });
}

TEST(RedopTest, MisuseIsNamed) {
  RunThreads(2, [](int, ccl_comm_t comm) {
    const auto expect = [&](ccl_result_t result, const char* text) {
      EXPECT_EQ(result, CCL_INVALID_ARGUMENT);
      EXPECT_NE(std::string(ccl_get_last_error(nullptr)).find(text), std::string::npos)
          << ccl_get_last_error(nullptr);
    };
    float factor = 2, value = 1;
    int32_t whole = 1;
    ccl_redop_t op = CCL_SUM;
    CHECK_OK(
        ccl_redop_create_premulsum(&op, &factor, CCL_FLOAT32, CCL_SCALAR_HOST_IMMEDIATE, comm));
    expect(ccl_allreduce(&whole, &whole, 1, CCL_INT32, op, comm, nullptr), "made for float32");
    expect(ccl_redop_create_premulsum(&op, nullptr, CCL_FLOAT32, CCL_SCALAR_DEVICE, comm),
           "scalar: NULL");
    expect(ccl_redop_create_premulsum(nullptr, &factor, CCL_FLOAT32, CCL_SCALAR_DEVICE, comm),
           "op: NULL");
    expect(ccl_redop_create_premulsum(&op, &factor, static_cast<ccl_datatype_t>(77),
                                      CCL_SCALAR_DEVICE, comm),
           "type: 77");
    expect(ccl_redop_create_premulsum(&op, &factor, CCL_FLOAT32,
                                      static_cast<ccl_scalar_residence_t>(2), comm),
           "residence: 2");
    CHECK_OK(ccl_redop_destroy(op, comm));
    expect(ccl_redop_destroy(op, comm), "op:");
    expect(ccl_redop_destroy(CCL_SUM, comm), "op: 0");
    expect(ccl_allreduce(&value, &value, 1, CCL_FLOAT32, op, comm, nullptr), "op:");
  });
}

// As a program does that makes one for every step: the memory of a destroyed one is used again,
// while its number stays unknown.
TEST(RedopTest, MakingAndDestroyingTakesNoMemory) {
  RunThreads(1, [](int, ccl_comm_t comm) {
    float factor = 2;
    const auto number = [](ccl_redop_t op) {
      int value = 0;
      std::memcpy(&value, &op, sizeof value);
      return value;
    };
    const auto cycle = [&](int times, std::set<int>* numbers) {
      for (int i = 0; i < times; ++i) {
        ccl_redop_t op = CCL_SUM;
        CHECK_OK(
            ccl_redop_create_premulsum(&op, &factor, CCL_FLOAT32, CCL_SCALAR_HOST_IMMEDIATE, comm));
        if (numbers != nullptr) {
          EXPECT_TRUE(numbers->insert(number(op)).second) << number(op);
        }
        CHECK_OK(ccl_redop_destroy(op, comm));
      }
    };
    ccl_redop_t kept = CCL_SUM, gone = CCL_SUM;
    CHECK_OK(
        ccl_redop_create_premulsum(&kept, &factor, CCL_FLOAT32, CCL_SCALAR_HOST_IMMEDIATE, comm));
    CHECK_OK(
        ccl_redop_create_premulsum(&gone, &factor, CCL_FLOAT32, CCL_SCALAR_HOST_IMMEDIATE, comm));
    CHECK_OK(ccl_redop_destroy(gone, comm));
    std::set<int> numbers;
    cycle(3000, &numbers);
    EXPECT_FALSE(numbers.contains(number(kept)));
    EXPECT_FALSE(numbers.contains(number(gone)));
    const auto in_use = [] {
      const struct mallinfo2 info = mallinfo2();
      return info.uordblks + info.hblkhd;
    };
    const size_t before = in_use();
    cycle(100'000, nullptr);
    const size_t after = in_use();
    if (!kSanitized) {
      EXPECT_LT(after, before + 50'000);
    }
    float value = 3;
    EXPECT_EQ(ccl_allreduce(&value, &value, 1, CCL_FLOAT32, gone, comm, nullptr),
              CCL_INVALID_ARGUMENT);
    EXPECT_EQ(ccl_redop_destroy(gone, comm), CCL_INVALID_ARGUMENT);
    CHECK_OK(ccl_allreduce(&value, &value, 1, CCL_FLOAT32, kept, comm, nullptr));
    EXPECT_EQ(value, 6);
  });
}

TEST(RedopTest, TooManyAtTheSameTimeAreAnError) {
  RunThreads(1, [](int, ccl_comm_t comm) {
    float factor = 2;
    std::vector<ccl_redop_t> all(65536);
    for (ccl_redop_t& op : all) {
      CHECK_OK(
          ccl_redop_create_premulsum(&op, &factor, CCL_FLOAT32, CCL_SCALAR_HOST_IMMEDIATE, comm));
    }
    ccl_redop_t more = CCL_SUM;
    EXPECT_EQ(
        ccl_redop_create_premulsum(&more, &factor, CCL_FLOAT32, CCL_SCALAR_HOST_IMMEDIATE, comm),
        CCL_INVALID_USAGE);
    EXPECT_NE(std::string(ccl_get_last_error(nullptr)).find("65536"), std::string::npos);
    CHECK_OK(ccl_redop_destroy(all[7], comm));
    CHECK_OK(
        ccl_redop_create_premulsum(&more, &factor, CCL_FLOAT32, CCL_SCALAR_HOST_IMMEDIATE, comm));
    EXPECT_NE(std::memcmp(&more, &all[7], sizeof more), 0);
    CHECK_OK(ccl_redop_destroy(more, comm));
    for (size_t i = 0; i < all.size(); ++i) {
      if (i != 7) {
        CHECK_OK(ccl_redop_destroy(all[i], comm));
      }
    }
  });
}

// Compressed calls of such an operation run uncompressed, as for every reduction but sum and avg.
TEST(RedopTest, CompressedCallsSayThatTheyAreNot) {
  RunThreads(2, [](int, ccl_comm_t comm) {
    float factor = 2;
    ccl_redop_t op = CCL_SUM;
    CHECK_OK(
        ccl_redop_create_premulsum(&op, &factor, CCL_FLOAT32, CCL_SCALAR_HOST_IMMEDIATE, comm));
    std::vector<float> value(100000, 1.0f);
    ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
    ccl_compression_t compression = CCL_COMPRESSION_INIT;
    compression.stats = &stats;
    CHECK_OK(ccl_allreduce_compressed(value.data(), value.data(), value.size(), CCL_FLOAT32, op,
                                      &compression, comm, nullptr));
    EXPECT_EQ(stats.compressed, 0);
    EXPECT_EQ(value, std::vector<float>(100000, 4.0f));
  });
}

}  // namespace
}  // namespace inccl::test
