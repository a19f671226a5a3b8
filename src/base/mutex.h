// SPDX-License-Identifier: Apache-2.0
//
// The standard library's mutexes and condition variable, annotated for clang's thread-safety
// analysis, which knows nothing of those of libstdc++.
#ifndef INCCL_BASE_MUTEX_H_
#define INCCL_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#include "base/clock.h"
#include "base/thread_annotations.h"

namespace inccl {

class INCCL_CAPABILITY("mutex") Mutex {
 public:
  void Lock() INCCL_ACQUIRE() { mutex_.lock(); }
  void Unlock() INCCL_RELEASE() { mutex_.unlock(); }
  bool TryLock() INCCL_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  // Tells the analysis, at no cost, what it cannot see: in a lambda, that the function that calls
  // it holds the mutex.
  void AssertHeld() const INCCL_ASSERT_HELD(this) {}

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds the mutex for as long as it exists.
class INCCL_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) INCCL_ACQUIRE(mutex) : mutex_(mutex) { mutex->Lock(); }
  // Takes over what TryLock has locked.
  MutexLock(Mutex* mutex, std::adopt_lock_t) INCCL_REQUIRES(mutex) : mutex_(mutex) {}
  ~MutexLock() INCCL_RELEASE() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// Within the scope of a MutexLock: gives the mutex up for as long as it exists.
class INCCL_SCOPED_CAPABILITY MutexUnlock {
 public:
  explicit MutexUnlock(Mutex* mutex) INCCL_RELEASE(mutex) : mutex_(mutex) { mutex->Unlock(); }
  ~MutexUnlock() INCCL_RELEASE() { mutex_->Lock(); }
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex* const mutex_;
};

// Callers wait in a loop that tests what they wait for: a wait may end early.
class CondVar {
 public:
  void Wait(Mutex* mutex) INCCL_REQUIRES(mutex) {
    std::unique_lock lock(mutex->mutex_, std::adopt_lock);
    changed_.wait(lock);
    lock.release();
  }
  void WaitFor(Mutex* mutex, Time limit) INCCL_REQUIRES(mutex) {
    std::unique_lock lock(mutex->mutex_, std::adopt_lock);
    changed_.wait_for(lock, std::chrono::nanoseconds(limit));
    lock.release();
  }
  void NotifyAll() { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

class INCCL_CAPABILITY("mutex") SharedMutex {
 public:
  void Lock() INCCL_ACQUIRE() { mutex_.lock(); }
  void Unlock() INCCL_RELEASE() { mutex_.unlock(); }
  void LockShared() INCCL_ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void UnlockShared() INCCL_RELEASE_SHARED() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

class INCCL_SCOPED_CAPABILITY WriterLock {
 public:
  explicit WriterLock(SharedMutex* mutex) INCCL_ACQUIRE(mutex) : mutex_(mutex) { mutex->Lock(); }
  ~WriterLock() INCCL_RELEASE() { mutex_->Unlock(); }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  SharedMutex* const mutex_;
};

class INCCL_SCOPED_CAPABILITY ReaderLock {
 public:
  explicit ReaderLock(SharedMutex* mutex) INCCL_ACQUIRE_SHARED(mutex) : mutex_(mutex) {
    mutex->LockShared();
  }
  ~ReaderLock() INCCL_RELEASE() { mutex_->UnlockShared(); }
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  SharedMutex* const mutex_;
};

}  // namespace inccl

#endif  // INCCL_BASE_MUTEX_H_
