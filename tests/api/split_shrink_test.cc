// SPDX-License-Identifier: Apache-2.0
//
// Communicators of communicators: split as MPI_Comm_split orders ranks, shrink after any number of
// deaths, also while it shrinks.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "api/check.h"
#include "api/world.h"
#include "world/process_world.h"

namespace inccl::test {
namespace {

// All ranks of `comm` sum 2^(world rank): who is in it.
uint64_t Members(ccl_comm_t comm, int world_rank) {
  uint64_t bits = uint64_t{1} << world_rank;
  EXPECT_EQ(ccl_allreduce(&bits, &bits, 1, CCL_UINT64, CCL_SUM, comm, nullptr), CCL_SUCCESS)
      << ccl_get_last_error(comm);
  return bits;
}

// Color and key of world rank r in case c.
std::pair<int, int> Wish(int c, int r) {
  switch (c) {
    case 0: return {0, r};
    case 1: return {r % 2, -r};
    case 2: return {r == 1 ? CCL_SPLIT_NOCOLOR : 7, 3 * r % 4};
    case 3: return {r, 0};
    default: return {CCL_SPLIT_NOCOLOR, 0};
  }
}

void SplitEveryWay(int rank, ccl_comm_t comm) {
  int n = 0;
  CHECK_OK(ccl_comm_count(comm, &n));
  for (int c = 0; c < 5; ++c) {
    const auto [color, key] = Wish(c, rank);
    ccl_comm_t part = reinterpret_cast<ccl_comm_t>(&n);
    CHECK_OK(ccl_comm_split(comm, color, key, &part, nullptr));
    if (color == CCL_SPLIT_NOCOLOR) {
      EXPECT_EQ(part, nullptr);
      continue;
    }
    std::vector<std::pair<int, int>> expected;  // key, rank
    uint64_t members = 0;
    for (int r = 0; r < n; ++r) {
      if (Wish(c, r).first != color) continue;
      expected.emplace_back(Wish(c, r).second, r);
      members |= uint64_t{1} << r;
    }
    std::sort(expected.begin(), expected.end());
    int count = 0, place = -1;
    CHECK_OK(ccl_comm_count(part, &count));
    CHECK_OK(ccl_comm_user_rank(part, &place));
    EXPECT_EQ(static_cast<size_t>(count), expected.size());
    EXPECT_EQ(expected[static_cast<size_t>(place)].second, rank);
    EXPECT_EQ(Members(part, rank), members);
    CHECK_OK(ccl_comm_destroy(part));
  }
  EXPECT_EQ(Members(comm, rank), (uint64_t{1} << n) - 1);  // the parent is as before
}

TEST(SplitTest, Threads) { RunThreads(4, SplitEveryWay); }
TEST(SplitTest, Processes) { RunProcesses(4, SplitEveryWay); }

TEST(SplitTest, AnotherCallInItsPlaceIsAnError) {
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    ccl_comm_t part = nullptr;
    char bytes[64] = {};
    const ccl_result_t result = rank == 0
                                    ? ccl_comm_split(comm, 0, 0, &part, nullptr)
                                    : ccl_allgather(bytes, bytes + 16, 8, CCL_UINT8, comm, nullptr);
    EXPECT_EQ(result, CCL_INVALID_USAGE);
    EXPECT_EQ(part, nullptr);
    const std::string text = ccl_get_last_error(comm);
    EXPECT_NE(text.find("split"), std::string::npos) << text;
    EXPECT_NE(text.find("allgather"), std::string::npos) << text;
  });
}

TEST(SplitTest, BadColorIsNamed) {
  RunThreads(2, [](int, ccl_comm_t comm) {
    ccl_comm_t part = nullptr;
    EXPECT_EQ(ccl_comm_split(comm, -2, 0, &part, nullptr), CCL_INVALID_ARGUMENT);
    EXPECT_NE(std::string(ccl_get_last_error(nullptr)).find("color: -2"), std::string::npos);
  });
}

