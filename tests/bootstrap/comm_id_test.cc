// SPDX-License-Identifier: Apache-2.0
//
// INCCL_COMM_ID: ranks of a launcher's job meet at an address, with a secret file.
#include <dlfcn.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/fault_point.h"
#include "bootstrap/bootstrap_world.h"
#include "bootstrap/interfaces.h"

namespace inccl::test {
std::atomic<bool> name_server_is_silent{false};
}

// In the place of the C library's: of a name that only a silent name server could know.
extern "C" __attribute__((visibility("default"))) int getaddrinfo(const char* node,
                                                                  const char* service,
                                                                  const addrinfo* hints,
                                                                  addrinfo** list) {
  if (node != nullptr && std::strcmp(node, "silent.invalid") == 0 &&
      (hints->ai_flags & AI_NUMERICHOST) == 0) {
    while (inccl::test::name_server_is_silent) usleep(1000);
    return EAI_AGAIN;
  }
  static const auto real =
      reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  return real(node, service, hints, list);
}

namespace inccl::test {
namespace {

constexpr int kRanks = 3;
constexpr int kLimitMs = 500 * kSlowness;

// A port of the loopback interface that was free a moment ago, or, with `bound`, is taken now.
std::string FreeAddress(UniqueFd* bound = nullptr) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  if (bound != nullptr) *bound = std::move(fd);
  return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

class CommIdTest : public ::testing::Test {
 protected:
  std::string Secret(const std::string& content) {
    const std::string path = ::testing::TempDir() + "inccl-comm-id-" + std::to_string(getpid()) +
                             "-" + std::to_string(++files_);
    std::ofstream(path) << content;
    EXPECT_EQ(chmod(path.c_str(), 0600), 0);
    paths_.push_back(path);
    return path;
  }
  void TearDown() override {
    for (const std::string& path : paths_) unlink(path.c_str());
  }

  // secrets[r]: the secret file of rank r; "": none.
  static std::vector<Result<Mesh>> JoinAll(const std::string& address, int number,
                                           const std::vector<std::string>& secrets,
                                           int timeout_ms = 20000 * kSlowness,
                                           const std::vector<std::string>& runs = {"", "", ""}) {
    std::vector<Result<Mesh>> meshes;
    for (int rank = 0; rank < kRanks; ++rank) meshes.emplace_back(InternalError("not run"));
    OnThreads(kRanks, [&](int rank) {
      const auto index = static_cast<size_t>(rank);
      meshes[index] = JoinOne(address, number, rank, secrets[index], timeout_ms, runs[index]);
    });
    return meshes;
  }
  static Result<Mesh> JoinOne(const std::string& address, int number, int rank,
                              const std::string& secret, int timeout_ms = 20000 * kSlowness,
                              const std::string& run = "") {
    Launcher launcher;
    launcher.kind = "test";
    launcher.rank = rank;
    launcher.nranks = kRanks;
    launcher.run = run;
    JoinOptions options = Options(rank, kRanks, timeout_ms);
    options.secret_file = secret;
    options.socket_ifname = "lo";
    return JoinAtAddress(address, launcher, static_cast<uint32_t>(number), options);
  }

