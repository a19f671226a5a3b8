// SPDX-License-Identifier: Apache-2.0
//
// The socket at which a process says what it does: who may ask, what clients may do to it, and what
// is left of it.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/bootstrap_world.h"
#include "bootstrap/socket.h"
#include "control/loop.h"
#include "control/status_socket.h"

namespace inccl::test {
namespace {

constexpr Time kLimit = 60 * kSecond * kSlowness;

class Fake final : public StatusSource {
 public:
  explicit Fake(std::string json) : json_(std::move(json)) {}
  void AskPeers() override { ++asked; }
  bool PeersHaveAnswered() override { return ++looked >= answers_after; }
  std::string StatusJson() override { return json_; }

  std::atomic<int> asked{0}, looked{0}, answers_after{0};

 private:
  const std::string json_;
};

class StatusTest : public ::testing::Test {
 protected:
  StatusTest() : root_(::testing::TempDir() + "inccl-status-XXXXXX") {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
    directory_ = root_ + "/inccl";
  }
  ~StatusTest() override { std::filesystem::remove_all(root_); }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    if (!std::filesystem::exists(directory_)) return names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
  std::string Socket() const {
    const std::vector<std::string> paths = FindStatusSockets(directory_);
    EXPECT_EQ(paths.size(), 1u);
    return paths.empty() ? "" : paths[0];
  }

