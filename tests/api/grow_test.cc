// SPDX-License-Identifier: Apache-2.0
//
// Growth: processes join the members of a communicator, at the end or in the places of the dead,
// and what goes wrong harms the new communicator alone.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "api/check.h"
#include "api/world.h"

namespace inccl::test {
namespace {

// All ranks of `comm` sum 2^place: who is in it.
uint64_t Members(ccl_comm_t comm, int place) {
  uint64_t bits = uint64_t{1} << place;
  EXPECT_EQ(ccl_allreduce(&bits, &bits, 1, CCL_UINT64, CCL_SUM, comm, nullptr), CCL_SUCCESS)
      << ccl_get_last_error(comm);
  return bits;
}

int RankOf(ccl_comm_t comm) {
  int rank = -1;
  EXPECT_EQ(ccl_comm_user_rank(comm, &rank), CCL_SUCCESS);
  return rank;
}

ccl_config_t Within(int init_timeout_ms) {
  ccl_config_t config = CCL_CONFIG_INIT;
  config.init_timeout_ms = init_timeout_ms;
  return config;
}

// Runs `members` processes that have a communicator and `joiners` that have none, with the rank
// that they are to take; a test fails if an expectation of one of them does.
void RunMembersAndJoiners(int members, int joiners,
                          const std::function<void(const Side& side, ccl_comm_t comm)>& member,
                          const std::function<void(const Side& side)>& joiner) {
  ProcessWorld world({.nranks = members + joiners}, [&](const Side& side) {
    if (side.rank() >= members) {
      joiner(side);
      return 0;
    }
    ccl_comm_t comm = nullptr;
    if (ccl_comm_init_rank(&comm, members, side.Id(), side.rank()) != CCL_SUCCESS) return 1;
    member(side, comm);
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 2;
  });
  world.ExpectAllExited();
}

// A member makes an id for those who wait for its stage to become 1.
ccl_unique_id_t Invite(const Side& side, ccl_comm_t comm) {
  EXPECT_EQ(ccl_comm_get_unique_id(comm, &side.mine().id), CCL_SUCCESS);
  side.mine().stage = 1;
  return side.mine().id;
}

ccl_unique_id_t InvitationOf(const Side& side, int member) {
  EXPECT_TRUE(side.Await(member, 1));
  return side.of(member).id;
}

// Takes this process's rank among `nranks`, by the id that the member `inviter` makes.
void Join(const Side& side, int inviter, int nranks) {
  const ccl_unique_id_t id = InvitationOf(side, inviter);
  ccl_comm_t comm = nullptr;
  CHECK_OK(ccl_comm_grow(nullptr, nranks, &id, side.rank(), &comm, nullptr));
  EXPECT_EQ(RankOf(comm), side.rank());
  EXPECT_EQ(Members(comm, side.rank()), (uint64_t{1} << nranks) - 1);
  CHECK_OK(ccl_comm_destroy(comm));
}

TEST(GrowTest, MembersKeepTheirRanksAndTheirCommunicator) {
  for (const char* transport : TransportSelections()) {
    SCOPED_TRACE(transport);
    const ScopedEnv env({{"INCCL_TRANSPORT", transport}});
    RunMembersAndJoiners(
        3, 2,
        [&](const Side& side, ccl_comm_t comm) {
          EXPECT_EQ(Members(comm, side.rank()), 0b111u);
          const bool invites = side.rank() == 1;
          const ccl_unique_id_t id = invites ? Invite(side, comm) : ccl_unique_id_t{};
          ccl_comm_t larger = nullptr;
          CHECK_OK(ccl_comm_grow(comm, 5, invites ? &id : nullptr, -1, &larger, nullptr));
          EXPECT_EQ(RankOf(larger), side.rank());
          EXPECT_EQ(Members(larger, side.rank()), 0b11111u);
          EXPECT_EQ(Members(comm, side.rank()), 0b111u);
          uint64_t completed = 0;
          CHECK_OK(ccl_comm_last_completed(larger, &completed));
          EXPECT_EQ(completed, 1u);
          CHECK_OK(ccl_comm_destroy(larger));
        },
        [&](const Side& side) { Join(side, 1, 5); });
  }
}

// One thread has two members and a rank that joins.
TEST(GrowTest, InAGroup) {
  ccl_comm_t members[2] = {}, grown[3] = {};
  CHECK_OK(ccl_comm_init_all(members, 2, nullptr));
  ccl_unique_id_t id{};
  CHECK_OK(ccl_comm_get_unique_id(members[0], &id));
  CHECK_OK(ccl_group_start());
  CHECK_OK(ccl_comm_grow(members[0], 3, &id, -1, &grown[0], nullptr));
  CHECK_OK(ccl_comm_grow(members[1], 3, nullptr, -1, &grown[1], nullptr));
  CHECK_OK(ccl_comm_grow(nullptr, 3, &id, 2, &grown[2], nullptr));
  EXPECT_EQ(grown[0], nullptr);
  CHECK_OK(ccl_group_end());
  uint64_t bits[3] = {1, 2, 4};
  CHECK_OK(ccl_group_start());
  for (int r = 0; r < 3; ++r) {
    CHECK_OK(ccl_allreduce(&bits[r], &bits[r], 1, CCL_UINT64, CCL_SUM, grown[r], nullptr));
  }
  CHECK_OK(ccl_group_end());
  for (const uint64_t sum : bits) EXPECT_EQ(sum, 7u);
  for (ccl_comm_t comm : members) CHECK_OK(ccl_comm_destroy(comm));
  for (ccl_comm_t comm : grown) CHECK_OK(ccl_comm_destroy(comm));
}

TEST(GrowTest, WithoutBlocking) {
  const auto finish = [](ccl_comm_t comm, int rank, ccl_result_t begun) {
    EXPECT_EQ(begun, CCL_IN_PROGRESS);
    ccl_result_t state = CCL_IN_PROGRESS;
    while (state == CCL_IN_PROGRESS) {
      CHECK_OK(ccl_comm_get_async_error(comm, &state));
      usleep(500);
    }
    EXPECT_EQ(state, CCL_SUCCESS);
    EXPECT_EQ(Members(comm, rank), 0b111u);
    CHECK_OK(ccl_comm_destroy(comm));
  };
  ccl_config_t config = CCL_CONFIG_INIT;
  config.blocking = 0;
  RunMembersAndJoiners(
      2, 1,
      [&](const Side& side, ccl_comm_t comm) {
        const bool invites = side.rank() == 0;
        const ccl_unique_id_t id = invites ? Invite(side, comm) : ccl_unique_id_t{};
        ccl_comm_t larger = nullptr;
        const ccl_result_t begun =
            ccl_comm_grow(comm, 3, invites ? &id : nullptr, -1, &larger, &config);
        finish(larger, side.rank(), begun);
      },
      [&](const Side& side) {
        const ccl_unique_id_t id = InvitationOf(side, 0);
        ccl_comm_t comm = nullptr;
        const ccl_result_t begun = ccl_comm_grow(nullptr, 3, &id, side.rank(), &comm, &config);
        finish(comm, side.rank(), begun);
      });
}

// Four ranks, of which rank 1 dies; another process takes its place, and numbers stay.
TEST(GrowTest, AJoinerTakesThePlaceOfTheDead) {
  ProcessWorld world({.nranks = 5}, [&](const Side& side) {
    ccl_comm_t comm = nullptr, smaller = nullptr, whole = nullptr;
    if (side.rank() == 4) {
      const ccl_unique_id_t id = InvitationOf(side, 0);
      EXPECT_EQ(ccl_comm_grow(nullptr, 4, &id, 1, &whole, nullptr), CCL_SUCCESS);
    } else {
      EXPECT_EQ(ccl_comm_init_rank(&comm, 4, side.Id(), side.rank()), CCL_SUCCESS);
      if (side.rank() == 1) raise(SIGKILL);
      EXPECT_EQ(ccl_comm_shrink(comm, nullptr, 0, &smaller, nullptr, CCL_SHRINK_ABORT),
                CCL_SUCCESS);
      const bool invites = RankOf(smaller) == 0;
      const ccl_unique_id_t id = invites ? Invite(side, smaller) : ccl_unique_id_t{};
      EXPECT_EQ(ccl_comm_grow(smaller, 4, invites ? &id : nullptr, side.rank(), &whole, nullptr),
                CCL_SUCCESS)
          << ccl_get_last_error(nullptr);
    }
    EXPECT_EQ(RankOf(whole), side.rank() == 4 ? 1 : side.rank());
    EXPECT_EQ(Members(whole, side.rank()), 0b11101u);
    for (ccl_comm_t each : {comm, smaller, whole}) {
      EXPECT_EQ(ccl_comm_destroy(each), CCL_SUCCESS);
    }
    return 0;
  });
  world.ExpectAllExited({1});
}

// The error names the rank that has not come; the members go on, and grow later.
TEST(GrowTest, AJoinerThatDoesNotComeIsNamed) {
  RunMembersAndJoiners(
      3, 1,
      [&](const Side& side, ccl_comm_t comm) {
        const bool invites = side.rank() == 0;
        ccl_unique_id_t id{};
        if (invites) CHECK_OK(ccl_comm_get_unique_id(comm, &id));
        const ccl_config_t soon = Within(500);
        ccl_comm_t larger = nullptr;
        EXPECT_EQ(ccl_comm_grow(comm, 4, invites ? &id : nullptr, -1, &larger, &soon), CCL_TIMEOUT);
        EXPECT_EQ(larger, nullptr);
        const std::string text = ccl_get_last_error(nullptr);
        EXPECT_NE(text.find("rank 3 of 4 did not arrive"), std::string::npos) << text;
        EXPECT_EQ(Members(comm, side.rank()), 0b111u);
        if (invites) id = Invite(side, comm);
        CHECK_OK(ccl_comm_grow(comm, 4, invites ? &id : nullptr, -1, &larger, nullptr));
        EXPECT_EQ(Members(larger, side.rank()), 0b1111u);
        CHECK_OK(ccl_comm_destroy(larger));
      },
      [&](const Side& side) { Join(side, 0, 4); });
}

// A process that asks for a member's rank is refused, also if it comes before the member; the
// others go on waiting for the one that fits.
TEST(GrowTest, AJoinerCannotTakeTheRankOfAMember) {
  for (const bool first : {true, false}) {
    SCOPED_TRACE(first ? "before the members" : "after the members");
    RunMembersAndJoiners(
        3, 2,
        [&](const Side& side, ccl_comm_t comm) {
          const bool invites = side.rank() == 2;
          const ccl_unique_id_t id = invites ? Invite(side, comm) : ccl_unique_id_t{};
          if (first) usleep(200000);
          ccl_comm_t larger = nullptr;
          CHECK_OK(ccl_comm_grow(comm, 4, invites ? &id : nullptr, -1, &larger, nullptr));
          EXPECT_EQ(Members(larger, side.rank()), 0b1111u);
          EXPECT_EQ(Members(comm, side.rank()), 0b111u);
          CHECK_OK(ccl_comm_destroy(larger));
        },
        [&](const Side& side) {
          const ccl_unique_id_t id = InvitationOf(side, 2);
          if (!first) usleep(100000);
          ccl_comm_t comm = nullptr;
          if (side.rank() == 3) {
            EXPECT_EQ(ccl_comm_grow(nullptr, 4, &id, 1, &comm, nullptr), CCL_INVALID_USAGE);
            const std::string text = ccl_get_last_error(nullptr);
            EXPECT_NE(text.find("rank 1 is claimed twice"), std::string::npos) << text;
            side.mine().stage = 1;
            return;
          }
          // If it came first, all ranks are taken for a while, but not by members.
          if (!first) {
            EXPECT_TRUE(side.Await(3, 1));
          }
          CHECK_OK(ccl_comm_grow(nullptr, 4, &id, 3, &comm, nullptr));
          EXPECT_EQ(Members(comm, 3), 0b1111u);
          CHECK_OK(ccl_comm_destroy(comm));
        });
  }
}

// Of another number of ranks all learn at once, and the members go on.
TEST(GrowTest, AJoinerWithAnotherNumberOfRanksIsNamed) {
  RunMembersAndJoiners(
      3, 1,
      [&](const Side& side, ccl_comm_t comm) {
        const bool invites = side.rank() == 2;
        const ccl_unique_id_t id = invites ? Invite(side, comm) : ccl_unique_id_t{};
        ccl_comm_t larger = nullptr;
        EXPECT_EQ(ccl_comm_grow(comm, 4, invites ? &id : nullptr, -1, &larger, nullptr),
                  CCL_INVALID_USAGE);
        const std::string text = ccl_get_last_error(nullptr);
        EXPECT_NE(text.find("says 4, rank 3@"), std::string::npos) << text;
        EXPECT_EQ(Members(comm, side.rank()), 0b111u);
      },
      [&](const Side& side) {
        const ccl_unique_id_t id = InvitationOf(side, 2);
        usleep(200000);
        ccl_comm_t comm = nullptr;
        EXPECT_EQ(ccl_comm_grow(nullptr, 5, &id, 3, &comm, nullptr), CCL_INVALID_USAGE);
      });
}

TEST(GrowTest, MembersThatDisagreeAreNamed) {
  RunThreads(3, [](int rank, ccl_comm_t comm) {
    ccl_unique_id_t id{};
    CHECK_OK(ccl_comm_get_unique_id(comm, &id));
    ccl_comm_t none = nullptr;
    const auto fails = [&](ccl_result_t result, const char* named) {
      EXPECT_EQ(result, CCL_INVALID_USAGE);
      const std::string text = ccl_get_last_error(nullptr);
      EXPECT_NE(text.find(named), std::string::npos) << text;
      EXPECT_EQ(none, nullptr);
      EXPECT_EQ(Members(comm, rank), 0b111u);
    };
    fails(ccl_comm_grow(comm, rank == 2 ? 5 : 4, &id, -1, &none, nullptr),
          "nranks differ: 4 on rank 0, 5 on rank 2");
    fails(ccl_comm_grow(comm, 4, rank == 0 ? nullptr : &id, -1, &none, nullptr),
          "the ids of ranks 1 and 2 differ");
    fails(ccl_comm_grow(comm, 4, nullptr, -1, &none, nullptr), "no member passes an id");
    fails(ccl_comm_grow(comm, 4, rank == 0 ? &id : nullptr, rank == 2 ? 0 : rank, &none, nullptr),
          "ranks 0 and 2 both take rank 0");
  });
}

// Calls on streams come first, also where one rank is still in them and another is not.
TEST(GrowTest, WaitsForStreams) {
  RunMembersAndJoiners(
      3, 1,
      [&](const Side& side, ccl_comm_t comm) {
        const bool invites = side.rank() == 0;
        const ccl_unique_id_t id = invites ? Invite(side, comm) : ccl_unique_id_t{};
        ccl_stream_t stream = nullptr;
        CHECK_OK(ccl_stream_create(&stream));
        std::vector<float> values(1'000'000, 1.0f);
        for (int i = 0; i < 5; ++i) {
          CHECK_OK(ccl_allreduce(values.data(), values.data(), values.size(), CCL_FLOAT32, CCL_SUM,
                                 comm, stream));
        }
        if (side.rank() == 1) CHECK_OK(ccl_stream_synchronize(stream));
        ccl_comm_t larger = nullptr;
        CHECK_OK(ccl_comm_grow(comm, 4, invites ? &id : nullptr, -1, &larger, nullptr));
        EXPECT_EQ(values.back(), 243.0f);
        EXPECT_EQ(Members(larger, side.rank()), 0b1111u);
        CHECK_OK(ccl_stream_destroy(stream));
        CHECK_OK(ccl_comm_destroy(larger));
      },
      [&](const Side& side) { Join(side, 0, 4); });
}

TEST(GrowTest, AnotherCallInItsPlaceIsAnError) {
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    ccl_comm_t part = nullptr;
    const ccl_result_t result = rank == 0 ? ccl_comm_split(comm, 0, 0, &part, nullptr)
                                          : ccl_comm_grow(comm, 3, nullptr, -1, &part, nullptr);
    EXPECT_EQ(result, CCL_INVALID_USAGE);
    const std::string text = ccl_get_last_error(comm);
    EXPECT_NE(text.find("split()"), std::string::npos) << text;
    EXPECT_NE(text.find("grow()"), std::string::npos) << text;
  });
}