 private:
  int files_ = 0;
  std::vector<std::string> paths_;
};

TEST_F(CommIdTest, OneAddressServesOneCommunicatorAfterTheOther) {
  const Baseline baseline;
  const std::string address = FreeAddress(), secret = Secret("known to this job only");
  uint64_t before = 0;
  for (int index = 0; index < 5; ++index) {
    const std::vector<Result<Mesh>> meshes = JoinAll(address, index, {secret, secret, secret});
    for (const Result<Mesh>& mesh : meshes) {
      ASSERT_TRUE(mesh.ok()) << mesh.status().message();
      EXPECT_EQ(mesh->nonce_hash, meshes[0]->nonce_hash);
    }
    EXPECT_NE(meshes[0]->nonce_hash, before);
    before = meshes[0]->nonce_hash;
  }
}

// In equal order on all ranks, as creations in the background are.
TEST_F(CommIdTest, OneAddressServesSeveralAtATime) {
  const Baseline baseline;
  constexpr int kAtATime = 4;
  const std::string address = FreeAddress(), secret = Secret("known to this job only");
  for (const std::string& file : {secret, std::string()}) {
    std::vector<std::vector<Result<Mesh>>> all(kAtATime);
    OnThreads(kAtATime, [&](int i) {
      all[static_cast<size_t>(i)] = JoinAll(address, i, {file, file, file});
    });
    std::set<uint64_t> hashes;
    for (const std::vector<Result<Mesh>>& meshes : all) {
      for (const Result<Mesh>& mesh : meshes) {
        ASSERT_TRUE(mesh.ok()) << mesh.status().message();
        EXPECT_EQ(mesh->nonce_hash, meshes[0]->nonce_hash);
      }
      hashes.insert(meshes[0]->nonce_hash);
    }
    EXPECT_EQ(hashes.size(), size_t{kAtATime});
  }
}

// Ranks try again, each on its own, until all of them are there.
TEST_F(CommIdTest, AttemptsThatDoNotMeetAreMadeAgain) {
  const Baseline baseline;
  const std::string address = FreeAddress(), secret = Secret("known to this job only");
  for (const int last : {0, 2}) {
    OnThreads(kRanks, [&](int rank) {
      Launcher launcher;
      launcher.kind = "test";
      launcher.rank = rank;
      launcher.nranks = kRanks;
      launcher.run = "last " + std::to_string(last);
      if (rank == last) usleep(600 * kLimitMs);
      const std::string job = launcher.run + " of rank " + std::to_string(rank);
      std::string before;
      for (int attempt = 0, made = 0; made < 2; ++attempt) {
        ASSERT_LT(attempt, 50);
        if (HasFailure()) return;  // of another rank, which does not come any more
        CreationNumber number(job);
        ASSERT_EQ(number.value(), static_cast<uint32_t>(made))
            << "rank " << rank << ", attempt " << attempt << ", before: " << before;
        JoinOptions options = Options(rank, kRanks, kLimitMs / (rank == 1 ? 5 : 4));
        if (made > 0) options = Options(rank, kRanks);
        options.secret_file = secret;
        options.socket_ifname = "lo";
        const Result<Mesh> mesh = JoinAtAddress(address, launcher, number.value(), options);
        number.Settle(mesh.status());
        if (mesh.ok()) ++made;
        before = mesh.status().message();
      }
    });
  }
}

// Rank 1 authenticates for the second communicator while the first is still being made, and
// registers after rank 0 has closed that one and before it opens the next.
TEST_F(CommIdTest, ARankMayBeEarlyForTheNextOne) {
  static thread_local bool early = false;
  const Baseline baseline;
  const std::string address = FreeAddress(), secret = Secret("known to this job only");
  std::atomic<bool> authenticated{false}, closed{false};
  fault::Arm({.point = fault::IndexOf("bootstrap.after_authentication"),
              .hit = 0,
              .action = fault::Action::kCall,
              .call = [&] {
                if (!early) return;
                authenticated = true;
                while (!closed) usleep(1000);
              }});
  std::vector<Result<Mesh>> next;
  for (int rank = 0; rank < kRanks; ++rank) next.emplace_back(InternalError("not run"));
  std::thread first_of_next([&] {
    early = true;
    next[1] = JoinOne(address, 1, 1, secret);
  });
  OnThreads(kRanks, [&](int rank) {
    while (rank == 2 && !authenticated) usleep(1000);
    const Result<Mesh> mesh = JoinOne(address, 0, rank, secret);
    EXPECT_TRUE(mesh.ok()) << mesh.status().message();
  });
  usleep(200 * 1000);  // the server has seen that nobody holds the job's rendezvous
  closed = true;
  usleep(200 * 1000);
  std::thread last_of_next([&] { next[2] = JoinOne(address, 1, 2, secret); });
  next[0] = JoinOne(address, 1, 0, secret);
  first_of_next.join();
  last_of_next.join();
  fault::Disarm();
  for (const Result<Mesh>& mesh : next) EXPECT_TRUE(mesh.ok()) << mesh.status().message();
}

// Its earlier attempt ended at the moment when all had joined: it does not ask for that one for
// ever.
TEST_F(CommIdTest, ARankThatMissedTheEndLearnsSo) {
  const Baseline baseline;
  const std::string address = FreeAddress(), secret = Secret("known to this job only");
  for (const Result<Mesh>& mesh : JoinAll(address, 0, {secret, secret, secret})) {
    ASSERT_TRUE(mesh.ok()) << mesh.status().message();
  }
  OnThreads(kRanks, [&](int rank) {
    Launcher launcher;
    launcher.kind = "test";
    launcher.rank = rank;
    launcher.nranks = kRanks;
    JoinOptions options = Options(rank, kRanks);
    options.secret_file = secret;
    if (rank == 1) {
      CreationNumber missed("of rank 1");
      const Status status = JoinAtAddress(address, launcher, missed.value(), options).status();
      EXPECT_EQ(status.code(), Code::kInvalidUsage);
      EXPECT_CONTAINS(status.message(), "rank 1/3: init: all ranks had joined before");
      missed.Settle(status);
    }
    CreationNumber next("of rank " + std::to_string(rank == 1 ? 1 : 77));
    const uint32_t number = rank == 1 ? next.value() : 1;
    const Result<Mesh> mesh = JoinAtAddress(address, launcher, number, options);
    EXPECT_TRUE(mesh.ok()) << mesh.status().message();
  });
}

TEST(CreationNumberTest, CountsWhatExistsOrIsBeingMade) {
  const std::string job = "numbers";
  {
    CreationNumber zero(job), one(job), other("another job");
    EXPECT_EQ(zero.value(), 0u);
    EXPECT_EQ(one.value(), 1u);
    EXPECT_EQ(other.value(), 0u);
  }
  auto zero = std::make_unique<CreationNumber>(job);
  auto one = std::make_unique<CreationNumber>(job);
  EXPECT_EQ(zero->value(), 0u);
  zero.reset();  // fails, while a later one goes on
  auto two = std::make_unique<CreationNumber>(job);
  EXPECT_EQ(two->value(), 2u);
  one->Settle(Status::Ok());
  one.reset();
  two.reset();
  EXPECT_EQ(CreationNumber(job).value(), 2u);
}

// A child that sleeps, as those of data loaders do, keeps nothing.
TEST_F(CommIdTest, AForkedChildDoesNotKeepThePort) {
  const Baseline baseline;
  const std::string address = FreeAddress(), secret = Secret("known to this job only");
  Processes processes;
  Launcher launcher;
  launcher.kind = "test";
  launcher.nranks = kRanks;
  JoinOptions options = Options(0, kRanks, kLimitMs);
  options.secret_file = secret;
  std::thread zero([&] { EXPECT_FALSE(JoinAtAddress(address, launcher, 0, options).ok()); });
  usleep(100000);  // rank 0 listens
  processes.Start([] {
    while (true) pause();
    return 0;
  });
  zero.join();
  launcher.run = "another job";
  JoinOptions later = Options(0, 1);
  later.secret_file = secret;
  launcher.nranks = 1;
  const Result<Mesh> mesh = JoinAtAddress(address, launcher, 0, later);
  EXPECT_TRUE(mesh.ok()) << mesh.status().message();
}

TEST_F(CommIdTest, OnLoopbackTheSecretMayBeMissing) {
  const Baseline baseline;
  for (const Result<Mesh>& mesh : JoinAll(FreeAddress(), 0, {"", "", ""})) {
    EXPECT_TRUE(mesh.ok()) << mesh.status().message();
  }
}

TEST_F(CommIdTest, WithoutASecretOtherUsersDoNotJoin) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string address = FreeAddress();
  const auto join = [&address](int rank) {
    Launcher launcher;
    launcher.kind = "test";
    launcher.rank = rank;
    launcher.nranks = kRanks;
    return JoinAtAddress(address, launcher, 0, Options(rank, kRanks, 2 * kLimitMs)).status();
  };
  const pid_t stranger = fork();
  if (stranger == 0) {
    if (setgroups(0, nullptr) != 0 || setuid(65534) != 0) _exit(3);
    _exit(join(1).ok() ? 1 : 0);
  }
  std::vector<Status> statuses(kRanks);
  OnThreads(kRanks, [&](int rank) {
    if (rank != 1) statuses[static_cast<size_t>(rank)] = join(rank);
  });
  int status = 0;
  ASSERT_EQ(waitpid(stranger, &status, 0), stranger);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the stranger: " << status;
  for (const int rank : {0, 2}) {
    const Status& ours = statuses[static_cast<size_t>(rank)];
    EXPECT_EQ(ours.code(), Code::kTimeout) << ours.message();
    EXPECT_CONTAINS(ours.message(), "rank 1 of 3 did not arrive");
  }
}

// Of torchrun: a rank of the run before must not meet those of the next one.
TEST_F(CommIdTest, RestartsDoNotMeet) {
  const std::string secret = Secret("known to both runs");
  for (const std::string& file : {secret, std::string()}) {
    const std::vector<Result<Mesh>> meshes =
        JoinAll(FreeAddress(), 0, {file, file, file}, 2 * kLimitMs,
                {"TORCHELASTIC_RESTART_COUNT=0\n", "TORCHELASTIC_RESTART_COUNT=0\n",
                 "TORCHELASTIC_RESTART_COUNT=1\n"});
    for (const Result<Mesh>& mesh : meshes) ASSERT_FALSE(mesh.ok()) << "secret: " << file;
    EXPECT_CONTAINS(meshes[0].status().message(), "rank 2");
    EXPECT_CONTAINS(meshes[1].status().message(), "rank 2");
  }
}

TEST_F(CommIdTest, ASilentNameServerHoldsARankNoLongerThanItsLimitOrAnAbort) {
  const Baseline baseline;
  const auto join = [](int timeout_ms, const std::atomic<bool>* cancelled) {
    Launcher launcher;
    launcher.rank = 1;
    launcher.nranks = kRanks;
    JoinOptions options = Options(1, kRanks, timeout_ms);
    options.cancelled = cancelled;
    return JoinAtAddress("silent.invalid:4711", launcher, 0, options).status();
  };
  name_server_is_silent = true;
  double start = Seconds();
  const Status late = join(kLimitMs, nullptr);
  EXPECT_EQ(late.code(), Code::kTimeout) << late.message();
  EXPECT_CONTAINS(late.message(), "rank 1/3: init: INCCL_COMM_ID=silent.invalid:4711: no name");
  EXPECT_LT(Seconds() - start, 0.001 * kLimitMs + 2.0 * kSlowness);
  std::atomic<bool> cancelled{false};
  start = Seconds();
  std::thread abort([&cancelled] {
    usleep(100000);
    cancelled = true;
  });
  const Status aborted = join(60000, &cancelled);
  abort.join();
  EXPECT_EQ(aborted.code(), Code::kRemoteError) << aborted.message();
  EXPECT_LT(Seconds() - start, 2.0 * kSlowness);
  name_server_is_silent = false;
}

TEST_F(CommIdTest, ElsewhereItIsRequired) {
  for (const Result<Mesh>& mesh : JoinAll("192.0.2.77:4711", 0, {"", "", ""}, kLimitMs)) {
    ASSERT_FALSE(mesh.ok());
    EXPECT_EQ(mesh.status().code(), Code::kInvalidUsage);
    EXPECT_CONTAINS(mesh.status().message(), "INCCL_COMM_ID=192.0.2.77:4711 needs");
    EXPECT_CONTAINS(mesh.status().message(), "INCCL_SECRET_FILE");
  }
}

TEST_F(CommIdTest, AnotherSecretDoesNotJoin) {
  const std::string ours = Secret("known to this job only"), theirs = Secret("of another job....");
  const std::vector<Result<Mesh>> meshes =
      JoinAll(FreeAddress(), 0, {ours, ours, theirs}, kLimitMs);
  for (const Result<Mesh>& mesh : meshes) EXPECT_FALSE(mesh.ok());
  EXPECT_CONTAINS(meshes[0].status().message(), "rank 2");
  EXPECT_CONTAINS(meshes[1].status().message(), "rank 2");
  EXPECT_EQ(meshes[2].status().code(), Code::kInvalidUsage) << meshes[2].status().message();
}

TEST_F(CommIdTest, ALinkLocalAddressNeedsItsInterface) {
  const double start = Seconds();
  for (const Result<Mesh>& mesh : JoinAll("[fe80::77]:4711", 0, {"", "", ""})) {
    ASSERT_FALSE(mesh.ok());
    EXPECT_EQ(mesh.status().code(), Code::kInvalidUsage);
    EXPECT_CONTAINS(mesh.status().message(),
                    "INCCL_COMM_ID=[fe80::77]:4711: a link-local address needs its interface: "
                    "[fe80::77%eth0]:4711");
  }
  EXPECT_LT(Seconds() - start, 5.0 * kSlowness);
}

TEST_F(CommIdTest, ALoopbackAddressForRanksOnOtherHosts) {
  Launcher launcher;
  launcher.nranks = kRanks;
  launcher.elsewhere = "the ranks are on 2 hosts";
  const Result<Mesh> mesh = JoinAtAddress("127.0.1.1:4711", launcher, 0, Options(0, kRanks));
  ASSERT_FALSE(mesh.ok());
  EXPECT_EQ(mesh.status().code(), Code::kInvalidUsage);
  EXPECT_CONTAINS(mesh.status().message(),
                  "INCCL_COMM_ID=127.0.1.1:4711 is 127.0.1.1 on this host, which no other reaches, "
                  "and the ranks are on 2 hosts");
  // Perhaps they are: a host's own name may be a loopback address there, and there alone.
  launcher.elsewhere = "";
  const UniqueIdAddress loopback = {
      .address = {std::byte{127}, std::byte{0}, std::byte{1}, std::byte{1}}, .port = 4711};
  for (const int rank : {0, 1}) {
    const LogFile log;
    launcher.rank = rank;
    EXPECT_TRUE(bootstrap::CheckReach("node7:4711", loopback, launcher).ok());
    EXPECT_TRUE(bootstrap::CheckReach("127.0.1.1:4711", loopback, launcher).ok());
    EXPECT_TRUE(bootstrap::CheckReach("localhost:4711", loopback, launcher).ok());
    const std::string text = log.Text();
    if (rank != 0) {
      EXPECT_EQ(text, "");
      continue;
    }
    EXPECT_CONTAINS(text,
                    "WARN rank 0/3: init: INCCL_COMM_ID=node7:4711 is 127.0.1.1 on this host");
    EXPECT_EQ(text.find("WARN"), text.rfind("WARN")) << text;
  }
}

TEST_F(CommIdTest, RankZeroSaysThatItsPortIsTaken) {
  UniqueFd taken;
  const std::string address = FreeAddress(&taken);
  const LogFile log;
  Launcher launcher;
  launcher.nranks = kRanks;
  JoinOptions options = Options(0, kRanks, kLimitMs);
  options.secret_file = Secret("known to this job only");
  options.patience = 50 * kMillisecond;
  const Result<Mesh> mesh = JoinAtAddress(address, launcher, 0, options);
  ASSERT_FALSE(mesh.ok());
  const std::string why = "INCCL_COMM_ID: bind " + address +
                          ": Address already in use (errno 98); another program has the place";
  EXPECT_CONTAINS(mesh.status().message(), why);
  const std::string text = log.Text();
  EXPECT_CONTAINS(text, "WARN rank 0/3: init: still no rendezvous at " + address);
  EXPECT_CONTAINS(text, why);
  EXPECT_EQ(text.find("still no"), text.rfind("still no")) << text;
}

TEST_F(CommIdTest, RankZeroCannotListenElsewhere) {
  Launcher launcher;
  launcher.nranks = kRanks;
  JoinOptions options = Options(0, kRanks, kLimitMs);
  options.secret_file = Secret("known to this job only");
  const Result<Mesh> mesh = JoinAtAddress("192.0.2.77:4711", launcher, 0, options);
  ASSERT_FALSE(mesh.ok());
  EXPECT_EQ(mesh.status().code(), Code::kSystemError);
  EXPECT_CONTAINS(mesh.status().message(), "rank 0/3: init: INCCL_COMM_ID: bind 192.0.2.77:4711");
}

}  // namespace
}  // namespace inccl::test
