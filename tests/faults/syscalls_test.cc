// SPDX-License-Identifier: Apache-2.0
//
// The n-th call of a function of the system fails, for every n in the creation of a communicator
// and a few operations: the result is success or a clean error, for the rank itself and for its
// peer; nothing hangs, dies or is left behind. Interruptions and single bytes are no error at all.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include "base/rng.h"
#include "control/loop.h"
#include "control/status_socket.h"
#include "faults/fault_test.h"
#include "faults/interposer.h"
#include "support/seed.h"
#include "support/tcp_ends.h"
#include "world/baseline.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 2, kCalls = 2;
const double kShortInit = 0.4 * Slowness();
// With INCCL_TEST_EXHAUSTIVE set: every n; else at most so many of each function, at random.
// INCCL_TEST_CASE: only cases whose description contains this; INCCL_TEST_TRACE: where they hit.
constexpr size_t kMostPerFunction = kSanitized ? 3 : 16;
constexpr size_t kMostElsewhere = 2;  // over other transports than shared memory

struct Case {
  int victim = 0;
  interposer::Plan plan;
  bool harmless = false;  // must not show
};

std::string Describe(const Case& c) {
  return fmt::format("rank {}: {} {} to {}: errno {}", c.victim, Name(c.plan.function),
                     c.plan.first, c.plan.last, c.plan.error);
}

// Joins and makes a few calls, up to the first error.
int Body(const Side& side, const Case* c) {
  // Calls that must succeed have as long as a busy machine needs.
  if (c == nullptr || c->harmless) setenv("INCCL_INIT_TIMEOUT_MS", "60000", 1);
  const size_t threads = Holdings::Now().threads;
  const ccl_unique_id_t id = side.Id();
  Report& mine = side.mine();
  std::vector<float> data(3000, 1.0f), sum(3000);
  if (c == nullptr || side.rank() == c->victim) {
    interposer::Arm(c == nullptr ? interposer::Plan{} : c->plan);
  }
  const double start = Seconds();
  ccl_comm_t comm = nullptr;
  ccl_result_t result = ccl_comm_init_rank(&comm, kRanks, id, side.rank());
  mine.stage = result == CCL_SUCCESS ? 1 : 0;
  for (int i = 0; i < 2 * kCalls && result == CCL_SUCCESS; ++i) {
    result = i % 2 == 0 ? ccl_allreduce(data.data(), sum.data(), data.size(), CCL_FLOAT32, CCL_SUM,
                                        comm, nullptr)
                        : ccl_allreduce_compressed(data.data(), sum.data(), data.size(),
                                                   CCL_FLOAT32, CCL_SUM, nullptr, comm, nullptr);
    if (result != CCL_SUCCESS) break;
    ++mine.calls;
    for (const float x : sum) {
      if (x != 2.0f) return 13;
    }
  }
  mine.seconds = Seconds() - start;
  mine.result = result;
  const ccl_result_t destroyed = comm == nullptr ? CCL_SUCCESS : ccl_comm_destroy(comm);
  for (int i = 0; i < interposer::kFunctions; ++i) {
    mine.counters[i] = interposer::Calls(static_cast<interposer::Function>(i));
  }
  interposer::Disarm();
  if (result != CCL_SUCCESS) mine.SetText(ccl_get_last_error(nullptr));
  // A rendezvous to which no rank ever came would wait for ever. On a busy machine the limit may
  // pass before this rank comes.
  for (int i = 0; i < 5 && side.rank() == 0 && mine.stage == 0; ++i) {
    if (i > 0 && Holdings::Now().threads <= threads) break;
    ccl_comm_t again = nullptr;
    if (ccl_comm_init_rank(&again, kRanks, id, 0) == CCL_SUCCESS) ccl_comm_destroy(again);
  }
  return destroyed == CCL_SUCCESS ? 0 : 12;
}

constexpr int kGrown = 3, kJoiner = 2;
constexpr size_t kMostGrowths = kSanitized ? 40 : 120;  // at random

