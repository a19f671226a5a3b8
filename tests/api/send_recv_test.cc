// SPDX-License-Identifier: Apache-2.0
//
// Sends and receives: what arrives is what was sent, in order, whatever the sizes and however many
// are under way; what does not fit together is an error on both sides.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "api/check.h"
#include "api/world.h"

namespace inccl::test {
namespace {

// Byte i of message m from rank s to rank d.
uint8_t Byte(int s, int d, size_t m, size_t i) {
  return static_cast<uint8_t>(s * 31 + d * 17 + static_cast<int>(m) * 7 + static_cast<int>(i * i));
}

std::vector<uint8_t> Message(int s, int d, size_t m, size_t bytes) {
  std::vector<uint8_t> message(bytes);
  for (size_t i = 0; i < bytes; ++i) message[i] = Byte(s, d, m, i);
  return message;
}

// Every rank sends several messages of several sizes to every rank, itself too, in one group.
void ExchangeAll(int rank, ccl_comm_t comm) {
  int n = 0;
  CHECK_OK(ccl_comm_count(comm, &n));
  const std::vector<size_t> sizes = {0, 1, 63, 4096, 131072, 131073, 1000003};
  for (int round = 0; round < 2; ++round) {
    std::vector<std::vector<uint8_t>> out, in;
    CHECK_OK(ccl_group_start());
    for (int peer = 0; peer < n; ++peer) {
      for (size_t m = 0; m < sizes.size(); ++m) {
        out.push_back(Message(rank, peer, m, sizes[m]));
        in.emplace_back(sizes[m]);
      }
    }
    for (int peer = 0; peer < n; ++peer) {
      for (size_t m = 0; m < sizes.size(); ++m) {
        const size_t at = static_cast<size_t>(peer) * sizes.size() + m;
        CHECK_OK(ccl_send(out[at].data(), sizes[m], CCL_UINT8, peer, comm, nullptr));
        CHECK_OK(ccl_recv(in[at].data(), sizes[m], CCL_UINT8, peer, comm, nullptr));
      }
    }
    CHECK_OK(ccl_group_end());
    for (int peer = 0; peer < n; ++peer) {
      for (size_t m = 0; m < sizes.size(); ++m) {
        EXPECT_EQ(in[static_cast<size_t>(peer) * sizes.size() + m],
                  Message(peer, rank, m, sizes[m]))
            << "rank " << rank << " from " << peer << " message " << m;
      }
    }
  }
}

TEST(SendRecvTest, AllPairsInOneGroupOfThreads) { RunThreads(4, ExchangeAll); }

TEST(SendRecvTest, AllPairsInOneGroupOfProcesses) { RunProcesses(3, ExchangeAll); }

TEST(SendRecvTest, RingOfSingleCallsKeepsOrder) {
  RunProcesses(3, [](int rank, ccl_comm_t comm) {
    const int next = (rank + 1) % 3, previous = (rank + 2) % 3;
    // More messages than slots: rank 0 sends first, the others receive first.
    for (int i = 0; i < 200; ++i) {
      int64_t value = rank == 0 ? i : -1;
      if (rank == 0) CHECK_OK(ccl_send(&value, 1, CCL_INT64, next, comm, nullptr));
      CHECK_OK(ccl_recv(&value, 1, CCL_INT64, previous, comm, nullptr));
      EXPECT_EQ(value, rank == 0 ? i + 2 : i + rank - 1);
      ++value;
      if (rank != 0) CHECK_OK(ccl_send(&value, 1, CCL_INT64, next, comm, nullptr));
    }
  });
}

TEST(SendRecvTest, CollectivesAndMessagesMix) {
  RunThreads(3, [](int rank, ccl_comm_t comm) {
    for (int i = 0; i < 50; ++i) {
      float sum = static_cast<float>(rank), got = -1, mine = static_cast<float>(10 * i + rank);
      CHECK_OK(ccl_group_start());
      CHECK_OK(ccl_allreduce(&sum, &sum, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr));
      CHECK_OK(ccl_send(&mine, 1, CCL_FLOAT32, (rank + 1) % 3, comm, nullptr));
      CHECK_OK(ccl_recv(&got, 1, CCL_FLOAT32, (rank + 2) % 3, comm, nullptr));
      CHECK_OK(ccl_group_end());
      EXPECT_EQ(sum, 3);
      EXPECT_EQ(got, static_cast<float>(10 * i + (rank + 2) % 3));
    }
  });
}

TEST(SendRecvTest, DifferentCountsAreAnErrorOnBothSides) {
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    std::vector<float> data(100, 1.0f);
    ccl_result_t result = CCL_SUCCESS;
    if (rank == 0) {
      result = ccl_send(data.data(), 100, CCL_FLOAT32, 1, comm, nullptr);
      // The message may have been taken before it was looked at; then a later call tells.
      for (int i = 0; i < 100 && result == CCL_SUCCESS; ++i) {
        result = ccl_recv(data.data(), 1, CCL_FLOAT32, 1, comm, nullptr);
      }
    } else {
      result = ccl_recv(data.data(), 50, CCL_FLOAT32, 0, comm, nullptr);
    }
    EXPECT_EQ(result, CCL_INVALID_USAGE);
    const std::string text = ccl_get_last_error(comm);
    EXPECT_NE(text.find("receives 50 float32"), std::string::npos) << text;
    EXPECT_NE(text.find("sends 100 float32"), std::string::npos) << text;
  });
}