// Ranks in `dying` are killed once all have completed three operations; the others shrink.
int ShrinkAfterDeaths(const Side& side, uint64_t dying) {
  const int rank = side.rank(), n = side.nranks();
  ccl_comm_t comm = nullptr, smaller = nullptr;
  if (ccl_comm_init_rank(&comm, n, side.Id(), rank) != CCL_SUCCESS) return 10;
  std::vector<float> value(200000, 1.0f);
  ccl_result_t result = CCL_SUCCESS;
  uint64_t operations = 0;
  while (result == CCL_SUCCESS && operations < 1000) {
    if (operations == 3) side.mine().stage = 1;
    if (operations == 3 && (dying >> rank & 1) != 0) {
      for (int other = 0; other < n; ++other) EXPECT_TRUE(side.Await(other, 1));
      raise(SIGKILL);
    }
    std::fill(value.begin(), value.end(), 1.0f);
    result = ccl_allreduce(value.data(), value.data(), value.size(), CCL_FLOAT32, CCL_SUM, comm,
                           nullptr);
    if (result == CCL_SUCCESS) ++operations;
  }
  EXPECT_EQ(result, CCL_REMOTE_ERROR) << ccl_get_last_error(comm);
  EXPECT_EQ(operations, 3u);
  EXPECT_EQ(ccl_comm_shrink(comm, nullptr, 0, &smaller, nullptr, CCL_SHRINK_ABORT), CCL_SUCCESS)
      << ccl_get_last_error(nullptr);
  if (smaller == nullptr) return 11;
  uint64_t last = 99;
  EXPECT_EQ(ccl_comm_last_completed(smaller, &last), CCL_SUCCESS);
  EXPECT_EQ(last, 3u);
  EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
  EXPECT_EQ(Members(smaller, rank), ((uint64_t{1} << n) - 1) & ~dying);
  int place = -1;
  EXPECT_EQ(ccl_comm_user_rank(smaller, &place), CCL_SUCCESS);
  EXPECT_EQ(place, __builtin_popcountll(~dying & ((uint64_t{1} << rank) - 1)));
  EXPECT_EQ(ccl_comm_destroy(smaller), CCL_SUCCESS);
  return 0;
}

class ShrinkTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(ShrinkTest, SurvivorsGoOn) {
  const uint64_t dying = GetParam();
  ProcessWorld world({.nranks = 4},
                     [&](const Side& side) { return ShrinkAfterDeaths(side, dying); });
  std::vector<int> victims;
  for (int rank = 0; rank < 4; ++rank) {
    if ((dying >> rank & 1) != 0) victims.push_back(rank);
  }
  world.ExpectAllExited(victims);
}

INSTANTIATE_TEST_SUITE_P(Deaths, ShrinkTest,
                         ::testing::Values(0b0010, 0b0001, 0b1000, 0b0110, 0b1001, 0b1110, 0b0111));

// A rank that has not called yet dies while the others wait for it.
TEST(ShrinkTest, DeathWhileShrinking) {
  constexpr int kRanks = 4;
  const std::vector<ProcessExit> exits =
      RunRawProcesses(kRanks, 60000, [&](int rank, const ccl_unique_id_t& id) {
        ccl_comm_t comm = nullptr, smaller = nullptr;
        if (ccl_comm_init_rank(&comm, kRanks, id, rank) != CCL_SUCCESS) return 1;
        if (rank == 3) raise(SIGKILL);
        if (rank == 0) {  // the lowest, which would make the new id
          usleep(300000);
          raise(SIGKILL);
        }
        const ccl_result_t result =
            ccl_comm_shrink(comm, nullptr, 0, &smaller, nullptr, CCL_SHRINK_ABORT);
        if (result != CCL_SUCCESS) {
          std::fprintf(stderr, "rank %d: %s\n", rank, ccl_get_last_error(nullptr));
          return 2;
        }
        if (Members(smaller, rank) != 0b0110) return 3;
        (void)ccl_comm_destroy(smaller);
        (void)ccl_comm_destroy(comm);
        return 0;
      });
  EXPECT_EQ(exits[1].status, 0);
  EXPECT_EQ(exits[2].status, 0);
}

