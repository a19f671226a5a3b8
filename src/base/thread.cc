// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

namespace inccl {
namespace {

// Blocks every signal for this thread and for threads that it starts meanwhile.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    error_ = pthread_sigmask(SIG_SETMASK, &all, &old_);
  }
  ~AllSignalsBlocked() {
    if (error_ == 0) pthread_sigmask(SIG_SETMASK, &old_, nullptr);
  }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;
  int error() const { return error_; }

 private:
  sigset_t old_;
  int error_;
};

}  // namespace

Result<std::thread> StartThread(const char* name, std::function<void()> body) {
  const AllSignalsBlocked blocked;
  if (blocked.error() != 0) return SystemErrorErrno("pthread_sigmask", blocked.error());
  try {
    std::thread thread(std::move(body));  // may also throw std::bad_alloc
    pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (const std::system_error& e) {
    return SystemErrorErrno(fmt::format("thread \"{}\" cannot be started", name), e.code().value());
  }
}

}  // namespace inccl
