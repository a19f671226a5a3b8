// SPDX-License-Identifier: Apache-2.0
#include "world/process_world.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "world/baseline.h"
#include "world/clock.h"
#include "world/stacks.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace inccl::test {
namespace {

int FailedParts() {
  const ::testing::TestInfo* info = ::testing::UnitTest::GetInstance()->current_test_info();
  if (info == nullptr) return 0;
  int failed = 0;
  for (int i = 0; i < info->result()->total_part_count(); ++i) {
    failed += info->result()->GetTestPartResult(i).failed();
  }
  return failed;
}

std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  off_t at = 0;
  while (true) {
    const ssize_t got = pread(fd, buffer, sizeof buffer, at);
    if (got <= 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    at += got;
  }
}

}  // namespace

struct ProcessWorld::Shared {
  std::atomic<int> id_state{0};  // 0: none, 1: there, 2: failed
  ccl_unique_id_t id;
  Report reports[];  // NOLINT(modernize-avoid-c-arrays): by rank
};

void Report::SetText(const char* value) { std::snprintf(text, sizeof text, "%s", value); }

bool RankEnd::Exited(int code) const {
  return !timed_out && WIFEXITED(status) && WEXITSTATUS(status) == code;
}

bool RankEnd::Killed(int signal) const {
  return !timed_out && WIFSIGNALED(status) && WTERMSIG(status) == signal;
}

std::string RankEnd::Describe() const {
  std::string text;
  if (timed_out) {
    text = "did not end in time";
  } else if (WIFEXITED(status)) {
    text = fmt::format("exited with {}", WEXITSTATUS(status));
  } else {
    text = fmt::format("killed by signal {}", WTERMSIG(status));
  }
  return output.empty() ? text : fmt::format("{}; it printed:\n{}", text, output);
}

int Side::nranks() const { return world_->nranks(); }
Report& Side::of(int rank) const { return world_->report(rank); }

ccl_unique_id_t Side::Id() const {
  ProcessWorld::Shared* const shared = world_->shared_;
  if (rank_ == world_->options_.id_maker && shared->id_state == 0) {
    if (ccl_get_unique_id(&shared->id) != CCL_SUCCESS) {
      std::fprintf(stderr, "ccl_get_unique_id: %s\n", ccl_get_last_error(nullptr));
      shared->id_state = 2;
    } else {
      shared->id_state = 1;
    }
  }
  const double limit = Seconds() + 20.0 * kSlowness;
  while (shared->id_state == 0 && Seconds() < limit) usleep(200);
  if (shared->id_state != 1) _exit(101);
  return shared->id;
}

ccl_result_t Side::Init(ccl_comm_t* comm, const ccl_config_t& config) const {
  const ccl_unique_id_t id = Id();
  const double start = Seconds();
  const ccl_result_t result = ccl_comm_init_rank_config(comm, nranks(), id, rank_, &config);
  mine().seconds = Seconds() - start;
  mine().result = result;
  mine().SetText(result == CCL_SUCCESS ? "" : ccl_get_last_error(nullptr));
  return result;
}

bool Side::Await(int rank, int stage, double seconds) const {
  const double limit = Seconds() + seconds;
  while (of(rank).stage < stage) {
    if (Seconds() > limit) return false;
    usleep(200);
  }
  return true;
}

ProcessWorld::ProcessWorld(const WorldOptions& options, const Body& body)
    : options_(options),
      parent_(getpid()),
      parent_threads_(Holdings::Now().threads),
      started_(Seconds()),
      ends_(static_cast<size_t>(options.nranks)),
      output_fds_(static_cast<size_t>(options.nranks), -1),
      running_(static_cast<size_t>(options.nranks), false) {
  const auto ranks = static_cast<size_t>(options.nranks);
  shared_bytes_ = sizeof(Shared) + ranks * sizeof(Report);
  void* const memory =
      mmap(nullptr, shared_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  shared_ = new (memory) Shared;
  for (size_t i = 0; i < ranks; ++i) new (&shared_->reports[i]) Report;
  std::fflush(nullptr);
  for (int rank = 0; rank < options.nranks; ++rank) {
    const auto index = static_cast<size_t>(rank);
    output_fds_[index] = memfd_create("output", MFD_CLOEXEC);
    const pid_t pid = fork();
    if (pid < 0) std::abort();
    if (pid == 0) RunChild(rank, body);
    ends_[index].pid = pid;
    running_[index] = true;
  }
}

void ProcessWorld::RunChild(int rank, const Body& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent_) _exit(96);  // the parent died before prctl
  const int output = output_fds_[static_cast<size_t>(rank)];
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  if (options_.enter) {
    const std::string error = options_.enter(rank);
    if (!error.empty()) {
      dprintf(STDERR_FILENO, "%s\n", error.c_str());
      _exit(97);
    }
  }
  const int failed_before = FailedParts();
  Baseline baseline;
  int code = body(Side(this, rank));
  const std::string left = options_.baseline ? baseline.Difference(10.0 * kSlowness) : "";
  if (!options_.baseline) (void)baseline.Difference(0);
  if (code == 0 && FailedParts() > failed_before) code = 1;
  if (code == 0 && !left.empty()) {
    std::snprintf(report(rank).left_behind, sizeof Report::left_behind, "%s", left.c_str());
    std::fprintf(stderr, "rank %d left behind: %s\n", rank, left.c_str());
    code = 98;
  }
#if defined(__SANITIZE_ADDRESS__)
  // What threads of the parent held when it was forked is theirs, though it looks lost here.
  if (code == 0 && parent_threads_ == 1 && __lsan_do_recoverable_leak_check() != 0) code = 99;
#endif
  std::fflush(nullptr);
  std::quick_exit(code);  // after what the library owes to other ranks
}