// Deaths at times that hit every stage of the agreement.
TEST(ShrinkTest, DeathsAtAnyTimeOfShrinking) {
  constexpr int kRanks = 5;
  const int rounds = kSanitized ? 4 : 12;
  for (int round = 0; round < rounds; ++round) {
    const std::vector<ProcessExit> exits =
        RunRawProcesses(kRanks, 60000, [&](int rank, const ccl_unique_id_t& id) {
          ccl_comm_t comm = nullptr;
          ccl_config_t config = CCL_CONFIG_INIT;
          config.init_timeout_ms = 20000;
          if (ccl_comm_init_rank_config(&comm, kRanks, id, rank, &config) != CCL_SUCCESS) return 1;
          if (rank == 4) raise(SIGKILL);
          if (rank == round % 3) {
            // Dies by a timer, wherever it is then.
            std::thread([round] {
              usleep(static_cast<useconds_t>(300 * round));
              raise(SIGKILL);
            }).detach();
          }
          // A rank that learns of a death after the new communicator stands shrinks that one again.
          for (int attempt = 0; attempt < 4; ++attempt) {
            ccl_comm_t smaller = nullptr;
            const ccl_result_t result =
                ccl_comm_shrink(comm, nullptr, 0, &smaller, nullptr, CCL_SHRINK_ABORT);
            if (result != CCL_SUCCESS) {
              std::fprintf(stderr, "round %d rank %d: %s\n", round, rank,
                           ccl_get_last_error(nullptr));
              return 2;
            }
            (void)ccl_comm_destroy(comm);
            comm = smaller;
            uint32_t ranks = 1;
            // Long enough for the timer to have struck.
            if (attempt == 0) usleep(20000);
            if (ccl_allreduce(&ranks, &ranks, 1, CCL_UINT32, CCL_SUM, comm, nullptr) ==
                CCL_SUCCESS) {
              (void)ccl_comm_destroy(comm);
              return ranks == 3 ? 0 : 3;
            }
          }
          return 4;
        });
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == 4 || rank == round % 3) continue;
      const int status = exits[static_cast<size_t>(rank)].status;
      EXPECT_EQ(status, 0) << "round " << round << " rank " << rank << ": exit "
                           << WEXITSTATUS(status);
    }
  }
}

TEST(ShrinkTest, ExcludesLivingRanks) {
  RunProcesses(4, [](int rank, ccl_comm_t comm) {
    const int excluded[] = {1};
    EXPECT_EQ(Members(comm, rank), 0b1111u);
    if (rank == 1) {
      usleep(100000);
      ccl_comm_t none = nullptr;
      EXPECT_EQ(ccl_comm_shrink(comm, nullptr, 0, &none, nullptr, CCL_SHRINK_DEFAULT),
                CCL_INVALID_USAGE);
      EXPECT_NE(std::string(ccl_get_last_error(nullptr)).find("excluded"), std::string::npos)
          << ccl_get_last_error(nullptr);
      return;
    }
    ccl_comm_t smaller = nullptr, smallest = nullptr;
    CHECK_OK(ccl_comm_shrink(comm, excluded, 1, &smaller, nullptr, CCL_SHRINK_DEFAULT));
    EXPECT_EQ(Members(smaller, rank), 0b1101u);
    // And once more, of the same parent.
    const int more[] = {1, 3};
    if (rank != 3) {
      CHECK_OK(ccl_comm_shrink(comm, more, 2, &smallest, nullptr, CCL_SHRINK_DEFAULT));
      EXPECT_EQ(Members(smallest, rank), 0b0101u);
      CHECK_OK(ccl_comm_destroy(smallest));
    }
    CHECK_OK(ccl_comm_destroy(smaller));
    usleep(300000);  // the excluded rank asks meanwhile
  });
}

TEST(ShrinkTest, RanksThatDoNotComeAreNamed) {
  RunThreads(3, [](int rank, ccl_comm_t comm) {
    if (rank == 2) {
      usleep(600000);
      return;
    }
    ccl_config_t config = CCL_CONFIG_INIT;
    config.init_timeout_ms = 300;
    ccl_comm_t none = nullptr;
    EXPECT_EQ(ccl_comm_shrink(comm, nullptr, 0, &none, &config, CCL_SHRINK_DEFAULT), CCL_TIMEOUT);
    EXPECT_NE(std::string(ccl_get_last_error(nullptr)).find("peer 2@"), std::string::npos)
        << ccl_get_last_error(nullptr);
  });
}

TEST(ShrinkTest, BadArgumentsAreNamed) {
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    ccl_comm_t none = nullptr;
    const int wrong[] = {2}, own[] = {rank};
    EXPECT_EQ(ccl_comm_shrink(comm, wrong, 1, &none, nullptr, 0), CCL_INVALID_ARGUMENT);
    EXPECT_EQ(ccl_comm_shrink(comm, own, 1, &none, nullptr, 0), CCL_INVALID_ARGUMENT);
    EXPECT_EQ(ccl_comm_shrink(comm, nullptr, 1, &none, nullptr, 0), CCL_INVALID_ARGUMENT);
    EXPECT_EQ(ccl_comm_shrink(comm, nullptr, 0, &none, nullptr, 5), CCL_INVALID_ARGUMENT);
    EXPECT_NE(std::string(ccl_get_last_error(nullptr)).find("flags: 5"), std::string::npos);
  });
}

}  // namespace
}  // namespace inccl::test
