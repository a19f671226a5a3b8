// SPDX-License-Identifier: Apache-2.0
//
// The interface of codecs. A codec turns elements into payloads, sums payloads, and turns sums into
// elements, all by one operation over a range of elements: outputs = Combine(inputs), directly from
// slot to slot. The schedule chooses the form of every operand; only the codec knows the bytes of a
// form.
//
// A new codec needs one file with a Codec and a CodecState, one line each in codecs.h and
// codecs.cc, and one entry in the codecs' test table.
#ifndef INCCL_COMPRESS_CODEC_H_
#define INCCL_COMPRESS_CODEC_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/team.h"
#include "base/types.h"

namespace inccl {

// The content of an operand.
enum class Form : uint8_t {
  kInput,   // this rank's elements in the caller's type: one contribution
  kOutput,  // the caller's result, in the caller's type
  kSum,     // a partial sum of `contributions` ranks, in the codec's representation
  kResult,  // the final value in the codec's representation; ranks forward it unchanged
  kSide,    // side information (hbi: side words of scale codes), see Codec::side_phases;
            // `contributions` is the number of the phase
};

struct Format {
  Form form = Form::kInput;
  uint16_t contributions = 0;  // kSum: number of ranks in the sum
  friend bool operator==(const Format&, const Format&) = default;
};

// An operand bound to memory. For an input `bytes` is the length of the payload; for an output it
// is the capacity, which Combine replaces by the written length. Memory of kInput and kOutput holds
// range.count elements. An output of form kSide with data == nullptr is the codec's own state, i.e.
// the agreed side information.
struct Term {
  Format format;
  std::byte* data = nullptr;  // inputs are only read
  uint32_t bytes = 0;
};

// Elements [first, first + count) of one vector of CollectiveArgs::count elements. A call has one
// vector (segment 0) or several (SegmentsOf).
struct Range {
  uint32_t segment = 0;
  uint64_t first = 0;  // a multiple of kSuperblock
  uint32_t count = 0;  // a multiple of kSuperblock, except at the end of the vector
};

inline constexpr uint32_t kBlock = 32;  // elements that share a scale
// Elements that share a width. Chunks and slices consist of whole superblocks.
inline constexpr uint32_t kSuperblock = 256;
inline constexpr uint32_t kWindow = 1u << 20;  // elements that share a plan

struct CodecStats {
  double error_bound = 0;
  uint64_t zero_blocks = 0;
  uint64_t dropped_superblocks = 0;
  uint64_t poisoned_blocks = 0;
};

class DeviceWork;  // compress/device_work.h

// Error feedback for the owner of a part: what it leaves out when it encodes a total for all ranks.
class TotalFeedback {
 public:
  // For at most a superblock of a call: sum += factor * what earlier calls have left out.
  virtual void Correct(const Range& part, float factor, float* sum) = 0;
  // This call leaves out (sum - sent) / factor.
  virtual void Account(const Range& part, float factor, const float* sum, const float* sent) = 0;

 protected:
  ~TotalFeedback() = default;
};

// The state of one call on one rank. One thread at a time uses it, and with it its team. Later
// calls reuse it, so that a warm call allocates nothing.
class CodecState {
 public:
  virtual ~CodecState() = default;
  // Hints for the next calls, which change no result. Use non-temporal stores for the output, which
  // is larger than the caches; use them for payloads, which other cores read and which all together
  // are larger than the caches.
  void set_non_temporal(bool output, bool payloads) {
    non_temporal_output_ = output;
    non_temporal_payloads_ = payloads;
  }
  // The threads among which the next calls may share the work of a Combine. They change no result.
  // The team outlives its use.
  void set_team(Team* team) { team_ = team; }
  // Whether the next calls may spend time on payloads that are shorter than they need be. This
  // changes no result, and ranks need not agree.
  void set_shortens(bool shortens) { shortens_ = shortens; }
  // For the call that has begun: feedback for its totals, where one rank alone encodes each of
  // them. A codec whose ranks agree on what a total becomes ignores it.
  void set_total_feedback(TotalFeedback* feedback) { total_feedback_ = feedback; }
  virtual Status Begin(const CollectiveArgs& call) = 0;
  // outputs = fold of the inputs in their order. Outputs of the same format get the same bytes. A
  // payload of an unexpected length is an error (kInternalError with both lengths); Combine never
  // reads past its end.
  virtual Status Combine(const Range& range, std::span<const Term> inputs,
                         std::span<Term> outputs) = 0;
  // Combine in two halves, for elements (kInput, kOutput) in device memory. Launch makes the checks
  // of Combine and launches kernels; it returns false, without any effect, if there are no kernels
  // for these operands. After the kernels have finished, the engine calls Complete for the rest:
  // copies, checksums, the lengths of the outputs. Halves of other Combines, for other ranges or
  // forms, may come in between.
  virtual Result<bool> Launch(const Range& /*range*/, std::span<const Term> /*inputs*/,
                              std::span<Term> /*outputs*/, DeviceWork* /*work*/) {
    return false;
  }
  virtual Status Complete(const Range& /*range*/, std::span<const Term> /*inputs*/,
                          std::span<Term> /*outputs*/, DeviceWork* /*work*/) {
    return Status::Ok();
  }
  // Whether a peer may read the caller's memory instead of a payload (zero copy): a kSum of one
  // contribution has the bytes of the input, and kResult those of the output.
  virtual bool InputIsPayload() const { return false; }
  virtual bool ResultIsPayload() const { return false; }
  // Whether the consumer of such a kSum may use the producer's input as a kInput operand instead,
  // because all ranks process inputs in the same way.
  virtual bool InputsAreAlike() const { return InputIsPayload(); }
  // Writes to `y` what this rank's elements `x` (in the call's type) count as in the sum of the
  // call, before an average divides it; returns false, without writing, if they count as they are.
  // The side information of the range's window is complete.
  virtual Result<bool> Own(const Range& /*range*/, const std::byte* /*x*/, float* /*y*/) {
    return false;
  }
  // Ends the call; stats may be null.
  virtual void Finish(CodecStats* stats) = 0;

