// SPDX-License-Identifier: Apache-2.0
//
// Three ranks grow by one, and a process dies at every fault point that it passes meanwhile: the
// one that joins, the member whose id it has, or another member. After the death of the one that
// joins the members go on as before; after that of a member all learn who it was.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "faults/sweep.h"

namespace inccl::test {
namespace {

constexpr int kMembers = 3, kRanks = 4, kJoiner = 3;
const double kGrowSeconds = 3.0 * kInitSeconds;
constexpr size_t kCasesElsewhere = 16;  // over other transports than shared memory, at random

ccl_result_t Sum(ccl_comm_t comm, float* x) {
  return ccl_allreduce(x, x, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr);
}

// A rank of the larger communicator sums until a death ends that.
void SumUntilAnError(const Side& side, ccl_comm_t larger) {
  ccl_result_t result = CCL_SUCCESS;
  double start = 0;
  const double limit = Seconds() + 20.0 * kSlowness;
  while (result == CCL_SUCCESS && Seconds() < limit) {
    start = Seconds();
    float x = 1;
    result = Sum(larger, &x);
    if (result == CCL_SUCCESS) {
      EXPECT_EQ(x, kRanks);
    }
  }
  side.mine().seconds = Seconds() - start;
  side.mine().result = result;
  side.mine().SetText(ccl_get_last_error(larger));
}

// Stages: 1, an id is there; 2, the communicator has grown. With `c` null nobody dies, and all
// count what they pass.
int Body(const Side& side, const Death* c) {
  const int rank = side.rank();
  ccl_comm_t comm = nullptr, larger = nullptr;
  if (rank < kMembers) {
    ccl_config_t patient = CCL_CONFIG_INIT;
    patient.init_timeout_ms = static_cast<int>(20e3 * Slowness());
    EXPECT_EQ(ccl_comm_init_rank_config(&comm, kMembers, side.Id(), rank, &patient), CCL_SUCCESS)
        << ccl_get_last_error(nullptr);
    if (rank == 0) {
      EXPECT_EQ(ccl_comm_get_unique_id(comm, &side.mine().id), CCL_SUCCESS);
      side.mine().stage = 1;
    }
  }
  EXPECT_TRUE(side.Await(0, 1));
  const ccl_unique_id_t id = side.of(0).id;
  fault::Arm({});
  if (c != nullptr) c->Arm(side);
  ccl_config_t limited = CCL_CONFIG_INIT;
  limited.init_timeout_ms = static_cast<int>(1e3 * kGrowSeconds);
  const double start = Seconds();
  const ccl_result_t grown =
      ccl_comm_grow(comm, kRanks, rank == 0 || rank == kJoiner ? &id : nullptr,
                    rank == kJoiner ? kJoiner : -1, &larger, &limited);
  side.mine().seconds = Seconds() - start;
  side.mine().result = grown;
  side.mine().SetText(grown == CCL_SUCCESS ? "" : ccl_get_last_error(nullptr));
  if (grown == CCL_SUCCESS) side.mine().stage = 2;
  if (c == nullptr) {
    usleep(20000);  // the thread of the rendezvous may still be busy with its last words
    ReportHits(side);
  } else if (grown == CCL_SUCCESS) {
    SumUntilAnError(side, larger);
  }
  fault::Disarm();
  if (c != nullptr && comm != nullptr) {
    float x = 1;
    const ccl_result_t after = Sum(comm, &x);
    if (c->victim == kJoiner) {
      EXPECT_EQ(after, CCL_SUCCESS) << ccl_get_last_error(comm);
      EXPECT_EQ(x, kMembers);
    } else {
      EXPECT_EQ(after, CCL_REMOTE_ERROR) << ccl_get_last_error(comm);
    }
  }
  EXPECT_EQ(ccl_comm_destroy(larger), CCL_SUCCESS);
  EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
  return 0;
}

std::vector<Death> Deaths(const std::string& transport) {
  ProcessWorld world({.nranks = kRanks}, [](const Side& side) { return Body(side, nullptr); });
  world.ExpectAllExited();
  std::vector<Death> deaths =
      DeathsOf(world, {0, 1, kJoiner}, kSanitized ? 1 : 2,
               [](std::string_view point) { return !point.starts_with("destroy."); });
  EXPECT_GT(deaths.size(), 40u);
  if (transport != "shm") KeepAtRandom(kCasesElsewhere, &deaths);
  return deaths;
}

void Check(const Death& c, ProcessWorld& world) {
  SCOPED_TRACE(c.Describe());
  ExpectOneDeath(world, kRanks, c.victim, [&](int rank, const Report& report) {
    const std::string text = report.text;
    const bool joined = report.stage == 2;
    EXPECT_LT(report.seconds, (joined ? kLocalDeathSeconds : kGrowSeconds) + SlackSeconds())
        << text;
    EXPECT_TRUE(report.result == CCL_REMOTE_ERROR || (!joined && report.result == CCL_TIMEOUT))
        << report.result << ": " << text;
    // Where the member has died whose process the ranks meet at, the joiner knows its address
    // alone.
    EXPECT_TRUE(
        Matches(text, fmt::format("(peer|rank) {}@[^ :]+:{}", c.victim, world.pid(c.victim))) ||
        (!joined &&
         Matches(text, fmt::format("ranks? ([0-9]+, )*{}(, [0-9]+)* of 4 did not", c.victim))) ||
        (!joined && rank == kJoiner && Matches(text, "rendezvous at [0-9.]+:[0-9]+")))
        << "rank " << rank << ": " << text << " does not name rank " << c.victim << ", process "
        << world.pid(c.victim);
  });
}

class GrowSweepTest : public TransportFaultTest {
 protected:
  GrowSweepTest() : TransportFaultTest(kShortLimits) {}
};

TEST_P(GrowSweepTest, Row29_AProcessDiesAtEveryPointOfGrowing) {
  ForRow("29");
  Sweep<Death>(
      Deaths(GetParam()), kRanks, WorldsAtOnce(8),
      [](const Side& side, const Death& death) { return Body(side, &death); }, Check);
}

// Four places. In each cycle the process of one of them dies, the others shrink, and another
// process takes the place.
constexpr int kPlaces = 4, kCycles = kSanitized ? 3 : 6;

// Who has which place before and after each cycle.
struct Cycles {
  std::vector<int> owners = {0, 1, 2, 3};  // processes by place
  std::vector<int> dying, victims;         // places and processes by cycle

