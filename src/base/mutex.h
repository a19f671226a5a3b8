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

// Clang's thread-safety attributes: which mutex guards a member, and which mutexes a function
// needs, takes or must not hold. Builds with clang check them (-Wthread-safety); other compilers
// see nothing. Constructors and destructors are not checked: one thread has the object then.

#if defined(__clang__)
#define INCCL_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define INCCL_THREAD_ATTRIBUTE(x)
#endif

// Of members and variables: read and written with `mutex` held (the second: what they point to).
#define INCCL_GUARDED_BY(mutex) INCCL_THREAD_ATTRIBUTE(guarded_by(mutex))
#define INCCL_PT_GUARDED_BY(mutex) INCCL_THREAD_ATTRIBUTE(pt_guarded_by(mutex))
// Of mutexes: a thread that takes both takes this one first.
#define INCCL_ACQUIRED_BEFORE(...) INCCL_THREAD_ATTRIBUTE(acquired_before(__VA_ARGS__))

// Of functions: the caller holds, or does not hold, the mutex.
#define INCCL_REQUIRES(...) INCCL_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define INCCL_EXCLUDES(...) INCCL_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// For what the analysis cannot follow; a comment says why.
#define INCCL_NO_THREAD_SAFETY_ANALYSIS INCCL_THREAD_ATTRIBUTE(no_thread_safety_analysis)

// For the classes below.
#define INCCL_CAPABILITY(name) INCCL_THREAD_ATTRIBUTE(capability(name))
#define INCCL_SCOPED_CAPABILITY INCCL_THREAD_ATTRIBUTE(scoped_lockable)
#define INCCL_ACQUIRE(...) INCCL_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define INCCL_ACQUIRE_SHARED(...) INCCL_THREAD_ATTRIBUTE(acquire_shared_capability(__VA_ARGS__))
#define INCCL_TRY_ACQUIRE(...) INCCL_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define INCCL_RELEASE(...) INCCL_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define INCCL_RELEASE_SHARED(...) INCCL_THREAD_ATTRIBUTE(release_shared_capability(__VA_ARGS__))
#define INCCL_ASSERT_HELD(...) INCCL_THREAD_ATTRIBUTE(assert_capability(__VA_ARGS__))

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
