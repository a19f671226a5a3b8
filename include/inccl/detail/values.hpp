// SPDX-License-Identifier: Apache-2.0
//
// Part of inccl/ccl.hpp: errors as values, element types, spans. Include inccl/ccl.hpp instead.
#ifndef INCCL_DETAIL_VALUES_HPP_
#define INCCL_DETAIL_VALUES_HPP_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "inccl/ccl.h"

namespace inccl::api {
// Versioned, so that translation units that were compiled with different versions of these headers
// share no symbols.
inline namespace v0_1 {
static_assert(CCL_MAJOR == 0 && CCL_MINOR == 1, "the inline namespace has the version's name");

/// A copy of a text on the heap; empty if there was no memory for it.
class Text {
 public:
  Text() noexcept = default;
  explicit Text(const char* text) noexcept : chars_(Copy(text)) {}
  Text(const Text& other) noexcept : chars_(Copy(other.c_str())) {}
  Text(Text&&) noexcept = default;
  Text& operator=(Text other) noexcept {
    chars_.swap(other.chars_);
    return *this;
  }
  ~Text() = default;

  const char* c_str() const noexcept { return chars_ ? chars_.get() : ""; }

 private:
  static char* Copy(const char* text) noexcept {
    if (*text == 0) return nullptr;
    const std::size_t size = std::strlen(text) + 1;
    char* copy = new (std::nothrow) char[size];
    if (copy != nullptr) std::memcpy(copy, text, size);
    return copy;
  }

  std::unique_ptr<char[]> chars_;
};

/// The result of a call: its code, and the text of an error.
class [[nodiscard]] Status {
 public:
  Status() noexcept = default;  ///< CCL_SUCCESS
  /// The result of this thread's last call; copies the text of ccl_get_last_error.
  explicit Status(ccl_result_t code) noexcept : code_(code) {
    if (code != CCL_SUCCESS) text_ = Text(ccl_get_last_error(nullptr));
  }
  Status(ccl_result_t code, const char* text) noexcept : code_(code), text_(text) {}

  bool ok() const noexcept { return code_ == CCL_SUCCESS; }
  /// True while the operation is still running; neither success nor an error.
  bool in_progress() const noexcept { return code_ == CCL_IN_PROGRESS; }
  ccl_result_t code() const noexcept { return code_; }
  /// Describes the error with the rank, the peer, the argument and the value; "" if ok().
  const char* text() const noexcept { return text_.c_str(); }

 private:
  ccl_result_t code_ = CCL_SUCCESS;
  Text text_;
};

/// A value, or why there is none. The value of a failed result is T(): 0, or an empty handle, with
/// which every call fails.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) noexcept : value_(std::move(value)) {}         // NOLINT: as std::expected
  Result(Status error) noexcept : status_(std::move(error)) {}   // NOLINT
  Result(ccl_result_t code, T value) noexcept : status_(code) {  ///< value, if the code is success
    if (status_.ok()) value_ = std::move(value);
  }

  bool ok() const noexcept { return status_.ok(); }
  const Status& status() const noexcept { return status_; }
  T& operator*() & noexcept { return value_; }
  const T& operator*() const& noexcept { return value_; }
  T&& operator*() && noexcept { return std::move(value_); }
  T* operator->() noexcept { return &value_; }
  const T* operator->() const noexcept { return &value_; }

 private:
  Status status_;
  T value_{};
};

/// The bits of a float type that C++17 does not have.
struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};
struct Float8E4M3 {
  std::uint8_t bits;
};
struct Float8E5M2 {
  std::uint8_t bits;
};

namespace detail {

template <typename T>
inline constexpr bool kNever = false;

template <typename T>
constexpr ccl_datatype_t Integer() {
  constexpr bool kSigned = std::is_signed_v<T>;
  static_assert(sizeof(T) != 2, "ccl.h has no 16-bit integers");
  if constexpr (sizeof(T) == 1) return kSigned ? CCL_INT8 : CCL_UINT8;
  if constexpr (sizeof(T) == 4) return kSigned ? CCL_INT32 : CCL_UINT32;
  return kSigned ? CCL_INT64 : CCL_UINT64;
}

template <typename T>
constexpr ccl_datatype_t Deduce() {
  if constexpr (std::is_same_v<T, float>) {
    return CCL_FLOAT32;
  } else if constexpr (std::is_same_v<T, double>) {
    return CCL_FLOAT64;
  } else if constexpr (std::is_same_v<T, Float16>) {
    return CCL_FLOAT16;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return CCL_BFLOAT16;
  } else if constexpr (std::is_same_v<T, Float8E4M3>) {
    return CCL_FLOAT8E4M3;
  } else if constexpr (std::is_same_v<T, Float8E5M2>) {
    return CCL_FLOAT8E5M2;
  } else if constexpr (std::is_same_v<T, std::byte>) {
    return CCL_UINT8;
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    return Integer<T>();
  } else {
    static_assert(kNever<T>, "no element type of ccl.h: specialize inccl::api::TypeOf for it");
  }
}

}  // namespace detail

/// The ccl_datatype_t of an element type. A program can specialize it for its own type, such as a
/// half: template <> struct inccl::api::TypeOf<half> { static constexpr auto value = CCL_FLOAT16;
/// };
template <typename T>
struct TypeOf {
  static constexpr ccl_datatype_t value = detail::Deduce<T>();
};

/// A view of elements that the caller owns: of anything with data and size (vectors, arrays,
/// std::span), or of a pointer and a number. Not std::span, so that C++17 and C++20 have the same
/// types here.
template <typename T>
class Span {
 public:
  constexpr Span() noexcept = default;
  constexpr Span(T* data, std::size_t size) noexcept : data_(data), size_(size) {}
  template <typename Range,
            typename From = std::remove_pointer_t<decltype(std::data(std::declval<Range&>()))>,
            typename = std::enable_if_t<std::is_convertible_v<From (*)[], T (*)[]>>>
  constexpr Span(Range&& range) noexcept  // NOLINT: a range is a span
      : data_(std::data(range)), size_(std::size(range)) {}

  constexpr T* data() const noexcept { return data_; }
  constexpr std::size_t size() const noexcept { return size_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};
template <typename Range>
Span(Range&&) -> Span<std::remove_pointer_t<decltype(std::data(std::declval<Range&>()))>>;
template <typename T>
Span(T*, std::size_t) -> Span<T>;

}  // namespace v0_1
}  // namespace inccl::api

#endif  // INCCL_DETAIL_VALUES_HPP_
