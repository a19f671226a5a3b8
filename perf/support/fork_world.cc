// SPDX-License-Identifier: Apache-2.0
#include "perf/support/fork_world.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <new>
#include <string_view>
#include <thread>

#include "base/fd.h"
#include "perf/support/output.h"
#include "perf/support/shared_barrier.h"

namespace inccl::perf {
namespace {

constexpr size_t kMailboxBytes = 64 * 1024;
constexpr auto kGrace = std::chrono::seconds(5);

// The memory that all ranks and the parent share: a barrier, then a mailbox for each rank.
struct SharedArea {
  Mapping mapping;
  SharedBarrier* barrier() const { return reinterpret_cast<SharedBarrier*>(mapping.data()); }
  std::byte* mailbox(int rank) const {
    return mapping.data() + 4096 + static_cast<size_t>(rank) * kMailboxBytes;
  }
};

Result<SharedArea> MakeSharedArea(int ranks) {
  static_assert(sizeof(SharedBarrier) <= 4096);
  const size_t bytes = 4096 + static_cast<size_t>(ranks) * kMailboxBytes;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return SystemErrorErrno("mmap of the memory of the ranks", errno);
  SharedArea area{Mapping(data, bytes)};
  new (data) SharedBarrier();
  return area;
}

Status WriteAll(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = write(fd, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return SystemErrorErrno("write to a rank's pipe", errno);
    bytes = bytes.subspan(static_cast<size_t>(done));
  }
  return {};
}

Status ReadAll(int fd, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = read(fd, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return SystemErrorErrno("read from a rank's pipe", errno);
    if (done == 0) return RemoteError("rank 0 ended before it sent what the others wait for");
    bytes = bytes.subspan(static_cast<size_t>(done));
  }
  return {};
}

struct Pipe {
  UniqueFd read_end, write_end;
};

class ForkWorld : public World {
 public:
  ForkWorld(int rank, int size, const SharedArea& area, const std::vector<Pipe>& pipes)
      : rank_(rank), size_(size), area_(area), pipes_(pipes) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Status Barrier() override {
    if (area_.barrier()->Wait(static_cast<uint32_t>(size_))) return {};
    return RemoteError(fmt::format("rank {}: another rank died or gave up", rank_));
  }

  Status AllGather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    for (size_t at = 0; at < mine.size(); at += kMailboxBytes) {
      const size_t now = std::min(kMailboxBytes, mine.size() - at);
      std::memcpy(area_.mailbox(rank_), mine.data() + at, now);
      if (Status s = Barrier(); !s.ok()) return s;
      for (int rank = 0; rank < size_; ++rank) {
        std::memcpy(all.data() + static_cast<size_t>(rank) * mine.size() + at, area_.mailbox(rank),
                    now);
      }
      if (Status s = Barrier(); !s.ok()) return s;
    }
    return {};
  }

  // Through the pipes: what is secret does not lie in memory for longer than the hand-over.
  Status Broadcast(std::span<std::byte> bytes) override {
    if (rank_ != 0) return ReadAll(pipes_[static_cast<size_t>(rank_)].read_end.get(), bytes);
    for (int rank = 1; rank < size_; ++rank) {
      Status s = WriteAll(pipes_[static_cast<size_t>(rank)].write_end.get(), bytes);
      if (!s.ok()) return s;
    }
    return {};
  }

 private:
  const int rank_, size_;
  const SharedArea& area_;
  const std::vector<Pipe>& pipes_;
};

// Keeps of all pipes only the ends that this rank uses: so a reader sees the end of its pipe when
// rank 0 dies.
void CloseOtherEnds(int rank, std::vector<Pipe>* pipes) {
  for (size_t i = 0; i < pipes->size(); ++i) {
    if (rank != static_cast<int>(i)) (*pipes)[i].read_end.Reset();
    if (rank != 0) (*pipes)[i].write_end.Reset();
  }
}

void Complain(const std::string& program, std::string_view text) {
  PrintError("{}: {}\n", program, text);
}

struct Child {
  pid_t pid = -1;
  bool running = false;
};

// Waits for the children; returns the largest exit code.
class Parent {
 public:
  Parent(const std::string& program, const SharedArea& area, std::vector<Child> children)
      : program_(program), area_(area), children_(std::move(children)) {}

