// SPDX-License-Identifier: Apache-2.0
//
// Random sequences of calls over three loopback ranks: right calls, wrong arguments on single ranks
// (which must change nothing), groups, streams, splits, shrinks, finalized and revoked
// communicators, and at the end of each sequence, maybe, a call that does not fit the others',
// which all must learn of. INCCL_TEST_SEQUENCES says how many, INCCL_TEST_SEED replays.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <latch>
#include <string>
#include <vector>

#include "api/check.h"
#include "api/world.h"
#include "base/rng.h"
#include "world/baseline.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 3;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed) {}
  uint64_t Below(uint64_t limit) {
    state_ = Mix64(state_ + 0x9E3779B97F4A7C15u);
    return state_ % limit;
  }

 private:
  uint64_t state_;
};

// One rank's life. All ranks draw alike from `common_`, and for themselves from `own_`.
class Life {
 public:
  // `almost_done`: of all ranks, counts those that have only the end before them.
  Life(uint64_t seed, int rank, ccl_comm_t comm, std::latch* almost_done)
      : almost_done_(almost_done),
        common_(Mix64(seed)),
        own_(Mix64(seed ^ (0x1234u + static_cast<uint64_t>(rank)))),
        rank_(rank),
        comms_{comm} {}

  void Run() {
    for (ccl_stream_t& stream : streams_) CHECK_OK(ccl_stream_create(&stream));
    const uint64_t steps = 5 + common_.Below(40);
    for (uint64_t i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      if (own_.Below(4) == 0) Mistake();
      Step();
    }
    // The end of one is an error of all, at once.
    almost_done_->arrive_and_wait();
    if (!::testing::Test::HasFailure()) End();
    for (ccl_stream_t stream : streams_) (void)ccl_stream_destroy(stream);
    for (size_t i = 1; i < comms_.size(); ++i) CHECK_OK(ccl_comm_destroy(comms_[i]));
  }

 private:
  ccl_comm_t comm() const { return comms_.back(); }

  void Sum(size_t count, ccl_stream_t stream) {
    std::vector<int32_t>& data = buffers_[next_buffer_++ % std::size(buffers_)];
    if (stream == nullptr) data.assign(count, rank_ + 1);
    // A stream may still use it.
    if (stream != nullptr) {
      CHECK_OK(ccl_stream_synchronize(stream));
      data.assign(count, rank_ + 1);
    }
    CHECK_OK(ccl_allreduce(data.data(), data.data(), count, CCL_INT32, CCL_SUM, comm(), stream));
    if (stream != nullptr) CHECK_OK(ccl_stream_synchronize(stream));
    for (const int32_t value : data) ASSERT_EQ(value, 6);
  }

  void Step() {
    const size_t count = static_cast<size_t>(common_.Below(5000));
    const uint64_t which = common_.Below(10);
    ccl_stream_t stream = streams_[common_.Below(2)];
    switch (which) {
      case 0:
      case 1:
      case 2: Sum(count, nullptr); break;
      case 3: Sum(count, stream); break;
      case 4: {
        std::vector<double> data(count, rank_ == 1 ? 2.5 : 0);
        CHECK_OK(ccl_broadcast(data.data(), data.data(), count, CCL_FLOAT64, 1, comm(), nullptr));
        for (const double value : data) ASSERT_EQ(value, 2.5);
        break;
      }
      case 5: {
        std::vector<uint8_t> out(kRanks * count, static_cast<uint8_t>(rank_)), in(out.size());
        CHECK_OK(ccl_group_start());
        for (int peer = 0; peer < kRanks; ++peer) {
          const size_t at = static_cast<size_t>(peer) * count;
          CHECK_OK(ccl_send(out.data() + at, count, CCL_UINT8, peer, comm(), nullptr));
          CHECK_OK(ccl_recv(in.data() + at, count, CCL_UINT8, peer, comm(), nullptr));
        }
        CHECK_OK(ccl_group_end());
        for (size_t i = 0; i < in.size(); ++i) ASSERT_EQ(in[i], i / count);
        break;
      }
      case 6: {
        std::vector<float> data(count, 1.0f);
        CHECK_OK(ccl_allreduce_compressed(data.data(), data.data(), count, CCL_FLOAT32, CCL_SUM,
                                          nullptr, comm(), nullptr));
        for (const float value : data) ASSERT_NEAR(value, 3.0f, 0.2f);
        break;
      }
      case 7: {
        if (comms_.size() > 4) break;
        ccl_comm_t child = nullptr;
        if (common_.Below(2) == 0) {
          CHECK_OK(ccl_comm_split(comm(), 0, rank_, &child, nullptr));
        } else {
          CHECK_OK(ccl_comm_shrink(comm(), nullptr, 0, &child, nullptr, CCL_SHRINK_DEFAULT));
        }
        comms_.push_back(child);
        break;
      }
      case 8: {
        std::vector<int64_t> in(kRanks * count, rank_), out(in.size(), -1);
        CHECK_OK(ccl_alltoall(in.data(), out.data(), count, CCL_INT64, comm(), stream));
        CHECK_OK(ccl_stream_synchronize(stream));
        for (size_t i = 0; i < out.size(); ++i) {
          ASSERT_EQ(out[i], static_cast<int64_t>(i / count));
        }
        break;
      }
      default: {
        if (comms_.size() == 1) break;  // the first is the world's
        CHECK_OK(common_.Below(2) == 0 ? ccl_comm_finalize(comm()) : CCL_SUCCESS);
        CHECK_OK(ccl_comm_destroy(comm()));
        comms_.pop_back();
      }
    }
  }

