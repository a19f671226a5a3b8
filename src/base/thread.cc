// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

namespace inccl {

Result<std::thread> StartThread(const char* name, std::function<void()> body) {
  sigset_t all, old;
  sigfillset(&all);
  if (const int error = pthread_sigmask(SIG_SETMASK, &all, &old); error != 0) {
    return SystemErrorErrno("pthread_sigmask", error);
  }
  Status status;
  std::thread thread;
  try {
    thread = std::thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name);
  } catch (const std::system_error& e) {
    status =
        SystemErrorErrno(fmt::format("thread \"{}\" cannot be started", name), e.code().value());
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (!status.ok()) return status;
  return thread;
}

}  // namespace inccl
