// SPDX-License-Identifier: Apache-2.0
//
// One call of the codec hbi on one rank with policy=d or policy=r: payloads carry their sender's
// own scale codes, and sums are taken in fp32 (docs/format.md, "Policies D and R"). The plan of a
// payload covers a part of a window, so ranges consist of whole parts.
#ifndef INCCL_COMPRESS_HBI_PART_STATE_H_
#define INCCL_COMPRESS_HBI_PART_STATE_H_

#include <memory>
#include <span>
#include <vector>

#include "compress/codec.h"
#include "compress/hbi/hbi_codec.h"
#include "compress/hbi/part_coder.h"

namespace inccl::hbi {

class PartState final : public CodecState {
 public:
  // `results` has the levels of the last quantization; equal to `sums` unless the levels are fixed.
  PartState(std::shared_ptr<PlannerCache> sums, std::shared_ptr<PlannerCache> results)
      : sums_(std::move(sums)), results_(std::move(results)) {}

  Status Begin(const CallDesc& call) override;
  Status Combine(const Range& range, std::span<const Term> inputs,
                 std::span<Term> outputs) override;
  void Finish(CodecStats* stats) override;

 private:
  struct Shape {
    uint64_t first = 0;      // first element
    uint32_t count = 0;      // elements; the last superblock may be partial
    uint64_t sum_at = 0;     // offset in a kSum payload
    uint64_t result_at = 0;  // offset in a kResult payload
  };

  const Config& config() const { return sums_->config(); }
  // Fills parts_ with the parts of the range.
  Status CutRange(const Range& range);
  Status CheckInputs(const Range& range, std::span<const Term> inputs, uint32_t* contributions);
  Status CheckOutputs(const Range& range, uint32_t contributions, std::span<Term> outputs) const;
  Status CheckPayload(const Range& range, const Term& input) const;
  uint64_t BytesOf(Form form, const Range& range) const;
  const std::byte* ElementsOf(const Term& term, const Range& range, const Shape& part) const;

  // Relative error of an element before it is coded.
  double InputError() const;
  // Sets values_ to the sum of the inputs.
  Status Fold(const Range& range, const Shape& part, std::span<const Term> inputs,
              PartSummary* summary);
  void EncodeSum(const Shape& part, float* x, PartSummary* summary, uint8_t* payload);
  void EncodeResult(const Shape& part, PartSummary* summary, uint8_t* payload);
  Status Forward(const Range& range, const Term& input, std::span<Term> outputs);
  // Decodes a part of a result and adds it to the statistics.
  Status TakeResult(const Shape& part, const uint8_t* payload, std::byte* elements);

  std::shared_ptr<PlannerCache> sums_, results_;
  CallDesc call_;
  PartCoder sum_coder_, result_coder_;
  std::vector<Shape> parts_;           // of the current Combine
  std::vector<float> values_, more_;   // values of a part, as coded
  std::vector<uint8_t> own_, result_;  // payloads that do not travel
  CodecStats stats_;
};

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_PART_STATE_H_