  // A call that is wrong by itself.
  void Mistake() {
    float value = 0;
    ccl_result_t result = CCL_SUCCESS;
    switch (own_.Below(8)) {
      case 0:
        result = ccl_allreduce(nullptr, &value, 1, CCL_FLOAT32, CCL_SUM, comm(), nullptr);
        break;
      case 1:
        result = ccl_allreduce(&value, &value, SIZE_MAX, CCL_FLOAT32, CCL_SUM, comm(), nullptr);
        break;
      case 2: result = ccl_send(&value, 1, CCL_FLOAT32, kRanks, comm(), nullptr); break;
      case 3: result = ccl_broadcast(&value, &value, 1, CCL_FLOAT32, -1, comm(), nullptr); break;
      case 4:
        result = ccl_allreduce(&value, &value, 1, static_cast<ccl_datatype_t>(44), CCL_SUM, comm(),
                               streams_[0]);
        break;
      case 5: result = ccl_group_end(); break;
      case 6:
        result = ccl_allreduce(&value, &value, 1, CCL_FLOAT32, CCL_SUM, comm(),
                               reinterpret_cast<ccl_stream_t>(&value));
        break;
      default: {
        ccl_comm_t none = nullptr;
        result = ccl_comm_split(comm(), -7, 0, &none, nullptr);
      }
    }
    EXPECT_EQ(result, CCL_INVALID_ARGUMENT) << ccl_get_last_error(nullptr);
    ccl_result_t sticky = CCL_INTERNAL_ERROR;
    CHECK_OK(ccl_comm_get_async_error(comm(), &sticky));
    EXPECT_EQ(sticky, CCL_SUCCESS) << ccl_get_last_error(comm());
  }

  // All ranks get an error, soon, and it is the same one from then on.
  void End() {
    const uint64_t which = common_.Below(4);
    const int odd = static_cast<int>(common_.Below(kRanks));
    if (which == 3) return;
    std::vector<float> data(300, 1.0f);
    const auto start = std::chrono::steady_clock::now();
    ccl_result_t result = CCL_SUCCESS, expected = CCL_INVALID_USAGE;
    if (which == 0) {
      result = ccl_allreduce(data.data(), data.data(), rank_ == odd ? 200 : 300, CCL_FLOAT32,
                             CCL_SUM, comm(), nullptr);
    } else if (which == 1) {
      result = ccl_allreduce(data.data(), data.data(), 300, CCL_FLOAT32,
                             rank_ == odd ? CCL_MAX : CCL_SUM, comm(), nullptr);
    } else {
      expected = CCL_REMOTE_ERROR;
      if (rank_ == odd) CHECK_OK(ccl_comm_revoke(comm()));
      result = ccl_allreduce(data.data(), data.data(), 300, CCL_FLOAT32, CCL_SUM, comm(), nullptr);
    }
    EXPECT_EQ(result, expected) << ccl_get_last_error(comm());
    const std::string text = ccl_get_last_error(comm());
    EXPECT_EQ(ccl_allreduce(data.data(), data.data(), 1, CCL_FLOAT32, CCL_SUM, comm(), nullptr),
              expected);
    EXPECT_EQ(ccl_get_last_error(comm()), text);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(kSanitized ? 60 : 10));
  }

  std::latch* const almost_done_;
  Draw common_, own_;
  const int rank_;
  std::vector<ccl_comm_t> comms_;
  ccl_stream_t streams_[2] = {};
  std::vector<int32_t> buffers_[4];
  size_t next_buffer_ = 0;
};

TEST(SequenceTest, RandomLives) {
  const uint64_t seed = FromEnvironment("INCCL_TEST_SEED", 20261121);
  const uint64_t sequences = FromEnvironment("INCCL_TEST_SEQUENCES", kSanitized ? 15 : 50);
  std::printf("INCCL_TEST_SEED=%llu, %llu sequences\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(sequences));
  RunThreads(1, [](int, ccl_comm_t) {});  // what the first communicator brings stays
  const Baseline baseline;
  for (uint64_t i = 0; i < sequences && !HasFailure(); ++i) {
    SCOPED_TRACE("sequence " + std::to_string(i));
    std::latch almost_done(kRanks);
    RunThreads(kRanks,
               [&](int rank, ccl_comm_t comm) { Life(seed + i, rank, comm, &almost_done).Run(); });
  }
}

}  // namespace
}  // namespace inccl::test
