// SPDX-License-Identifier: Apache-2.0
//
// The interface of reducers: methods above the codecs that replace an all-reduce of a tensor by
// rounds, ordinary collectives over vectors of other lengths (values at selected positions, factors
// of a matrix). Each round may run through any codec. This layer is mathematics over host memory:
// it knows neither transports nor the order of calls; communicator/reduced_calls.cc runs the
// rounds.
//
// A new method needs one file with a ReducerState and a function that makes its reducer, and one
// line each in methods.h and reducer.cc.
#ifndef INCCL_REDUCE_REDUCER_H_
#define INCCL_REDUCE_REDUCER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/lineage.h"
#include "base/status.h"
#include "base/types.h"
#include "compress/codec.h"

namespace inccl {

// A row-major matrix; a vector has one row or one column.
struct TensorDesc {
  uint64_t rows = 0, cols = 0;
  DataType type = DataType::kFloat32;

  uint64_t count() const { return rows * cols; }
};

// The collective of one round.
struct InnerCall {
  Collective collective = Collective::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  DataType type = DataType::kFloat32;
  uint64_t count = 0;
  int root = 0;
  std::shared_ptr<const Codec> codec = nullptr;  // null: uncompressed
  // Consume needs what the codec leaves out of this rank's contribution.
  bool asks_errors = false;
};

// The state of one tensor on one rank: the residual (error feedback), a warm start, and the count
// of calls. One call at a time uses it: Take, Begin, then for each round Produce, Call, Consume,
// then WriteResult, then End. Only a committed call changes residual, warm start and counts; the
// state before the last committed call is kept, too.
//
// The elements are added and multiplied in fp32, each operation rounded once. What all ranks
// compute after a round they compute from equal bytes in one order, so all ranks get identical
// results.
class ReducerState {
 public:
  struct Options {
    std::string identity;  // of the reducer
    TensorDesc tensor;
    bool residual = false;
    float low_pass = 1;  // new residual = (1 - low_pass) * old + low_pass * error of the call
    std::vector<float> warm = {};  // at the start
    // Not 0: warm is a velocity of as many elements as the tensor. v = momentum * v + input stands
    // for the input; with `mask`, elements that a call has sent begin again with 0.
    float momentum = 0;
    bool mask = false;
    bool amplifies = false;  // averages may be beyond the ranks' largest element
  };
  explicit ReducerState(Options options);
  virtual ~ReducerState() = default;
  ReducerState(const ReducerState&) = delete;
  ReducerState& operator=(const ReducerState&) = delete;

  const TensorDesc& tensor() const { return options_.tensor; }
  // What ranks compare: method, codec and shape.
  const std::string& identity() const { return identity_; }
  // The number of committed calls.
  uint64_t calls() const { return kept_.calls; }

  // A call begins on a communicator of this lineage, as Settle begins it; kInvalidUsage while
  // another one uses the state. End gives it back.
  Status Take(const Lineage& lineage);
  // With the name of the call: it has succeeded.
  void End(const std::optional<CallName>& committed);

  // Reads the input. `call` has nranks, rank, op (sum or average), seed and step. The output, which
  // may be the input, is written by the last Consume and WriteResult.
  void Begin(const CollectiveArgs& call, const std::byte* input, std::byte* output);
  virtual int rounds() const = 0;
  // Sets *out to the elements that this rank gives to the round's collective.
  virtual Status Produce(int round, std::vector<std::byte>* out) = 0;
  // The round's collective. Its count is valid after Produce, the rest after Begin; without Begin,
  // it is that of rank 0 of 1.
  virtual InnerCall Call(int round) const = 0;
  // Takes the elements that the collective has given to this rank. `errors` is as long as what
  // Produce made if InnerCall::asks_errors, or empty if all errors are 0.
  virtual Status Consume(int round, std::span<const std::byte> reduced,
                         std::span<const float> errors) = 0;
  // After the last round.
  void WriteResult();

  // These fail with kInvalidUsage while a call uses the state.
  Result<std::vector<std::byte>> Export();
  Status Import(std::span<const std::byte> bytes);
  Status Reset();
  // Back to the state before the last committed call, unless that counts.
  Status Settle(const Lineage& lineage);

