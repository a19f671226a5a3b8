// SPDX-License-Identifier: Apache-2.0
//
// The objects behind the opaque pointers of the C API, and the conversion of errors to result
// codes.
#ifndef INCCL_API_HANDLES_H_
#define INCCL_API_HANDLES_H_

#include <fmt/format.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "base/types.h"
#include "bootstrap/unique_id.h"
#include "communicator/communicator.h"
#include "compress/codec.h"
#include "compress/residual/residual.h"
#include "inccl/ccl.h"
#include "init/options.h"
#include "reduce/reducer.h"
#include "stream/stream.h"

namespace inccl {

// Enumerators that a C caller passes. A value may be none of its type, so the library checks the
// number before it loads the value as an enumerator.

template <typename Enum>
int Number(const Enum& value) {
  int number = 0;
  static_assert(sizeof number == sizeof value);
  std::memcpy(&number, &value, sizeof number);
  return number;
}

inline Result<DataType> ToDataType(const ccl_datatype_t& type) {
  const int number = Number(type);
  if (number < 0 || number >= kDataTypes) {
    return InvalidArgument(fmt::format("type: {}: invalid datatype", number));
  }
  return static_cast<DataType>(number);
}

// The custom reductions of a communicator, by their numbers in the C API. An entry is reused with
// another generation in its number, so the number of a destroyed reduction stays unknown for
// millions of later ones.

// A reduction of ccl_redop_create_premulsum.
struct PreMulSum {
  DataType type = DataType::kFloat32;
  Scalar scalar{};
  const void* scalar_at = nullptr;  // CCL_SCALAR_DEVICE: read when a call runs
};

class Reductions {
 public:
  // The limit of reductions at the same time.
  static constexpr int kMost = 1 << 16;

  // Returns the number of the new reduction, above those of ccl_redop_t; kInvalidUsage if there are
  // kMost. May throw std::bad_alloc, without effect.
  Result<int> Add(const PreMulSum& reduction);
  const PreMulSum* Find(int number) const;  // nullptr: there is none
  bool Remove(int number);                  // false: there is none
  void Clear();

 private:
  static constexpr int kGenerations = 1 << 14;
  static constexpr size_t kRest = 256;  // free entries that are kept unused as long as possible
  static constexpr size_t kNone = kMost;
  struct Place {
    std::optional<PreMulSum> reduction;
    int generation = 0;
    size_t next = kNone;  // the next free entry; the list starts with the oldest
  };
  static size_t PlaceOf(int number);
  const Place* At(int number) const;

  std::deque<Place> places_;
  size_t free_ = 0, first_ = kNone, last_ = kNone;
};

}  // namespace inccl

// A communicator. The objects come from a pool that never unmaps them, so the library recognizes a
// pointer to a destroyed one until the pool reuses the object, which it delays.
struct ccl_comm {
  static constexpr uint64_t kMagic = 0x696e63636c636f6d;
  // kDividing: a split or shrink with blocking = 0 is in progress.
  enum class State : uint8_t { kCreating, kReady, kFailed, kDividing, kFinalizing, kFinalized };

  std::atomic<uint64_t> magic{0};
  std::atomic<int> users{0};  // leases
  std::atomic<State> state{State::kReady};
  std::shared_ptr<inccl::Communicator> impl;  // state kReady and later
  inccl::Status creation_error;               // state kFailed
  std::thread background;  // creates, divides or finalizes (config.blocking == 0)
  std::atomic<bool> cancelled{false};
  // False while the thread of the parent that makes this one still uses it. That thread and the
  // call that ends the communicator both set it; the second of them frees the communicator.
  std::atomic<bool> delivered{true};
  inccl::InitOptions options;
  uint64_t fork_generation = 0;
  int device = -1;  // current when this was made, or given to ccl_comm_init_all
  inccl::Reductions reductions;
  std::optional<inccl::UniqueId> invitation;  // of ccl_comm_get_unique_id, the last one

  void WithdrawInvitation();
  void Clear();
};

struct ccl_codec {
  static constexpr uint64_t kMagic = 0x696e63636c636463;
  std::atomic<uint64_t> magic{0};
  std::shared_ptr<const inccl::Codec> impl;

  void Clear() { impl.reset(); }
};

