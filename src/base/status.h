// SPDX-License-Identifier: Apache-2.0
//
// Errors as values. The code that knows the cause creates the Status; OK is one null pointer.
#ifndef INCCL_BASE_STATUS_H_
#define INCCL_BASE_STATUS_H_

#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

namespace inccl {

// The numbers are those of ccl_result_t.
enum class Code : int {
  kOk = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
  kTimeout = 8,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message)
      : rep_(code == Code::kOk ? nullptr
                               : std::make_shared<const Rep>(Rep{code, std::move(message)})) {}

  static Status Ok() { return {}; }

  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ ? rep_->code : Code::kOk; }
  const std::string& message() const;

 private:
  struct Rep {
    Code code;
    std::string message;
  };
  std::shared_ptr<const Rep> rep_;
};

Status SystemError(std::string message);
Status SystemErrorErrno(const std::string& what, int error);  // "what: strerror (errno n)"
Status InternalError(std::string message);
Status InvalidArgument(std::string message);
Status InvalidUsage(std::string message);
Status RemoteError(std::string message);
Status TimeoutError(std::string message);

// A kSystemError that exists from the start: using it, like copying any Status, needs no memory.
const Status& OutOfMemory() noexcept;

const char* CodeName(Code code);

// Returns the Status of `function`, or OutOfMemory() if it throws std::bad_alloc.
template <typename Function>
Status CatchOutOfMemory(Function&& function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
}

// A value or an error that is not OK.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace inccl

#endif  // INCCL_BASE_STATUS_H_
