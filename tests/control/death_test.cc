// SPDX-License-Identifier: Apache-2.0
//
// Peers of the control plane that die, stop, or speak nonsense.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <vector>

#include "base/bytes.h"
#include "base/rng.h"
#include "bootstrap/bootstrap_world.h"
#include "bootstrap/messages.h"
#include "control/control.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

class Watcher : public ControlHandler {
 public:
  void OnMessage(int, uint8_t, std::span<const std::byte>) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(closed_) << "a message after the end";
    ++messages_;
  }
  void OnPeerClosed(int peer, bool clean) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(closed_) << "closed twice: by " << peer_ << " and " << peer << " clean " << clean;
    closed_ = true;
    peer_ = peer;
    clean_ = clean;
    when_ = Seconds();
    changed_.notify_all();
  }
  bool WaitForEnd() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20 * kSlowness), [&] { return closed_; });
  }
  int messages() {
    const std::lock_guard lock(mutex_);
    return messages_;
  }
  bool clean() const { return clean_; }
  int peer() const { return peer_; }
  double when() const { return when_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false, clean_ = false;
  int messages_ = 0, peer_ = -1;
  double when_ = 0;
};

Launcher PairLauncher(int rank, const std::string& job) {
  Launcher launcher;
  launcher.kind = "test";
  launcher.rank = rank;
  launcher.nranks = 2;
  launcher.job = job;
  return launcher;
}

// Rank 1 in a process of its own, doing `body` with its mesh; rank 0 here, watching.
class ProcessPair {
 public:
  explicit ProcessPair(const std::function<int(Mesh)>& body) {
    static int count = 0;
    const std::string job = "control" + std::to_string(getpid()) + "." + std::to_string(++count);
    pid_ = processes_.Start([&] {
      Result<Mesh> mesh = JoinWithLauncher(PairLauncher(1, job), 0, Options(1, 2));
      EXPECT_TRUE(mesh.ok()) << mesh.status().message();
      return mesh.ok() ? body(*std::move(mesh)) : 1;
    });
    Result<Mesh> mesh = JoinWithLauncher(PairLauncher(0, job), 0, Options(0, 2));
    EXPECT_TRUE(mesh.ok()) << mesh.status().message();
    Result<std::unique_ptr<ControlPlane>> plane = StartControl(*std::move(mesh), &watcher);
    EXPECT_TRUE(plane.ok());
    plane_ = *std::move(plane);
  }
  ControlPlane& plane() { return *plane_; }
  pid_t pid() const { return pid_; }
  int Wait() { return processes_.Wait(pid_); }

  Watcher watcher;

 private:
  Processes processes_;
  pid_t pid_ = -1;
  std::unique_ptr<ControlPlane> plane_;
};

TEST(ControlDeathTest, AKilledPeerIsSeenAfterItsLastMessage) {
  const Baseline baseline;
  ProcessPair pair([](Mesh mesh) {
    Watcher watcher;
    auto plane = StartControl(std::move(mesh), &watcher);
    for (int i = 0; i < 100; ++i) (*plane)->Send(0, 1, std::vector<std::byte>(1000));
    while (true) pause();
    return 0;
  });
  while (pair.watcher.messages() < 100) usleep(1000);
  const double start = Seconds();
  kill(pair.pid(), SIGKILL);
  ASSERT_TRUE(pair.watcher.WaitForEnd());
  EXPECT_FALSE(pair.watcher.clean());
  EXPECT_EQ(pair.watcher.peer(), 1);
  EXPECT_LT(pair.watcher.when() - start, 1.0 * kSlowness);
  EXPECT_TRUE(WIFSIGNALED(pair.Wait()));
}

TEST(ControlDeathTest, AllThatWasSentBeforeTheDeathArrives) {
  const Baseline baseline;
  for (int round = 0; round < 10; ++round) {
    ProcessPair pair([](Mesh mesh) {
      // As much as the socket takes, then death without a word.
      std::vector<std::byte> frame;
      bootstrap::AppendFrame(1, std::vector<std::byte>(95), &frame);
      for (int i = 0; i < 200; ++i) {
        if (send(mesh.peers[0].control.get(), frame.data(), frame.size(), MSG_NOSIGNAL) != 100) {
          return 1;
        }
      }
      kill(getpid(), SIGKILL);
      return 0;
    });
    ASSERT_TRUE(pair.watcher.WaitForEnd());
    EXPECT_EQ(pair.watcher.messages(), 200);
    EXPECT_FALSE(pair.watcher.clean());
  }
}

TEST(ControlDeathTest, ExitWithoutGoodbyeIsNotClean) {
  const Baseline baseline;
  ProcessPair pair([](Mesh mesh) {
    static Watcher watcher;
    static auto plane = StartControl(std::move(mesh), &watcher);
    return 0;
  });
  ASSERT_TRUE(pair.watcher.WaitForEnd());
  EXPECT_FALSE(pair.watcher.clean());
  EXPECT_EQ(pair.Wait(), 0);
}

TEST(ControlDeathTest, AStoppedPeerBlocksNoRank) {
  const Baseline baseline;
  ProcessPair pair([](Mesh mesh) {
    Watcher watcher;
    auto plane = StartControl(std::move(mesh), &watcher);
    while (true) pause();
    return 0;
  });
  kill(pair.pid(), SIGSTOP);
  const double start = Seconds();
  const std::vector<std::byte> large(kMaxControlBody);
  for (int i = 0; i < 20; ++i) pair.plane().Send(1, 1, large);
  ASSERT_TRUE(pair.watcher.WaitForEnd()) << "more waits for it than may";
  EXPECT_FALSE(pair.watcher.clean());
  pair.plane().Close(SystemClock().Now() + kSecond);
  EXPECT_LT(Seconds() - start, 10.0 * kSlowness);
}

