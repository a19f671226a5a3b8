// SPDX-License-Identifier: Apache-2.0
#include "support/kernel_calls.h"

#include <fmt/format.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <iterator>

#if defined(__x86_64__)

// A system call from a place that the filter knows. `inccl_test_kernel_call_end` is where the
// kernel sees it come from.
extern "C" long inccl_test_kernel_call(const long* arguments);  // number, then six
extern "C" const char inccl_test_kernel_call_end;
__asm__(
    ".text\n"
    ".globl inccl_test_kernel_call\n"
    ".type inccl_test_kernel_call, @function\n"
    "inccl_test_kernel_call:\n"
    "  mov %rdi, %rcx\n"
    "  mov 0(%rcx), %rax\n"
    "  mov 8(%rcx), %rdi\n"
    "  mov 16(%rcx), %rsi\n"
    "  mov 24(%rcx), %rdx\n"
    "  mov 32(%rcx), %r10\n"
    "  mov 40(%rcx), %r8\n"
    "  mov 48(%rcx), %r9\n"
    "  syscall\n"
    ".globl inccl_test_kernel_call_end\n"
    "inccl_test_kernel_call_end:\n"
    "  ret\n"
    ".size inccl_test_kernel_call, . - inccl_test_kernel_call\n");

namespace inccl::test {
namespace {

constexpr size_t kShown = 16;
std::atomic<uint64_t> counted{0};
std::array<std::atomic<int>, kShown> numbers;

void OnSystemCall(int, siginfo_t* info, void* context_in) {
  auto* const context = static_cast<ucontext_t*>(context_in);
  greg_t* const registers = context->uc_mcontext.gregs;
  const uint64_t at = counted.fetch_add(1);
  if (at < kShown) numbers[at].store(info->si_syscall);
  const long arguments[] = {info->si_syscall,   registers[REG_RDI], registers[REG_RSI],
                            registers[REG_RDX], registers[REG_R10], registers[REG_R8],
                            registers[REG_R9]};
  registers[REG_RAX] = inccl_test_kernel_call(arguments);
}

sock_filter Load(size_t offset) {
  return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset));
}

}  // namespace

bool KernelCalls::StartCounting() {
  struct sigaction action = {};
  action.sa_sigaction = OnSystemCall;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  if (sigaction(SIGSYS, &action, nullptr) != 0) return false;

  const auto end = reinterpret_cast<uint64_t>(&inccl_test_kernel_call_end);
  const uint32_t low = static_cast<uint32_t>(end), high = static_cast<uint32_t>(end >> 32);
  constexpr size_t kAddress = offsetof(seccomp_data, instruction_pointer);
  // Returning from the handler is a system call as well.
  sock_filter program[] = {
      Load(offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0, 9),
      Load(offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_yield, 7, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 6, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 5, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 4, 0),
      Load(kAddress),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, low, 0, 3),
      Load(kAddress + 4),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, high, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
  };
  const sock_fprog filter = {static_cast<uint16_t>(std::size(program)), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

uint64_t KernelCalls::Count() { return counted.load(); }

std::string KernelCalls::Numbers() {
  std::string text;
  for (size_t i = 0; i < kShown && i < counted.load(); ++i) {
    text += fmt::format("{} ", numbers[i].load());
  }
  return text;
}

void KernelCalls::Reset() { counted.store(0); }

}  // namespace inccl::test

#else

namespace inccl::test {

bool KernelCalls::StartCounting() { return false; }
uint64_t KernelCalls::Count() { return 0; }
std::string KernelCalls::Numbers() { return ""; }
void KernelCalls::Reset() {}

}  // namespace inccl::test

#endif  // __x86_64__
