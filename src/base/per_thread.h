// SPDX-License-Identifier: Apache-2.0
//
// One T per thread, created at first use and deleted when the thread ends. Unlike thread_local, it
// does not end the process if the C library has no memory to register the destructor.
#ifndef INCCL_BASE_PER_THREAD_H_
#define INCCL_BASE_PER_THREAD_H_

#include <pthread.h>

#include <new>

namespace inccl {

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

}  // namespace inccl

#endif  // INCCL_BASE_PER_THREAD_H_