 protected:
  bool non_temporal_output() const { return non_temporal_output_; }
  bool non_temporal_payloads() const { return non_temporal_payloads_; }
  Team* team() const { return team_; }
  bool shortens() const { return shortens_; }
  TotalFeedback* total_feedback() const { return total_feedback_; }

 private:
  Team* team_ = Team::Alone();
  bool shortens_ = false;
  TotalFeedback* total_feedback_ = nullptr;
  bool non_temporal_output_ = false, non_temporal_payloads_ = false;
};

// What a codec requires of the schedule.
struct Route {
  // This many ranks sum up before the owner of a chunk does, which only direct algorithms can do;
  // 0: any schedule runs the codec.
  int group = 0;
  const char* because = "";  // the part of the specification that requires it
  // In reductions, ranks of one host add up their elements before the codec sees them, so each host
  // is one contribution.
  bool sums_hosts = false;
};

// A phase of side information. A payload of it has at most `bytes` + `superblock_bytes` for each
// superblock.
struct SidePhase {
  uint32_t bytes = 0;
  uint32_t superblock_bytes = 0;
};

// An immutable codec, made from a canonical specification. All calls and threads share it.
class Codec {
 public:
  virtual ~Codec() = default;
  // The canonical specification: every key, sorted.
  virtual const std::string& spec() const = 0;
  // What ranks compare: equal identities mean equal bytes. It names the version of a format that
  // has several.
  virtual const std::string& identity() const { return spec(); }
  // OK if the codec supports such calls; else the message says why not.
  virtual Status Supports(Collective collective, DataType type, ReduceOp op, int nranks) const = 0;
  // OK if this specification can be met in such calls, for every type and operation. Else the
  // library refuses the call instead of running it uncompressed. The message names the key.
  virtual Status Fits(Collective /*collective*/, int /*nranks*/) const { return Status::Ok(); }
  // The phases that the schedule runs on side lanes for each window, in order, one or more windows
  // ahead of the data; a state keeps what they give for all windows of a call. Each gives all ranks
  // the side information of every segment: in reductions that of all ranks combined, else the
  // sender's. Operations: kInput -> kSide, (kSide, kInput) -> kSide, kSide -> kSide.
  virtual std::span<const SidePhase> side_phases() const { return {}; }
  virtual Route route() const { return {}; }
  // Upper bound of the side information of `count` elements of a window in any phase, in bytes.
  uint32_t SideBytes(uint32_t count) const {
    const uint32_t superblocks = count / kSuperblock + (count % kSuperblock != 0 ? 1 : 0);
    uint32_t most = 0;
    for (const SidePhase& phase : side_phases()) {
      most = std::max(most, phase.bytes + superblocks * phase.superblock_bytes);
    }
    return most;
  }
  // Bytes of a payload that Bound's `bits` do not count (hbi: checksums).
  virtual uint32_t UncountedBytes() const { return 0; }
  // Elements of one window of the schedule; 0: any number.
  virtual uint64_t window_elements() const = 0;
  // Upper bound of the payload of `count` elements in any form on data lanes, in bytes.
  virtual uint32_t MaxBytes(DataType type, int nranks, uint32_t count) const = 0;
  virtual uint64_t min_bytes() const { return 0; }
  // A-priori values. `bits`: per element and phase that a reference algorithm sends (0: those of
  // the type, or fewer). `relative_error`: bound on the absolute error of an element of the sum,
  // relative to n times the largest max|x| of its block over the ranks (without a reduction: to the
  // sender's max|x|); 0 for a lossless codec. docs/codecs.md says what a block is for codecs
  // without scales per block.
  virtual void Bound(Collective collective, int nranks, double* bits,
                     double* relative_error) const = 0;
  // The same for an all-reduce.
  void Bound(int nranks, double* bits, double* relative_error) const {
    Bound(Collective::kAllReduce, nranks, bits, relative_error);
  }
  // The bits that a reference algorithm sends of usual data. The same on all ranks.
  virtual double UsualBits(Collective collective, int nranks) const {
    double bits = 0, error = 0;
    Bound(collective, nranks, &bits, &error);
    return bits;
  }
  // How many of these bits a state saves that shortens payloads (CodecState::set_shortens).
  virtual double ShorterBits() const { return 0; }
  // Results are so far off, always in the same direction, that training needs a residual.
  virtual bool needs_residual() const { return false; }
  virtual std::unique_ptr<CodecState> NewState() const = 0;
};

// Parses "name:key=value,...". Errors name the key or value.
Result<std::shared_ptr<const Codec>> MakeCodec(std::string_view spec);

// The codec "none": elements travel unchanged, and the call's operation reduces them.
const std::shared_ptr<const Codec>& IdentityCodec();

}  // namespace inccl

#endif  // INCCL_COMPRESS_CODEC_H_
