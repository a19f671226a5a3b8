// SPDX-License-Identifier: Apache-2.0
//
// inccl for C++17 and later: a thin layer over ccl.h, header only. ccl.h says what each call does;
// this file adds ownership, element types and errors as values. Nothing in it raises; it compiles
// without exceptions and without run-time types.
//
//   namespace ccl = inccl::api;
//   auto comm = ccl::Communicator::InitEnv();
//   if (!comm.ok()) return Complain(comm.status().text());
//   std::vector<float> gradient = ...;
//   ccl::Status status = comm->AllReduceCompressed(gradient, gradient, CCL_AVG);
//
// A buffer is anything with data and size, or inccl::api::Span(pointer, size). The element type is
// deduced, and must be the same for send and recv; counts follow from the sizes, which are checked.
// On a stream a buffer must live until the call has completed, like the pointers of ccl.h.
//
// The namespace: inccl has internal classes of these names. libinccl.so hides them, but programs
// that link its parts statically see both, so these have a namespace of their own. Another library
// uses `ccl` as its namespace; programs may use it as an alias.
#ifndef INCCL_CCL_HPP_
#define INCCL_CCL_HPP_

#if __cplusplus < 201703L
#error "inccl/ccl.hpp needs C++17 or later (-std=c++17); inccl/ccl.h is for C99 and C++11"
#endif

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "inccl/ccl.h"
#include "inccl/detail/handles.hpp"
#include "inccl/detail/values.hpp"

