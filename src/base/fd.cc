// SPDX-License-Identifier: Apache-2.0
#include "base/fd.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/mutex.h"

namespace inccl {

void UniqueFd::Reset(int fd) {
  if (fd_ >= 0) {
    OwnFdsLock lock;
    lock.Remove(fd_);
    close(fd_);
  }
  fd_ = fd;
}

void Mapping::Reset() {
  if (data_ != nullptr) munmap(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

namespace {

// The descriptors that belong to this process alone. Needs no memory when one is added. A process
// with more descriptors than kMost leaves the rest of them to its children.
class OwnFds {
 public:
  void Lock() INCCL_ACQUIRE(mutex_) { mutex_.Lock(); }
  void Unlock() INCCL_RELEASE(mutex_) { mutex_.Unlock(); }

  void Add(int fd) INCCL_REQUIRES(mutex_) {
    if (fd < 0 || fd >= kMost) return;
    words_[WordOf(fd)] |= BitOf(fd);
    end_ = std::max(end_, fd + 1);
  }
  void Remove(int fd) INCCL_REQUIRES(mutex_) {
    if (fd >= 0 && fd < kMost) words_[WordOf(fd)] &= ~BitOf(fd);
  }
  // In a child of fork(): their owners there may still close them, so each number must stay taken.
  void Replace() INCCL_REQUIRES(mutex_) {
    int nothing = -1;
    for (int fd = 0; fd < end_; ++fd) {
      if ((words_[WordOf(fd)] & BitOf(fd)) == 0) continue;
      if (nothing < 0) {
        close(fd);  // leaves a number for `nothing`
        nothing = open("/", O_PATH | O_CLOEXEC);
      }
      if (nothing >= 0 && nothing != fd) dup3(nothing, fd, O_CLOEXEC);
    }
    if (nothing >= 0 && (words_[WordOf(nothing)] & BitOf(nothing)) == 0) close(nothing);
  }

 private:
  static constexpr int kMost = 1 << 20;
  static size_t WordOf(int fd) { return static_cast<size_t>(fd) / 64; }
  static uint64_t BitOf(int fd) { return uint64_t{1} << (fd % 64); }

  Mutex mutex_;
  std::array<uint64_t, kMost / 64> words_ INCCL_GUARDED_BY(mutex_){};
  int end_ INCCL_GUARDED_BY(mutex_) = 0;  // one above the largest number so far
};

OwnFds own;

// When the library is loaded, so before every other handler of the library: the forking thread then
// takes this mutex after all others.
[[maybe_unused]] const int handler_registered =
    pthread_atfork([]() INCCL_NO_THREAD_SAFETY_ANALYSIS { own.Lock(); },
                   []() INCCL_NO_THREAD_SAFETY_ANALYSIS { own.Unlock(); },
                   []() INCCL_NO_THREAD_SAFETY_ANALYSIS {
                     own.Replace();
                     own.Unlock();
                   });

}  // namespace

OwnFdsLock::OwnFdsLock() INCCL_NO_THREAD_SAFETY_ANALYSIS { own.Lock(); }
OwnFdsLock::~OwnFdsLock() INCCL_NO_THREAD_SAFETY_ANALYSIS { own.Unlock(); }
void OwnFdsLock::Add(int fd) INCCL_NO_THREAD_SAFETY_ANALYSIS { own.Add(fd); }
void OwnFdsLock::Remove(int fd) INCCL_NO_THREAD_SAFETY_ANALYSIS { own.Remove(fd); }

}  // namespace inccl