  explicit Cycles(uint64_t seed) {
    Rng rng(seed);
    std::vector<int> now = owners;
    for (int cycle = 0; cycle < kCycles; ++cycle) {
      dying.push_back(static_cast<int>(rng.Below(kPlaces)));
      int& owner = now[static_cast<size_t>(dying.back())];
      victims.push_back(owner);
      owner = kPlaces + cycle;
    }
  }
};

// Everybody adds a bit for its process.
void ExpectOwners(ccl_comm_t comm, int process, const std::vector<int>& owners) {
  uint64_t bits = uint64_t{1} << process, expected = 0;
  for (const int owner : owners) expected |= uint64_t{1} << owner;
  EXPECT_EQ(ccl_allreduce(&bits, &bits, 1, CCL_UINT64, CCL_SUM, comm, nullptr), CCL_SUCCESS)
      << ccl_get_last_error(comm);
  EXPECT_EQ(bits, expected);
}

int Live(const Side& side, Cycles cycles) {
  const int process = side.rank();
  int place = process;
  ccl_comm_t comm = nullptr;
  if (process < kPlaces) {
    EXPECT_EQ(ccl_comm_init_rank(&comm, kPlaces, side.Id(), place), CCL_SUCCESS);
  }
  for (int cycle = 0; cycle < kCycles && !::testing::Test::HasFailure(); ++cycle) {
    const int dying = cycles.dying[static_cast<size_t>(cycle)];
    const int inviter = cycles.owners[dying == 0 ? 1 : 0];
    if (comm != nullptr) {
      ExpectOwners(comm, process, cycles.owners);
      // A shrink would end the calls of those who are still in them.
      side.mine().calls = static_cast<uint64_t>(cycle) + 1;
      for (const int owner : cycles.owners) {
        while (side.of(owner).calls <= static_cast<uint64_t>(cycle)) usleep(200);
      }
      if (place == dying) raise(SIGKILL);
    }
    cycles.owners[static_cast<size_t>(dying)] = kPlaces + cycle;
    ccl_comm_t whole = nullptr, smaller = nullptr;
    if (comm != nullptr) {
      EXPECT_EQ(ccl_comm_shrink(comm, nullptr, 0, &smaller, nullptr, CCL_SHRINK_ABORT), CCL_SUCCESS)
          << ccl_get_last_error(nullptr);
      if (process == inviter) {
        EXPECT_EQ(ccl_comm_get_unique_id(smaller, &side.mine().id), CCL_SUCCESS);
        side.mine().stage = cycle + 1;
      }
    } else if (process == kPlaces + cycle) {
      place = dying;
      EXPECT_TRUE(side.Await(inviter, cycle + 1));
    } else {
      // Not yet, and after its end no process comes here.
      EXPECT_TRUE(side.Await(inviter, cycle + 1));
      continue;
    }
    const bool invited = process == inviter || smaller == nullptr;
    EXPECT_EQ(ccl_comm_grow(smaller, kPlaces, invited ? &side.of(inviter).id : nullptr, place,
                            &whole, nullptr),
              CCL_SUCCESS)
        << ccl_get_last_error(nullptr);
    if (whole == nullptr) return 1;
    EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
    EXPECT_EQ(ccl_comm_destroy(smaller), CCL_SUCCESS);
    comm = whole;
    int rank = -1;
    EXPECT_EQ(ccl_comm_user_rank(comm, &rank), CCL_SUCCESS);
    EXPECT_EQ(rank, place);
  }
  if (comm != nullptr) ExpectOwners(comm, process, cycles.owners);
  EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
  return 0;
}

TEST_P(GrowSweepTest, Row30_OthersTakeThePlacesOfTheDead) {
  ForRow("30");
  const Cycles cycles(TestSeed());
  ProcessWorld world({.nranks = kPlaces + kCycles},
                     [&](const Side& side) { return Live(side, cycles); });
  world.ExpectAllExited(cycles.victims);
}
INSTANTIATE_OVER_TRANSPORTS(GrowSweepTest);

}  // namespace
}  // namespace inccl::test