ProcessWorld::~ProcessWorld() {
  for (size_t i = 0; i < ends_.size(); ++i) {
    if (running_[i]) {
      kill(ends_[i].pid, SIGKILL);
      waitpid(ends_[i].pid, nullptr, 0);
    }
    if (output_fds_[i] >= 0) close(output_fds_[i]);
  }
  munmap(shared_, shared_bytes_);
}

Report& ProcessWorld::report(int rank) const { return shared_->reports[rank]; }

void ProcessWorld::GiveId(const ccl_unique_id_t& id) {
  shared_->id = id;
  shared_->id_state = 1;
}

void ProcessWorld::Kill(int rank, int signal) const { kill(pid(rank), signal); }

bool ProcessWorld::Running(int rank) {
  Poll();
  return running_[static_cast<size_t>(rank)];
}

void ProcessWorld::Finish(int rank) {
  const auto index = static_cast<size_t>(rank);
  running_[index] = false;
  ends_[index].output = ReadAll(output_fds_[index]) + ends_[index].output;
  close(output_fds_[index]);
  output_fds_[index] = -1;
}

void ProcessWorld::DumpStacks(int rank) {
  ends_[static_cast<size_t>(rank)].output += StacksOf(pid(rank));
}

bool ProcessWorld::Poll() {
  const double over = Seconds() - started_ - options_.deadline_seconds;
  const bool late = over > 0 && over > (Busy() - 1) * options_.deadline_seconds;
  if (late) {
    for (int rank = 0; rank < options_.nranks; ++rank) {
      if (running_[static_cast<size_t>(rank)]) DumpStacks(rank);
    }
  }
  bool all = true;
  for (int rank = 0; rank < options_.nranks; ++rank) {
    const auto index = static_cast<size_t>(rank);
    if (!running_[index]) continue;
    int status = 0;
    pid_t ended = waitpid(ends_[index].pid, &status, WNOHANG);
    if (ended == 0 && late) {
      kill(ends_[index].pid, SIGKILL);
      ended = waitpid(ends_[index].pid, &status, 0);
      ends_[index].timed_out = true;
    }
    if (ended == 0) {
      all = false;
      continue;
    }
    ends_[index].status = status;
    Finish(rank);
  }
  return all;
}

const std::vector<RankEnd>& ProcessWorld::Wait() {
  while (!Poll()) usleep(1000);
  return ends_;
}

void ProcessWorld::ExpectAllExited(const std::vector<int>& but) {
  Wait();
  for (int rank = 0; rank < options_.nranks; ++rank) {
    if (std::find(but.begin(), but.end(), rank) != but.end()) continue;
    const RankEnd& end = ends_[static_cast<size_t>(rank)];
    EXPECT_TRUE(end.Exited()) << "rank " << rank << " " << end.Describe();
  }
}

void RunWorlds(size_t count, size_t parallel,
               const std::function<std::unique_ptr<ProcessWorld>(size_t)>& start,
               const std::function<void(size_t, ProcessWorld&)>& check) {
  std::vector<std::pair<size_t, std::unique_ptr<ProcessWorld>>> running;
  size_t next = 0;
  while (next < count || !running.empty()) {
    while (next < count && running.size() < parallel) {
      running.emplace_back(next, start(next));
      ++next;
    }
    for (size_t i = 0; i < running.size();) {
      if (!running[i].second->Poll()) {
        ++i;
        continue;
      }
      check(running[i].first, *running[i].second);
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
    }
    usleep(1000);
  }
}

}  // namespace inccl::test
