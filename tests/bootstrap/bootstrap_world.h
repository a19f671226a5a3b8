// SPDX-License-Identifier: Apache-2.0
//
// What tests of bootstrap and control share: ranks as threads or processes, and a count of what a
// process holds, to be the same afterwards.
#ifndef INCCL_TESTS_BOOTSTRAP_BOOTSTRAP_WORLD_H_
#define INCCL_TESTS_BOOTSTRAP_BOOTSTRAP_WORLD_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/rendezvous_client.h"
#include "bootstrap/rendezvous_server.h"
#include "config/variables.h"
#include "world/baseline.h"
#include "world/clock.h"
#include "world/limits.h"

namespace inccl::test {

inline JoinOptions Options(int rank, int nranks, int timeout_ms = 20000 * kSlowness) {
  JoinOptions options;
  options.rank = rank;
  options.nranks = nranks;
  options.timeout_ms = timeout_ms;
  options.deadline = SystemClock().Now() + timeout_ms * kMillisecond;
  options.agreement = "version=1 channels=2 codec=hbi:bits=6";
  return options;
}

inline Environment TestEnvironment(int timeout_ms = 20000 * kSlowness) {
  Environment environment;
  environment.socket_ifname = "lo";
  environment.init_timeout_ms = timeout_ms;
  return environment;
}

// Opens a meeting of this process, which no other test uses.
inline bootstrap::RootTarget OpenMeeting(const bootstrap::SocketAddress& place,
                                         bootstrap::MeetingOptions options = {}) {
  EXPECT_TRUE(bootstrap::FillRandom(options.terms.communicator).ok());
  bool in_use = false;
  const Status status = bootstrap::RendezvousServer::Get().OpenAt(
      options, place, {}, bootstrap::Admission::kSameUserAndContainer, &in_use);
  EXPECT_TRUE(status.ok()) << status.message();
  bootstrap::RootTarget target;
  target.addresses = {place};
  target.terms = options.terms;
  target.same_container = place.is_unix();
  return target;
}

// Where ranks meet by this id.
inline bootstrap::RootTarget TargetOf(const UniqueId& id) {
  bootstrap::RootTarget target;
  target.addresses = {bootstrap::SocketAddress::Tcp(id.addresses.front())};
  target.terms = {.key = bootstrap::Hkdf(id.secret.bytes(), id.name(), "inccl rendezvous").value(),
                  .role = bootstrap::Role::kRendezvous,
                  .communicator = id.name()};
  target.server_key = id.server_key;
  return target;
}

// body(rank) on n threads.
inline void OnThreads(int n, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

// Joins n threads with one id.
inline std::vector<Result<Mesh>> JoinThreads(const UniqueId& id, int n,
                                             const std::function<void(JoinOptions*)>& adjust = {}) {
  std::vector<Result<Mesh>> meshes;
  for (int rank = 0; rank < n; ++rank) meshes.emplace_back(InternalError("not run"));
  OnThreads(n, [&](int rank) {
    JoinOptions options = Options(rank, n);
    if (adjust) adjust(&options);
    meshes[static_cast<size_t>(rank)] = JoinWithId(id, options);
  });
  return meshes;
}

// Processes of this test; each runs `body` and exits with what it returns (or 1 after a failed
// expectation). Those that still run at the end are killed.
class Processes {
 public:
  pid_t Start(const std::function<int()>& body) {
    std::fflush(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
      const int code = body();
      std::fflush(nullptr);
      _exit(code != 0 ? code : ::testing::Test::HasFailure() ? 1 : 0);
    }
    running_.push_back(pid);
    return pid;
  }
  // The status of waitpid, or -1 if it did not end in time.
  int Wait(pid_t pid, double seconds = 60.0 * kSlowness) {
    const double limit = Seconds() + seconds;
    while (Seconds() < limit) {
      int status = 0;
      if (waitpid(pid, &status, WNOHANG) == pid) {
        std::erase(running_, pid);
        return status;
      }
      usleep(500);
    }
    return -1;
  }
  ~Processes() {
    for (const pid_t pid : running_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

 private:
  std::vector<pid_t> running_;
};

// What is logged while this lives.
class LogFile {
 public:
  LogFile() : path_(::testing::TempDir() + "inccl-late-" + std::to_string(getpid())) {
    EXPECT_TRUE(ConfigureLog(LogLevel::kWarn, kDefaultLogSubsystems, path_).ok());
  }
  ~LogFile() {
    (void)ConfigureLog(LogLevel::kNone, kDefaultLogSubsystems, "");
    std::remove(path_.c_str());
  }
  std::string Text() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // The log once it has `part`, or after a while.
  std::string Await(const std::string& part) const {
    const double limit = Seconds() + 10.0 * kSlowness;
    while (Text().find(part) == std::string::npos && Seconds() < limit) usleep(1000);
    return Text();
  }

 private:
  const std::string path_;
};

#define EXPECT_CONTAINS(text, part)                          \
  EXPECT_NE(std::string(text).find(part), std::string::npos) \
      << "\"" << (text) << "\" lacks " << (part)

}  // namespace inccl::test

#endif  // INCCL_TESTS_BOOTSTRAP_BOOTSTRAP_WORLD_H_
