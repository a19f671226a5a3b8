// SPDX-License-Identifier: Apache-2.0
//
// Starts threads of the library. They are named and block every signal, so that handlers of the
// application never run on them.
#ifndef INCCL_BASE_THREAD_H_
#define INCCL_BASE_THREAD_H_

#include <functional>
#include <thread>

#include "base/status.h"

namespace inccl {

// `name` has at most 15 characters. Returns kSystemError if the system has no thread left.
Result<std::thread> StartThread(const char* name, std::function<void()> body);

}  // namespace inccl

#endif  // INCCL_BASE_THREAD_H_