 protected:
  // What a committed call changes. Empty vectors: the method has none.
  struct Kept {
    std::vector<float> residual;  // an element that is not finite stands for 0
    std::vector<float> warm;
    uint64_t calls = 0;
  };

  const CollectiveArgs& args() const { return args_; }
  bool has_residual() const { return options_.residual; }
  // In the call: input + residual. The method subtracts what this rank contributes to the sum; what
  // stays is the error of the call.
  std::span<float> open() { return open_; }
  // The largest magnitude (MagnitudeOf) of open() as Begin made it; NaN exceeds infinity.
  uint32_t largest() const { return largest_; }
  bool finite() const { return largest_ < kInfinity; }
  static constexpr uint32_t kInfinity = 0x7F800000u;
  // In the last Consume, when it cannot fail any more: the result, zero at first. The method adds
  // the sum or the average. Of fp32 it is the output.
  std::span<float> result();
  // The factor by which each contribution counts in the result: 1, or 1/n.
  float share() const;
  const Kept& kept() const { return kept_; }
  // The call sends this element, or all of it but what stays in open().
  void MaskVelocity(size_t index) {
    if (options_.mask) pending_.warm[index] = 0;
  }
  // The warm start of the next call; that of this one at first.
  std::vector<float>* next_warm() { return &pending_.warm; }
  virtual void OnBegin() {}

 private:
  template <typename Body>
  Status WhileUnused(const Body& body);
  void TakeBackUncounted(const Lineage& lineage);
  void CloseResidual();
  std::vector<float> FirstWarm() const;

  const Options options_;
  const std::string identity_;
  CollectiveArgs args_;
  Kept kept_, former_, pending_;
  std::byte* output_ = nullptr;
  std::vector<float> open_;
  uint32_t largest_ = 0;
  std::vector<float> converted_;  // the result of other types than fp32
  std::span<float> result_;       // empty until it is asked for
  CallName last_;                 // as in Residual
  std::atomic<bool> taken_{false};
};

// A call's use of a state, which ends without effect unless the call commits it.
class ReducerUse {
 public:
  ReducerUse(ReducerState* state, const Lineage& lineage)
      : state_(state), status_(state->Take(lineage)), communicator_(lineage.number()) {}
  ~ReducerUse() { End({}); }
  ReducerUse(const ReducerUse&) = delete;
  ReducerUse& operator=(const ReducerUse&) = delete;

  const Status& status() const { return status_; }
  void Commit(uint64_t operation) { End(CallName{communicator_, operation}); }

 private:
  void End(const std::optional<CallName>& committed) {
    if (state_ != nullptr && status_.ok()) state_->End(committed);
    state_ = nullptr;
  }

  ReducerState* state_;
  const Status status_;
  const uint64_t communicator_;
};

// A method with its codec, made from a specification. Immutable; all threads share it.
class Reducer {
 public:
  explicit Reducer(std::shared_ptr<const Codec> codec) : codec_(std::move(codec)) {}
  virtual ~Reducer() = default;

  // The canonical specification: every key, sorted.
  std::string spec() const { return method() + "|" + codec_->spec(); }
  // What ranks compare: the codec's identity instead of its specification.
  std::string identity() const { return method() + "|" + codec_->identity(); }
  virtual std::unique_ptr<ReducerState> NewState(const TensorDesc& tensor) const = 0;

 protected:
  const std::shared_ptr<const Codec>& codec() const { return codec_; }

 private:
  // The canonical text of the method and its keys.
  virtual const std::string& method() const = 0;

  const std::shared_ptr<const Codec> codec_;
};

// Parses "method:key=value,...|codec:key=value,..."; without a codec it is "none". Errors name the
// key or value.
Result<std::shared_ptr<const Reducer>> MakeReducer(std::string_view spec);

// OK if states of such tensors can be made.
Status CheckTensor(const TensorDesc& tensor);

}  // namespace inccl

#endif  // INCCL_REDUCE_REDUCER_H_
