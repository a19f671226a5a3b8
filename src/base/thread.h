// SPDX-License-Identifier: Apache-2.0
//
// Threads of the library: named, and with every signal blocked, so that handlers of the application
// never run on them.
#ifndef INCCL_BASE_THREAD_H_
#define INCCL_BASE_THREAD_H_

#include <functional>
#include <thread>

#include "base/status.h"

namespace inccl {

// `name`: at most 15 characters. kSystemError if the system gives no thread.
Result<std::thread> StartThread(const char* name, std::function<void()> body);

}  // namespace inccl

#endif  // INCCL_BASE_THREAD_H_
