// SPDX-License-Identifier: Apache-2.0
//
// What programs print. A write that fails does not throw here, as it does in fmt::print; a program
// whose output has not arrived says so and fails.
#ifndef INCCL_PERF_SUPPORT_OUTPUT_H_
#define INCCL_PERF_SUPPORT_OUTPUT_H_

#include <fmt/format.h>

#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "perf/support/world.h"

namespace inccl::perf {

// An error shows in FlushOutput, and at the end of RunProgram.
void WriteTo(std::FILE* file, std::string_view text);

template <typename... T>
void PrintOut(fmt::format_string<T...> format, T&&... values) {
  WriteTo(stdout, fmt::format(format, std::forward<T>(values)...));
}

// What cannot be written is lost.
template <typename... T>
void PrintError(fmt::format_string<T...> format, T&&... values) {
  WriteTo(stderr, fmt::format(format, std::forward<T>(values)...));
}

// Hands on what has been printed. An error, once, if anything that this process printed has not
// arrived.
Status FlushOutput();

// The whole file. A plain file changes as a whole: a user who stops the program finds the old one
// or this one.
Status WriteFile(const std::string& path, std::string_view text);

// The whole of a program: returns the exit status of `body`, or `failed` where that is 0 and the
// output has not arrived. Before, a standard descriptor that is closed becomes one that can be
// neither read nor written, so that no socket or file of the program takes its number.
int RunProgram(const std::function<int()>& body, int failed = kExitFailed);

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_OUTPUT_H_