TEST(GrowTest, BadArgumentsAreNamed) {
  RunThreads(2, [](int, ccl_comm_t comm) {
    ccl_comm_t none = nullptr;
    ccl_unique_id_t id{}, broken{};
    CHECK_OK(ccl_comm_get_unique_id(comm, &id));
    const auto fails = [&](ccl_result_t result, const char* named) {
      EXPECT_EQ(result, CCL_INVALID_ARGUMENT);
      const std::string text = ccl_get_last_error(nullptr);
      EXPECT_NE(text.find(named), std::string::npos) << text;
    };
    fails(ccl_comm_get_unique_id(comm, nullptr), "id: NULL");
    fails(ccl_comm_grow(nullptr, 3, nullptr, 2, &none, nullptr), "comm and id: both NULL");
    fails(ccl_comm_grow(comm, 3, &id, -1, nullptr, nullptr), "newcomm: NULL");
    fails(ccl_comm_grow(comm, 2, &id, -1, &none, nullptr), "nranks: 2");
    fails(ccl_comm_grow(comm, 3, &id, 3, &none, nullptr), "rank: 3");
    fails(ccl_comm_grow(comm, 3, &id, -2, &none, nullptr), "rank: -2");
    fails(ccl_comm_grow(comm, 3, &broken, -1, &none, nullptr), "id");
    fails(ccl_comm_grow(nullptr, 3, &id, 3, &none, nullptr), "rank: 3");
  });
}

// An id serves until the next one, or the end of the communicator.
TEST(GrowTest, AnIdThatServesNoLongerIsRefused) {
  ccl_comm_t comm = nullptr;
  CHECK_OK(ccl_comm_init_all(&comm, 1, nullptr));
  ccl_unique_id_t first{}, second{};
  CHECK_OK(ccl_comm_get_unique_id(comm, &first));
  CHECK_OK(ccl_comm_get_unique_id(comm, &second));
  CHECK_OK(ccl_comm_destroy(comm));
  for (const ccl_unique_id_t& id : {first, second}) {
    const ccl_config_t limit = Within(20000);
    ccl_comm_t none = nullptr;
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_NE(ccl_comm_grow(nullptr, 2, &id, 1, &none, &limit), CCL_SUCCESS);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15))
        << ccl_get_last_error(nullptr);
  }
}

}  // namespace
}  // namespace inccl::test
