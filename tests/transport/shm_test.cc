// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>

#include "support/transport_world.h"
#include "transport/shm/shm_transport.h"

namespace inccl {
namespace {

UniqueFd Dup(int fd) { return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

LaneSpec Spec(int producer, int consumer, uint32_t slot_bytes, int depth) {
  LaneSpec spec;
  spec.producer = producer;
  spec.consumers = {consumer};
  spec.slot_bytes = slot_bytes;
  spec.depth = static_cast<uint16_t>(depth);
  return spec;
}

std::unique_ptr<ShmTransport> Make(int rank, int nranks, const ShmOptions& options = {}) {
  auto transport = ShmTransport::Create(rank, nranks, options);
  EXPECT_TRUE(transport.ok()) << transport.status().message();
  return transport.ok() ? std::move(*transport) : nullptr;
}

Status Attach(ShmTransport* to, int peer, const ShmTransport& from) {
  const std::vector<int> fds = from.fds_to_share();
  return to->Attach(peer, Dup(fds[0]), Dup(fds[1]), Dup(fds[2]), Dup(fds[3]));
}

TEST(ShmTest, CreateChecksItsArguments) {
  EXPECT_EQ(ShmTransport::Create(0, 0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ShmTransport::Create(2, 2).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ShmTransport::Create(-1, 2).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ShmTransport::Create(0, 2, ShmOptions{4096}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ShmTransport::Create(0, 2, ShmOptions{size_t{1} << 62}).status().code(),
            Code::kSystemError);
}

TEST(ShmTest, CapsAreKnownWithoutATransport) {
  for (const size_t bytes : {size_t{1} << 30, (size_t{16} << 20) + 1}) {
    const Caps made = Make(0, 2, ShmOptions{bytes})->caps();
    const Caps said = ShmTransport::CapsOf(ShmOptions{bytes});
    EXPECT_STREQ(made.name, said.name);
    EXPECT_EQ(made.timed, said.timed);
    EXPECT_EQ(made.slot_memory, said.slot_memory);
    EXPECT_EQ(made.shared_slots, said.shared_slots);
  }
}

TEST(ShmTest, MemoryComesWithLanes) {
  auto zero = Make(0, 2), one = Make(1, 2);
  const auto blocks = [](const ShmTransport& t) {
    struct stat info {};
    EXPECT_EQ(fstat(t.fds_to_share()[0], &info), 0);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  };
  EXPECT_LE(zero->memory_bytes(), 8192u);
  EXPECT_LE(blocks(*zero), 8192u);
  ASSERT_TRUE(Attach(zero.get(), 1, *one).ok());
  auto lane = zero->OpenSend(Spec(0, 1, 1 << 20, 4));
  ASSERT_TRUE(lane.ok());
  EXPECT_LE(zero->memory_bytes(), 16384u) << "slots are made when slices need them";
  for (uint64_t slots = 1; slots <= 4; ++slots) {
    ASSERT_NE((*lane)->TryAcquire()->data, nullptr);
    EXPECT_GE(zero->memory_bytes(), slots << 20);
    EXPECT_GE(blocks(*zero), slots << 20) << "not committed: using it could raise SIGBUS";
    EXPECT_LE(blocks(*zero), zero->memory_bytes());
    ASSERT_TRUE((*lane)->Publish(SliceHeader{}).ok());
  }
}

TEST(ShmTest, LanesNeedAttachedPeers) {
  auto zero = Make(0, 3);
  const Status status = zero->OpenSend(Spec(0, 2, 10, 1)).status();
  EXPECT_EQ(status.code(), Code::kInvalidUsage);
  EXPECT_NE(status.message().find("peer rank 2"), std::string::npos) << status.message();
  EXPECT_EQ(zero->OpenRecv(Spec(1, 0, 10, 1)).status().code(), Code::kInvalidUsage);
}

TEST(ShmTest, AttachRefusesWhatIsNoPeer) {
  auto zero = Make(0, 3), one = Make(1, 3), small = Make(1, 3, ShmOptions{size_t{16} << 20}),
       large = Make(1, 3, ShmOptions{size_t{2} << 30});
  auto other_size = Make(1, 4);
  EXPECT_EQ(Attach(zero.get(), 0, *one).code(), Code::kInvalidArgument);
  EXPECT_EQ(Attach(zero.get(), 3, *one).code(), Code::kInvalidArgument);
  EXPECT_EQ(Attach(zero.get(), -1, *one).code(), Code::kInvalidArgument);
  const Status wrong_rank = Attach(zero.get(), 2, *one);
  EXPECT_EQ(wrong_rank.code(), Code::kInternalError);
  EXPECT_NE(wrong_rank.message().find("rank 0: peer rank 2"), std::string::npos)
      << wrong_rank.message();
  EXPECT_EQ(Attach(zero.get(), 1, *other_size).code(), Code::kInternalError);

  const std::vector<int> fds = one->fds_to_share();
  EXPECT_FALSE(zero->Attach(1, UniqueFd(), UniqueFd(), UniqueFd(), UniqueFd()).ok());
  EXPECT_FALSE(zero->Attach(1, Dup(fds[1]), Dup(fds[0]), Dup(fds[2]), Dup(fds[3])).ok())
      << "swapped";
  EXPECT_FALSE(zero->Attach(1, Dup(fds[0]), Dup(fds[0]), Dup(fds[2]), Dup(fds[3])).ok())
      << "no wakeup_event";
  EXPECT_FALSE(
      zero->Attach(1, Dup(fds[0]), Dup(zero->fds_to_share()[1]), Dup(fds[2]), Dup(fds[3])).ok())
      << "the wakeup event of another rank";
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  EXPECT_FALSE(zero->Attach(1, Dup(fds[0]), Dup(fds[1]), Dup(ends[0]), Dup(fds[3])).ok())
      << "no inbox";
  EXPECT_FALSE(zero->Attach(1, Dup(fds[0]), Dup(fds[1]), Dup(fds[2]), Dup(ends[1])).ok())
      << "no eventfd";
  EXPECT_FALSE(zero->Attach(1, Dup(fds[0]), Dup(fds[1]), Dup(fds[2]), UniqueFd(eventfd(0, 0))).ok())
      << "a write into it could block";
  EXPECT_FALSE(zero->Attach(1, UniqueFd(ends[0]), UniqueFd(ends[1]), Dup(fds[2]), Dup(fds[3])).ok())
      << "a pipe";

  for (const auto* resized : {small.get(), large.get()}) {
    const Status size = Attach(zero.get(), 1, *resized);
    EXPECT_EQ(size.code(), Code::kInternalError) << "all ranks agree on the size of arenas";
    EXPECT_NE(size.message().find("rank 0: peer rank 1: arena: shared memory: size"),
              std::string::npos)
        << size.message();
    EXPECT_NE(size.message().find("expected 1073741824"), std::string::npos) << size.message();
  }
  EXPECT_TRUE(Attach(zero.get(), 1, *one).ok());
  EXPECT_EQ(Attach(zero.get(), 1, *one).code(), Code::kInvalidUsage) << "twice";
}

// A copy of a good arena in a file that its owner could truncate, or full of something else.
TEST(ShmTest, AttachRefusesUnsealedOrForeignFiles) {
  auto zero = Make(0, 2), one = Make(1, 2);
  const std::vector<int> fds = one->fds_to_share();
  const size_t bytes = ShmOptions{}.arena_bytes;
  for (const bool sealed : {false, true}) {
    for (const bool foreign : {false, true}) {
      UniqueFd copy(memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      ASSERT_EQ(ftruncate(copy.get(), static_cast<off_t>(bytes)), 0);
      char page[4096];
      ASSERT_EQ(pread(fds[0], page, sizeof(page), 0), 4096);
      if (foreign) page[0] ^= 1;
      ASSERT_EQ(pwrite(copy.get(), page, sizeof(page), 0), 4096);
      const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
      if (sealed) {
        ASSERT_EQ(fcntl(copy.get(), F_ADD_SEALS, seals), 0);
      }
      const Status status = zero->Attach(1, Dup(copy.get()), Dup(fds[1]), Dup(fds[2]), Dup(fds[3]));
      EXPECT_EQ(status.ok(), sealed && !foreign) << status.message();
    }
  }
}

// A peer says that all of its arena has memory behind it, which it has not: looking there would
// take that memory.
TEST(ShmTest, AttachTakesNoMoreMemoryThanIsCommittedAhead) {
  constexpr size_t kArena = size_t{64} << 20, kAhead = size_t{1} << 20;
  const ShmOptions options{.arena_bytes = kArena, .commit_ahead = kAhead};
  auto zero = Make(0, 3, options), one = Make(1, 3, options);
  const std::vector<int> fds = one->fds_to_share();
  UniqueFd copy(memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(copy.get(), kArena), 0);
  alignas(mapped::ArenaHeader) char page[4096];
  ASSERT_EQ(pread(fds[0], page, sizeof(page), 0), 4096);
  reinterpret_cast<mapped::ArenaHeader*>(page)->committed.store(kArena);
  ASSERT_EQ(pwrite(copy.get(), page, sizeof(page), 0), 4096);
  ASSERT_EQ(fcntl(copy.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  ASSERT_TRUE(zero->Attach(1, Dup(copy.get()), Dup(fds[1]), Dup(fds[2]), Dup(fds[3])).ok());
  struct stat info {};
  ASSERT_EQ(fstat(copy.get(), &info), 0);
  EXPECT_LE(static_cast<size_t>(info.st_blocks) * 512, kAhead + sizeof(page));
}

TEST(ShmTest, PeersCanNeitherWriteNorResize) {
  auto one = Make(1, 2);
  const int arena = one->fds_to_share()[0];
  const int wakeup = one->fds_to_share()[1];
  EXPECT_NE(ftruncate(arena, 4096), 0);
  EXPECT_NE(ftruncate(arena, off_t{1} << 31), 0);
  EXPECT_NE(ftruncate(wakeup, 0), 0);
  EXPECT_NE(fcntl(arena, F_ADD_SEALS, F_SEAL_WRITE), 0);
  if ((fcntl(arena, F_GET_SEALS) & 0x10) == 0) GTEST_SKIP() << "kernel without F_SEAL_FUTURE_WRITE";
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, arena, 0), MAP_FAILED);
  EXPECT_LT(pwrite(arena, "x", 1, 0), 0);
  void* readable = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, arena, 0);
  ASSERT_NE(readable, MAP_FAILED);
  EXPECT_NE(mprotect(readable, 4096, PROT_READ | PROT_WRITE), 0);
  munmap(readable, 4096);
}

// Runs in a child: limits and signals of a process.
int InChild(const std::function<bool()>& body) {
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) _exit(body() ? 0 : 1);
  int status = -1;
  waitpid(pid, &status, 0);
  return status;
}

// Exceeding the limit would raise SIGXFSZ, which kills.
TEST(ShmTest, TheFileSizeLimitIsAnError) {
  EXPECT_EQ(InChild([] {
              const rlimit limit{1 << 20, 1 << 20};
              if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
              const Status status = ShmTransport::Create(0, 2).status();
              std::printf("%s\n", status.message().c_str());
              std::fflush(stdout);
              return status.code() == Code::kSystemError &&
                     status.message().find("1048576") != std::string::npos &&
                     status.message().find(std::to_string(1 << 30)) != std::string::npos;
            }),
            0);
}

TEST(ShmTest, NoDescriptorsIsAnError) {
  EXPECT_EQ(InChild([] {
              const auto next = static_cast<rlim_t>(Dup(STDERR_FILENO).get());  // free again
              const rlimit limit{next + 1, next + 1};  // room for one: the wakeup_event finds none
              if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
              const Status status = ShmTransport::Create(0, 2).status();
              return status.code() == Code::kSystemError;
            }),
            0);
}

TEST(ShmTest, CommitPagesFailsCleanly) {
  EXPECT_EQ(shm::CommitPages(-1, 0, 4096).code(), Code::kSystemError);
  auto memfd = shm::CreateMemfd("test", 1 << 20, false);
  ASSERT_TRUE(memfd.ok());
  EXPECT_TRUE(shm::CommitPages(memfd->fd.get(), 0, 1 << 20).ok());
  const Status beyond = shm::CommitPages(memfd->fd.get(), 1 << 20, 4096);
  EXPECT_EQ(beyond.code(), Code::kSystemError);
  EXPECT_NE(beyond.message().find("4096"), std::string::npos) << beyond.message();
}

TEST(ShmTest, FailedCallsLeaveNothingOpen) {
  auto zero = Make(0, 2), one = Make(1, 2);
  const int before = test::CountFds();
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(ShmTransport::Create(0, 2, ShmOptions{4096}).ok());
    EXPECT_FALSE(ShmTransport::Create(0, 2, ShmOptions{size_t{1} << 62}).ok());
    const std::vector<int> fds = one->fds_to_share();
    EXPECT_FALSE(zero->Attach(1, Dup(fds[1]), Dup(fds[0]), Dup(fds[2]), Dup(fds[3])).ok());
  }
  EXPECT_EQ(test::CountFds(), before);
  ASSERT_TRUE(Attach(zero.get(), 1, *one).ok());
  EXPECT_EQ(test::CountFds(), before + 2)
      << "arena and wakeup_event are mapped, the inbox and the eventfd stay open";
  zero->CloseEventFds();
  EXPECT_EQ(test::CountFds(), before) << "with its own";
}

// A peer that is killed takes nothing with it: what it published stays readable.
TEST(ShmTest, APeersDeathDoesNotTakeItsMemory) {
  auto zero = Make(0, 2);
  auto one = Make(1, 2);
  ASSERT_TRUE(Attach(zero.get(), 1, *one).ok());
  ASSERT_TRUE(Attach(one.get(), 0, *zero).ok());
  const int status = InChild([&] {  // rank 1
    auto send = one->OpenSend(Spec(1, 0, 1000, 1));
    if (!send.ok()) return false;
    std::memset((*send)->TryAcquire()->data, 7, 1000);
    if (!(*send)->Publish(SliceHeader{1000, 0, 0}).ok()) return false;
    kill(getpid(), SIGKILL);
    return false;
  });
  EXPECT_TRUE(WIFSIGNALED(status));
  one.reset();
  auto recv = *zero->OpenRecv(Spec(1, 0, 1000, 1));
  RecvLane::Incoming incoming;
  ASSERT_TRUE(*recv->TryPeek(&incoming));
  EXPECT_EQ(incoming.payload[999], std::byte{7});
  EXPECT_TRUE(recv->Release().ok());
}

}  // namespace
}  // namespace inccl