struct ccl_residual {
  static constexpr uint64_t kMagic = 0x696e63636c726573;
  std::atomic<uint64_t> magic{0};
  std::shared_ptr<inccl::Residual> impl;

  void Clear() { impl.reset(); }
};

struct ccl_reducer {
  static constexpr uint64_t kMagic = 0x696e63636c726463;
  std::atomic<uint64_t> magic{0};
  std::shared_ptr<const inccl::Reducer> impl;

  void Clear() { impl.reset(); }
};

struct ccl_reducer_state {
  static constexpr uint64_t kMagic = 0x696e63636c727374;
  std::atomic<uint64_t> magic{0};
  std::shared_ptr<inccl::ReducerState> impl;

  void Clear() { impl.reset(); }
};

namespace inccl {

// Keeps the text for ccl_get_last_error(NULL) and returns the code.
ccl_result_t Return(const Status& status);

// The text for ccl_get_last_error.
const std::string& LastError(ccl_comm_t comm);

// The state of a communicator that a call requires.
enum class Need : uint8_t {
  kHandle,  // a live communicator of this process, not of the parent of a fork
  kExists,  // kHandle, and created
  kReady,   // kExists, and not finalized
};

// Keeps a communicator from being freed during a call.
class Lease {
 public:
  Lease(ccl_comm_t comm, Need need);
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  const std::shared_ptr<Communicator>& operator->() const { return comm_->impl; }

 private:
  Status Check(Need need) const;

  ccl_comm_t comm_;
  bool counted_ = false;
  Status status_;
};

// Invalidates the handle, so new leases fail. kInvalidArgument if it is invalid already, for
// example because another thread has taken it.
Status TakeForFree(ccl_comm_t comm);
Status CheckCodec(ccl_codec_t codec);
Status CheckResidual(ccl_residual_t residual);
Status CheckReducer(ccl_reducer_t reducer);
Status CheckReducerState(ccl_reducer_state_t state);
// Returns a stream of ccl_stream_create, or nullptr if the handle is not one.
std::shared_ptr<Stream> FindStream(ccl_stream_t stream);
Status NoStream();

ccl_comm_t NewComm();
void FreeComm(ccl_comm_t comm);  // after TakeForFree; waits for leases
// After TakeForFree: ends what is in progress, and frees.
void AbortAndFree(ccl_comm_t comm);
ccl_codec_t NewCodec();
void FreeCodec(ccl_codec_t codec);
ccl_residual_t NewResidual();
void FreeResidual(ccl_residual_t residual);
ccl_reducer_t NewReducer();
void FreeReducer(ccl_reducer_t reducer);
ccl_reducer_state_t NewReducerState();
void FreeReducerState(ccl_reducer_state_t state);

// Counts the forks between the first process and this one.
uint64_t ForkGeneration();

// Runs `function`, which returns a Status. No exception passes; out of memory becomes kSystemError.
// Logs a failure.
template <typename Function>
ccl_result_t Guarded(Function&& function) {
  try {
    const Status status = function();
    if (!status.ok() && status.code() != Code::kInProgress) {
      Log(LogLevel::kWarn, LogSubsystem::kInit, "{}: {}", CodeName(status.code()),
          status.message());
    }
    return Return(status);
  } catch (const std::bad_alloc&) {
    return Return(OutOfMemory());
  } catch (const std::exception& e) {
    return Return(CatchOutOfMemory(
        [&] { return InternalError(std::string("unexpected exception: ") + e.what()); }));
  }
}

// Creates a communicator; gives up soon after `cancelled` becomes true.
using Creation =
    std::function<Result<std::shared_ptr<Communicator>>(const std::atomic<bool>* cancelled)>;
// Creates the communicator before it returns, in the background (options.blocking == 0: returns
// kInProgress and sets *comm), or at the end of the open group.
Status Create(ccl_comm_t* comm, const InitOptions& options, Creation creation);
// Sets the communicator, or the error, of a handle in state kCreating.
void Publish(ccl_comm_t comm, Result<std::shared_ptr<Communicator>> made);
// The number of ranks of the communicator that this process published last, or 2: what a new codec
// prepares for.
int LatestRanks();

}  // namespace inccl

#endif  // INCCL_API_HANDLES_H_
