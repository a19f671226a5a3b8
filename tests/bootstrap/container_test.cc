// SPDX-License-Identifier: Apache-2.0
//
// Containers that share the network, so also the names of abstract sockets: root of one is the same
// user id as root of the other, and what the launcher says can be guessed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <string>

#include "bootstrap/bootstrap_world.h"
#include "bootstrap/handshake.h"
#include "bootstrap/host.h"
#include "bootstrap/messages.h"
#include "bootstrap/rendezvous_client.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/socket.h"

namespace inccl::test {
namespace {

constexpr int kCannot = 77;  // exit code: this test may not make namespaces

// Runs `body` in another namespace, as root of it.
int InNamespace(int flag, const std::function<int()>& body) {
  if (unshare(flag) != 0) return kCannot;
  if (flag == CLONE_NEWUSER) {
    const UniqueFd map(open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC));
    if (!map.valid() || write(map.get(), "0 0 1", 5) != 5) return kCannot;
    return body();
  }
  Processes inside;  // children live in the new one
  const int status = inside.Wait(inside.Start(body));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

struct Outcome {
  Code code = Code::kOk;
  char text[1000] = "";
};

// Three ranks of a launcher's job, the last of them in a namespace of its own.
class ContainerTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root to make namespaces";
    outcomes_ = static_cast<Outcome*>(mmap(nullptr, 3 * sizeof(Outcome), PROT_READ | PROT_WRITE,
                                           MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(outcomes_, MAP_FAILED);
  }
  ~ContainerTest() override { munmap(outcomes_, 3 * sizeof(Outcome)); }

  // False: this test may not make namespaces.
  bool Join(const std::string& secret_file, int timeout_ms) {
    Processes processes;
    std::array<pid_t, 3> pids{};
    for (int rank = 0; rank < 3; ++rank) {
      const auto join = [&, rank] {
        Launcher launcher;
        launcher.kind = "test";
        launcher.rank = rank;
        launcher.nranks = 3;
        launcher.job = "container" + std::to_string(parent_) + secret_file;
        JoinOptions options = Options(rank, 3, timeout_ms);
        options.secret_file = secret_file;
        const Status status = JoinWithLauncher(launcher, 0, options).status();
        Outcome& outcome = outcomes_[rank];
        outcome.code = status.code();
        std::strncpy(outcome.text, status.message().c_str(), sizeof outcome.text - 1);
        return 0;
      };
      pids[static_cast<size_t>(rank)] =
          processes.Start([&] { return rank == 2 ? InNamespace(GetParam(), join) : join(); });
    }
    bool could = true;
    for (const pid_t pid : pids) {
      const int status = processes.Wait(pid);
      if (WIFEXITED(status) && WEXITSTATUS(status) == kCannot) {
        could = false;
      } else {
        EXPECT_EQ(status, 0);
      }
    }
    return could;
  }

  const pid_t parent_ = getpid();
  Outcome* outcomes_ = nullptr;
};

TEST_P(ContainerTest, AnotherContainersRankIsRefused) {
  constexpr int kLimit = 500 * kSlowness;
  if (!Join("", kLimit)) GTEST_SKIP() << "may not make namespaces";
  const Outcome& outside = outcomes_[2];
  EXPECT_EQ(outside.code, Code::kInvalidUsage) << outside.text;
  EXPECT_CONTAINS(outside.text, "rank 2/3: init: ");
  EXPECT_CONTAINS(outside.text, GetParam() == CLONE_NEWPID ? "pid namespace" : "user namespace");
  EXPECT_CONTAINS(outside.text, "INCCL_SECRET_FILE");
  for (const int rank : {0, 1}) {
    EXPECT_EQ(outcomes_[rank].code, Code::kTimeout) << outcomes_[rank].text;
    EXPECT_CONTAINS(outcomes_[rank].text, "rank 2 of 3 did not arrive");
  }
}

TEST_P(ContainerTest, ASecretFileAdmitsIt) {
  const std::string path = ::testing::TempDir() + "inccl-container-" + std::to_string(parent_);
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  ASSERT_EQ(write(file.get(), "sixteen or more bytes", 21), 21);
  const bool could = Join(path, 20000 * kSlowness);
  std::remove(path.c_str());
  if (!could) GTEST_SKIP() << "may not make namespaces";
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(outcomes_[rank].code, Code::kOk) << outcomes_[rank].text;
  }
}

// One that follows no rules: the rendezvous must not even greet it.
TEST_P(ContainerTest, AStrangerIsNotGreeted) {
  using namespace bootstrap;  // NOLINT(build/namespaces)
  const std::string name =
      "inccl-container-" + std::to_string(parent_) + "-" + std::to_string(GetParam());
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  Processes processes;
  const pid_t stranger = processes.Start([&] {
    return InNamespace(GetParam(), [&] {
      char go = 0;
      if (read(ready[0], &go, 1) != 1) return 2;
      int error = 0;
      const Result<UniqueFd> fd = Connect(SocketAddress::Unix(name), &error);
      if (!fd.ok() || error != 0) return 3;
      std::array<std::byte, kGreetingBytes> greeting;
      ClientHandshake handshake;
      handshake.Start(nullptr, {}, {});
      (void)WriteSome(fd->get(), handshake.to_send());
      if (!WaitFor(fd->get(), POLLIN, SystemClock().Now() + 10 * kSecond)) return 4;
      return ReadSome(fd->get(), greeting).bytes == 0 ? 42 : 5;
    });
  });
  const RootTarget target = OpenMeeting(SocketAddress::Unix(name));
  ASSERT_EQ(write(ready[1], "g", 1), 1);
  const int status = processes.Wait(stranger);
  close(ready[0]);
  close(ready[1]);
  // One that may come, so that the rendezvous ends.
  const auto client = RendezvousClient::Connect(
      target, {.rank = 0, .nranks = 2, .deadline = SystemClock().Now() + 20 * kSecond});
  ASSERT_TRUE(client.ok()) << client.status().message();
  Registration registration;
  registration.nranks = 2;
  registration.remaining = kMillisecond;
  ASSERT_TRUE((*client)->Send(MessageKind::kRegister, registration.Encode()).ok());
  EXPECT_EQ((*client)->Await(MessageKind::kGo).status().code(), Code::kTimeout);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == kCannot) GTEST_SKIP() << "may not make namespaces";
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

// A peer that has died is no other container's.
TEST(NamespacesTest, AProcessThatHasEndedIsToldApart) {
  using namespace bootstrap;  // NOLINT(build/namespaces)
  const std::string name = "inccl-ended-" + std::to_string(getpid());
  Result<UniqueFd> listener = Listen(SocketAddress::Unix(name));
  ASSERT_TRUE(listener.ok());
  Processes processes;
  const pid_t child = processes.Start([&] {
    int error = 0;
    return Connect(SocketAddress::Unix(name), &error).ok() && error == 0 ? 0 : 1;
  });
  EXPECT_EQ(processes.Wait(child), 0);
  const UniqueFd fd(accept(listener->get(), nullptr, nullptr));
  ASSERT_TRUE(fd.valid());
  const Status status = CheckPeerNamespaces(fd.get());
  EXPECT_EQ(status.code(), Code::kRemoteError) << status.message();
  EXPECT_NE(status.message().find("process " + std::to_string(child)), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Namespaces, ContainerTest, ::testing::Values(CLONE_NEWPID, CLONE_NEWUSER),
                         [](const auto& which) {
                           return which.param == CLONE_NEWPID ? "Pid" : "User";
                         });

}  // namespace
}  // namespace inccl::test
