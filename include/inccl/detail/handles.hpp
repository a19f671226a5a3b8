// SPDX-License-Identifier: Apache-2.0
//
// Part of inccl/ccl.hpp: options, codecs, streams, memory and groups. Include inccl/ccl.hpp
// instead.
#ifndef INCCL_DETAIL_HANDLES_HPP_
#define INCCL_DETAIL_HANDLES_HPP_

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "inccl/ccl.h"
#include "inccl/detail/values.hpp"

namespace inccl::api {
inline namespace v0_1 {

class Communicator;

/// ccl_config_t with its defaults.
struct Config : ccl_config_t {
  Config() noexcept : ccl_config_t(CCL_CONFIG_INIT) {}
};

/// ccl_compression_stats_t with its size set.
struct Stats : ccl_compression_stats_t {
  Stats() noexcept : ccl_compression_stats_t(CCL_COMPRESSION_STATS_INIT) {}
};

namespace detail {

// A handle of the C API with one owner.
template <typename T, ccl_result_t (*Free)(T)>
class Owned {
 public:
  Owned() noexcept = default;
  explicit Owned(T handle) noexcept : handle_(handle) {}
  Owned(Owned&& other) noexcept : handle_(other.Release()) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) {
      Reset();
      handle_ = other.Release();
    }
    return *this;
  }
  ~Owned() { Reset(); }

  T get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != nullptr; }
  /// Gives up ownership: the caller frees the handle.
  T Release() noexcept { return std::exchange(handle_, nullptr); }

 private:
  void Reset() noexcept {
    if (handle_ != nullptr) (void)Free(handle_);
  }

  T handle_ = nullptr;
};

inline ccl_result_t EndStream(ccl_stream_t stream) noexcept {
  (void)ccl_stream_synchronize(stream);
  return ccl_stream_destroy(stream);
}

template <typename S>
inline constexpr ccl_datatype_t kTypeOfSpan =
    TypeOf<std::remove_cv_t<std::remove_pointer_t<decltype(std::declval<S>().data())>>>::value;

template <typename T>
struct Buffers {
  static constexpr ccl_datatype_t kType = TypeOf<T>::value;
  Span<const T> send;
  Span<T> recv;
};

template <typename S, typename R>
constexpr auto MakeBuffers(const S& send, R& recv) noexcept {
  const Span from(send);
  const Span to(recv);
  using To = std::remove_pointer_t<decltype(to.data())>;
  using From = std::remove_cv_t<std::remove_pointer_t<decltype(from.data())>>;
  static_assert(!std::is_const_v<To>, "recv is written: its elements must not be const");
  static_assert(std::is_same_v<From, To>, "send and recv have different element types");
  return Buffers<To>{from, to};
}

}  // namespace detail

/// A parsed codec specification.
class [[nodiscard]] Codec : public detail::Owned<ccl_codec_t, &ccl_codec_destroy> {
 public:
  using Owned::Owned;

  /// "hbi:bits=6", ...
  static Result<Codec> Create(const char* spec) noexcept {
    ccl_codec_t codec = nullptr;
    const ccl_result_t code = ccl_codec_create(&codec, spec);
    return {code, Codec(codec)};
  }
  /// The canonical specification.
  Result<Text> Spec() const noexcept {
    std::array<char, 1024> spec{};
    const ccl_result_t code = ccl_codec_spec(get(), spec.data(), spec.size());
    return {code, Text(spec.data())};
  }
  struct Promise {
    double bits = 0;                  ///< per element and phase
    double relative_error_bound = 0;  ///< of an element, to the largest of its block
  };
  Result<Promise> Bound(std::size_t count, int nranks) const noexcept {
    Promise bound;
    const ccl_result_t code =
        ccl_codec_bound(get(), count, nranks, &bound.bits, &bound.relative_error_bound);
    return {code, bound};
  }
};

/// An order of asynchronous calls. A default-constructed one stands for NULL: calls wait. The
/// destructor waits for its calls, so buffers that are declared before it outlive them.
class [[nodiscard]] Stream : public detail::Owned<ccl_stream_t, &detail::EndStream> {
 public:
  using Owned::Owned;

  static Result<Stream> Create() noexcept {
    ccl_stream_t stream = nullptr;
    const ccl_result_t code = ccl_stream_create(&stream);
    return {code, Stream(stream)};
  }
  /// Returns the first error of its calls since it last returned one.
  Status Synchronize() noexcept { return Status(ccl_stream_synchronize(get())); }
  /// As Synchronize, but in_progress() while calls are running. Does not wait.
  Status Query() noexcept { return Status(ccl_stream_query(get())); }
};

/// What compressed calls have left out of a vector: ccl_residual_create.
class [[nodiscard]] Residual : public detail::Owned<ccl_residual_t, &ccl_residual_destroy> {
 public:
  using Owned::Owned;

  static Result<Residual> Create(
      std::size_t count, const ccl_residual_config_t& config = CCL_RESIDUAL_CONFIG_INIT) noexcept {
    ccl_residual_t residual = nullptr;
    const ccl_result_t code = ccl_residual_create(&residual, count, &config);
    return {code, Residual(residual)};
  }
  Status SetScale(float scale) noexcept { return Status(ccl_residual_set_scale(get(), scale)); }
  Status Export(float* values, std::size_t count) const noexcept {
    return Status(ccl_residual_export(get(), values, count));
  }
  Status Import(const float* values, std::size_t count) noexcept {
    return Status(ccl_residual_import(get(), values, count));
  }
  Status Reset() noexcept { return Status(ccl_residual_reset(get())); }
  Status Rollback(const Communicator& comm) noexcept;
};

