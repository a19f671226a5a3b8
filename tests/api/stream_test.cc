// SPDX-License-Identifier: Apache-2.0
//
// Host streams: calls return at once, run in order, also over communicators, and their errors come
// out where they should.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "api/check.h"
#include "api/world.h"

namespace inccl::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kSecondsLimit = kSanitized ? 10 : 2;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

TEST(StreamTest, CallsRunInOrder) {
  RunProcesses(3, [](int rank, ccl_comm_t comm) {
    ccl_stream_t stream = nullptr;
    CHECK_OK(ccl_stream_create(&stream));
    std::vector<int64_t> value(5000);
    std::iota(value.begin(), value.end(), rank);
    // The first sum is 3 i + (0 + 1 + 2), every later one triples it.
    for (int i = 0; i < 10; ++i) {
      CHECK_OK(ccl_allreduce(value.data(), value.data(), value.size(), CCL_INT64, CCL_SUM, comm,
                             stream));
    }
    CHECK_OK(ccl_stream_synchronize(stream));
    int64_t power = 1;
    for (int i = 0; i < 9; ++i) power *= 3;
    for (size_t i = 0; i < value.size(); ++i) {
      ASSERT_EQ(value[i], power * (3 * static_cast<int64_t>(i) + 3));
    }
    CHECK_OK(ccl_stream_query(stream));
    CHECK_OK(ccl_stream_destroy(stream));
  });
}

TEST(StreamTest, ACallReturnsBeforeItsPeersCall) {
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    ccl_stream_t stream = nullptr;
    CHECK_OK(ccl_stream_create(&stream));
    std::vector<float> value(1000, 1.0f);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const Clock::time_point start = Clock::now();
    CHECK_OK(ccl_allreduce(value.data(), value.data(), value.size(), CCL_FLOAT32, CCL_SUM, comm,
                           stream));
    if (rank == 0) {
      EXPECT_LT(SecondsSince(start), kSanitized ? 1 : 0.15);
      EXPECT_EQ(ccl_stream_query(stream), CCL_IN_PROGRESS);
    }
    CHECK_OK(ccl_stream_synchronize(stream));
    EXPECT_EQ(value[999], 2.0f);
    CHECK_OK(ccl_stream_destroy(stream));
  });
}

TEST(StreamTest, OneStreamOrdersTwoCommunicators) {
  RunThreads(2, [](int, ccl_comm_t comm) {
    ccl_comm_t other = nullptr;
    CHECK_OK(ccl_comm_split(comm, 0, 0, &other, nullptr));
    ccl_stream_t stream = nullptr;
    CHECK_OK(ccl_stream_create(&stream));
    std::vector<double> value(20000, 1.0);
    for (int i = 0; i < 20; ++i) {
      // Each needs the result of the one before.
      CHECK_OK(ccl_allreduce(value.data(), value.data(), value.size(), CCL_FLOAT64, CCL_SUM,
                             i % 2 == 0 ? comm : other, stream));
    }
    CHECK_OK(ccl_stream_synchronize(stream));
    EXPECT_EQ(value, std::vector<double>(20000, 1048576.0));
    CHECK_OK(ccl_stream_destroy(stream));
    CHECK_OK(ccl_comm_destroy(other));
  });
}

TEST(StreamTest, BlockingCallsComeAfterThoseOnStreams) {
  RunThreads(3, [](int, ccl_comm_t comm) {
    ccl_stream_t streams[2] = {};
    for (ccl_stream_t& stream : streams) CHECK_OK(ccl_stream_create(&stream));
    float a = 1, b = 1, c = 1;
    for (int i = 0; i < 5; ++i) {
      CHECK_OK(ccl_allreduce(&a, &a, 1, CCL_FLOAT32, CCL_SUM, comm, streams[0]));
      CHECK_OK(ccl_allreduce(&b, &b, 1, CCL_FLOAT32, CCL_SUM, comm, streams[1]));
      CHECK_OK(ccl_allreduce(&c, &c, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr));
    }
    EXPECT_EQ(c, 243.0f);
    for (ccl_stream_t stream : streams) {
      CHECK_OK(ccl_stream_synchronize(stream));
      CHECK_OK(ccl_stream_destroy(stream));
    }
    EXPECT_EQ(a, 243.0f);
    EXPECT_EQ(b, 243.0f);
  });
}

