// SPDX-License-Identifier: Apache-2.0
//
// Starts threads of the library. They are named and block every signal, so that handlers of the
// application never run on them. And objects of a thread, and objects that outlive all threads.
#ifndef INCCL_BASE_THREAD_H_
#define INCCL_BASE_THREAD_H_

#include <pthread.h>

#include <cstddef>
#include <functional>
#include <new>
#include <thread>

#include "base/status.h"

namespace inccl {

// `name` has at most 15 characters. Returns kSystemError if the system has no thread left.
Result<std::thread> StartThread(const char* name, std::function<void()> body);

// One T per thread, created at first use and deleted when the thread ends. Unlike thread_local, it
// does not end the process if the C library has no memory to register the destructor.

template <typename T>
class PerThread {
 public:
  PerThread() : valid_(pthread_key_create(&key_, &Delete) == 0) {}
  // Runs at process exit or when the library is unloaded. Values of running threads are leaked.
  ~PerThread() {
    if (valid_) pthread_key_delete(key_);
    valid_ = false;
  }
  PerThread(const PerThread&) = delete;
  PerThread& operator=(const PerThread&) = delete;

  // nullptr if there is no memory.
  T* Get() noexcept {
    if (!valid_) return nullptr;
    auto* value = static_cast<T*>(pthread_getspecific(key_));
    if (value != nullptr) return value;
    value = new (std::nothrow) T;
    if (value == nullptr || pthread_setspecific(key_, value) == 0) return value;
    delete value;
    return nullptr;
  }

 private:
  static void Delete(void* value) { delete static_cast<T*>(value); }

  pthread_key_t key_{};
  bool valid_;
};

// A static object that is never destroyed, because threads and other static objects may use it
// while the process exits. Its first use may be in a destructor: it takes no memory of its own.
template <typename T>
class NoDestructor {
 public:
  NoDestructor() { new (&storage_) T; }
  NoDestructor(const NoDestructor&) = delete;
  NoDestructor& operator=(const NoDestructor&) = delete;

  T& operator*() { return *std::launder(reinterpret_cast<T*>(&storage_)); }
  T* operator->() { return &**this; }

 private:
  alignas(T) std::byte storage_[sizeof(T)];
};

}  // namespace inccl

#endif  // INCCL_BASE_THREAD_H_
