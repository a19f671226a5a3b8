// SPDX-License-Identifier: Apache-2.0
//
// Error feedback around the state of any codec: every read of this rank's input adds the scaled
// residual, and what the codec leaves out of the sum becomes the pending residual. The arithmetic
// is in fp32 (fp64 for fp64 elements), product before sum, so it is the same on all instruction
// sets.
#ifndef INCCL_COMPRESS_RESIDUAL_FEEDBACK_STATE_H_
#define INCCL_COMPRESS_RESIDUAL_FEEDBACK_STATE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "compress/codec.h"
#include "compress/residual/residual.h"

namespace inccl {

// No payload equals the input, so no peer reads the input instead, and no kernel of a device runs:
// engines bring the elements to the host.
class FeedbackState final : public CodecState, private TotalFeedback {
 public:
  // For the next call. The caller has taken the residual, whose count is that of the call's input.
  // `one_owner`: no two ranks encode the same total.
  void Use(CodecState* codec, Residual* residual, bool one_owner) {
    codec_ = codec;
    residual_ = residual;
    one_owner_ = one_owner;
  }

  Status Begin(const CollectiveArgs& call) override;
  Status Combine(const Range& range, std::span<const Term> inputs,
                 std::span<Term> outputs) override;
  bool ResultIsPayload() const override { return codec_->ResultIsPayload(); }
  void Finish(CodecStats* stats) override { codec_->Finish(stats); }

  // kInternalError if the call has not asked for every element of the input, whose pending residual
  // would then be an old one.
  Status CheckComplete() const;

  // result = input + scaled residual, without a codec, on a communicator of one rank.
  static void CombineAlone(const CollectiveArgs& call, const std::byte* input, std::byte* output,
                           Residual* residual);

 private:
  // Sets corrected_ for this range, whose input is `elements`.
  void Correct(const Range& range, const std::byte* elements);
  // Sets the pending residual of the superblocks of this range that have none yet.
  Status Account(const Range& range);
  void Correct(const Range& part, float factor, float* sum) override {
    residual_->CorrectTotal(part.first / kSuperblock, factor, {sum, part.count});
  }
  void Account(const Range& part, float factor, const float* sum, const float* sent) override {
    residual_->SetTotal(part.first / kSuperblock, factor, {sum, part.count}, sent);
  }
  uint64_t FirstOf(const Range& range) const;  // index of its first element in the input

  CodecState* codec_ = nullptr;
  Residual* residual_ = nullptr;
  bool one_owner_ = false;
  CollectiveArgs call_;
  uint64_t superblocks_ = 0;        // of a segment
  std::vector<uint8_t> accounted_;  // by segment and superblock
  uint64_t missing_ = 0;            // superblocks without a pending residual
  // Of the current Combine: its inputs; input + scaled residual in fp32, and in the call's type,
  // which the codec reads (fp32: the same memory); what that counts as.
  std::vector<Term> inputs_;
  float* sums_ = nullptr;
  std::vector<std::byte> corrected_;
  std::vector<float> wide_;          // fp16, bf16: sums_
  std::vector<double> double_sums_;  // fp64: instead of sums_
  std::vector<float> own_;
};

}  // namespace inccl

#endif  // INCCL_COMPRESS_RESIDUAL_FEEDBACK_STATE_H_