  int Wait() {
    while (Running()) {
      int status = 0;
      const pid_t pid = waitpid(-1, &status, failed_ ? WNOHANG : 0);
      if (pid < 0 && errno != EINTR) {
        Complain(program_, SystemErrorErrno("waitpid", errno).message());
        return kExitFailed;
      }
      if (pid > 0) Reap(pid, status);
      if (pid == 0) WaitForOthers();
    }
    return code_;
  }

  // The others shall end; they have the grace period.
  void Fail() {
    if (failed_) return;
    failed_ = true;
    code_ = std::max<int>(code_, kExitFailed);
    deadline_ = std::chrono::steady_clock::now() + kGrace;
    area_.barrier()->Abort();
  }

 private:
  bool Running() const {
    return std::any_of(children_.begin(), children_.end(),
                       [](const Child& c) { return c.running; });
  }

  void Reap(pid_t pid, int status) {
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      if (children_[rank].pid != pid || !children_[rank].running) continue;
      children_[rank].running = false;
      if (WIFSIGNALED(status)) {
        if (!killed_) {
          Complain(program_, fmt::format("rank {} was killed by signal {} ({})", rank,
                                         WTERMSIG(status), strsignal(WTERMSIG(status))));
        }
        Fail();
      } else {
        code_ = std::max(code_, WEXITSTATUS(status));
        if (EndsTheRun(WEXITSTATUS(status))) Fail();
      }
    }
  }

  void WaitForOthers() {
    if (!killed_ && std::chrono::steady_clock::now() > deadline_) {
      killed_ = true;
      for (size_t rank = 0; rank < children_.size(); ++rank) {
        if (!children_[rank].running) continue;
        Complain(program_,
                 fmt::format("rank {} still runs after the run has failed: killed", rank));
        kill(children_[rank].pid, SIGKILL);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  const std::string& program_;
  const SharedArea& area_;
  std::vector<Child> children_;
  bool failed_ = false, killed_ = false;
  int code_ = kExitOk;
  std::chrono::steady_clock::time_point deadline_;
};

[[noreturn]] void RunChild(int rank, int ranks, pid_t parent, const SharedArea& area,
                           std::vector<Pipe>* pipes, const std::function<int(World&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExitFailed);
  signal(SIGPIPE, SIG_IGN);
  CloseOtherEnds(rank, pipes);
  int code;
  {
    ForkWorld world(rank, ranks, area, *pipes);
    code = body(world);
  }
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace

int RunForked(const std::string& program, int ranks, const std::function<int(World&)>& body) {
  Result<SharedArea> area = MakeSharedArea(ranks);
  if (!area.ok()) {
    Complain(program, area.status().message());
    return kExitFailed;
  }
  std::vector<Pipe> pipes(static_cast<size_t>(ranks));
  for (Pipe& p : pipes) {
    int ends[2];
    if (pipe(ends) != 0) {
      Complain(program, SystemErrorErrno("pipe", errno).message());
      return kExitFailed;
    }
    p.read_end.Reset(ends[0]);
    p.write_end.Reset(ends[1]);
  }
  std::fflush(nullptr);
  const pid_t self = getpid();
  std::vector<Child> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) RunChild(rank, ranks, self, *area, &pipes, body);
    if (pid < 0) {
      Complain(program, SystemErrorErrno(fmt::format("fork of rank {}", rank), errno).message());
      break;
    }
    children.push_back({pid, true});
  }
  pipes.clear();
  const bool complete = children.size() == static_cast<size_t>(ranks);
  Parent parent(program, *area, std::move(children));
  if (!complete) parent.Fail();
  return parent.Wait();
}

}  // namespace inccl::perf
