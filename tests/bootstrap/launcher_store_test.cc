// SPDX-License-Identifier: Apache-2.0
//
// The store of PMI version 1, against a launcher written here: values reach all ranks, each its
// own; what launchers may do wrong becomes an error.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/bootstrap_world.h"
#include "bootstrap/launcher.h"

namespace inccl::test {
namespace {

using bootstrap::PmiStore;

// Serves n ranks, each on a connection of its own. As in Hydra, a value is found only after the
// barrier that follows its put.
class FakeLauncher {
 public:
  explicit FakeLauncher(int n) : pending_(static_cast<size_t>(n)) {
    for (int rank = 0; rank < n; ++rank) {
      int ends[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
      servers_.emplace_back(ends[0]);
      clients_.emplace_back(ends[1]);
    }
    thread_ = std::thread([this] { Serve(); });
  }
  ~FakeLauncher() {
    for (const UniqueFd& client : clients_) shutdown(client.get(), SHUT_RDWR);
    thread_.join();
  }
  int fd(int rank) const { return clients_[static_cast<size_t>(rank)].get(); }
  std::atomic<int> begun{0}, finalized{0};
  std::string instead;  // answered to every get, if not empty; set before the first request

 private:
  static std::string Field(const std::string& line, const std::string& name) {
    const size_t at = line.find(" " + name + "=");
    if (at == line.npos) return "";
    const size_t begin = at + name.size() + 2;
    return line.substr(begin, line.find(' ', begin) - begin);
  }
  void Say(size_t rank, const std::string& line) {
    // In pieces, as a stream may deliver it.
    const std::string text = line + "\n";
    for (const char c : text) (void)send(servers_[rank].get(), &c, 1, MSG_NOSIGNAL);
  }
  void Answer(size_t rank, const std::string& line) {
    if (line.starts_with("cmd=init ")) {
      ++begun;
      Say(rank, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0");
    } else if (line == "cmd=finalize") {
      ++finalized;
      Say(rank, "cmd=finalize_ack");
    } else if (line == "cmd=get_my_kvsname") {
      Say(rank, "cmd=my_kvsname kvsname=kvs_17_0");
    } else if (line.starts_with("cmd=put kvsname=kvs_17_0 ")) {
      put_[Field(line, "key")] = Field(line, "value");
      Say(rank, "cmd=put_result rc=0 msg=success");
    } else if (line == "cmd=barrier_in") {
      if (++in_barrier_ < servers_.size()) return;
      in_barrier_ = 0;
      visible_ = put_;
      for (size_t i = 0; i < servers_.size(); ++i) Say(i, "cmd=barrier_out");
    } else if (line.starts_with("cmd=get kvsname=kvs_17_0 ")) {
      const auto found = visible_.find(Field(line, "key"));
      Say(rank, !instead.empty() ? instead
                : found == visible_.end()
                    ? "cmd=get_result rc=-1 msg=key_not_found value=unknown"
                    : "cmd=get_result rc=0 msg=success value=" + found->second);
    } else {
      ADD_FAILURE() << line;
    }
  }
  void Serve() {
    size_t open = servers_.size();
    while (open > 0) {
      std::vector<pollfd> fds;
      for (const UniqueFd& server : servers_) fds.push_back({server.get(), POLLIN, 0});
      poll(fds.data(), fds.size(), -1);
      for (size_t rank = 0; rank < servers_.size(); ++rank) {
        if (fds[rank].revents == 0) continue;
        char buffer[256];
        const ssize_t bytes = recv(servers_[rank].get(), buffer, sizeof buffer, 0);
        if (bytes <= 0) {
          servers_[rank].Reset();
          --open;
          continue;
        }
        pending_[rank].append(buffer, static_cast<size_t>(bytes));
        for (size_t end; (end = pending_[rank].find('\n')) != std::string::npos;) {
          const std::string line = pending_[rank].substr(0, end);
          pending_[rank].erase(0, end + 1);
          Answer(rank, line);
        }
      }
    }
  }

  std::vector<UniqueFd> servers_, clients_;
  std::vector<std::string> pending_;
  std::map<std::string, std::string> put_, visible_;
  size_t in_barrier_ = 0;
  std::thread thread_;
};

LauncherStore::Terms Terms(int rank, Time limit = 20 * kSecond * kSlowness) {
  return {.rank = rank, .deadline = SystemClock().Now() + limit};
}

std::string Ab() { return "ab"; }

// Rank 0 makes the value once.
TEST(PmiStoreTest, TheValueReachesAllRanks) {
  constexpr int kRanks = 3;
  for (const bool begin : {false, true}) {
    FakeLauncher launcher(kRanks);
    std::atomic<int> made{0};
    OnThreads(kRanks, [&](int rank) {
      PmiStore store(launcher.fd(rank), begin);
      for (int i = 0; i < 3; ++i) {
        const Result<std::string> shared = store.Share(
            [&] {
              ++made;
              EXPECT_EQ(rank, 0);
              return Ab();
            },
            Terms(rank));
        ASSERT_TRUE(shared.ok()) << shared.status().message();
        EXPECT_EQ(*shared, "ab");
      }
    });
    EXPECT_EQ(launcher.begun, begin ? kRanks : 0);
    EXPECT_EQ(made, 1);
  }
}

TEST(PmiStoreTest, ThreadsMayAskAtOnce) {
  constexpr int kRanks = 2, kThreads = 4;
  FakeLauncher launcher(kRanks);
  std::vector<std::unique_ptr<PmiStore>> stores;
  for (int rank = 0; rank < kRanks; ++rank) {
    stores.push_back(std::make_unique<PmiStore>(launcher.fd(rank), false));
  }
  OnThreads(kRanks * kThreads, [&](int i) {
    const int rank = i % kRanks;
    const Result<std::string> shared = stores[static_cast<size_t>(rank)]->Share(Ab, Terms(rank));
    ASSERT_TRUE(shared.ok()) << shared.status().message();
    EXPECT_EQ(*shared, "ab");
  });
}

TEST(PmiStoreTest, ARankThatDoesNotComeIsATimeout) {
  FakeLauncher launcher(2);
  PmiStore store(launcher.fd(0), false);
  for (int i = 0; i < 2; ++i) {
    const Result<std::string> shared = store.Share(Ab, Terms(0, 200 * kMillisecond));
    EXPECT_EQ(shared.status().code(), Code::kTimeout);
    EXPECT_CONTAINS(shared.status().message(), "PMI: no answer of the launcher in time");
  }
}

// A creation that a rank gives up, or that comes too late, does not disable the store.
TEST(PmiStoreTest, TheExchangeGoesOnWhenItsCallerGivesUp) {
  constexpr int kRanks = 3;
  FakeLauncher launcher(kRanks);
  OnThreads(kRanks, [&](int rank) {
    PmiStore store(launcher.fd(rank), false);
    std::atomic<bool> cancelled{false};
    LauncherStore::Terms terms =
        Terms(rank, rank == 1 ? 50 * kMillisecond : 20 * kSecond * kSlowness);
    terms.cancelled = &cancelled;
    if (rank == 0) usleep(200000);  // until rank 1 has given up
    std::thread abort([&] {
      if (rank != 2) return;
      usleep(50000);
      cancelled = true;
    });
    EXPECT_EQ(store.Share(Ab, terms).ok(), rank == 0);
    abort.join();
    for (int i = 0; i < 3; ++i) {
      const Result<std::string> shared = store.Share(Ab, Terms(rank));
      ASSERT_TRUE(shared.ok()) << shared.status().message();
      EXPECT_EQ(*shared, "ab");
    }
  });
}

TEST(PmiStoreTest, CancellingEndsTheWait) {
  FakeLauncher launcher(2);
  PmiStore store(launcher.fd(0), false);
  const std::atomic<bool> cancelled{true};
  LauncherStore::Terms terms = Terms(0);
  terms.cancelled = &cancelled;
  EXPECT_EQ(store.Share(Ab, terms).status().code(), Code::kRemoteError);
}

TEST(PmiStoreTest, WrongAnswersAreErrors) {
  for (const std::string wrong :
       {"cmd=get_result rc=-1 msg=no", "cmd=barrier_out", "nothing like that \x1b[2J"}) {
    FakeLauncher launcher(2);
    launcher.instead = wrong;
    OnThreads(2, [&](int rank) {
      PmiStore store(launcher.fd(rank), false);
      const Result<std::string> shared = store.Share(Ab, Terms(rank));
      if (rank == 0) {
        EXPECT_TRUE(shared.ok());
        return;
      }
      EXPECT_EQ(shared.status().code(), Code::kRemoteError);
      EXPECT_CONTAINS(shared.status().message(), "PMI: the launcher answers \"");
      EXPECT_EQ(shared.status().message().find('\x1b'), std::string::npos);
    });
  }
}

TEST(PmiStoreTest, ALauncherThatEndsIsAnError) {
  auto launcher = std::make_unique<FakeLauncher>(1);
  const UniqueFd fd(fcntl(launcher->fd(0), F_DUPFD_CLOEXEC, 0));
  launcher.reset();
  PmiStore store(fd.get(), false);
  const Result<std::string> shared = store.Share(Ab, Terms(0));
  ASSERT_FALSE(shared.ok());
  EXPECT_CONTAINS(shared.status().message(), "PMI: ");
}

TEST(PmiStoreTest, FinalizesOnceItHasMadeARequest) {
  FakeLauncher launcher(1);
  PmiStore unused(launcher.fd(0), false);
  unused.Finalize();
  EXPECT_EQ(launcher.finalized, 0);
  PmiStore used(launcher.fd(0), false);
  ASSERT_TRUE(used.Share(Ab, Terms(0)).ok());
  Processes processes;
  EXPECT_EQ(processes.Wait(processes.Start([&] {
    used.Finalize();  // a child of fork() is not the launcher's process
    return 0;
  })),
            0);
  EXPECT_EQ(launcher.finalized, 0);
  used.Finalize();
  EXPECT_EQ(launcher.finalized, 1);
}

// MPI_Finalize closes PMI_FD, whose number something else may get.
TEST(PmiStoreTest, LeavesAReusedDescriptorAlone) {
  FakeLauncher launcher(1);
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  const UniqueFd mine(ends[0]), other(ends[1]);
  const int fd = fcntl(launcher.fd(0), F_DUPFD_CLOEXEC, 0);
  const UniqueFd owner(fd);
  PmiStore store(fd, false);
  ASSERT_TRUE(store.Share(Ab, Terms(0)).ok());
  ASSERT_EQ(dup3(mine.get(), fd, O_CLOEXEC), fd);
  store.Finalize();
  EXPECT_TRUE(store.Share(Ab, Terms(0)).ok()) << "the launcher need not be asked again";
  char c = 0;
  EXPECT_EQ(recv(other.get(), &c, 1, 0), -1) << "something was written to it";
}

TEST(PmiStoreTest, OnlyAnOfferedStoreIsFound) {
  const auto find = [](const char* kind, const std::map<std::string, std::string>& values) {
    Launcher launcher;
    launcher.kind = kind;
    LauncherStore* const store = FindLauncherStore(launcher, [&](const char* name) -> const char* {
      const auto found = values.find(name);
      return found == values.end() ? nullptr : found->second.c_str();
    });
    return store == nullptr ? std::string("none") : std::string(store->name());
  };
  EXPECT_EQ(find("PMI", {}), "none");
  EXPECT_EQ(find("PMI", {{"PMI_FD", "x"}}), "none");
  EXPECT_EQ(find("PMI", {{"PMI_FD", "-1"}}), "none");
  EXPECT_EQ(find("PMI", {{"PMI_FD", "7"}}), "PMI");
  EXPECT_EQ(find("Slurm", {{"PMIX_NAMESPACE", "n"}}), "none");
  const std::map<std::string, std::string> both = {
      {"PMIX_NAMESPACE", "n"}, {"PMIX_RANK", "0"}, {"PMI_FD", "7"}};
  EXPECT_EQ(find("Slurm", both), "PMIx");
  EXPECT_EQ(find("Open MPI", both), "PMIx");
  EXPECT_EQ(find("torchrun", both), "none") << "its processes share the rank of torchrun itself";
  EXPECT_EQ(find("INCCL_RANK", both), "none");
}

}  // namespace
}  // namespace inccl::test
