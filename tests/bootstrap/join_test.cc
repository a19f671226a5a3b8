// SPDX-License-Identifier: Apache-2.0
//
// Joining that succeeds: by id, by launcher, threads and processes, few and many.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <mutex>
#include <set>

#include "bootstrap/bootstrap_world.h"

namespace inccl::test {
namespace {

// Sends a word over each connection of the mesh and expects the peer's.
void ExpectConnected(const Mesh& mesh) {
  for (int peer = 0; peer < mesh.nranks; ++peer) {
    if (peer == mesh.rank) continue;
    const int word = mesh.rank * 1000 + peer;
    const int fd = mesh.peers[static_cast<size_t>(peer)].control.get();
    ASSERT_EQ(send(fd, &word, sizeof word, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof word));
  }
  for (int peer = 0; peer < mesh.nranks; ++peer) {
    if (peer == mesh.rank) continue;
    int word = 0;
    const int fd = mesh.peers[static_cast<size_t>(peer)].control.get();
    ssize_t got = -1;
    while ((got = recv(fd, &word, sizeof word, MSG_DONTWAIT)) < 0 && errno == EAGAIN) usleep(100);
    ASSERT_EQ(got, static_cast<ssize_t>(sizeof word));
    EXPECT_EQ(word, peer * 1000 + mesh.rank);
  }
}

TEST(JoinTest, ThreadsMeetAndKnowEachOther) {
  const Baseline baseline;
  for (const int n : {1, 2, 3, 8}) {
    Result<UniqueId> id = CreateUniqueId(TestEnvironment());
    ASSERT_TRUE(id.ok()) << id.status().message();
    std::vector<Result<Mesh>> meshes = JoinThreads(*id, n);
    for (int rank = 0; rank < n; ++rank) {
      ASSERT_TRUE(meshes[static_cast<size_t>(rank)].ok())
          << meshes[static_cast<size_t>(rank)].status().message();
      const Mesh& mesh = *meshes[static_cast<size_t>(rank)];
      EXPECT_EQ(mesh.rank, rank);
      EXPECT_EQ(mesh.nranks, n);
      EXPECT_EQ(mesh.nonce_hash, meshes[0]->nonce_hash);
      ASSERT_EQ(mesh.peers.size(), static_cast<size_t>(n));
      for (int peer = 0; peer < n; ++peer) {
        const Peer& p = mesh.peers[static_cast<size_t>(peer)];
        EXPECT_EQ(p.info.rank, peer);
        EXPECT_EQ(p.info.pid, getpid());
        EXPECT_EQ(p.info.uid, geteuid());
        EXPECT_EQ(p.info.host_id, mesh.peers[0].info.host_id);
        char host[256] = "";
        gethostname(host, sizeof host - 1);
        EXPECT_EQ(p.info.host, host);
        EXPECT_EQ(p.control.valid(), peer != rank);
      }
    }
    OnThreads(n, [&](int rank) { ExpectConnected(*meshes[static_cast<size_t>(rank)]); });
  }
}

TEST(JoinTest, BlobsArriveEverywhere) {
  const auto blob_of = [](int rank) {
    return std::vector<std::byte>(rank == 1 ? kMaxBlob : static_cast<size_t>(rank),
                                  static_cast<std::byte>(rank));
  };
  Result<UniqueId> id = CreateUniqueId(TestEnvironment());
  ASSERT_TRUE(id.ok()) << id.status().message();
  const auto meshes =
      JoinThreads(*id, 4, [&](JoinOptions* options) { options->blob = blob_of(options->rank); });
  for (const Result<Mesh>& mesh : meshes) {
    ASSERT_TRUE(mesh.ok()) << mesh.status().message();
    for (const Peer& peer : mesh->peers) EXPECT_EQ(peer.info.blob, blob_of(peer.info.rank));
  }
  JoinOptions options = Options(0, 1);
  options.blob.resize(kMaxBlob + 1);
  EXPECT_EQ(JoinWithId(*id, options).status().code(), Code::kInvalidArgument);
}

TEST(JoinTest, SixtyFourRanksInOneProcessAreQuick) {
  const Baseline baseline;
  const double start = Seconds();
  Result<UniqueId> id = CreateUniqueId(TestEnvironment());
  ASSERT_TRUE(id.ok()) << id.status().message();
  const std::vector<Result<Mesh>> meshes = JoinThreads(*id, 64);
  for (const Result<Mesh>& mesh : meshes) ASSERT_TRUE(mesh.ok()) << mesh.status().message();
  EXPECT_LT(Seconds() - start, 5.0 * kSlowness);
}

Launcher TestLauncher(int rank, int nranks, const std::string& name) {
  Launcher launcher;
  launcher.kind = "test";
  launcher.rank = rank;
  launcher.nranks = nranks;
  launcher.job = name + std::to_string(getpid());
  return launcher;
}

// One listener and one thread serve all ids of a process.
TEST(JoinTest, ManyIdsCostLittle) {
  ASSERT_TRUE(CreateUniqueId(TestEnvironment()).ok());
  const Holdings before = Holdings::Now();
  std::vector<UniqueId> ids;
  for (int i = 0; i < 300; ++i) ids.push_back(CreateUniqueId(TestEnvironment()).value());
  const Holdings after = Holdings::Now();
  EXPECT_EQ(after.threads, before.threads);
  EXPECT_EQ(after.fds, before.fds);
  for (const int i : {0, 299}) {
    for (const Result<Mesh>& mesh : JoinThreads(ids[static_cast<size_t>(i)], 3)) {
      EXPECT_TRUE(mesh.ok()) << mesh.status().message();
    }
  }
  // One communicator for one id.
  EXPECT_CONTAINS(JoinWithId(ids[0], Options(0, 3)).status().message(), "has served already");
}

TEST(JoinTest, LaunchersNeedNothingElse) {
  const Baseline baseline;
  for (uint32_t index = 0; index < 3; ++index) {
    OnThreads(4, [&](int rank) {
      if (rank == 0) usleep(20000);  // the others try until it is there
      const Result<Mesh> mesh =
          JoinWithLauncher(TestLauncher(rank, 4, "job"), index, Options(rank, 4));
      ASSERT_TRUE(mesh.ok()) << mesh.status().message();
      ExpectConnected(*mesh);
    });
  }
}

TEST(JoinTest, CommunicatorsOfOneProcessDoNotMix) {
  const Baseline baseline;
  std::mutex mutex;
  std::set<uint64_t> hashes;
  OnThreads(12, [&](int thread) {
    const int which = thread / 3, rank = thread % 3;
    const Result<Mesh> mesh = JoinWithLauncher(TestLauncher(rank, 3, "mix"),
                                               static_cast<uint32_t>(which), Options(rank, 3));
    ASSERT_TRUE(mesh.ok()) << mesh.status().message();
    ExpectConnected(*mesh);
    const std::lock_guard lock(mutex);
    hashes.insert(mesh->nonce_hash);
  });
  EXPECT_EQ(hashes.size(), 4u);
}

// A memory file that holds one number.
UniqueFd NumberFile(int number) {
  UniqueFd fd(memfd_create("number", MFD_CLOEXEC));
  EXPECT_EQ(write(fd.get(), &number, sizeof number), static_cast<ssize_t>(sizeof number));
  return fd;
}

TEST(JoinTest, EveryPeerGetsTheSharedDescriptors) {
  const Baseline baseline;
  Result<UniqueId> id = CreateUniqueId(TestEnvironment());
  ASSERT_TRUE(id.ok());
  OnThreads(4, [&](int rank) {
    JoinOptions options = Options(rank, 4);
    std::vector<UniqueFd> mine;
    for (int i = 0; i < rank; ++i) {  // ranks may share different numbers of them
      mine.push_back(NumberFile(100 * rank + i));
      options.share_fds.push_back(mine.back().get());
    }
    const Result<Mesh> mesh = JoinWithId(*id, options);
    ASSERT_TRUE(mesh.ok()) << mesh.status().message();
    for (int peer = 0; peer < 4; ++peer) {
      const std::vector<UniqueFd>& fds = mesh->peers[static_cast<size_t>(peer)].fds;
      ASSERT_EQ(fds.size(), static_cast<size_t>(peer == rank ? 0 : peer));
      for (size_t i = 0; i < fds.size(); ++i) {
        int number = 0;
        ASSERT_EQ(pread(fds[i].get(), &number, sizeof number, 0),
                  static_cast<ssize_t>(sizeof number));
        EXPECT_EQ(number, 100 * peer + static_cast<int>(i));
        EXPECT_NE(fcntl(fds[i].get(), F_GETFD) & FD_CLOEXEC, 0);
      }
      if (peer == rank) continue;
      const int control = mesh->peers[static_cast<size_t>(peer)].control.get();
      EXPECT_NE(fcntl(control, F_GETFD) & FD_CLOEXEC, 0);
    }
  });
}

TEST(JoinTest, Processes) {
  const Baseline baseline;
  std::array<std::array<int, 2>, 4> pipes;
  for (auto& p : pipes) ASSERT_EQ(pipe2(p.data(), O_CLOEXEC), 0);
  {
    Processes processes;
    std::vector<pid_t> pids;
    for (int rank = 0; rank < 4; ++rank) {
      pids.push_back(processes.Start([&, rank] {
        std::array<std::byte, kUniqueIdBytes> bytes;
        if (rank == 0) {
          Result<UniqueId> id = CreateUniqueId(TestEnvironment());
          if (!id.ok()) return 2;
          id->Encode(bytes.data());
          for (auto& p : pipes) {
            if (write(p[1], bytes.data(), bytes.size()) != kUniqueIdBytes) return 3;
          }
        } else if (read(pipes[static_cast<size_t>(rank)][0], bytes.data(), bytes.size()) !=
                   kUniqueIdBytes) {
          return 4;
        }
        const Result<UniqueId> id = UniqueId::Decode(bytes.data());
        if (!id.ok()) return 5;
        const Result<Mesh> mesh = JoinWithId(*id, Options(rank, 4));
        EXPECT_TRUE(mesh.ok()) << mesh.status().message();
        if (!mesh.ok()) return 6;
        EXPECT_EQ(mesh->peers[static_cast<size_t>(rank)].info.pid, getpid());
        EXPECT_NE(mesh->peers[static_cast<size_t>((rank + 1) % 4)].info.pid, getpid());
        ExpectConnected(*mesh);
        return 0;
      }));
    }
    for (const pid_t pid : pids) EXPECT_EQ(processes.Wait(pid), 0);
  }
  for (auto& p : pipes) {
    close(p[0]);
    close(p[1]);
  }
}

TEST(JoinTest, OverANamedInterface) {
  Environment environment = TestEnvironment();
  environment.socket_ifname = "=lo";
  Result<UniqueId> id = CreateUniqueId(environment);
  ASSERT_TRUE(id.ok()) << id.status().message();
  for (const Result<Mesh>& mesh : JoinThreads(*id, 2)) {
    EXPECT_TRUE(mesh.ok()) << mesh.status().message();
  }
  for (size_t only = 0; only < id->addresses.size(); ++only) {  // IPv6 too, where there is any
    Result<UniqueId> other = CreateUniqueId(environment);
    ASSERT_TRUE(other.ok());
    std::swap(other->addresses[0], other->addresses[only]);
    other->addresses.resize(1);
    for (const Result<Mesh>& mesh : JoinThreads(*other, 2)) {
      EXPECT_TRUE(mesh.ok()) << mesh.status().message();
    }
  }
}

TEST(JoinTest, WithASecretFile) {
  const std::string path = ::testing::TempDir() + "inccl-join-secret-" + std::to_string(getpid());
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  ASSERT_EQ(write(file.get(), "the first secret", 16), 16);
  Environment environment = TestEnvironment();
  environment.secret_file = path;
  Result<UniqueId> id = CreateUniqueId(environment);
  ASSERT_TRUE(id.ok()) << id.status().message();
  EXPECT_TRUE(id->needs_secret_file);
  const Status without = JoinWithId(*id, Options(0, 2)).status();
  EXPECT_EQ(without.code(), Code::kInvalidUsage);
  EXPECT_CONTAINS(without.message(), "INCCL_SECRET_FILE");
  // Another content is another secret.
  const std::string other = path + ".other";
  const UniqueFd other_file(open(other.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  ASSERT_EQ(write(other_file.get(), "the second secret", 17), 17);
  JoinOptions wrong = Options(0, 2);
  wrong.secret_file = other;
  EXPECT_EQ(JoinWithId(*id, wrong).status().code(), Code::kInvalidUsage);
  for (const Result<Mesh>& mesh :
       JoinThreads(*id, 2, [&](JoinOptions* options) { options->secret_file = path; })) {
    EXPECT_TRUE(mesh.ok()) << mesh.status().message();
  }
  std::remove(path.c_str());
  std::remove(other.c_str());
}

TEST(JoinTest, DescriptorLimitsAreRaisedOrNamed) {
  Processes processes;
  const auto join_with_limit = [&](rlim_t soft, rlim_t hard) {
    return processes.Start([=] {
      const rlimit limit = {.rlim_cur = soft, .rlim_max = hard};
      EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
      Result<UniqueId> id = CreateUniqueId(TestEnvironment());
      EXPECT_TRUE(id.ok());
      int succeeded = 0;
      for (const Result<Mesh>& mesh : JoinThreads(
               *id, 16, [](JoinOptions* o) { o->deadline = SystemClock().Now() + 5 * kSecond; })) {
        if (mesh.ok()) {
          ++succeeded;
        } else if (mesh.status().code() == Code::kSystemError) {
          EXPECT_CONTAINS(mesh.status().message(), "descriptors, the limit is 60");
        }
      }
      return succeeded == 16 ? 42 : succeeded == 0 ? 43 : 44;
    });
  };
  rlimit now{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &now), 0);
  if (now.rlim_max < 1000) GTEST_SKIP() << "the hard limit is " << now.rlim_max;
  const int raised = processes.Wait(join_with_limit(60, now.rlim_max));
  EXPECT_TRUE(WIFEXITED(raised) && WEXITSTATUS(raised) == 42) << raised;
  const int refused = processes.Wait(join_with_limit(60, 60));
  EXPECT_TRUE(WIFEXITED(refused) && WEXITSTATUS(refused) == 43) << refused;
}

TEST(JoinTest, WrongOptionsAreNamed) {
  const UniqueId id;
  EXPECT_CONTAINS(JoinWithId(id, Options(0, 0)).status().message(), "nranks: 0");
  EXPECT_CONTAINS(JoinWithId(id, Options(2, 2)).status().message(), "rank: 2");
  EXPECT_CONTAINS(JoinWithId(id, Options(-1, 2)).status().message(), "rank: -1");
  EXPECT_CONTAINS(JoinWithId(id, Options(0, 2)).status().message(), "no address");
  JoinOptions many = Options(0, 2);
  many.share_fds.assign(17, 0);
  EXPECT_CONTAINS(JoinWithId(id, many).status().message(), "17 descriptors");
  EXPECT_CONTAINS(
      JoinWithLauncher(TestLauncher(0, 2, "wrong"), 0, Options(1, 2)).status().message(), "0/2");
}

}  // namespace
}  // namespace inccl::test