TEST(SendRecvTest, DifferentTypesAreAnError) {
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    std::vector<float> data(10, 1.0f);
    if (rank == 0) {
      (void)ccl_send(data.data(), 10, CCL_FLOAT32, 1, comm, nullptr);
      return;
    }
    EXPECT_EQ(ccl_recv(data.data(), 10, CCL_INT32, 0, comm, nullptr), CCL_INVALID_USAGE);
    EXPECT_NE(std::string(ccl_get_last_error(comm)).find("int32"), std::string::npos);
  });
}

TEST(SendRecvTest, BadArgumentsAreNamed) {
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    float value = 0;
    const auto expect = [&](ccl_result_t result, const char* name) {
      EXPECT_EQ(result, CCL_INVALID_ARGUMENT);
      EXPECT_NE(std::string(ccl_get_last_error(nullptr)).find(name), std::string::npos)
          << ccl_get_last_error(nullptr);
    };
    expect(ccl_send(&value, 1, CCL_FLOAT32, 2, comm, nullptr), "peer: 2");
    expect(ccl_recv(&value, 1, CCL_FLOAT32, -1, comm, nullptr), "peer: -1");
    expect(ccl_send(&value, 1, CCL_FLOAT32, rank, comm, nullptr), "itself");
    expect(ccl_send(nullptr, 1, CCL_FLOAT32, 1 - rank, comm, nullptr), "send: NULL");
    expect(ccl_recv(nullptr, 1, CCL_FLOAT32, 1 - rank, comm, nullptr), "recv: NULL");
    expect(ccl_send(&value, SIZE_MAX, CCL_FLOAT32, 1 - rank, comm, nullptr), "count");
    expect(ccl_send(&value, 1, static_cast<ccl_datatype_t>(99), 1 - rank, comm, nullptr), "type");
    ccl_result_t sticky = CCL_INTERNAL_ERROR;
    CHECK_OK(ccl_comm_get_async_error(comm, &sticky));
    EXPECT_EQ(sticky, CCL_SUCCESS);
  });
}

TEST(SendRecvTest, SendToSelfWithoutReceiveIsAnError) {
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    if (rank != 0) return;
    float value = 0;
    CHECK_OK(ccl_group_start());
    CHECK_OK(ccl_send(&value, 1, CCL_FLOAT32, 0, comm, nullptr));
    EXPECT_EQ(ccl_group_end(), CCL_INVALID_USAGE);
    EXPECT_NE(std::string(ccl_get_last_error(comm)).find("itself"), std::string::npos);
  });
}

TEST(SendRecvTest, ReceiveWithoutSendNamesThePeerInTime) {
  const ScopedEnv limit{{"INCCL_OP_TIMEOUT_MS", "300"}};
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    if (rank != 0) {
      // Alive, but elsewhere.
      for (int i = 0; i < 500; ++i) {
        ccl_result_t error = CCL_SUCCESS;
        CHECK_OK(ccl_comm_get_async_error(comm, &error));
        if (error != CCL_SUCCESS) return;
        usleep(10000);
      }
      FAIL() << "the other rank's error did not arrive";
    }
    float value = 0;
    EXPECT_EQ(ccl_recv(&value, 1, CCL_FLOAT32, 1, comm, nullptr), CCL_TIMEOUT);
    const std::string text = ccl_get_last_error(comm);
    EXPECT_NE(text.find("recv(count=1, float32, peer=1)"), std::string::npos) << text;
    EXPECT_NE(text.find("peer 1@"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace inccl::test
