// SPDX-License-Identifier: Apache-2.0
//
// The checks that every codec makes before it touches a byte: the range consists of whole
// superblocks inside the call, the collective has these forms, the contributions add up, and the
// lengths are right. A derived codec sees only valid operations. And what they give in the end.
#ifndef INCCL_COMPRESS_CHECKED_STATE_H_
#define INCCL_COMPRESS_CHECKED_STATE_H_

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"
#include "base/types.h"
#include "compress/codec.h"

namespace inccl {

const char* Name(Form form);

// True if calls of this collective produce or forward this form.
bool Travels(Collective collective, Form form);

// OK for the calls that most codecs support: all-reduce and reduce-scatter by sum or average, and
// all-gather; float32, float16, bfloat16, float64; 2 ranks or more. `name` is the codec's.
Status CheckFloatCall(const char* name, Collective collective, DataType type, ReduceOp op,
                      int nranks);

class CheckedState : public CodecState {
 public:
  Status Begin(const CollectiveArgs& call) final;
  Status Combine(const Range& range, std::span<const Term> inputs, std::span<Term> outputs) final;

 protected:
  static constexpr uint64_t kSelfDescribing = UINT64_MAX;

  explicit CheckedState(const char* name) : name_(name) {}

  // Checks and prepares call(), which Begin has set.
  virtual Status OnBegin() = 0;
  // The length of a payload (kSum, kResult) of this range. kSelfDescribing: the content determines
  // it; then Fold checks what it reads and writes and sets the outputs' bytes.
  virtual uint64_t PayloadBytes(const Range& range, const Format& format) const = 0;
  // Inputs are kInput and kSum, of `contributions` ranks in total. Outputs are kSum of as many
  // contributions and, for a complete sum, kResult and kOutput. An output may share an input's
  // memory.
  virtual Status Fold(const Range& range, uint32_t contributions, std::span<const Term> inputs,
                      std::span<Term> outputs) = 0;
  // Decodes a result into elements of the call's type.
  virtual Status DecodeResult(const Range& range, const Term& payload, std::byte* elements) = 0;
  // Combines side information; outputs[0] is kSide.
  virtual Status Side(const Range& range, std::span<const Term> inputs, std::span<Term> outputs);

  // The checks of Combine before it folds, or decodes and forwards a result. They set the outputs'
  // lengths.
  Status CheckOperation(const Range& range, std::span<const Term> inputs,
                        std::span<const Term> outputs) const;
  Status CheckFold(const Range& range, std::span<const Term> inputs, std::span<Term> outputs,
                   uint32_t* contributions) const;
  Status CheckForward(const Range& range, const Term& input, std::span<Term> outputs) const;
  static bool IsForward(std::span<const Term> inputs) {
    return inputs.size() == 1 && inputs[0].format.form == Form::kResult;
  }

  const CollectiveArgs& call() const { return call_; }
  uint64_t ElementBytes(const Range& range) const { return range.count * SizeOf(call_.type); }
  uint64_t segments() const { return segments_; }
  Status Error(const Range& range, const std::string& what) const;
  Status WrongLength(const Range& range, const Term& term, uint64_t expected) const;
  Status CheckCapacity(const Range& range, const Term& term, uint64_t needed) const;
  Status CheckElements(const Range& range, const Term& input) const;

 private:
  Status CheckRange(const Range& range) const;
  Status CheckInputs(const Range& range, std::span<const Term> inputs,
                     uint32_t* contributions) const;
  Status CheckOutputs(const Range& range, uint32_t contributions, std::span<Term> outputs) const;
  Status CheckOutput(const Range& range, Term* output) const;
  Status Forward(const Range& range, const Term& input, std::span<Term> outputs);
  // Contributions of a complete sum.
  uint32_t complete() const {
    return Reduces(call_.collective) ? static_cast<uint32_t>(call_.nranks) : 1;
  }

  const char* name_;
  CollectiveArgs call_;
  uint64_t segments_ = 0;
};

// Copies the first output of form `form` to the other outputs of that form.
void CopyToOthers(Form form, std::span<Term> outputs);
// Copies a payload to all outputs that are not elements; their bytes give its length.
void CopyPayload(const std::byte* payload, std::span<Term> outputs);
// The first output of this form, or nullptr.
Term* FindOutput(Form form, std::span<Term> outputs);

// What a compressed all-reduce returns, made by one rank that has the inputs of all.

// Writes to `output` what `call` gives every rank whose contributions are `inputs`, one after the
// other by rank, to the last bit. `stats`: as CodecState::Finish fills them in on call.rank. For
// codecs that run on any schedule (Route::group is 0). Memory: about the inputs once more, in
// compressed form, besides one window's elements for each rank.
Status SumOfInputs(const Codec& codec, const CollectiveArgs& call,
                   std::span<const std::byte> inputs, std::byte* output, CodecStats* stats);

}  // namespace inccl

#endif  // INCCL_COMPRESS_CHECKED_STATE_H_