  std::string root_, directory_;
};

// A connection to the socket, for clients that do not do what they should.
UniqueFd Connect(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

// True if the server closes the connection without an answer.
bool ClosesWithoutAnswer(const UniqueFd& fd) {
  char c = 0;
  return bootstrap::WaitFor(fd.get(), POLLIN, SystemClock().Now() + kLimit) &&
         recv(fd.get(), &c, 1, 0) <= 0;
}

TEST_F(StatusTest, AnswersForAllSourcesAndLeavesNothing) {
  const Baseline baseline;
  Fake first(R"({"id":"a"})"), second(R"({"id":"b"})");
  EXPECT_EQ(Names().size(), 0u);
  ASSERT_TRUE(PublishStatus(directory_, &first).ok());
  ASSERT_TRUE(PublishStatus(directory_, &second).ok());
  struct stat info {};
  ASSERT_EQ(stat(directory_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  const std::string path = Socket();
  EXPECT_EQ(AskForStatus(path, "local", kLimit).value(),
            fmt::format("{{\"pid\":{},\"communicators\":[{{\"id\":\"a\"}},{{\"id\":\"b\"}}]}}\n",
                        getpid()));
  EXPECT_EQ(first.asked, 0);
  WithdrawStatus(&first);
  EXPECT_EQ(AskForStatus(path, "local", kLimit).value(),
            fmt::format("{{\"pid\":{},\"communicators\":[{{\"id\":\"b\"}}]}}\n", getpid()));
  WithdrawStatus(&second);
  EXPECT_EQ(Names().size(), 0u);
  WithdrawStatus(&second);
  ASSERT_TRUE(PublishStatus(directory_, &first).ok());
  EXPECT_EQ(Names().size(), 1u);
  WithdrawStatus(&first);
}

TEST_F(StatusTest, WaitsForPeersButNotForEver) {
  Fake source("{}");
  ASSERT_TRUE(PublishStatus(directory_, &source).ok());
  source.answers_after = 5;
  EXPECT_TRUE(AskForStatus(Socket(), "all", kLimit).ok());
  EXPECT_EQ(source.asked, 1);
  EXPECT_GE(source.looked, 5);
  source.answers_after = 1 << 30;
  EXPECT_TRUE(AskForStatus(Socket(), "all", kLimit).ok());
  EXPECT_EQ(source.asked, 2);
  WithdrawStatus(&source);
}

TEST_F(StatusTest, LargeAnswersArriveWhole) {
  Fake source("\"" + std::string(5 << 20, 'x') + "\"");  // more than a socket takes at once
  ASSERT_TRUE(PublishStatus(directory_, &source).ok());
  const std::string path = Socket();
  UniqueFd idle = Connect(path);  // asks, and does not read
  ASSERT_EQ(send(idle.get(), "local\n", 6, 0), 6);
  const Result<std::string> answer = AskForStatus(path, "local", kLimit);
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_GT(answer->size(), size_t{5 << 20});
  EXPECT_TRUE(answer->ends_with("\"]}\n"));
  WithdrawStatus(&source);
}

TEST_F(StatusTest, RefusesWhatIsNoRequest) {
  Fake source("{}");
  ASSERT_TRUE(PublishStatus(directory_, &source).ok());
  const std::string path = Socket();
  UniqueFd wrong = Connect(path);
  ASSERT_EQ(send(wrong.get(), "a line that is longer than any request\n", 39, 0), 39);
  EXPECT_TRUE(ClosesWithoutAnswer(wrong));
  { const UniqueFd silent = Connect(path); }
  EXPECT_EQ(source.asked, 0);
  // More than it serves at a time: the ninth is refused, and the next one after they left is not.
  {
    std::vector<UniqueFd> clients;
    for (int i = 0; i < 8; ++i) clients.push_back(Connect(path));
    EXPECT_TRUE(ClosesWithoutAnswer(Connect(path)));
  }
  while (!AskForStatus(path, "local", kLimit).ok()) usleep(1000);  // it has not seen all leave yet
  WithdrawStatus(&source);
}

TEST_F(StatusTest, RefusesOtherUsers) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  Fake source("{}");
  ASSERT_TRUE(PublishStatus(directory_, &source).ok());
  const std::string path = Socket();
  const auto as_other = [&] {
    Processes processes;
    return processes.Wait(processes.Start([&] {
      if (setgid(65534) != 0 || setuid(65534) != 0) return 2;
      int error = 0;
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      path.copy(address.sun_path, sizeof address.sun_path - 1);
      const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM, 0));
      error =
          connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ? errno : 0;
      if (error != 0) return error == EACCES ? 3 : 4;
      (void)send(fd.get(), "local\n", 6, MSG_NOSIGNAL);
      return ClosesWithoutAnswer(fd) ? 5 : 6;
    }));
  };
  // The directory keeps them out, and so does the process where the directory does not.
  EXPECT_EQ(WEXITSTATUS(as_other()), 3);
  std::filesystem::permissions(root_, std::filesystem::perms::all);
  std::filesystem::permissions(directory_, std::filesystem::perms::all);
  std::filesystem::permissions(path, std::filesystem::perms::all);
  EXPECT_EQ(WEXITSTATUS(as_other()), 5);
  WithdrawStatus(&source);
}

TEST_F(StatusTest, DirectoriesOfOthersAreNotUsed) {
  ASSERT_EQ(mkdir(directory_.c_str(), 0700), 0);
  ASSERT_EQ(chmod(directory_.c_str(), 0770), 0);
  Fake source("{}");
  Status status = PublishStatus(directory_, &source);
  EXPECT_EQ(status.code(), Code::kSystemError);
  EXPECT_CONTAINS(status.message(), "mode 0770");
  EXPECT_TRUE(FindStatusSockets(directory_).empty());
  ASSERT_EQ(rename(directory_.c_str(), (root_ + "/other").c_str()), 0);
  ASSERT_EQ(chmod((root_ + "/other").c_str(), 0700), 0);
  ASSERT_EQ(symlink((root_ + "/other").c_str(), directory_.c_str()), 0);
  EXPECT_FALSE(PublishStatus(directory_, &source).ok());
  status = PublishStatus(root_ + "/" + std::string(120, 'x'), &source);
  EXPECT_CONTAINS(status.message(), "too long");
  EXPECT_TRUE(control::Loop::Get().CheckProcess().ok());
}

TEST_F(StatusTest, SocketsOfKilledProcessesAreRemoved) {
  Processes processes;
  const auto start = [&] {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const pid_t pid = processes.Start([&] {
      Fake source("{}");
      if (!PublishStatus(directory_, &source).ok() || write(ends[1], "x", 1) != 1) return 1;
      pause();
      return 0;
    });
    char c = 0;
    EXPECT_EQ(read(ends[0], &c, 1), 1);
    close(ends[0]);
    close(ends[1]);
    return pid;
  };
  const pid_t first = start(), second = start();
  EXPECT_EQ(Names().size(), 2u);
  const std::string path = FindStatusSockets(directory_)[0];
  kill(first, SIGKILL);
  kill(second, SIGKILL);
  processes.Wait(first);
  processes.Wait(second);
  EXPECT_FALSE(AskForStatus(path, "local", kLimit).ok());
  EXPECT_EQ(Names().size(), 2u);
  EXPECT_TRUE(FindStatusSockets(directory_).empty());
  EXPECT_EQ(Names().size(), 0u) << "a client removes them";
  const pid_t third = start();
  kill(third, SIGKILL);
  processes.Wait(third);
  Fake source("{}");
  ASSERT_TRUE(PublishStatus(directory_, &source).ok());
  EXPECT_EQ(Names().size(), 1u) << "and so does the next process";
  WithdrawStatus(&source);
}

// A client may be given any directory of the user.
TEST_F(StatusTest, OtherFilesAreNeitherAskedNorRemoved) {
  ASSERT_EQ(mkdir(directory_.c_str(), 0700), 0);
  const std::string gone = "4194304-0123abcd";  // as of a process, whose number no process has
  for (const std::string& name : {std::string("id_ed25519"), gone, "." + gone}) {
    std::ofstream(directory_ + "/" + name) << "secret";
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string agent = directory_ + "/agent.17";
  ASSERT_LT(agent.size(), sizeof address.sun_path);
  std::memcpy(address.sun_path, agent.c_str(), agent.size() + 1);
  const UniqueFd other(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(other.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_TRUE(FindStatusSockets(directory_).empty());
  EXPECT_EQ(Names().size(), 4u);
  Fake source("{}");
  ASSERT_TRUE(PublishStatus(directory_, &source).ok());
  EXPECT_EQ(FindStatusSockets(directory_).size(), 1u);
  WithdrawStatus(&source);
  EXPECT_EQ(Names().size(), 4u);
}

TEST_F(StatusTest, AForkedChildLeavesTheParentsSocketAlone) {
  Fake source("{}");
  ASSERT_TRUE(PublishStatus(directory_, &source).ok());
  Processes processes;
  const int status = processes.Wait(processes.Start([&] {
    WithdrawStatus(&source);
    return 0;
  }));
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(AskForStatus(Socket(), "local", kLimit).ok());
  WithdrawStatus(&source);
}

TEST_F(StatusTest, WithoutDescriptorsItAnswersLater) {
  Fake source("{}");
  ASSERT_TRUE(PublishStatus(directory_, &source).ok());
  const std::string path = Socket();
  const UniqueFd waiting = Connect(path);
  ASSERT_EQ(send(waiting.get(), "local\n", 6, 0), 6);
  EXPECT_TRUE(bootstrap::WaitFor(waiting.get(), POLLIN, SystemClock().Now() + kLimit));
  // The next client connects with the last descriptor, so none is left to accept it with.
  UniqueFd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int connected =
      connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  const ssize_t sent = send(client.get(), "local\n", 6, 0);
  timespec before{}, after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  usleep(300000);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(connected, 0);
  EXPECT_EQ(sent, 6);
  const double busy = static_cast<double>(after.tv_sec - before.tv_sec) +
                      static_cast<double>(after.tv_nsec - before.tv_nsec) / 1e9;
  EXPECT_LT(busy, 0.1) << "the control thread spins";
  EXPECT_TRUE(bootstrap::WaitFor(client.get(), POLLIN, SystemClock().Now() + kLimit));
  WithdrawStatus(&source);
}

TEST_F(StatusTest, SourcesComeAndGoWhileClientsAsk) {
  Fake stays("{}");
  ASSERT_TRUE(PublishStatus(directory_, &stays).ok());
  const std::string path = Socket();
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) {
      Fake source("{}");
      EXPECT_TRUE(PublishStatus(directory_, &source).ok());
      WithdrawStatus(&source);
    }
  });
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(AskForStatus(path, "all", kLimit).ok());
  other.join();
  WithdrawStatus(&stays);
}

TEST(StatusDirectoryTest, BelowTheUsersRuntimeDirectoryOrTmp) {
  const std::string in_tmp = fmt::format("/tmp/inccl-{}", geteuid());
  EXPECT_EQ(StatusDirectory(nullptr), in_tmp);
  EXPECT_EQ(StatusDirectory(""), in_tmp);
  EXPECT_EQ(StatusDirectory("relative"), in_tmp);
  EXPECT_EQ(StatusDirectory("/nonexistent"), in_tmp);
  EXPECT_EQ(StatusDirectory("/proc/self"), "/proc/self/inccl");
}

}  // namespace
}  // namespace inccl::test