// Two ranks grow by one, and sum in the larger communicator. Stage 1: an id is there.
int GrowBody(const Side& side, const Case* c) {
  const int rank = side.rank();
  Report& mine = side.mine();
  ccl_comm_t comm = nullptr, larger = nullptr;
  if (rank != kJoiner) {
    ccl_config_t patient = CCL_CONFIG_INIT;
    patient.init_timeout_ms = 60000;
    if (ccl_comm_init_rank_config(&comm, kRanks, side.Id(), rank, &patient) != CCL_SUCCESS) {
      return 11;
    }
    if (rank == 0) {
      if (ccl_comm_get_unique_id(comm, &mine.id) != CCL_SUCCESS) return 12;
      mine.stage = 1;
    }
  }
  if (!side.Await(0, 1)) return 13;
  const ccl_unique_id_t id = side.of(0).id;
  ccl_config_t limited = CCL_CONFIG_INIT;
  if (c == nullptr) limited.init_timeout_ms = 60000;
  if (c == nullptr || rank == c->victim) {
    interposer::Arm(c == nullptr ? interposer::Plan{} : c->plan);
  }
  const double start = Seconds();
  mine.result = ccl_comm_grow(comm, kGrown, rank == 0 || rank == kJoiner ? &id : nullptr,
                              rank == kJoiner ? kJoiner : -1, &larger, &limited);
  mine.seconds = Seconds() - start;
  for (int i = 0; i < interposer::kFunctions; ++i) {
    mine.counters[i] = interposer::Calls(static_cast<interposer::Function>(i));
  }
  interposer::Disarm();
  if (mine.result != CCL_SUCCESS) mine.SetText(ccl_get_last_error(nullptr));
  float x = 1;
  if (mine.result == CCL_SUCCESS &&
      ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, larger, nullptr) == CCL_SUCCESS) {
    if (x != kGrown) return 18;
    mine.calls = 1;
  }
  // The old communicator works, or has failed on all members; who joins may have died.
  x = 1;
  const ccl_result_t after =
      comm == nullptr ? CCL_SUCCESS : ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr);
  if (comm != nullptr && after == CCL_SUCCESS && x != kRanks) return 14;
  if (c != nullptr && c->victim == kJoiner && after != CCL_SUCCESS) return 15;
  if (ccl_comm_destroy(larger) != CCL_SUCCESS) return 16;
  return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 17;
}

int ErrorOf(interposer::Function function) {
  switch (function) {
    case interposer::kSocket:
    case interposer::kAccept:
    case interposer::kEpollCreate:
    case interposer::kEventfd:
    case interposer::kOpen: return EMFILE;
    case interposer::kFallocate:
    case interposer::kFtruncate: return ENOSPC;
    case interposer::kConnect:
    case interposer::kSend:
    case interposer::kRecv:
    case interposer::kSendmsg:
    case interposer::kRecvmsg: return ECONNRESET;
    case interposer::kPthreadCreate: return EAGAIN;
    case interposer::kBind: return EADDRINUSE;
    case interposer::kGetrandom: return ENOSYS;
    case interposer::kRead: return EIO;
    default: return ENOMEM;
  }
}

bool CanBeInterrupted(interposer::Function function) {
  using namespace interposer;  // NOLINT(google-build-using-namespace)
  return function == kPoll || function == kSend || function == kRecv || function == kSendmsg ||
         function == kRecvmsg || function == kAccept || function == kEpollWait ||
         function == kFallocate || function == kFtruncate || function == kRead ||
         function == kGetrandom;
}

// What cannot be promised: without memory, or a thread of its own, UCX fails an assertion of its
// own, and the loader of its libraries ends the process. What this library allocates is covered by
// new, and its threads by the other transports.
bool MayEndTheProcess(const std::string& transport, interposer::Function function) {
  return transport == "ucx" &&
         (function == interposer::kMalloc || function == interposer::kPthreadCreate);
}

using RankBody = int (*)(const Side& side, const Case* c);