/// A parsed specification of a reducer: ccl_reducer_create.
class [[nodiscard]] Reducer : public detail::Owned<ccl_reducer_t, &ccl_reducer_destroy> {
 public:
  using Owned::Owned;

  /// "topk:k=0.01|fp16", ...
  static Result<Reducer> Create(const char* spec) noexcept {
    ccl_reducer_t reducer = nullptr;
    const ccl_result_t code = ccl_reducer_create(&reducer, spec);
    return {code, Reducer(reducer)};
  }
  /// The canonical specification.
  Result<Text> Spec() const noexcept {
    std::array<char, 1024> spec{};
    const ccl_result_t code = ccl_reducer_spec(get(), spec.data(), spec.size());
    return {code, Text(spec.data())};
  }
};

/// What a reducer keeps of a tensor between calls: ccl_reducer_state_create.
class [[nodiscard]] ReducerState
    : public detail::Owned<ccl_reducer_state_t, &ccl_reducer_state_destroy> {
 public:
  ReducerState() noexcept = default;

  static Result<ReducerState> Create(const Reducer& reducer, std::size_t rows, std::size_t cols,
                                     ccl_datatype_t type = CCL_FLOAT32) noexcept {
    ccl_reducer_state_t state = nullptr;
    const ccl_result_t code = ccl_reducer_state_create(&state, reducer.get(), rows, cols, type);
    return {code, ReducerState(state, rows * cols, type)};
  }
  std::size_t size() const noexcept { return get() == nullptr ? 0 : size_; }
  ccl_datatype_t type() const noexcept { return type_; }
  Status Reset() noexcept { return Status(ccl_reducer_state_reset(get())); }
  /// `data` may be nullptr: then only *size is written.
  Status Export(void* data, std::size_t* size) const noexcept {
    return Status(ccl_reducer_state_export(get(), data, size));
  }
  Status Import(const void* data, std::size_t size) noexcept {
    return Status(ccl_reducer_state_import(get(), data, size));
  }
  Status Rollback(const Communicator& comm) noexcept;

 private:
  ReducerState(ccl_reducer_state_t state, std::size_t size, ccl_datatype_t type) noexcept
      : Owned(state), size_(size), type_(type) {}
  std::size_t size_ = 0;
  ccl_datatype_t type_ = CCL_FLOAT32;
};

/// Elements in memory of ccl_mem_alloc: zeros, aligned to pages.
template <typename T>
class [[nodiscard]] Memory : public detail::Owned<void*, &ccl_mem_free> {
 public:
  static_assert(std::is_trivially_copyable_v<T>);
  Memory() noexcept = default;

  static Result<Memory> Allocate(std::size_t count) noexcept {
    void* memory = nullptr;
    const ccl_result_t code =
        ccl_mem_alloc(&memory, count > SIZE_MAX / sizeof(T) ? SIZE_MAX : count * sizeof(T));
    return {code, Memory(memory, count)};
  }
  T* data() const noexcept { return static_cast<T*>(get()); }
  std::size_t size() const noexcept { return get() == nullptr ? 0 : count_; }
  T& operator[](std::size_t i) const noexcept { return data()[i]; }
  T* begin() const noexcept { return data(); }
  T* end() const noexcept { return data() + size(); }

 private:
  Memory(void* memory, std::size_t count) noexcept : Owned(memory), count_(count) {}
  std::size_t count_ = 0;
};

/// Elements in device memory of ccl_mem_alloc_device; undefined contents, not accessible from the
/// host.
template <typename T>
class [[nodiscard]] DeviceMemory : public detail::Owned<void*, &ccl_mem_free> {
 public:
  static_assert(std::is_trivially_copyable_v<T>);
  DeviceMemory() noexcept = default;

  static Result<DeviceMemory> Allocate(std::size_t count, int device) noexcept {
    void* memory = nullptr;
    const ccl_result_t code = ccl_mem_alloc_device(
        &memory, count > SIZE_MAX / sizeof(T) ? SIZE_MAX : count * sizeof(T), device);
    return {code, DeviceMemory(memory, count)};
  }
  T* data() const noexcept { return static_cast<T*>(get()); }
  std::size_t size() const noexcept { return get() == nullptr ? 0 : count_; }

 private:
  DeviceMemory(void* memory, std::size_t count) noexcept : Owned(memory), count_(count) {}
  std::size_t count_ = 0;
};

/// End() starts all calls since its construction together: ccl_group_start and ccl_group_end.
/// Without End() the destructor ends the group and drops the result.
class [[nodiscard]] Group {
 public:
  Group() noexcept : start_(ccl_group_start()) {}
  ~Group() {
    if (open_) (void)End();
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  Status End() noexcept {
    if (!start_.ok() || !open_) return start_;
    open_ = false;
    return Status(ccl_group_end());
  }

 private:
  Status start_;
  bool open_ = true;
};

/// ccl_compression_t for C++. With `codec` nullptr the communicator's codec is used.
struct Compression {
  const Codec* codec = nullptr;
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  ccl_compression_stats_t* stats = nullptr;  ///< a Stats; filled when the call completes
  const Residual* residual = nullptr;        ///< error feedback
};

}  // namespace v0_1
}  // namespace inccl::api

#endif  // INCCL_DETAIL_HANDLES_HPP_
