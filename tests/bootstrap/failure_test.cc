// SPDX-License-Identifier: Apache-2.0
//
// Joining that cannot succeed: everybody who is there learns why, in time, and nothing is left.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/bootstrap_world.h"
#include "bootstrap/crypto.h"
#include "bootstrap/host.h"
#include "bootstrap/messages.h"
#include "bootstrap/rendezvous_client.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/socket.h"

namespace inccl::test {
namespace {

constexpr Time kMinute = 60 * kSecond;
constexpr double kTolerance = 2.0 * kSlowness;  // beyond a deadline

Launcher TestLauncher(int rank, int nranks, const std::string& name) {
  Launcher launcher;
  launcher.kind = "test";
  launcher.rank = rank;
  launcher.nranks = nranks;
  launcher.job = name + std::to_string(getpid());
  return launcher;
}

// Rank 0 ends its process as soon as it knows that joining has failed.
TEST(FailureTest, RankZeroAnswersLatecomersBeforeItLeaves) {
  const std::string job = "latecomers" + std::to_string(getpid());
  const auto join = [&](int rank, const std::string& agreement) {
    Launcher launcher = TestLauncher(rank, 3, "");
    launcher.job = job;
    JoinOptions options = Options(rank, 3, 4000 * kSlowness);
    options.agreement = agreement;
    return JoinWithLauncher(launcher, 0, options).status().message();
  };
  const auto disagrees = [&](int rank, const std::string& agreement) {
    return join(rank, agreement).find("ranks disagree") == std::string::npos ? 2 : 0;
  };
  Processes processes;
  const pid_t zero = processes.Start([&] { return disagrees(0, "codec=none"); });
  const pid_t one = processes.Start([&] { return disagrees(1, "codec=fp16"); });
  ASSERT_EQ(processes.Wait(one), 0);
  usleep(200000);  // rank 0 could have left, too
  EXPECT_CONTAINS(join(2, "codec=none"), "ranks disagree");
  const double start = Seconds();
  EXPECT_EQ(processes.Wait(zero), 0);
  EXPECT_LT(Seconds() - start, kTolerance) << "nobody was left to be answered";
}

TEST(FailureTest, MissingRanksAreNamedToAllAndToLatecomers) {
  const Baseline baseline;
  constexpr int kLimit = 300 * kSlowness;
  Result<UniqueId> id = CreateUniqueId(TestEnvironment(kLimit));
  ASSERT_TRUE(id.ok());
  const double start = Seconds();
  OnThreads(2, [&](int rank) {
    const Status status = JoinWithId(*id, Options(rank, 4, kLimit)).status();
    EXPECT_EQ(status.code(), Code::kTimeout);
    EXPECT_EQ(status.message(), "rank " + std::to_string(rank) +
                                    "/4: init: ranks 2, 3 of 4 did not arrive within " +
                                    std::to_string(kLimit) + " ms");
  });
  const double elapsed = Seconds() - start;
  EXPECT_GE(elapsed, 0.001 * kLimit * 0.99);
  EXPECT_LT(elapsed, 0.001 * kLimit + kTolerance);
  OnThreads(2, [&](int i) {
    const Status status = JoinWithId(*id, Options(2 + i, 4)).status();
    EXPECT_EQ(status.code(), Code::kTimeout);
    EXPECT_CONTAINS(status.message(), "ranks 2, 3 of 4 did not arrive");
  });
}

TEST(FailureTest, TheSmallestDeadlineCounts) {
  const Baseline baseline;
  constexpr int kShort = 200 * kSlowness;
  Result<UniqueId> id = CreateUniqueId(TestEnvironment(kShort));
  ASSERT_TRUE(id.ok());
  const double start = Seconds();
  OnThreads(2, [&](int rank) {
    const Status status = JoinWithId(*id, Options(rank, 3, rank == 1 ? kShort : 60000)).status();
    EXPECT_CONTAINS(status.message(),
                    "rank 2 of 3 did not arrive within " + std::to_string(kShort) + " ms");
  });
  EXPECT_LT(Seconds() - start, 0.001 * kShort + kTolerance);
  EXPECT_CONTAINS(JoinWithId(*id, Options(2, 3)).status().message(), "did not arrive");
}

TEST(FailureTest, OfTwoWithOneRankTheFirstWins) {
  const Baseline baseline;
  Result<UniqueId> id = CreateUniqueId(TestEnvironment());
  ASSERT_TRUE(id.ok());
  std::atomic<int> joined{0}, refused{0};
  const auto join = [&](int rank) {
    const Result<Mesh> mesh = JoinWithId(*id, Options(rank, 3));
    if (mesh.ok()) {
      ++joined;
      return;
    }
    ++refused;
    EXPECT_EQ(mesh.status().code(), Code::kInvalidUsage);
    EXPECT_CONTAINS(mesh.status().message(), "rank 1 is claimed twice: first by 1@");
    EXPECT_CONTAINS(mesh.status().message(), ":" + std::to_string(getpid()));
  };
  std::thread first([&] { join(1); }), second([&] { join(1); });
  while (refused == 0) usleep(1000);  // the loser is told at once, before all have come
  std::thread zero([&] { join(0); }), two([&] { join(2); });
  for (std::thread* thread : {&first, &second, &zero, &two}) thread->join();
  EXPECT_EQ(joined, 3);
  EXPECT_EQ(refused, 1);
}

TEST(FailureTest, ASecondRank0OfALauncherIsToldAtOnce) {
  const Baseline baseline;
  const std::string job = "twice" + std::to_string(getpid());
  const auto join = [&](int rank) {
    return JoinWithLauncher(TestLauncher(rank, 3, job), 0, Options(rank, 3));
  };
  const pid_t parent = getpid();
  Processes processes;
  int come[2];
  ASSERT_EQ(pipe2(come, O_CLOEXEC), 0);
  const pid_t second = processes.Start([&] {
    char go = 0;
    if (read(come[0], &go, 1) != 1) return 2;
    Launcher launcher = TestLauncher(0, 3, "");
    launcher.job = job + std::to_string(parent);
    const double start = Seconds();
    const Status status = JoinWithLauncher(launcher, 0, Options(0, 3)).status();
    EXPECT_EQ(status.code(), Code::kInvalidUsage);
    EXPECT_CONTAINS(status.message(), "rank 0/3: init: rank 0 is claimed twice: first by 0@");
    EXPECT_CONTAINS(status.message(), ":" + std::to_string(parent) + ", then by 0@");
    EXPECT_CONTAINS(status.message(), ":" + std::to_string(getpid()));
    EXPECT_LT(Seconds() - start, 10.0 * kSlowness) << "long before its deadline";
    return 0;
  });
  OnThreads(3, [&](int rank) {
    if (rank == 2) {  // the others are there, so the first has the rank
      usleep(100000);
      EXPECT_EQ(write(come[1], "g", 1), 1);
      EXPECT_EQ(processes.Wait(second), 0);
    }
    const Result<Mesh> mesh = join(rank);
    EXPECT_TRUE(mesh.ok()) << mesh.status().message();
  });
  close(come[0]);
  close(come[1]);
}

// Nor need the first have come so far.
TEST(FailureTest, ASecondRank0IsToldBeforeTheFirstHasRegistered) {
  using namespace bootstrap;  // NOLINT(build/namespaces)
  const Baseline baseline;
  MeetingOptions options;
  options.of_job = true;
  const RootTarget target =
      OpenMeeting(SocketAddress::Unix("inccl-second-" + std::to_string(getpid())), options);
  Processes processes;
  const pid_t second = processes.Start([&, first = getpid()] {
    const auto client = RendezvousClient::Connect(
        target, {.rank = 0, .nranks = 3, .deadline = SystemClock().Now() + kMinute});
    EXPECT_TRUE(client.ok()) << client.status().message();
    Registration registration;
    registration.record.pid = static_cast<uint32_t>(getpid());
    registration.nranks = 3;
    registration.remaining = kMinute;
    EXPECT_TRUE((*client)->Send(MessageKind::kRegister, registration.Encode()).ok());
    const Status status = (*client)->Await(MessageKind::kTable).status();
    EXPECT_EQ(status.code(), Code::kInvalidUsage);
    EXPECT_CONTAINS(status.message(), "rank 0 is claimed twice: first by 0@");
    EXPECT_CONTAINS(status.message(), ":" + std::to_string(first) + ", then by 0@");
    return 0;
  });
  EXPECT_EQ(processes.Wait(second), 0);
  RendezvousServer::Get().Close(target.terms.communicator, RemoteError("withdrawn"));
}

// Another rendezvous still has the name, and no longer answers.
TEST(FailureTest, AnEarlierRendezvousThatIsEndingIsWaitedFor) {
  using namespace bootstrap;  // NOLINT(build/namespaces)
  const Baseline baseline;
  const std::string job = "again" + std::to_string(getpid());
  const auto name = RendezvousName(TestLauncher(0, 3, job));
  ASSERT_TRUE(name.ok());
  Result<UniqueFd> earlier = Listen(SocketAddress::Unix(*name));
  ASSERT_TRUE(earlier.ok());
  OnThreads(4, [&](int rank) {
    if (rank == 3) {
      usleep(300000);
      earlier->Reset();
      return;
    }
    const Result<Mesh> mesh = JoinWithLauncher(TestLauncher(rank, 3, job), 0, Options(rank, 3));
    EXPECT_TRUE(mesh.ok()) << mesh.status().message();
  });
}

constexpr Time kShortPatience = 100 * kMillisecond;

TEST(PatienceTest, TheRendezvousSaysWhoIsMissing) {
  using namespace bootstrap;  // NOLINT(build/namespaces)
  const Baseline baseline;
  const LogFile log;
  const SocketAddress address = SocketAddress::Unix("inccl-patience-" + std::to_string(getpid()));
  MeetingOptions options;
  options.root.nranks = 4;
  options.root.patience = kShortPatience;
  const RootTarget target = OpenMeeting(address, options);
  const auto come = [&](uint32_t rank) {
    auto client = RendezvousClient::Connect(
        target,
        {.rank = static_cast<int>(rank), .nranks = 4, .deadline = SystemClock().Now() + kMinute});
    EXPECT_TRUE(client.ok()) << client.status().message();
    Registration registration;
    registration.record.rank = rank;
    registration.nranks = 4;
    registration.timeout_ms = 60000;
    registration.remaining = kMinute;
    EXPECT_TRUE((*client)->Send(MessageKind::kRegister, registration.Encode()).ok());
    return *std::move(client);
  };
  std::vector<std::unique_ptr<RendezvousClient>> ranks;
  for (const uint32_t rank : {0u, 3u}) ranks.push_back(come(rank));
  EXPECT_CONTAINS(log.Await("init: still waiting"),
                  "WARN init: still waiting, after 100 ms, for ranks 1, 2 of 4 to come; "
                  "the limit is 60000 ms");
  for (const uint32_t rank : {1u, 2u}) ranks.push_back(come(rank));
  for (const auto& rank : ranks) EXPECT_TRUE(rank->Await(MessageKind::kTable).ok());
  for (const size_t place : {0u, 1u, 3u}) {  // ranks 0, 3 and 2
    EXPECT_TRUE(ranks[place]->Send(MessageKind::kDone, EncodeLinks({})).ok());
  }
  EXPECT_CONTAINS(log.Await("for rank 1 of 4"),
                  "init: still waiting, after 100 ms, for rank 1 of 4 to connect");
  EXPECT_TRUE(ranks[2]->Send(MessageKind::kDone, EncodeLinks({})).ok());
  for (const auto& rank : ranks) EXPECT_TRUE(rank->Await(MessageKind::kGo).ok());
}

TEST(PatienceTest, RanksSayThatRank0IsMissing) {
  using namespace bootstrap;  // NOLINT(build/namespaces)
  const LogFile log;
  const int limit_ms = 600;
  OnThreads(2, [&](int thread) {
    const Status status =
        RendezvousClient::Connect(
            {.addresses = {SocketAddress::Unix("inccl-absent-" + std::to_string(getpid()))},
             .terms = {},
             .may_come_later = true},
            {.rank = thread + 1,
             .nranks = 3,
             .deadline = SystemClock().Now() + limit_ms * kMillisecond,
             .timeout_ms = limit_ms,
             .patience = kShortPatience})
            .status();
    EXPECT_EQ(status.code(), Code::kTimeout);
  });
  for (const char* rank : {"1", "2"}) {
    EXPECT_CONTAINS(log.Text(), std::string("WARN rank ") + rank + "/3: init: still no rendezvous");
  }
  EXPECT_CONTAINS(log.Text(), "has rank 0 been started, on this host?; the limit is 600 ms");
}

// What ranks 0 and 1 of 2 are told when rank 1 does not fit.
void ExpectDisagreement(const std::function<void(JoinOptions*)>& change,
                        const std::vector<std::string>& parts) {
  const Baseline baseline;
  Result<UniqueId> id = CreateUniqueId(TestEnvironment(500));
  ASSERT_TRUE(id.ok());
  const std::vector<Result<Mesh>> meshes = JoinThreads(*id, 2, [&](JoinOptions* options) {
    options->deadline = SystemClock().Now() + kSecond * kSlowness;
    if (options->rank == 1) change(options);
  });
  for (const Result<Mesh>& mesh : meshes) {
    ASSERT_FALSE(mesh.ok());
    EXPECT_EQ(mesh.status().code(), Code::kInvalidUsage);
    for (const std::string& part : parts) EXPECT_CONTAINS(mesh.status().message(), part);
    EXPECT_CONTAINS(mesh.status().message(), "0@");
    EXPECT_CONTAINS(mesh.status().message(), "1@");
  }
}

TEST(FailureTest, DisagreementIsToldToAllWithBothValues) {
  ExpectDisagreement([](JoinOptions* o) { o->agreement = "version=1 channels=3 codec=hbi:bits=6"; },
                     {"\"channels=2\"", "\"channels=3\""});
  ExpectDisagreement([](JoinOptions* o) { o->nranks = 3; }, {"says 2", "says 3"});
}

TEST(FailureTest, AWrongSecretIsRefusedAndTheOthersDoNotNotice) {
  const Baseline baseline;
  Result<UniqueId> id = CreateUniqueId(TestEnvironment());
  ASSERT_TRUE(id.ok());
  UniqueId forged = *id;
  forged.secret = bootstrap::Key(bootstrap::Mac{});
  const double start = Seconds();
  const Status status = JoinWithId(forged, Options(1, 2, 60000)).status();
  EXPECT_EQ(status.code(), Code::kRemoteError);
  EXPECT_CONTAINS(status.message(), "rank 1/2: init: ");
  EXPECT_CONTAINS(status.message(), "rejects this rank");
  EXPECT_LT(Seconds() - start, 5.0 * kSlowness) << "long before its deadline";
  for (const Result<Mesh>& mesh : JoinThreads(*id, 2)) {
    EXPECT_TRUE(mesh.ok()) << mesh.status().message();
  }
}

// Where the process that made the id has ended, another one may get its port: a rendezvous of
// another id, or a program that knows nothing of this.
TEST(FailureTest, AnotherProcessHasTheAddressOfTheId) {
  const Baseline baseline;
  Result<UniqueId> id = CreateUniqueId(TestEnvironment());
  ASSERT_TRUE(id.ok());
  const UniqueId ended = [] {
    Result<UniqueId> made = CreateUniqueId(TestEnvironment());
    for (const Result<Mesh>& mesh : JoinThreads(*made, 2)) EXPECT_TRUE(mesh.ok());
    return *made;
  }();
  UniqueIdAddress address = id->addresses.front();
  address.port = 0;
  const UniqueFd listener = bootstrap::ListenAt(&address).value();
  std::atomic<bool> stop{false};
  std::thread program([&] {
    while (!stop) {
      if (!bootstrap::WaitFor(listener.get(), POLLIN, SystemClock().Now() + 10 * kMillisecond))
        continue;
      bootstrap::SocketAddress from;
      int error = 0;
      const UniqueFd fd = bootstrap::Accept(listener.get(), &from, &error);
      const std::vector<std::byte> bytes(bootstrap::kGreetingBytes, std::byte{'+'});
      if (fd.valid()) (void)bootstrap::WriteAll(fd.get(), bytes);
    }
  });
  for (const UniqueIdAddress& taken : {id->addresses.front(), address}) {
    UniqueId stale = ended;
    stale.addresses = {taken};
    const double start = Seconds();
    const Status status = JoinWithId(stale, Options(1, 2, 60000)).status();
    EXPECT_EQ(status.code(), Code::kRemoteError);
    EXPECT_CONTAINS(status.message(), "rank 1/2: init: the rendezvous at 127.0.0.1:");
    EXPECT_CONTAINS(status.message(), "the process that made the id has ended");
    EXPECT_LT(Seconds() - start, 5.0 * kSlowness) << "long before its deadline";
  }
  stop = true;
  program.join();
  for (const Result<Mesh>& mesh : JoinThreads(*id, 2)) {
    EXPECT_TRUE(mesh.ok()) << mesh.status().message();
  }
}

TEST(FailureTest, ARankWithoutDescriptorsWaitsForSome) {
  const Baseline baseline;
  Result<UniqueId> id = CreateUniqueId(TestEnvironment());
  ASSERT_TRUE(id.ok());
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = limit.rlim_max};
  const bootstrap::RootTarget target = TargetOf(*id);
  for (const bool comes : {true, false}) {
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    std::thread other([&] {
      usleep(200000);
      if (!comes) return;
      EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    });
    const int timeout_ms = comes ? 60000 : 400;
    const Result<std::unique_ptr<bootstrap::RendezvousClient>> client =
        bootstrap::RendezvousClient::Connect(
            target, {.rank = 1,
                     .nranks = 2,
                     .deadline = SystemClock().Now() + timeout_ms * kMillisecond,
                     .timeout_ms = timeout_ms});
    other.join();
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_EQ(client.ok(), comes) << client.status().message();
    if (comes) continue;
    EXPECT_EQ(client.status().code(), Code::kTimeout);
    EXPECT_CONTAINS(client.status().message(), "Too many open files (errno 24); the process has");
  }
  for (const Result<Mesh>& mesh : JoinThreads(*id, 2)) {
    EXPECT_TRUE(mesh.ok()) << mesh.status().message();
  }
}

TEST(FailureTest, AnIdServesOnce) {
  const Baseline baseline;
  Result<UniqueId> id = CreateUniqueId(TestEnvironment());
  ASSERT_TRUE(id.ok());
  for (const Result<Mesh>& mesh : JoinThreads(*id, 2)) ASSERT_TRUE(mesh.ok());
  const double start = Seconds();
  const Status status = JoinWithId(*id, Options(0, 2, 60000)).status();
  EXPECT_EQ(status.code(), Code::kRemoteError);
  EXPECT_CONTAINS(status.message(), "one id, one communicator");
  EXPECT_LT(Seconds() - start, 10.0 * kSlowness);
}

TEST(FailureTest, TheProcessOfTheRendezvousDies) {
  const Baseline baseline;
  Processes processes;
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t creator = processes.Start([&] {
    std::array<std::byte, kUniqueIdBytes> bytes;
    Result<UniqueId> id = CreateUniqueId(TestEnvironment());
    id->Encode(bytes.data());
    if (write(ends[1], bytes.data(), bytes.size()) != kUniqueIdBytes) return 1;
    while (true) pause();
  });
  std::array<std::byte, kUniqueIdBytes> bytes;
  ASSERT_EQ(read(ends[0], bytes.data(), bytes.size()), static_cast<ssize_t>(kUniqueIdBytes));
  close(ends[0]);
  close(ends[1]);
  const Result<UniqueId> id = UniqueId::Decode(bytes.data());
  ASSERT_TRUE(id.ok());
  const double start = Seconds();
  std::thread killer([&] {
    usleep(100000);  // the ranks have registered, as a rule
    kill(creator, SIGKILL);
  });
  OnThreads(2, [&](int rank) {
    const Status status = JoinWithId(*id, Options(rank, 3, 60000)).status();
    EXPECT_EQ(status.code(), Code::kRemoteError) << status.message();
    EXPECT_CONTAINS(status.message(), "127.0.0.1:");
  });
  killer.join();
  EXPECT_LT(Seconds() - start, 10.0 * kSlowness) << "long before the deadline";
  EXPECT_TRUE(WIFSIGNALED(processes.Wait(creator)));
}

// A rank that comes as far as `phase` and dies: its descriptors close.
enum class Phase { kConnected, kAuthenticated, kRegistered, kHasTable, kFailsLoudly };

void DieAt(Phase phase, const UniqueId& id, int rank, int nranks) {
  using bootstrap::MessageKind;
  const bootstrap::RootTarget target = TargetOf(id);
  if (phase == Phase::kConnected) {
    int error = 0;
    const Result<UniqueFd> fd = bootstrap::Connect(target.addresses[0], &error);
    EXPECT_TRUE(fd.ok());
    usleep(10000);
    return;
  }
  const auto client = bootstrap::RendezvousClient::Connect(
      target, {.rank = rank, .nranks = nranks, .deadline = SystemClock().Now() + 20 * kSecond});
  ASSERT_TRUE(client.ok()) << client.status().message();
  if (phase == Phase::kAuthenticated) return;
  bootstrap::Registration registration;
  registration.record.rank = static_cast<uint32_t>(rank);
  registration.record.pid = 4242;
  registration.record.uid = geteuid();
  registration.record.host = "doomed";
  registration.record.mesh_name = "inccl-doomed-" + std::to_string(getpid());
  // A rank that fails loudly reports it before a peer finds that it does not listen.
  Result<UniqueFd> listener = InternalError("no listener");
  if (phase == Phase::kFailsLoudly) {
    listener = bootstrap::Listen(bootstrap::SocketAddress::Unix(registration.record.mesh_name));
    ASSERT_TRUE(listener.ok()) << listener.status().message();
  }
  registration.record.key = bootstrap::KeyExchange::Create().value().public_key();
  registration.nranks = static_cast<uint32_t>(nranks);
  registration.remaining = 60 * kSecond;
  registration.agreement = Options(0, 1).agreement;
  // The same host as the others: ask as they do.
  registration.record.host_id = registration.record.machine_id = bootstrap::HostId("").value();
  ASSERT_TRUE((*client)->Send(MessageKind::kRegister, registration.Encode()).ok());
  if (phase == Phase::kRegistered) {
    usleep(50000);
    return;
  }
  EXPECT_TRUE((*client)->Await(MessageKind::kTable).ok());
  if (phase == Phase::kFailsLoudly) {
    (void)(*client)->Send(MessageKind::kFailed,
                          bootstrap::EncodeError(SystemError("my house is on fire")));
    (void)(*client)->Await(MessageKind::kGo);
  }
}

class DeathTest : public ::testing::TestWithParam<Phase> {};

TEST_P(DeathTest, EndsTheOthersJoin) {
  const Baseline baseline;
  const bool seen_at_once = GetParam() >= Phase::kRegistered;
  const int limit = seen_at_once ? 60000 : 300 * kSlowness;
  Result<UniqueId> id = CreateUniqueId(TestEnvironment(limit));
  ASSERT_TRUE(id.ok());
  const double start = Seconds();
  std::thread doomed([&] { DieAt(GetParam(), *id, 2, 4); });
  std::vector<Status> statuses(4);
  OnThreads(4, [&](int rank) {
    if (rank != 2)
      statuses[static_cast<size_t>(rank)] = JoinWithId(*id, Options(rank, 4, limit)).status();
  });
  doomed.join();
  for (const int rank : {0, 1, 3}) {
    const Status& status = statuses[static_cast<size_t>(rank)];
    EXPECT_CONTAINS(status.message(), "rank " + std::to_string(rank) + "/4: init: ");
    if (GetParam() == Phase::kFailsLoudly) {
      EXPECT_EQ(status.code(), Code::kSystemError);
      EXPECT_CONTAINS(status.message(), "rank 2@doomed:4242 failed: my house is on fire");
    } else if (seen_at_once) {
      EXPECT_EQ(status.code(), Code::kRemoteError) << status.message();
      EXPECT_CONTAINS(status.message(), "peer 2@doomed:4242");
    } else {
      EXPECT_EQ(status.code(), Code::kTimeout) << status.message();
      EXPECT_CONTAINS(status.message(), "rank 2 of 4 did not arrive");
    }
  }
  EXPECT_LT(Seconds() - start, (seen_at_once ? 5 : 0.001 * limit) + kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Phases, DeathTest,
                         ::testing::Values(Phase::kConnected, Phase::kAuthenticated,
                                           Phase::kRegistered, Phase::kHasTable,
                                           Phase::kFailsLoudly));

// Processes that are killed at a random moment of joining: the others end, with success only if
// everybody had come so far.
TEST(FailureTest, KilledAtAnyMoment) {
  const Baseline baseline;
  for (uint32_t round = 0; round < 12; ++round) {
    Processes processes;
    std::vector<pid_t> pids;
    for (int rank = 0; rank < 4; ++rank) {
      pids.push_back(processes.Start([&, rank] {
        const Result<Mesh> mesh =
            JoinWithLauncher(TestLauncher(rank, 4, "killed" + std::to_string(getppid())), round,
                             Options(rank, 4, 400 * kSlowness));
        EXPECT_CONTAINS(mesh.ok() ? "/4: init: " : mesh.status().message(), "/4: init: ");
        if (rank == 3 && mesh.ok()) pause();
        return mesh.ok() ? 10 : 11;
      }));
    }
    usleep(static_cast<useconds_t>(500 * round));
    kill(pids[3], SIGKILL);
    EXPECT_TRUE(WIFSIGNALED(processes.Wait(pids[3])));
    for (int rank = 0; rank < 3; ++rank) {
      const int status = processes.Wait(pids[static_cast<size_t>(rank)], 5.0 * kSlowness);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) >= 10)
          << "rank " << rank << ": " << status;
    }
  }
}

TEST(FailureTest, LaunchersRankZeroDoesNotCome) {
  const Baseline baseline;
  const Status status =
      JoinWithLauncher(TestLauncher(1, 2, "absent"), 0, Options(1, 2, 100)).status();
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_CONTAINS(status.message(), "rank 1/2: init: no rendezvous at unix socket @inccl-job-");
  EXPECT_CONTAINS(status.message(), "within 100 ms");
  EXPECT_CONTAINS(status.message(), "has rank 0 been started");
}

TEST(FailureTest, DifferentJobsDoNotMeet) {
  const Baseline baseline;
  OnThreads(2, [&](int rank) {
    const Status status = JoinWithLauncher(TestLauncher(rank, 2, rank == 0 ? "a" : "b"), 0,
                                           Options(rank, 2, 200 * kSlowness))
                              .status();
    EXPECT_EQ(status.code(), Code::kTimeout) << status.message();
  });
}

}  // namespace
}  // namespace inccl::test
