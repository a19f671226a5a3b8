// SPDX-License-Identifier: Apache-2.0
#include "faults/interposer.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "world/limits.h"

namespace inccl::test::interposer {
namespace {

std::atomic<bool> armed{false};
Plan plan;
std::atomic<uint64_t> calls[kFunctions];

void Trace(Function function);

// Counts a call. True: it is to be tampered with.
bool Hit(Function function) {
  if (!armed.load(std::memory_order_acquire)) return false;
  const uint64_t number = calls[function].fetch_add(1) + 1;
  if (function != plan.function || number < plan.first || number > plan.last) return false;
  Trace(function);
  return true;
}

// INCCL_TEST_TRACE: where it hits.
void Trace(Function function) {
  if (std::getenv("INCCL_TEST_TRACE") == nullptr) return;
  armed.store(false);
  void* frames[40];
  std::fprintf(stderr, "%s at\n", Name(function));
  std::fflush(stderr);
  backtrace_symbols_fd(frames, backtrace(frames, 40), STDERR_FILENO);
  armed.store(true);
}

// True: the call has failed, errno is set.
bool Fails(Function function) {
  if (!Hit(function)) return false;
  errno = plan.error;
  return true;
}

template <typename F>
F* Next(F*, const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}
#define NEXT(function)                                    \
  ([]() {                                                 \
    static auto* const next = Next(&function, #function); \
    return next;                                          \
  }())

}  // namespace

const char* Name(Function function) {
  constexpr const char* kNames[] = {
      "new",           "malloc",        "mmap",       "memfd_create", "ftruncate", "fallocate",
      "socket",        "bind",          "listen",     "connect",      "accept4",   "poll",
      "epoll_create1", "epoll_ctl",     "epoll_wait", "eventfd",      "send",      "recv",
      "sendmsg",       "recvmsg",       "getsockopt", "open",         "read",      "fstat",
      "getrandom",     "pthread_create"};
  static_assert(sizeof kNames / sizeof kNames[0] == kFunctions);
  return kNames[function];
}

void Arm(const Plan& new_plan) {
  if (std::getenv("INCCL_TEST_TRACE") != nullptr) {
    signal(SIGSEGV, [](int) {
      armed.store(false);
      void* frames[60];
      backtrace_symbols_fd(frames, backtrace(frames, 60), STDERR_FILENO);
      _exit(139);
    });
  }
  plan = new_plan;
  for (std::atomic<uint64_t>& count : calls) count.store(0);
  armed.store(true, std::memory_order_release);
}

void Disarm() { armed.store(false); }

uint64_t Calls(Function function) { return calls[function].load(); }

}  // namespace inccl::test::interposer

using namespace inccl::test::interposer;  // NOLINT(google-build-using-namespace)

// Memory. The C++ operators always; the C functions where no sanitizer has replaced them.
void* operator new(size_t bytes) {
  if (Hit(kNew)) throw std::bad_alloc();
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  if (Hit(kNew)) throw std::bad_alloc();
  void* memory = nullptr;
  if (posix_memalign(&memory, std::max(sizeof(void*), static_cast<size_t>(alignment)),
                     bytes == 0 ? 1 : bytes) != 0) {
    throw std::bad_alloc();
  }
  return memory;
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return Hit(kNew) ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t& nothrow) noexcept {
  return operator new(bytes, nothrow);
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return operator new(bytes, alignment);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

extern "C" {

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);

void* malloc(size_t bytes) { return Fails(kMalloc) ? nullptr : __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) {
  return Fails(kMalloc) ? nullptr : __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  return Fails(kMalloc) ? nullptr : __libc_realloc(old, bytes);
}
#endif

void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  return Fails(kMmap) ? MAP_FAILED : NEXT(mmap)(at, bytes, protection, flags, fd, offset);
}
int memfd_create(const char* name, unsigned flags) {
  return Fails(kMemfdCreate) ? -1 : NEXT(memfd_create)(name, flags);
}
int ftruncate(int fd, off_t bytes) { return Fails(kFtruncate) ? -1 : NEXT(ftruncate)(fd, bytes); }
int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  return Fails(kFallocate) ? -1 : NEXT(fallocate)(fd, mode, offset, bytes);
}
int socket(int domain, int type, int protocol) {
  return Fails(kSocket) ? -1 : NEXT(socket)(domain, type, protocol);
}
int bind(int fd, const sockaddr* address, socklen_t length) {
  return Fails(kBind) ? -1 : NEXT(bind)(fd, address, length);
}
int listen(int fd, int backlog) { return Fails(kListen) ? -1 : NEXT(listen)(fd, backlog); }
int connect(int fd, const sockaddr* address, socklen_t length) {
  return Fails(kConnect) ? -1 : NEXT(connect)(fd, address, length);
}
int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  return Fails(kAccept) ? -1 : NEXT(accept4)(fd, address, length, flags);
}
int poll(pollfd* fds, nfds_t count, int timeout) {
  return Fails(kPoll) ? -1 : NEXT(poll)(fds, count, timeout);
}
int epoll_create1(int flags) { return Fails(kEpollCreate) ? -1 : NEXT(epoll_create1)(flags); }
int epoll_ctl(int epoll, int what, int fd, epoll_event* event) {
  return Fails(kEpollCtl) ? -1 : NEXT(epoll_ctl)(epoll, what, fd, event);
}
int epoll_wait(int epoll, epoll_event* events, int most, int timeout) {
  return Fails(kEpollWait) ? -1 : NEXT(epoll_wait)(epoll, events, most, timeout);
}
int eventfd(unsigned value, int flags) {
  static auto* const next = reinterpret_cast<int (*)(unsigned, int)>(dlsym(RTLD_NEXT, "eventfd"));
  return Fails(kEventfd) ? -1 : next(value, flags);
}
ssize_t send(int fd, const void* data, size_t bytes, int flags) {
  if (!Hit(kSend)) return NEXT(send)(fd, data, bytes, flags);
  if (plan.error == 0) return NEXT(send)(fd, data, std::min<size_t>(bytes, 1), flags);
  errno = plan.error;
  return -1;
}
ssize_t recv(int fd, void* data, size_t bytes, int flags) {
  if (!Hit(kRecv)) return NEXT(recv)(fd, data, bytes, flags);
  if (plan.error == 0) return NEXT(recv)(fd, data, std::min<size_t>(bytes, 1), flags);
  errno = plan.error;
  return -1;
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return Fails(kSendmsg) ? -1 : NEXT(sendmsg)(fd, message, flags);
}
ssize_t recvmsg(int fd, msghdr* message, int flags) {
  return Fails(kRecvmsg) ? -1 : NEXT(recvmsg)(fd, message, flags);
}
int getsockopt(int fd, int level, int option, void* value, socklen_t* length) {
  return Fails(kGetsockopt) ? -1 : NEXT(getsockopt)(fd, level, option, value, length);
}
int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  static auto* const next =
      reinterpret_cast<int (*)(const char*, int, ...)>(dlsym(RTLD_NEXT, "open"));
  return Fails(kOpen) ? -1 : next(path, flags, mode);
}
ssize_t read(int fd, void* data, size_t bytes) {
  return Fails(kRead) ? -1 : NEXT(read)(fd, data, bytes);
}
int fstat(int fd, struct stat* info) {
  static auto* const next = reinterpret_cast<int (*)(int, struct stat*)>(dlsym(RTLD_NEXT, "fstat"));
  return Fails(kFstat) ? -1 : next(fd, info);
}
ssize_t getrandom(void* data, size_t bytes, unsigned flags) {
  static auto* const next =
      reinterpret_cast<ssize_t (*)(void*, size_t, unsigned)>(dlsym(RTLD_NEXT, "getrandom"));
  return Fails(kGetrandom) ? -1 : next(data, bytes, flags);
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) {
  if (Hit(kPthreadCreate)) return plan.error;  // returned, not in errno
  return NEXT(pthread_create)(thread, attributes, body, argument);
}

}  // extern "C"
