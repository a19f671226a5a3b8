// SPDX-License-Identifier: Apache-2.0
//
// The codec "none": elements travel in their own type, element i of a payload at byte
// i * SizeOf(type), and are reduced by the call's operation.
//
// Reductions (all-reduce, reduce-scatter, reduce) fold the inputs in the order they stand:
// ((a op b) op c)... What the operations do is in kernels/reduce.h; in short:
//   - Integer sums and products wrap modulo 2^bits.
//   - fp16, bf16, e4m3 and e5m2 are folded in fp32 and rounded once, when Combine writes its
//     outputs. A ring therefore rounds once per hop, an owner that adds all ranks' parts once.
//   - MAX and MIN return NaN where any input is NaN, and order -0 below +0.
//   - A NaN that was computed (not copied) is the positive quiet NaN without payload.
//   - AVG of floats multiplies each kInput operand, which is the rank's own elements, by 1/n; kSum
//     operands are made of such products. The product is rounded to the element type, so that every
//     rank counts a contribution the same, its own or a peer's.
//   - AVG of integers adds (modulo 2^bits) and divides, truncating toward zero, when the fold
//     becomes kResult or kOutput.
//   - With n = 1 AVG is SUM; the fold of one operand is a copy.
//   - The premultiplied sum multiplies each kInput operand by the call's scalar, which is this
//     rank's own: floats as AVG does, narrow ones in fp32, integers modulo 2^bits. With n = 1 too.
// The other collectives move elements of any type whatever the operation; they neither scale nor
// divide.
//
// All results are bit-identical over instruction sets and over the ranks that fold the same
// operands in the same order.
//
// Memory: at most 64 inputs and 64 outputs. An output may be the same memory as an input (the same
// address), which is not copied onto itself; partial overlap is not allowed. Element alignment
// suffices.
#ifndef INCCL_COMPRESS_IDENTITY_CODEC_H_
#define INCCL_COMPRESS_IDENTITY_CODEC_H_

#include "compress/codec.h"
#include "compress/kernels/reduce.h"

namespace inccl {

class IdentityState final : public CodecState {
 public:
  // kInvalidArgument: a type, operation or number of ranks that does not exist.
  Status Begin(const CallDesc& call) override;
  // kInternalError: a payload that is not `count` elements long, an output too small for them, or
  // forms that do not occur (kSide; kResult in a fold; a fold in a collective that only moves).
  Status Combine(const Range& range, std::span<const Term> inputs,
                 std::span<Term> outputs) override;
  // Folds of inputs in memory of devices: all of them, or at least two beside others, and outputs,
  // in slots that kernels reach; what is a copy is the caller's.
  Result<bool> Launch(const Range& range, std::span<const Term> inputs, std::span<Term> outputs,
                      DeviceWork* work) override;
  Status Complete(const Range& range, std::span<const Term> inputs, std::span<Term> outputs,
                  DeviceWork* work) override;
  bool InputIsPayload() const override { return !scales_; }
  bool InputsAreAlike() const override { return call_.op != ReduceOp::kPreMulSum; }
  bool ResultIsPayload() const override { return true; }
  void Finish(CodecStats* stats) override;

 private:
  // What becomes of the elements.
  enum class Step : uint8_t { kCopy, kFold, kFoldAndDivide };

  // Sets `*bytes` to those of the elements.
  Status Check(const Range& range, std::span<const Term> inputs, std::span<const Term> outputs,
               uint32_t* bytes) const;
  Step StepOf(std::span<const Term> inputs, std::span<const Term> outputs) const;
  // Bit i: input i is multiplied.
  uint64_t Scaled(std::span<const Term> inputs) const;
  void Fold(uint32_t count, std::span<const Term> inputs, std::span<const Term> outputs) const;
  void FoldAndDivide(uint32_t count, std::span<const Term> inputs,
                     std::span<const Term> outputs) const;

  CallDesc call_;
  ReduceFn reduce_ = nullptr;
  // What kInput operands are multiplied by: AVG of floats, and kPreMulSum.
  bool scales_ = false;
  double scale_ = 1;      // floats
  uint64_t factor_ = 1;   // integers
  bool divides_ = false;  // AVG of integers
};

// The call of a communicator of one rank: out = in, multiplied where the operation does that, for
// call.count elements. `out` may be `in`. The type exists.
void CombineAlone(const CallDesc& call, const void* in, void* out);

}  // namespace inccl

#endif  // INCCL_COMPRESS_IDENTITY_CODEC_H_
