// SPDX-License-Identifier: Apache-2.0
//
// The codec "none": elements travel in their own type, element i of a payload at byte
// i * SizeOf(type), and the call's operation reduces them.
//
// Reductions (all-reduce, reduce-scatter, reduce) fold the inputs in their order:
// ((a op b) op c)... kernels/reduce.h defines the operations; in short:
//   - Integer sums and products wrap modulo 2^bits.
//   - fp16, bf16, e4m3 and e5m2 are folded in fp32 and rounded once, when Combine writes its
//     outputs. So a ring rounds once per hop, and an owner that adds all ranks' parts rounds once.
//   - MAX and MIN return NaN if any input is NaN, and order -0 below +0.
//   - A computed (not copied) NaN is the positive quiet NaN without payload.
//   - AVG of floats multiplies each kInput operand (the rank's own elements) by 1/n; kSum operands
//     consist of such products. The product is rounded to the element type, so that every rank
//     counts a contribution the same, its own or a peer's. An average of finite elements is finite.
//   - AVG of integers adds (modulo 2^bits) and divides, truncating toward zero, when the fold
//     becomes kResult or kOutput.
//   - With n = 1 AVG is SUM; the fold of one operand is a copy.
//   - The premultiplied sum multiplies each kInput operand by this rank's scalar: floats as AVG
//     does, narrow ones in fp32, integers modulo 2^bits; also with n = 1.
// The other collectives move elements of any type, whatever the operation; they neither scale nor
// divide.
//
// All results are bit-identical over instruction sets and over the ranks that fold the same
// operands in the same order.
//
// Memory: any number of inputs and outputs; more than 64 are slower. An output may have the same
// address as an input and is then not copied onto itself; partial overlap is not allowed. Element
// alignment suffices.
#ifndef INCCL_COMPRESS_IDENTITY_CODEC_H_
#define INCCL_COMPRESS_IDENTITY_CODEC_H_

#include "compress/codec.h"
#include "compress/kernels/reduce.h"

namespace inccl {

class IdentityState final : public CodecState {
 public:
  // Returns kInvalidArgument for an unknown type or operation or a wrong number of ranks.
  Status Begin(const CollectiveArgs& call) override;
  // Returns kInternalError for a payload that is not `count` elements long, an output that is too
  // small, or invalid forms (kSide; kResult in a fold; a fold in a collective that only moves).
  Status Combine(const Range& range, std::span<const Term> inputs,
                 std::span<Term> outputs) override;
  // Folds inputs in device memory: all of them, or at least two of them, with the other inputs and
  // the outputs in slots that kernels reach. Copies are left to the caller.
  Result<bool> Launch(const Range& range, std::span<const Term> inputs, std::span<Term> outputs,
                      DeviceWork* work) override;
  Status Complete(const Range& range, std::span<const Term> inputs, std::span<Term> outputs,
                  DeviceWork* work) override;
  bool InputIsPayload() const override { return !scales_; }
  bool InputsAreAlike() const override { return call_.op != ReduceOp::kPreMulSum; }
  bool ResultIsPayload() const override { return true; }
  void Finish(CodecStats* stats) override;

 private:
  // What Combine does with the elements.
  enum class Step : uint8_t { kCopy, kFold, kFoldAndDivide };

  // Sets *bytes to the size of the range's elements.
  Status Check(const Range& range, std::span<const Term> inputs, std::span<const Term> outputs,
               uint32_t* bytes) const;
  Step StepOf(std::span<const Term> inputs, std::span<const Term> outputs) const;
  // Whether this input is multiplied by the factor.
  bool IsScaled(const Term& input) const { return scales_ && input.format.form == Form::kInput; }
  // Bit i: input i is multiplied by the factor. At most kMaxReduceInputs inputs.
  uint64_t Scaled(std::span<const Term> inputs) const;
  // Whether this output is written with non-temporal stores.
  bool IsNonTemporal(const Term& output) const;
  // The step for elements [first, end) of the operands.
  void Run(Step step, uint32_t first, uint32_t end, std::span<const Term> inputs,
           std::span<const Term> outputs) const;
  // Bytes [first, end).
  void Copy(const std::byte* in, uint32_t first, uint32_t end, std::span<const Term> outputs) const;
  void Fold(uint32_t first, uint32_t end, std::span<const Term> inputs,
            std::span<const Term> outputs) const;
  void FoldAndDivide(uint32_t first, uint32_t end, std::span<const Term> inputs,
                     std::span<const Term> outputs) const;
  // Fold or FoldAndDivide for more inputs or outputs than a kernel takes, with the same bits.
  void FoldMany(uint32_t first, uint32_t end, bool divides, std::span<const Term> inputs,
                std::span<const Term> outputs) const;
  // Folds `count` elements at `offset` bytes of every input into `sum`.
  void FoldTile(size_t offset, uint32_t count, std::span<const Term> inputs, std::byte* sum) const;
  void FoldNarrowTile(size_t offset, uint32_t count, std::span<const Term> inputs,
                      std::byte* sum) const;

  CollectiveArgs call_;
  ReduceFn reduce_ = nullptr;
  // True if kInput operands are multiplied: AVG of floats, and kPreMulSum.
  bool scales_ = false;
  double scale_ = 1;      // factor of floats
  uint64_t factor_ = 1;   // factor of integers
  bool divides_ = false;  // AVG of integers
};

// A call on a communicator of one rank: out = in, scaled if the operation does that, for call.count
// elements. `out` may be `in`. The caller has checked the type.
void CombineAlone(const CollectiveArgs& call, const void* in, void* out);

}  // namespace inccl

#endif  // INCCL_COMPRESS_IDENTITY_CODEC_H_
