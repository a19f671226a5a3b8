// SPDX-License-Identifier: Apache-2.0
#include "perf/support/instruction_count.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

namespace inccl::perf {

#if defined(__x86_64__)

namespace {

// Of the child, in memory that the parent shares.
volatile uint64_t* counted_steps = nullptr;

// With the trap flag the processor traps after each instruction; the handler runs without it.
void OnTrap(int /*signal*/) { *counted_steps = *counted_steps + 1; }

// The stack below the pointer may be in use.
void SetTrapFlag() {
  asm volatile(
      "lea -128(%%rsp), %%rsp\n\tpushfq\n\torq $0x100, (%%rsp)\n\tpopfq\n\tlea 128(%%rsp), %%rsp"
      :
      :
      : "memory", "cc");
}
void ClearTrapFlag() {
  asm volatile(
      "lea -128(%%rsp), %%rsp\n\tpushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq\n\tlea 128(%%rsp), %%rsp"
      :
      :
      : "memory", "cc");
}

}  // namespace

Result<uint64_t> CountInstructions(const std::function<void()>& code) {
  void* const shared = mmap(nullptr, sizeof *counted_steps, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return SystemErrorErrno("mmap", errno);
  counted_steps = static_cast<uint64_t*>(shared);
  const pid_t child = fork();
  if (child == 0) {
    struct sigaction action = {};
    action.sa_handler = OnTrap;
    sigaction(SIGTRAP, &action, nullptr);
    SetTrapFlag();
    code();
    ClearTrapFlag();
    _exit(0);
  }
  int status = 0;
  const int error = child < 0 ? errno : 0;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const uint64_t count = *counted_steps;
  munmap(shared, sizeof *counted_steps);
  if (child < 0) return SystemErrorErrno("fork", error);
  if (WIFSIGNALED(status)) {
    return InternalError(fmt::format("the counted code got signal {}", WTERMSIG(status)));
  }
  if (status != 0) {
    return InternalError(fmt::format("the counted code ended with status {:#x}", status));
  }
  return count;
}

#else

Result<uint64_t> CountInstructions(const std::function<void()>& /*code*/) {
  return SystemError("instructions are counted on x86-64 only");
}

#endif

}  // namespace inccl::perf
