// SPDX-License-Identifier: Apache-2.0
//
// Secret files: all ranks have one or none, who differs is named, and no copy outlives its use.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/bootstrap_world.h"
#include "bootstrap/host.h"

namespace {

constexpr std::string_view kContent = "what only the ranks of this job know";
std::atomic<bool> watching{false};
std::atomic<int> freed_with_secret{0};
char id_secret[32] = "none yet, and nowhere in memory";

// Memory that is given back, with what is in it.
void Release(void* memory) noexcept {
  if (memory != nullptr && watching.load()) {
    const size_t bytes = malloc_usable_size(memory);
    if (memmem(memory, bytes, kContent.data(), kContent.size()) != nullptr ||
        memmem(memory, bytes, id_secret, sizeof id_secret) != nullptr) {
      ++freed_with_secret;
    }
  }
  std::free(memory);
}

}  // namespace

void* operator new(size_t bytes) {
  void* const memory = std::calloc(1, bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { Release(memory); }
void operator delete(void* memory, size_t) noexcept { Release(memory); }

namespace inccl::test {
namespace {

class SecretFile {
 public:
  explicit SecretFile(std::string_view content = kContent) {
    static int files = 0;
    path_ = ::testing::TempDir() + "inccl-secret-file-" + std::to_string(getpid()) + "-" +
            std::to_string(++files);
    const UniqueFd file(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    EXPECT_EQ(write(file.get(), content.data(), content.size()),
              static_cast<ssize_t>(content.size()));
  }
  ~SecretFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

constexpr int kLimitMs = 400 * kSlowness;

TEST(SecretFileTest, ByIdTheRankThatDiffersIsNamed) {
  const SecretFile file;
  for (const bool asked : {true, false}) {
    Environment environment = TestEnvironment(kLimitMs);
    if (asked) environment.secret_file = file.path();
    Result<UniqueId> id = CreateUniqueId(environment);
    ASSERT_TRUE(id.ok()) << id.status().message();
    const std::vector<Result<Mesh>> meshes = JoinThreads(*id, 3, [&](JoinOptions* options) {
      options->timeout_ms = kLimitMs;
      options->deadline = SystemClock().Now() + kLimitMs * kMillisecond;
      if ((options->rank == 1) != asked) options->secret_file = file.path();
    });
    const Status& odd = meshes[1].status();
    EXPECT_EQ(odd.code(), Code::kInvalidUsage) << odd.message();
    EXPECT_CONTAINS(odd.message(), "rank 1/3: init: ");
    EXPECT_CONTAINS(odd.message(), "INCCL_SECRET_FILE");
    EXPECT_CONTAINS(odd.message(), asked ? "this rank lacks" : "is set on this rank");
    for (const int rank : {0, 2}) {
      EXPECT_CONTAINS(meshes[static_cast<size_t>(rank)].status().message(),
                      "rank 1 of 3 did not arrive");
    }
  }
}

TEST(SecretFileTest, ByLauncherTheRankThatDiffersIsNamedAtOnce) {
  const Baseline baseline;
  const SecretFile file;
  for (const int odd : {0, 2}) {
    std::vector<Status> statuses(3);
    std::vector<double> seconds(3);
    OnThreads(3, [&](int rank) {
      Launcher launcher;
      launcher.kind = "test";
      launcher.rank = rank;
      launcher.nranks = 3;
      launcher.job = "secret" + std::to_string(getpid()) + "of" + std::to_string(odd);
      JoinOptions options = Options(rank, 3, 3 * kLimitMs);
      if (rank != odd) options.secret_file = file.path();
      const double start = Seconds();
      statuses[static_cast<size_t>(rank)] = JoinWithLauncher(launcher, 0, options).status();
      seconds[static_cast<size_t>(rank)] = Seconds() - start;
    });
    for (int rank = 0; rank < 3; ++rank) {
      SCOPED_TRACE(rank);
      const Status& status = statuses[static_cast<size_t>(rank)];
      if (odd == 2 ? rank != 2 : rank == 0) {
        EXPECT_EQ(status.code(), Code::kTimeout) << status.message();
        continue;
      }
      EXPECT_EQ(status.code(), Code::kInvalidUsage) << status.message();
      EXPECT_CONTAINS(status.message(), "rank " + std::to_string(rank) + "/3: init: ");
      EXPECT_CONTAINS(status.message(), "INCCL_SECRET_FILE");
      EXPECT_CONTAINS(status.message(),
                      odd == 2 ? "is not set on this rank" : "is set on this rank");
      EXPECT_LT(seconds[static_cast<size_t>(rank)], 2e-3 * kLimitMs) << "before the deadline";
    }
  }
}

// The user mends the environment and tries again, in the same processes.
TEST(SecretFileTest, AnAttemptAgainMayHaveAnotherOne) {
  const Baseline baseline;
  const SecretFile file;
  const auto join = [&](int rank, bool has, int limit_ms) {
    Launcher launcher;
    launcher.kind = "test";
    launcher.rank = rank;
    launcher.nranks = 3;
    launcher.job = "mended" + std::to_string(getpid());
    JoinOptions options = Options(rank, 3, limit_ms);
    if (has) options.secret_file = file.path();
    return JoinWithLauncher(launcher, 0, options).status();
  };
  OnThreads(3, [&](int rank) { EXPECT_FALSE(join(rank, rank != 0, kLimitMs).ok()); });
  OnThreads(3, [&](int rank) {
    const Status status = join(rank, true, 20000 * kSlowness);
    EXPECT_TRUE(status.ok()) << status.message();
  });
}

TEST(SecretFileTest, AllRanksOfALauncherHaveIt) {
  const Baseline baseline;
  const SecretFile file;
  OnThreads(3, [&](int rank) {
    Launcher launcher;
    launcher.kind = "test";
    launcher.rank = rank;
    launcher.nranks = 3;
    launcher.job = "all-secret" + std::to_string(getpid());
    JoinOptions options = Options(rank, 3);
    options.secret_file = file.path();
    const Result<Mesh> mesh = JoinWithLauncher(launcher, 0, options);
    EXPECT_TRUE(mesh.ok()) << mesh.status().message();
  });
}

TEST(SecretFileTest, ShortOnesAreRefused) {
  const SecretFile sixteen("0123456789abcdef"), fifteen("0123456789abcde");
  EXPECT_TRUE(bootstrap::ReadSecretFile(sixteen.path()).ok());
  const Status status = bootstrap::ReadSecretFile(fifteen.path()).status();
  EXPECT_EQ(status.code(), Code::kInvalidUsage);
  EXPECT_CONTAINS(status.message(), fifteen.path());
  EXPECT_CONTAINS(status.message(), "15 bytes");
  EXPECT_CONTAINS(status.message(), "at least 16");
}

TEST(SecretFileTest, NothingThatIsFreedHoldsASecret) {
  const SecretFile file, too_long(std::string(kContent) + std::string(5000, 'x'));
  Environment environment = TestEnvironment();
  environment.secret_file = file.path();
  watching = true;
  Result<UniqueId> id = CreateUniqueId(environment);
  ASSERT_TRUE(id.ok()) << id.status().message();
  std::memcpy(id_secret, id->secret.bytes().data(), sizeof id_secret);
  EXPECT_FALSE(bootstrap::ReadSecretFile(too_long.path()).ok());
  std::array<std::byte, kUniqueIdBytes> bytes;
  id->Encode(bytes.data());
  const Result<UniqueId> decoded = UniqueId::Decode(bytes.data());
  ASSERT_TRUE(decoded.ok());
  for (const Result<Mesh>& mesh :
       JoinThreads(*decoded, 2, [&](JoinOptions* o) { o->secret_file = file.path(); })) {
    EXPECT_TRUE(mesh.ok()) << mesh.status().message();
  }
  OnThreads(2, [&](int rank) {
    Launcher launcher;
    launcher.kind = "test";
    launcher.rank = rank;
    launcher.nranks = 2;
    launcher.job = "wiped" + std::to_string(getpid());
    JoinOptions options = Options(rank, 2);
    options.secret_file = file.path();
    const Result<Mesh> mesh = JoinWithLauncher(launcher, 0, options);
    EXPECT_TRUE(mesh.ok()) << mesh.status().message();
  });
  EXPECT_EQ(freed_with_secret, 0);
  // The oracle sees what it is to see.
  void* volatile kept = ::operator new(sizeof id_secret);
  std::memcpy(kept, id_secret, sizeof id_secret);
  ::operator delete(kept);
  EXPECT_EQ(freed_with_secret, 1);
  watching = false;
}

}  // namespace
}  // namespace inccl::test
