// SPDX-License-Identifier: Apache-2.0
//
// One call of the codec hbi on one rank: the agreed side words, the plans derived from them, and
// Combine for all forms (docs/format.md, "Payloads").
#ifndef INCCL_COMPRESS_HBI_HBI_STATE_H_
#define INCCL_COMPRESS_HBI_HBI_STATE_H_

#include <memory>
#include <span>
#include <vector>

#include "compress/codec.h"
#include "compress/hbi/device_slices.h"
#include "compress/hbi/entropy.h"
#include "compress/hbi/hbi_codec.h"
#include "compress/hbi/parts.h"
#include "compress/hbi/slice.h"

namespace inccl::hbi {

class HbiState final : public CodecState {
 public:
  explicit HbiState(std::shared_ptr<PlannerCache> planners) : planners_(std::move(planners)) {}

  Status Begin(const CollectiveArgs& call) override;
  // The side information of a whole window must be complete before the first data of that window.
  Status Combine(const Range& range, std::span<const Term> inputs,
                 std::span<Term> outputs) override;
  Result<bool> Launch(const Range& range, std::span<const Term> inputs, std::span<Term> outputs,
                      DeviceWork* work) override;
  Status Complete(const Range& range, std::span<const Term> inputs, std::span<Term> outputs,
                  DeviceWork* work) override;
  Result<bool> Own(const Range& range, const std::byte* x, float* y) override;
  void Finish(CodecStats* stats) override;

 private:
  // The checks of every operation (hbi_state.cc). PlaceOutputs and CheckForward replace the
  // outputs' capacities by their lengths.
  Status CheckOperation(const Range& range, std::span<const Term> inputs,
                        std::span<const Term> outputs) const;
  Status CheckRange(const Range& range) const;
  // Checks an input's length and, if it has one, its checksum.
  Status CheckPayload(const Range& range, const Term& input, uint64_t expected);
  Status CheckElements(const SliceContext& slice, const Term& term, const char* what) const;
  Status CheckSide(const Range& range, const SliceContext& slice, std::span<const Term> inputs,
                   std::span<Term> outputs);
  Status CheckForward(const Range& range, const SliceContext& slice, const Term& input,
                      std::span<Term> outputs);
  // Fills sources_ and sets *contributions to their total.
  Status TakeInputs(const Range& range, const SliceContext& slice, std::span<const Term> inputs,
                    uint32_t* contributions);
  // Sets *places to the outputs that FoldSlice must write.
  Status PlaceOutputs(const SliceContext& slice, uint32_t contributions, std::span<Term> outputs,
                      SliceOutputs* places) const;

  static Status InvalidWords(const Range& range);
  // own_words: the side words of this rank's elements if they are known, else nullptr.
  Status FoldSide(const Range& range, const SliceContext& slice, const uint8_t* own_words,
                  std::span<const Term> inputs, std::span<Term> outputs);
  // In a one-shot agreement a rank sends the side words of its elements and merges them later.
  // Where the agreed words of a range are to be, own words are kept until then.
  uint8_t* WordsAt(const Range& range);
  const uint8_t* KeptWords(const Range& range, std::span<const Term> inputs);
  void KeepWords(const Range& range, std::span<const Term> inputs, std::span<const Term> outputs);
  bool Codes() const;
  Status CombineCoded(const Range& range, const SliceContext& slice, std::span<const Term> inputs,
                      std::span<Term> outputs);
  Status CombineData(const Range& range, const SliceContext& slice, std::span<const Term> inputs,
                     std::span<Term> outputs);
  // With groups (hbi_state.cc): fills groups_; folds them.
  Status TakeGroups(const Range& range, const SliceContext& slice, std::span<const Term> inputs,
                    uint32_t* contributions);
  Status CheckGroupedSum(const Range& range, const SliceContext& slice, const Term& input);
  Status CombineGroups(const Range& range, const SliceContext& slice, std::span<const Term> inputs,
                       std::span<Term> outputs);
  // Folds sources_ on the threads of the team, with CopyOutputs.
  void FoldSources(const SliceContext& slice, const SliceOutputs& places, std::span<Term> outputs);
  // Where FoldSlice has made the payload of an output.
  static uint8_t* MadeIn(const Term& output, const SliceOutputs& places);
  // Fills the outputs that FoldSlice has not written itself, and writes checksums.
  void CopyOutputs(std::span<Term> outputs, const SliceOutputs& places);
  // The first half for a part. `part` is nullptr for the whole slice.
  void CopyPart(std::span<const Term> outputs, const SliceOutputs& places,
                const PartExtents* part) const;
  void PutChecksums(std::span<Term> outputs, const SliceOutputs& places) const;
  // Number of ranks in the group that begins with this rank.
  uint32_t GroupFrom(uint32_t first) const;
  void ForwardResult(const SliceContext& slice, const Term& input, std::span<Term> outputs) const;
  // For elements in device memory (hbi_state.cc).
  bool HasKernels(std::span<const Term> inputs, std::span<const Term> outputs) const;
  Status LaunchForward(const SliceContext& slice, const Term& input, std::span<Term> outputs,
                       DeviceWork* work);
  SliceContext Slice(const Range& range) const;
  uint64_t BytesOfSum(const SliceContext& slice, uint32_t contributions) const;
  // Index of a segment's first superblock, and of its first window, in the vectors below.
  uint64_t FirstSuperblock(uint32_t segment) const { return segment * superblocks_; }
  uint64_t FirstWindow(uint32_t segment) const { return segment * windows_; }
  void Plan(uint32_t segment, uint64_t window);
  // Warns of the first call whose magnitudes lie where scales are many octaves apart.
  // And of the first one with even levels whose budget has left superblocks without any.
  void WarnOfDrops();

  std::shared_ptr<PlannerCache> planners_;
  std::shared_ptr<const Planner> planner_;
  std::shared_ptr<DeviceLevels> levels_;  // of the planner; set at first use
  CollectiveArgs call_;
  uint64_t segments_ = 1, superblocks_ = 0, windows_ = 0;  // the last two are per segment
  // Ordered by segment.
  std::vector<uint8_t> words_;    // agreed side words of all superblocks
  std::vector<uint8_t> points_;   // points of planned windows
  std::vector<uint8_t> planned_;  // by window: 1 if planned
  uint32_t trailer_ = 0;          // bytes of a payload's checksum
  // By window: the last range whose own words were kept, or whose words are agreed.
  struct WordsOfRange {
    uint64_t first = 0;
    uint32_t count = 0;  // 0: none
    bool agreed = false;
    bool Are(const Range& range) const { return first == range.first && count == range.count; }
  };
  WordsOfRange& Known(const Range& range) {
    return known_[FirstWindow(range.segment) + range.first / kWindow];
  }
  std::vector<WordsOfRange> known_;
  PlanSummary summary_;
  bool warned_of_drops_ = false;
  // State of the current Combine.
  std::vector<Source> sources_;
  std::vector<Source> part_sources_;  // of the parts that threads of the team fold
  std::vector<Group> groups_;
  std::unique_ptr<uint8_t[]> outgoing_;  // its payload, before non-temporal stores
  size_t outgoing_bytes_ = 0;
  CodedPayloads coded_;
  bool codes_ = false;     // the operation under way codes its outputs
  bool is_coded_ = false;  // it has found an input that is shorter than packed fields
};

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_HBI_STATE_H_