namespace inccl::api {
inline namespace v0_1 {

using UniqueId = ccl_unique_id_t;

/// ccl_get_unique_id.
inline Result<UniqueId> MakeUniqueId() noexcept {
  UniqueId id{};
  const ccl_result_t code = ccl_get_unique_id(&id);
  return {code, id};
}

/// Version of the library that is loaded, as CCL_VERSION_CODE.
inline Result<int> Version() noexcept {
  int version = 0;
  const ccl_result_t code = ccl_get_version(&version);
  return {code, version};
}

/// One rank's end of a communicator; the destructor destroys it. A default-constructed one is
/// empty. With config.blocking == 0 the caller gets it while it is being created: see AsyncError.
class [[nodiscard]] Communicator {
 public:
  Communicator() noexcept = default;
  Communicator(Communicator&&) noexcept = default;
  Communicator& operator=(Communicator&& other) noexcept {
    if (this != &other) {
      (void)Destroy();
      cell_ = std::move(other.cell_);
    }
    return *this;
  }
  ~Communicator() { (void)Destroy(); }

  // Inside a group, functions that create a communicator return an object that is empty until the
  // group has ended. The caller may move it meanwhile. If it is destroyed before, its memory stays
  // allocated.

  static Result<Communicator> InitRank(int nranks, const UniqueId& id, int rank,
                                       const ccl_config_t* config = nullptr) noexcept {
    return Create([&](ccl_comm_t* comm) {
      return ccl_comm_init_rank_config(comm, nranks, id, rank, config);
    });
  }
  static Result<Communicator> InitEnv(const ccl_config_t* config = nullptr) noexcept {
    return Create([&](ccl_comm_t* comm) { return ccl_comm_init_env(comm, config); });
  }
  /// Creates all ranks: out[i] is rank i of out.size(). The previous contents of `out` are
  /// destroyed.
  static Status InitAll(Span<Communicator> out) noexcept {
    const std::unique_ptr<ccl_comm_t[]> comms(new (std::nothrow) ccl_comm_t[out.size()]);
    if (comms == nullptr) return OutOfMemory();
    const int count = out.size() > 0x7fffffff ? 0x7fffffff : static_cast<int>(out.size());
    Status status(ccl_comm_init_all(comms.get(), count, nullptr));
    for (std::size_t i = 0; status.ok() && i < out.size(); ++i) {
      Result<Communicator> adopted = Adopt(comms[i]);
      if (!adopted.ok()) {
        for (; i < out.size(); ++i) (void)ccl_comm_destroy(comms[i]);
        return adopted.status();
      }
      out.data()[i] = *std::move(adopted);
    }
    return status;
  }
  /// Takes ownership of a communicator of the C API.
  static Result<Communicator> Adopt(ccl_comm_t comm) noexcept {
    if (comm == nullptr) return Status(CCL_INVALID_ARGUMENT, "comm: NULL");
    return Create([&](ccl_comm_t* to) {
      *to = comm;
      return CCL_SUCCESS;
    });
  }
  /// Empty for CCL_SPLIT_NOCOLOR.
  Result<Communicator> Split(int color, int key, const ccl_config_t* config = nullptr) noexcept {
    Result<Communicator> part =
        Create([&](ccl_comm_t* comm) { return ccl_comm_split(get(), color, key, comm, config); });
    if (color == CCL_SPLIT_NOCOLOR) part->cell_.reset();
    return part;
  }
  Result<Communicator> Shrink(Span<const int> excluded = {}, int flags = CCL_SHRINK_DEFAULT,
                              const ccl_config_t* config = nullptr) noexcept {
    const int count = excluded.size() > 0x7fffffff ? -1 : static_cast<int>(excluded.size());
    return Create([&](ccl_comm_t* comm) {
      return ccl_comm_shrink(get(), excluded.data(), count, comm, config, flags);
    });
  }
  /// An id for ranks that join in Grow, which call InitRank with it.
  Result<UniqueId> Invite() noexcept {
    UniqueId id{};
    const Status status(ccl_comm_get_unique_id(get(), &id));
    if (!status.ok()) return status;
    return id;
  }
  /// The part of a member; `id` may be nullptr where another member passes it.
  Result<Communicator> Grow(int nranks, const UniqueId* id, int rank = -1,
                            const ccl_config_t* config = nullptr) noexcept {
    if (get() == nullptr) return Status(CCL_INVALID_ARGUMENT, "comm: empty");
    return Create(
        [&](ccl_comm_t* comm) { return ccl_comm_grow(get(), nranks, id, rank, comm, config); });
  }

  /// For calls of ccl.h; NULL if empty, destroyed or aborted.
  ccl_comm_t get() const noexcept {
    return cell_ == nullptr || cell_->freed.load(std::memory_order_acquire) ? nullptr : cell_->comm;
  }
  explicit operator bool() const noexcept { return get() != nullptr; }

  Result<int> Count() const noexcept { return Ask(ccl_comm_count); }
  Result<int> Rank() const noexcept { return Ask(ccl_comm_user_rank); }
  Result<int> Device() const noexcept { return Ask(ccl_comm_device); }
  /// The sticky error, or in_progress() while the communicator is being created or finalized. Any
  /// thread.
  Status AsyncError() const noexcept {
    ccl_result_t error = CCL_SUCCESS;
    const ccl_result_t code = ccl_comm_get_async_error(get(), &error);
    if (code != CCL_SUCCESS) return Status(code);
    return {error, error == CCL_SUCCESS ? "" : ccl_get_last_error(get())};
  }
  Result<std::uint64_t> LastCompleted() const noexcept {
    std::uint64_t operation = 0;
    const ccl_result_t code = ccl_comm_last_completed(get(), &operation);
    return {code, operation};
  }

  /// Returns in_progress() if the communicator was created with blocking = 0.
  Status Finalize() noexcept { return Status(ccl_comm_finalize(get())); }
  /// Any thread.
  Status Revoke() noexcept { return Status(ccl_comm_revoke(get())); }
  /// Any thread.
  Status SetTimeout(int op_timeout_ms) noexcept {
    return Status(ccl_comm_set_timeout(get(), op_timeout_ms));
  }
  /// Any thread may call it, also while another is in a call of this object. Leaves the object
  /// empty.
  Status Abort() noexcept {
    ccl_comm_t comm = Take();
    return comm == nullptr ? Status() : Status(ccl_comm_abort(comm));
  }
  /// The destructor calls this and drops the result.
  Status Destroy() noexcept {
    // A cell without a handle is leaked, because the end of a group may still write to it.
    if (cell_ != nullptr && cell_->comm == nullptr) (void)cell_.release();
    return Status(ccl_comm_destroy(Take()));
  }

  template <typename S, typename R>
  Status AllReduce(const S& send, R&& recv, ccl_redop_t op, const Stream& stream = {}) noexcept {
    const auto b = detail::MakeBuffers(send, recv);
    if (b.recv.size() != b.send.size()) return Mismatch("recv", b.recv.size(), b.send.size());
    return Status(ccl_allreduce(b.send.data(), b.recv.data(), b.send.size(), b.kType, op, get(),
                                stream.get()));
  }
  template <typename S, typename R>
  Status AllReduceCompressed(const S& send, R&& recv, ccl_redop_t op, const Compression& how = {},
                             const Stream& stream = {}) noexcept {
    const auto b = detail::MakeBuffers(send, recv);
    if (b.recv.size() != b.send.size()) return Mismatch("recv", b.recv.size(), b.send.size());
    return Compressed(how, [&](const ccl_compression_t* c) {
      return ccl_allreduce_compressed(b.send.data(), b.recv.data(), b.send.size(), b.kType, op, c,
                                      get(), stream.get());
    });
  }
  /// ccl_allreduce_fused. `how` has no residual.
  Status AllReduceFused(const ccl_vector_t* vectors, size_t nvectors, ccl_datatype_t type,
                        ccl_redop_t op, const Compression& how = {},
                        const Stream& stream = {}) noexcept {
    return Compressed(how, [&](const ccl_compression_t* c) {
      return ccl_allreduce_fused(vectors, nvectors, type, op, c, get(), stream.get());
    });
  }
  /// ccl_allreduce_reduced. `how` has no codec and no residual.
  template <typename S, typename R>
  Status AllReduceReduced(const S& send, R&& recv, ReducerState& state, ccl_redop_t op,
                          const Compression& how = {}, const Stream& stream = {}) noexcept {
    const auto b = detail::MakeBuffers(send, recv);
    if (b.send.size() != state.size()) return Mismatch("send", b.send.size(), state.size());
    if (b.recv.size() != state.size()) return Mismatch("recv", b.recv.size(), state.size());
    if (b.kType != state.type()) {
      (void)ccl_allreduce(nullptr, nullptr, SIZE_MAX, CCL_INT8, CCL_SUM, get(), nullptr);
      return {CCL_INVALID_ARGUMENT, "state: made for another type of elements"};
    }
    return Compressed(how, [&](const ccl_compression_t* c) {
      return ccl_allreduce_reduced(b.send.data(), b.recv.data(), state.get(), op, c, get(),
                                   stream.get());
    });
  }
  /// send has a segment of recv's size for each rank.
  template <typename S, typename R>
  Status ReduceScatter(const S& send, R&& recv, ccl_redop_t op,
                       const Stream& stream = {}) noexcept {
    const auto b = detail::MakeBuffers(send, recv);
    if (Status s = Segments("send", b.send.size(), b.recv.size()); !s.ok()) return s;
    return Status(ccl_reduce_scatter(b.send.data(), b.recv.data(), b.recv.size(), b.kType, op,
                                     get(), stream.get()));
  }
  template <typename S, typename R>
  Status ReduceScatterCompressed(const S& send, R&& recv, ccl_redop_t op,
                                 const Compression& how = {}, const Stream& stream = {}) noexcept {
    const auto b = detail::MakeBuffers(send, recv);
    if (Status s = Segments("send", b.send.size(), b.recv.size()); !s.ok()) return s;
    return Compressed(how, [&](const ccl_compression_t* c) {
      return ccl_reduce_scatter_compressed(b.send.data(), b.recv.data(), b.recv.size(), b.kType, op,
                                           c, get(), stream.get());
    });
  }
  /// recv has a segment of send's size for each rank.
  template <typename S, typename R>
  Status AllGather(const S& send, R&& recv, const Stream& stream = {}) noexcept {
    const auto b = detail::MakeBuffers(send, recv);
    if (Status s = Segments("recv", b.recv.size(), b.send.size()); !s.ok()) return s;
    return Status(
        ccl_allgather(b.send.data(), b.recv.data(), b.send.size(), b.kType, get(), stream.get()));
  }
  template <typename S, typename R>
  Status AllGatherCompressed(const S& send, R&& recv, const Compression& how = {},
                             const Stream& stream = {}) noexcept {
    const auto b = detail::MakeBuffers(send, recv);
    if (Status s = Segments("recv", b.recv.size(), b.send.size()); !s.ok()) return s;
    return Compressed(how, [&](const ccl_compression_t* c) {
      return ccl_allgather_compressed(b.send.data(), b.recv.data(), b.send.size(), b.kType, c,
                                      get(), stream.get());
    });
  }
  /// The root sends `data`, the others receive into it.
  template <typename R>
  Status Broadcast(R&& data, int root, const Stream& stream = {}) noexcept {
    return Broadcast(data, data, root, stream);
  }
  /// Only the root's send is read; elsewhere it may be empty.
  template <typename S, typename R>
  Status Broadcast(const S& send, R&& recv, int root, const Stream& stream = {}) noexcept {
    const auto b = detail::MakeBuffers(send, recv);
    if (Is(root) && b.send.size() != b.recv.size()) {
      return Mismatch("send", b.send.size(), b.recv.size());
    }
    return Status(ccl_broadcast(b.send.data(), b.recv.data(), b.recv.size(), b.kType, root, get(),
                                stream.get()));
  }
  /// Only the root's recv is written; elsewhere it may be empty.
  template <typename S, typename R>
  Status Reduce(const S& send, R&& recv, ccl_redop_t op, int root,
                const Stream& stream = {}) noexcept {
    const auto b = detail::MakeBuffers(send, recv);
    if (Is(root) && b.recv.size() != b.send.size()) {
      return Mismatch("recv", b.recv.size(), b.send.size());
    }
    return Status(ccl_reduce(b.send.data(), b.recv.data(), b.send.size(), b.kType, op, root, get(),
                             stream.get()));
  }
  /// Both have a segment for each rank, all of one size.
  template <typename S, typename R>
  Status AllToAll(const S& send, R&& recv, const Stream& stream = {}) noexcept {
    const auto b = detail::MakeBuffers(send, recv);
    const Result<int> n = Count();
    if (!n.ok()) return n.status();
    const std::size_t count = b.send.size() / static_cast<std::size_t>(*n);
    if (Status s = Segments("send", b.send.size(), count); !s.ok()) return s;
    if (b.recv.size() != b.send.size()) return Mismatch("recv", b.recv.size(), b.send.size());
    return Status(ccl_alltoall(b.send.data(), b.recv.data(), count, b.kType, get(), stream.get()));
  }
  /// recv has a segment of send's size for each rank on the root; elsewhere it may be empty.
  template <typename S, typename R>
  Status Gather(const S& send, R&& recv, int root, const Stream& stream = {}) noexcept {
    const auto b = detail::MakeBuffers(send, recv);
    if (Is(root)) {
      if (Status s = Segments("recv", b.recv.size(), b.send.size()); !s.ok()) return s;
    }
    return Status(ccl_gather(b.send.data(), b.recv.data(), b.send.size(), b.kType, root, get(),
                             stream.get()));
  }
  /// send has a segment of recv's size for each rank on the root; elsewhere it may be empty.
  template <typename S, typename R>
  Status Scatter(const S& send, R&& recv, int root, const Stream& stream = {}) noexcept {
    const auto b = detail::MakeBuffers(send, recv);
    if (Is(root)) {
      if (Status s = Segments("send", b.send.size(), b.recv.size()); !s.ok()) return s;
    }
    return Status(ccl_scatter(b.send.data(), b.recv.data(), b.recv.size(), b.kType, root, get(),
                              stream.get()));
  }

  template <typename S>
  Status Send(const S& send, int peer, const Stream& stream = {}) noexcept {
    const Span from(send);
    return Status(ccl_send(from.data(), from.size(), detail::kTypeOfSpan<decltype(from)>, peer,
                           get(), stream.get()));
  }
  template <typename R>
  Status Recv(R&& recv, int peer, const Stream& stream = {}) noexcept {
    const Span to(recv);
    return Status(ccl_recv(to.data(), to.size(), detail::kTypeOfSpan<decltype(to)>, peer, get(),
                           stream.get()));
  }

  /// A reduction that multiplies this rank's elements by `scalar`, then sums.
  template <typename T>
  Result<ccl_redop_t> CreatePreMulSum(T scalar) noexcept {
    return PreMulSum(&scalar, CCL_SCALAR_HOST_IMMEDIATE);
  }
  /// As CreatePreMulSum, but each call reads the scalar when it runs.
  template <typename T>
  Result<ccl_redop_t> CreatePreMulSumAt(T* scalar) noexcept {
    return PreMulSum(scalar, CCL_SCALAR_DEVICE);
  }
  Status DestroyReduction(ccl_redop_t op) noexcept { return Status(ccl_redop_destroy(op, get())); }

  /// As ccl_comm_register: the handle is NULL if other ranks cannot access this memory in place.
  template <typename R>
  Result<void*> Register(R&& buffer) noexcept {
    const Span memory(buffer);
    void* handle = nullptr;
    const ccl_result_t code =
        ccl_comm_register(get(), memory.data(), memory.size() * sizeof(*memory.data()), &handle);
    return {code, handle};
  }
  Status Deregister(void* handle) noexcept { return Status(ccl_comm_deregister(get(), handle)); }

 private:
  // On the heap, because the end of a group writes the handle after the object may have moved.
  struct Cell {
    ccl_comm_t comm = nullptr;
    std::atomic<bool> freed{false};
  };

  static Status OutOfMemory() noexcept { return {CCL_SYSTEM_ERROR, "out of memory"}; }

  template <typename Function>
  static Result<Communicator> Create(Function&& function) noexcept {
    std::unique_ptr<Cell> cell(new (std::nothrow) Cell);
    if (cell == nullptr) return OutOfMemory();
    const ccl_result_t code = function(&cell->comm);
    if (code != CCL_SUCCESS && code != CCL_IN_PROGRESS) return Status(code);
    Communicator made;
    made.cell_ = std::move(cell);
    return made;
  }

  // Returns the handle to one caller only: the one that ends it.
  ccl_comm_t Take() noexcept {
    if (cell_ == nullptr || cell_->comm == nullptr || cell_->freed.exchange(true)) return nullptr;
    return cell_->comm;
  }

  Result<int> Ask(ccl_result_t (*question)(ccl_comm_t, int*)) const noexcept {
    int answer = 0;
    const ccl_result_t code = question(get(), &answer);
    return {code, answer};
  }
  bool Is(int root) const noexcept {
    const Result<int> rank = Rank();
    return rank.ok() && *rank == root;
  }

  Status Segments(const char* name, std::size_t size, std::size_t segment) noexcept {
    const Result<int> n = Count();
    if (!n.ok()) return n.status();
    const std::size_t wanted = segment * static_cast<std::size_t>(*n);
    return size == wanted ? Status() : Mismatch(name, size, wanted);
  }
  Status Mismatch(const char* name, std::size_t size, std::size_t wanted) noexcept {
    // An invalid call must fail the group that contains it, so the library gets one.
    (void)ccl_allreduce(nullptr, nullptr, SIZE_MAX, CCL_INT8, CCL_SUM, get(), nullptr);
    std::array<char, 160> text{};
    (void)std::snprintf(text.data(), text.size(), "rank %d/%d: %s: has %zu elements, must have %zu",
                        *Rank(), *Count(), name, size, wanted);
    return {CCL_INVALID_ARGUMENT, text.data()};
  }

  template <typename Function>
  Status Compressed(const Compression& how, Function&& function) noexcept {
    ccl_compression_t options = CCL_COMPRESSION_INIT;
    if (how.codec != nullptr) options.codec = how.codec->get();
    if (how.codec != nullptr && options.codec == nullptr) {
      (void)ccl_allreduce(nullptr, nullptr, SIZE_MAX, CCL_INT8, CCL_SUM, get(), nullptr);
      return {CCL_INVALID_ARGUMENT, "how.codec: is empty"};
    }
    if (how.residual != nullptr) options.residual = how.residual->get();
    if (how.residual != nullptr && options.residual == nullptr) {
      (void)ccl_allreduce(nullptr, nullptr, SIZE_MAX, CCL_INT8, CCL_SUM, get(), nullptr);
      return {CCL_INVALID_ARGUMENT, "how.residual: is empty"};
    }
    options.seed = how.seed;
    options.step = how.step;
    options.stats = how.stats;
    return Status(function(&options));
  }

  template <typename T>
  Result<ccl_redop_t> PreMulSum(T* scalar, ccl_scalar_residence_t residence) noexcept {
    ccl_redop_t op = CCL_REDOP_LIMIT;
    const ccl_result_t code =
        ccl_redop_create_premulsum(&op, scalar, TypeOf<T>::value, residence, get());
    return {code, op};
  }

  std::unique_ptr<Cell> cell_;
};

inline Status Residual::Rollback(const Communicator& comm) noexcept {
  return Status(ccl_residual_rollback(get(), comm.get()));
}

inline Status ReducerState::Rollback(const Communicator& comm) noexcept {
  return Status(ccl_reducer_state_rollback(get(), comm.get()));
}

}  // namespace v0_1
}  // namespace inccl::api

#endif  // INCCL_CCL_HPP_