std::vector<Case> Cases(const std::string& transport, int nranks, RankBody body) {
  ProcessWorld world({.nranks = nranks}, [=](const Side& side) { return body(side, nullptr); });
  world.ExpectAllExited();
  Rng rng(TestSeed());
  const bool all = std::getenv("INCCL_TEST_EXHAUSTIVE") != nullptr;
  const size_t most = transport == "shm" ? kMostPerFunction : kMostElsewhere;
  std::vector<Case> cases;
  for (int victim = 0; victim < nranks; ++victim) {
    EXPECT_EQ(world.report(victim).result, CCL_SUCCESS) << world.report(victim).text;
    for (int i = 0; i < interposer::kFunctions; ++i) {
      const auto function = static_cast<interposer::Function>(i);
      if (MayEndTheProcess(transport, function)) continue;
      const uint64_t calls = world.report(victim).counters[i];
      std::vector<uint64_t> chosen;
      for (uint64_t n = 1; n <= calls; ++n) chosen.push_back(n);
      for (size_t k = 0; k < chosen.size(); ++k) {
        std::swap(chosen[k], chosen[k + rng.Below(chosen.size() - k)]);
      }
      if (!all && chosen.size() > most) chosen.resize(most);
      for (const uint64_t n : chosen) {
        cases.push_back({victim, {function, n, n, ErrorOf(function)}, false});
      }
      if (chosen.empty()) continue;
      // From some call on, for ever; and interruptions, which are no failures.
      cases.push_back({victim, {function, chosen[0], UINT64_MAX, ErrorOf(function)}, false});
      if (!CanBeInterrupted(function)) continue;
      cases.push_back({victim, {function, 1, 3, EINTR}, true});
      cases.push_back({victim, {function, chosen[0], chosen[0] + 2, EINTR}, true});
    }
    cases.push_back({victim, {interposer::kSend, 1, UINT64_MAX, 0}, true});
    cases.push_back({victim, {interposer::kRecv, 1, UINT64_MAX, 0}, true});
    cases.push_back({victim, {interposer::kSend, 1, 5, EAGAIN}, true});
    cases.push_back({victim, {interposer::kRecv, 1, 5, EAGAIN}, true});
  }
  if (const char* only = std::getenv("INCCL_TEST_CASE"); only != nullptr) {
    std::erase_if(cases,
                  [&](const Case& c) { return Describe(c).find(only) == std::string::npos; });
  }
  return cases;
}

void Check(const Case& c, int nranks, ProcessWorld& world) {
  SCOPED_TRACE(Describe(c));
  world.ExpectAllExited();
  for (int rank = 0; rank < nranks; ++rank) {
    Report& report = world.report(rank);
    const int result = report.result;
    const std::string text = report.text;
    if (c.harmless) {
      EXPECT_EQ(result, CCL_SUCCESS) << "rank " << rank << ": " << text;
      continue;
    }
    // libibverbs leaves out a device for which it cannot allocate or read something.
    const bool no_device = result == CCL_INVALID_USAGE &&
                           Matches(text,
                                   "no common transport of INCCL_TRANSPORT=verbs.*: on rank "
                                   "[01]: .*no RDMA device");
    // The settings of the victim's growth could not be read, which concerns no other rank; its next
    // call is another one.
    const bool went_on =
        nranks == kGrown && result == CCL_INVALID_USAGE &&
        Matches(text, "ranks disagree at op 1: .*(allreduce.*grow|grow.*allreduce)");
    EXPECT_TRUE(result == CCL_SUCCESS || result == CCL_SYSTEM_ERROR || result == CCL_REMOTE_ERROR ||
                result == CCL_TIMEOUT || no_device || went_on)
        << "rank " << rank << ": result " << result << ": " << text;
    EXPECT_TRUE(result == CCL_SUCCESS || text.size() > 10) << "rank " << rank;
    EXPECT_LT(report.seconds, 2 * kShortInit + kOpSeconds + SlackSeconds()) << text;
  }
}

class SyscallsTest : public TransportFaultTest {
 protected:
  SyscallsTest() : TransportFaultTest(kShortLimits) {}

 private:
  const std::string init_ = std::to_string(static_cast<int>(kShortInit * 1000));
  const ScopedEnv short_{{{"INCCL_INIT_TIMEOUT_MS", init_.c_str()}}};
};

