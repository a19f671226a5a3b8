// SPDX-License-Identifier: Apache-2.0
#include "perf/support/instruction_count.h"

#include <fmt/format.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace inccl::perf {
namespace {

// Ends a child that is stopped or running.
void Reap(pid_t child) {
  kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
}

// Waits until the child changes; true if it has stopped by `signal`.
Result<bool> StoppedBy(pid_t child, int signal) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return SystemErrorErrno("waitpid", errno);
  }
  if (!WIFSTOPPED(status)) {
    return InternalError(fmt::format("the traced code ended with status {:#x}", status));
  }
  const int by = WSTOPSIG(status);
  if (by != signal && by != SIGTRAP) {
    return InternalError(fmt::format("the traced code got signal {}", by));
  }
  return by == signal;
}

Result<uint64_t> StepThrough(pid_t child) {
  Result<bool> begun = StoppedBy(child, SIGSTOP);
  if (!begun.ok()) return begun.status();
  if (!*begun) return InternalError("the traced code stopped before it began");
  for (uint64_t count = 0;; ++count) {
    if (ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) != 0) {
      return SystemErrorErrno("ptrace(PTRACE_SINGLESTEP)", errno);
    }
    Result<bool> end = StoppedBy(child, SIGSTOP);
    if (!end.ok()) return end.status();
    if (*end) return count;
  }
}

}  // namespace

Result<uint64_t> CountInstructions(const std::function<void()>& code) {
  const pid_t child = fork();
  if (child < 0) return SystemErrorErrno("fork", errno);
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(1);
    raise(SIGSTOP);
    code();
    raise(SIGSTOP);
    _exit(0);
  }
  Result<uint64_t> count = StepThrough(child);
  Reap(child);
  return count;
}

}  // namespace inccl::perf
