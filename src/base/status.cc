// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <fmt/format.h>

#include <cstring>

namespace inccl {

namespace {

// Never destroyed, because threads may report errors while the process exits.
const Status* const out_of_memory = new Status(Code::kSystemError, "out of memory");

}  // namespace

const Status& OutOfMemory() noexcept { return *out_of_memory; }

const std::string& Status::message() const {
  static const std::string empty;
  return rep_ ? rep_->message : empty;
}

Status SystemError(std::string message) { return {Code::kSystemError, std::move(message)}; }

Status SystemErrorErrno(const std::string& what, int error) {
  char buffer[128];
  return {Code::kSystemError,
          fmt::format("{}: {} (errno {})", what, strerror_r(error, buffer, sizeof buffer), error)};
}

Status InternalError(std::string message) { return {Code::kInternalError, std::move(message)}; }
Status InvalidArgument(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }
Status InvalidUsage(std::string message) { return {Code::kInvalidUsage, std::move(message)}; }
Status RemoteError(std::string message) { return {Code::kRemoteError, std::move(message)}; }
Status TimeoutError(std::string message) { return {Code::kTimeout, std::move(message)}; }

const char* CodeName(Code code) {
  switch (code) {
    case Code::kOk: return "success";
    case Code::kUnhandledCudaError: return "unhandled CUDA error";
    case Code::kSystemError: return "system error";
    case Code::kInternalError: return "internal error";
    case Code::kInvalidArgument: return "invalid argument";
    case Code::kInvalidUsage: return "invalid usage";
    case Code::kRemoteError: return "remote error";
    case Code::kInProgress: return "in progress";
    case Code::kTimeout: return "timeout";
  }
  return "unknown result code";
}

}  // namespace inccl