TEST(ControlDeathTest, CloseDoesNotWaitBeyondItsDeadline) {
  const Baseline baseline;
  ProcessPair pair([](Mesh mesh) {
    Watcher watcher;
    auto plane = StartControl(std::move(mesh), &watcher);
    while (true) pause();
    return 0;
  });
  kill(pair.pid(), SIGSTOP);
  const std::vector<std::byte> large(kMaxControlBody);
  for (int i = 0; i < 3; ++i) pair.plane().Send(1, 1, large);
  const double start = Seconds();
  pair.plane().Close(SystemClock().Now() + 50 * kMillisecond);
  EXPECT_GE(Seconds() - start, 0.049);
  EXPECT_LT(Seconds() - start, 2.0 * kSlowness);
}

// What a peer must send to be given up, and how many messages come through before.
struct Nonsense {
  std::vector<std::byte> bytes;
  int messages;
};

TEST(ControlDeathTest, MalformedFramesEndThatConnectionOnly) {
  const Baseline baseline;
  std::vector<Nonsense> cases;
  ByteWriter huge;
  huge.U32(kMaxControlBody + 1);
  cases.push_back({huge.bytes(), 0});
  std::vector<std::byte> good_then_huge;
  bootstrap::AppendFrame(3, std::vector<std::byte>(10), &good_then_huge);
  good_then_huge.resize(good_then_huge.size() + 4, std::byte{0xFF});
  cases.push_back({good_then_huge, 1});
  std::vector<std::byte> fat_goodbye;
  bootstrap::AppendFrame(0, std::vector<std::byte>(1), &fat_goodbye);
  cases.push_back({fat_goodbye, 0});
  for (const Nonsense& nonsense : cases) {
    Result<UniqueId> id = CreateUniqueId(TestEnvironment());
    ASSERT_TRUE(id.ok());
    std::vector<Result<Mesh>> meshes = JoinThreads(*id, 3);
    Watcher watchers[2];
    std::vector<std::unique_ptr<ControlPlane>> planes;
    for (size_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(meshes[i].ok());
      auto plane = StartControl(*std::move(meshes[i]), &watchers[i]);
      ASSERT_TRUE(plane.ok());
      planes.push_back(*std::move(plane));
    }
    const int fd = meshes[2]->peers[0].control.get();
    ASSERT_EQ(send(fd, nonsense.bytes.data(), nonsense.bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(nonsense.bytes.size()));
    ASSERT_TRUE(watchers[0].WaitForEnd());
    EXPECT_FALSE(watchers[0].clean());
    EXPECT_EQ(watchers[0].peer(), 2);
    EXPECT_EQ(watchers[0].messages(), nonsense.messages);
    planes[0]->Send(1, 1, {});
    while (watchers[1].messages() == 0) usleep(100);
    for (auto& plane : planes) plane->Close(SystemClock().Now() + kSecond);
  }
}

TEST(ControlDeathTest, RandomBytesNeverHarm) {
  const Baseline baseline;
  Rng rng(TestSeed());
  for (int round = 0; round < 100; ++round) {
    Result<UniqueId> id = CreateUniqueId(TestEnvironment());
    ASSERT_TRUE(id.ok());
    std::vector<Result<Mesh>> meshes = JoinThreads(*id, 2);
    ASSERT_TRUE(meshes[0].ok() && meshes[1].ok());
    Watcher watcher;
    auto plane = StartControl(*std::move(meshes[0]), &watcher);
    ASSERT_TRUE(plane.ok());
    std::vector<std::byte> bytes(1 + rng.Below(500));
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng.Below(round % 2 == 0 ? 3 : 256));
    ASSERT_GT(send(meshes[1]->peers[0].control.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    meshes[1]->peers[0].control.Reset();
    ASSERT_TRUE(watcher.WaitForEnd());
    (*plane)->Close(SystemClock().Now() + kSecond);
  }
}

TEST(ControlDeathTest, AForkedChildLeavesTheConnectionsAlone) {
  const Baseline baseline;
  Result<UniqueId> id = CreateUniqueId(TestEnvironment());
  ASSERT_TRUE(id.ok());
  std::vector<Result<Mesh>> meshes = JoinThreads(*id, 2);
  ASSERT_TRUE(meshes[0].ok() && meshes[1].ok());
  Watcher watchers[2];
  auto a = StartControl(*std::move(meshes[0]), &watchers[0]);
  auto b = StartControl(*std::move(meshes[1]), &watchers[1]);
  ASSERT_TRUE(a.ok() && b.ok());
#if !defined(__SANITIZE_THREAD__)  // which cannot fork a process with threads
  Processes processes;
  const pid_t child = processes.Start([&] {
    (*a)->Close(SystemClock().Now() + kSecond);
    a->reset();
    // Nor can it have communicators of its own.
    Watcher watcher;
    const auto planes = MakeLocalControl({&watcher, &watcher});
    EXPECT_EQ(planes.status().code(), Code::kInvalidUsage);
    return 0;
  });
  EXPECT_EQ(processes.Wait(child), 0);
#endif
  (*a)->Send(1, 1, {});
  while (watchers[1].messages() == 0) usleep(100);
  (*a)->Close(SystemClock().Now() + kSecond);
  ASSERT_TRUE(watchers[1].WaitForEnd());
  EXPECT_TRUE(watchers[1].clean());
  (*b)->Close(SystemClock().Now() + kSecond);
}

}  // namespace
}  // namespace inccl::test
