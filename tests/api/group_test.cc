// SPDX-License-Identifier: Apache-2.0
//
// Groups: one thread calls for several ranks and several communicators, creation included.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "api/check.h"
#include "api/world.h"

namespace inccl::test {
namespace {

class OneThread : public ::testing::Test {
 protected:
  static constexpr int kRanks = 4;
  void SetUp() override { CHECK_OK(ccl_comm_init_all(comms_, kRanks, nullptr)); }
  void TearDown() override {
    for (ccl_comm_t comm : comms_) EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
  }
  ccl_comm_t comms_[kRanks] = {};
};

TEST_F(OneThread, CallsForAllRanks) {
  std::vector<std::vector<float>> in(kRanks), out(kRanks);
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{300000}}) {
    CHECK_OK(ccl_group_start());
    for (size_t rank = 0; rank < kRanks; ++rank) {
      in[rank].assign(count, static_cast<float>(rank + 1));
      out[rank].assign(count, -1);
      CHECK_OK(ccl_allreduce(in[rank].data(), out[rank].data(), count, CCL_FLOAT32, CCL_SUM,
                             comms_[rank], nullptr));
    }
    CHECK_OK(ccl_group_end());
    for (const std::vector<float>& result : out) {
      EXPECT_EQ(result, std::vector<float>(count, 10.0f));
    }
  }
}

TEST_F(OneThread, NothingHappensBeforeTheOutermostEnd) {
  std::vector<float> value(kRanks, 1.0f);
  CHECK_OK(ccl_group_start());
  CHECK_OK(ccl_group_start());
  for (size_t rank = 0; rank < kRanks; ++rank) {
    CHECK_OK(
        ccl_allreduce(&value[rank], &value[rank], 1, CCL_FLOAT32, CCL_SUM, comms_[rank], nullptr));
  }
  CHECK_OK(ccl_group_end());
  EXPECT_EQ(value, std::vector<float>(kRanks, 1.0f));
  CHECK_OK(ccl_group_end());
  EXPECT_EQ(value, std::vector<float>(kRanks, 4.0f));
}

TEST_F(OneThread, SeveralCollectivesOfARankRunInOrder) {
  std::vector<float> a(kRanks, 1.0f), b(kRanks);
  CHECK_OK(ccl_group_start());
  for (size_t rank = 0; rank < kRanks; ++rank) {
    CHECK_OK(ccl_allreduce(&a[rank], &b[rank], 1, CCL_FLOAT32, CCL_SUM, comms_[rank], nullptr));
    CHECK_OK(ccl_allreduce(&b[rank], &a[rank], 1, CCL_FLOAT32, CCL_SUM, comms_[rank], nullptr));
  }
  CHECK_OK(ccl_group_end());
  EXPECT_EQ(a, std::vector<float>(kRanks, 16.0f));
}

TEST_F(OneThread, AWrongCallSpoilsTheGroup) {
  std::vector<float> value(kRanks, 1.0f);
  CHECK_OK(ccl_group_start());
  CHECK_OK(ccl_allreduce(value.data(), value.data(), 1, CCL_FLOAT32, CCL_SUM, comms_[0], nullptr));
  EXPECT_EQ(ccl_allreduce(nullptr, &value[1], 1, CCL_FLOAT32, CCL_SUM, comms_[1], nullptr),
            CCL_INVALID_ARGUMENT);
  EXPECT_EQ(ccl_group_end(), CCL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ccl_get_last_error(nullptr)).find("send: NULL"), std::string::npos);
  EXPECT_EQ(value[0], 1.0f);
  // Nothing was started: the communicator is as new.
  CHECK_OK(ccl_group_start());
  for (size_t rank = 0; rank < kRanks; ++rank) {
    CHECK_OK(
        ccl_allreduce(&value[rank], &value[rank], 1, CCL_FLOAT32, CCL_SUM, comms_[rank], nullptr));
  }
  CHECK_OK(ccl_group_end());
  EXPECT_EQ(value, std::vector<float>(kRanks, 4.0f));
}