TEST_P(SyscallsTest, Row19_EveryCallOfTheSystemFailsOnce) {
  ForRow("19");
  const std::vector<Case> cases = Cases(GetParam(), kRanks, Body);
  RecordProperty("cases", static_cast<int>(cases.size()));
  std::printf("%zu cases\n", cases.size());
  RunWorlds(
      cases.size(), WorldsAtOnce(12),
      [&](size_t i) {
        return std::make_unique<ProcessWorld>(
            WorldOptions{.nranks = kRanks},
            [&](const Side& side) { return Body(side, &cases[i]); });
      },
      [&](size_t i, ProcessWorld& world) { Check(cases[i], kRanks, world); });
}
// What a process lacks while it grows or joins costs an error; no process ends. All members get the
// larger communicator, or those that do find it aborted: the last message may be what is lost.
TEST_P(SyscallsTest, Row19_EveryCallOfTheSystemFailsInAGrowth) {
  ForRow("19");
  std::vector<Case> cases = Cases(GetParam(), kGrown, GrowBody);
  std::erase_if(cases, [](const Case& c) { return c.harmless; });
  if (std::getenv("INCCL_TEST_EXHAUSTIVE") == nullptr) {
    Rng rng(TestSeed());
    for (size_t i = cases.size() - 1; i > 0; --i) std::swap(cases[i], cases[rng.Below(i + 1)]);
    cases.resize(
        std::min(cases.size(), std::string(GetParam()) == "shm" ? kMostGrowths : kMostGrowths / 2));
  }
  RunWorlds(
      cases.size(), WorldsAtOnce(12),
      [&](size_t i) {
        return std::make_unique<ProcessWorld>(
            WorldOptions{.nranks = kGrown},
            [&](const Side& side) { return GrowBody(side, &cases[i]); });
      },
      [&](size_t i, ProcessWorld& world) {
        SCOPED_TRACE(Describe(cases[i]));
        Check(cases[i], kGrown, world);
        for (const auto& [with, without] : {std::pair(0, 1), std::pair(1, 0)}) {
          if (world.report(without).result == CCL_SUCCESS) continue;
          EXPECT_EQ(world.report(with).calls, 0u) << world.report(without).text;
        }
      });
}
INSTANTIATE_OVER_TRANSPORTS(SyscallsTest);

class FirstUseTest : public FaultTest {};

// A creation that fails destroys what it has made, some of which it never used, without memory.
TEST_F(FirstUseTest, Row19_EndingWhatNeverBeganNeedsNoMemory) {
  ForRow("19", "shm");
  struct Idle : control::Member {
    void OnEvents(uint32_t /*tag*/, uint32_t /*events*/) override {}
    void OnWake() override {}
    Time OnTime(Time now, Time /*late*/) override { return now + kSecond; }
  };
  ProcessWorld world({.nranks = 2}, [](const Side& side) {
    uint64_t member = 0;
    if (side.rank() == 1) member = control::Loop::Get().Join(std::make_shared<Idle>()).value();
    interposer::Arm({interposer::kNew, 1, UINT64_MAX, ENOMEM});
    WithdrawStatus(nullptr);
    interposer::Disarm();
    if (member != 0) control::Loop::Get().Leave(member);
    return 0;
  });
  world.ExpectAllExited();
}

// Data connections that are made at first use: readiness that a poll which fails does not see is
// not forgotten.
TEST_F(FirstUseTest, Row19_PollsThatFailDelayNoConnection) {
  ForRow("19", "tcp");
  constexpr uint64_t kFailures = 40;     // each forgotten one would cost seconds
  constexpr Time kLimit = 20 * kSecond;  // only a hang gets there
  const LaneSpec spec = {.producer = 0, .consumers = {1}, .slot_bytes = 4096, .depth = 2};
  for (const int error : {EINTR, ENOMEM}) {
    for (uint64_t first = 1; first <= 8; ++first) {
      SCOPED_TRACE(fmt::format("errno {} from poll {} on", error, first));
      const TcpEnds world = MakeTcpOnDemand(2, tcp::Protection::kAuth, 1);
      const auto send = world.ends[0]->OpenSend(spec).value();
      const auto recv = world.ends[1]->OpenRecv(spec).value();
      interposer::Arm({interposer::kPoll, first, first + kFailures - 1, error});
      const Time limit = SystemClock().Now() + kLimit;
      while ((world.ends[0]->unsent() || world.ends[1]->unsent()) && SystemClock().Now() < limit) {
        for (const auto& end : world.ends) EXPECT_TRUE(end->Progress(SystemClock().Now()).ok());
      }
      interposer::Disarm();
      ASSERT_LT(SystemClock().Now(), limit);
    }
  }
}

}  // namespace
}  // namespace inccl::test