TEST(StreamTest, CompressedCallsFillTheirStats) {
  RunThreads(2, [](int, ccl_comm_t comm) {
    ccl_stream_t stream = nullptr;
    CHECK_OK(ccl_stream_create(&stream));
    std::vector<float> value(100000, 0.5f);
    ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
    ccl_compression_t compression = CCL_COMPRESSION_INIT;
    compression.stats = &stats;
    CHECK_OK(ccl_allreduce_compressed(value.data(), value.data(), value.size(), CCL_FLOAT32,
                                      CCL_SUM, &compression, comm, stream));
    CHECK_OK(ccl_stream_synchronize(stream));
    EXPECT_EQ(stats.elements, 100000u);
    EXPECT_EQ(stats.compressed, 1);
    for (const float v : value) ASSERT_NEAR(v, 1.0f, stats.error_bound * 1.000001);
    CHECK_OK(ccl_stream_destroy(stream));
  });
}

TEST(StreamTest, ErrorsSurfaceAtSynchronize) {
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    ccl_stream_t stream = nullptr;
    CHECK_OK(ccl_stream_create(&stream));
    std::vector<float> value(64);
    CHECK_OK(ccl_allreduce(value.data(), value.data(), rank == 0 ? 64 : 32, CCL_FLOAT32, CCL_SUM,
                           comm, stream));
    EXPECT_EQ(ccl_stream_synchronize(stream), CCL_INVALID_USAGE);
    ccl_result_t sticky = CCL_SUCCESS;
    CHECK_OK(ccl_comm_get_async_error(comm, &sticky));
    EXPECT_EQ(sticky, CCL_INVALID_USAGE);
    EXPECT_EQ(ccl_stream_synchronize(stream), CCL_SUCCESS);  // told once
    EXPECT_EQ(ccl_allreduce(value.data(), value.data(), 1, CCL_FLOAT32, CCL_SUM, comm, stream),
              CCL_INVALID_USAGE);
    CHECK_OK(ccl_stream_destroy(stream));
  });
}

TEST(StreamTest, DestroyedStreamsStillFinishTheirCalls) {
  RunThreads(2, [](int, ccl_comm_t comm) {
    ccl_stream_t stream = nullptr;
    CHECK_OK(ccl_stream_create(&stream));
    std::vector<float> value(100000, 1.0f);
    for (int i = 0; i < 3; ++i) {
      CHECK_OK(ccl_allreduce(value.data(), value.data(), value.size(), CCL_FLOAT32, CCL_SUM, comm,
                             stream));
    }
    CHECK_OK(ccl_stream_destroy(stream));
    CHECK_OK(ccl_comm_finalize(comm));
    EXPECT_EQ(value, std::vector<float>(100000, 8.0f));
    EXPECT_EQ(ccl_stream_synchronize(stream), CCL_INVALID_ARGUMENT);
  });
}

// Peers that never come, many calls queued on two streams: abort ends all of it at once.
TEST(StreamTest, AbortEndsQueuedCalls) {
  ccl_comm_t comms[2];
  CHECK_OK(ccl_comm_init_all(comms, 2, nullptr));
  ccl_stream_t streams[2] = {};
  for (ccl_stream_t& stream : streams) CHECK_OK(ccl_stream_create(&stream));
  std::vector<float> value(1000);
  for (int i = 0; i < 100; ++i) {
    CHECK_OK(ccl_allreduce(value.data(), value.data(), value.size(), CCL_FLOAT32, CCL_SUM, comms[0],
                           streams[i % 2]));
  }
  const Clock::time_point start = Clock::now();
  CHECK_OK(ccl_comm_abort(comms[0]));
  for (ccl_stream_t stream : streams) {
    EXPECT_EQ(ccl_stream_synchronize(stream), CCL_REMOTE_ERROR);
    CHECK_OK(ccl_stream_destroy(stream));
  }
  EXPECT_LT(SecondsSince(start), kSecondsLimit);
  CHECK_OK(ccl_comm_abort(comms[1]));
}

}  // namespace
}  // namespace inccl::test