TEST_F(OneThread, StreamsInAGroup) {
  ccl_stream_t streams[kRanks];
  for (ccl_stream_t& stream : streams) CHECK_OK(ccl_stream_create(&stream));
  std::vector<double> value(kRanks, 2.0);
  for (int i = 0; i < 20; ++i) {
    CHECK_OK(ccl_group_start());
    for (size_t rank = 0; rank < kRanks; ++rank) {
      CHECK_OK(ccl_allreduce(&value[rank], &value[rank], 1, CCL_FLOAT64, CCL_AVG, comms_[rank],
                             streams[rank]));
    }
    CHECK_OK(ccl_group_end());
  }
  for (ccl_stream_t stream : streams) {
    CHECK_OK(ccl_stream_synchronize(stream));
    CHECK_OK(ccl_stream_destroy(stream));
  }
  EXPECT_EQ(value, std::vector<double>(kRanks, 2.0));
}

TEST_F(OneThread, SplitsAllRanks) {
  ccl_comm_t parts[kRanks] = {};
  CHECK_OK(ccl_group_start());
  for (int rank = 0; rank < kRanks; ++rank) {
    CHECK_OK(ccl_comm_split(comms_[rank], rank % 2, -rank, &parts[rank], nullptr));
  }
  CHECK_OK(ccl_group_end());
  for (int rank = 0; rank < kRanks; ++rank) {
    int count = 0, place = -1;
    CHECK_OK(ccl_comm_count(parts[rank], &count));
    CHECK_OK(ccl_comm_user_rank(parts[rank], &place));
    EXPECT_EQ(count, 2);
    EXPECT_EQ(place, rank < 2 ? 1 : 0);  // by descending rank
    CHECK_OK(ccl_comm_destroy(parts[rank]));
  }
}

TEST(GroupTest, OneThreadCreatesSeveralRanks) {
  ccl_unique_id_t id;
  CHECK_OK(ccl_get_unique_id(&id));
  ccl_comm_t comms[3] = {};
  CHECK_OK(ccl_group_start());
  for (int rank = 0; rank < 3; ++rank) CHECK_OK(ccl_comm_init_rank(&comms[rank], 3, id, rank));
  CHECK_OK(ccl_group_end());
  int32_t value[3] = {1, 2, 3};
  CHECK_OK(ccl_group_start());
  for (int rank = 0; rank < 3; ++rank) {
    CHECK_OK(
        ccl_allreduce(&value[rank], &value[rank], 1, CCL_INT32, CCL_SUM, comms[rank], nullptr));
  }
  CHECK_OK(ccl_group_end());
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(value[rank], 6);
    CHECK_OK(ccl_comm_destroy(comms[rank]));
  }
}

TEST(GroupTest, EndWithoutStartIsAnError) {
  EXPECT_EQ(ccl_group_end(), CCL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ccl_get_last_error(nullptr)).find("ccl_group_end"), std::string::npos);
}

// Two communicators used in opposite order by two ranks: no deadlock inside a group.
TEST(GroupTest, OppositeOrderOfCommunicators) {
  RunProcesses(2, [](int rank, ccl_comm_t comm) {
    ccl_comm_t other = nullptr;
    CHECK_OK(ccl_comm_split(comm, 0, 0, &other, nullptr));
    std::vector<float> a(100000, 1.0f), b(100000, 2.0f);
    for (int i = 0; i < 20; ++i) {
      ccl_comm_t order[2] = {rank == 0 ? comm : other, rank == 0 ? other : comm};
      CHECK_OK(ccl_group_start());
      for (ccl_comm_t c : order) {
        std::vector<float>& data = c == comm ? a : b;
        CHECK_OK(
            ccl_allreduce(data.data(), data.data(), data.size(), CCL_FLOAT32, CCL_AVG, c, nullptr));
      }
      CHECK_OK(ccl_group_end());
    }
    EXPECT_EQ(a, std::vector<float>(100000, 1.0f));
    EXPECT_EQ(b, std::vector<float>(100000, 2.0f));
    CHECK_OK(ccl_comm_destroy(other));
  });
}

}  // namespace
}  // namespace inccl::test
