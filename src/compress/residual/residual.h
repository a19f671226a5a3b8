// SPDX-License-Identifier: Apache-2.0
//
// The residual of one vector: what compressed calls have left out of this rank's contributions,
// which the next call adds to its input (error feedback). A call writes the new residual beside the
// old one; the caller of the collective commits it once the call has succeeded. The state before
// the last committed call is kept as well, so that a rank whose call succeeded goes back when
// another rank's failed, also after failing in the next call itself.
#ifndef INCCL_COMPRESS_RESIDUAL_RESIDUAL_H_
#define INCCL_COMPRESS_RESIDUAL_RESIDUAL_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/lineage.h"
#include "base/status.h"
#include "base/types.h"
#include "compress/codec.h"
#include "compress/kernels/feedback.h"

namespace inccl {

// The second half of error feedback: what the owner of a part has left out when it encoded the
// total for all ranks, which its next total gets back. A rank owns few superblocks, so only these
// take memory. Like the residual of contributions, the errors have a state before the last
// committed call, and one that the call in progress writes.
class TotalResidual {
 public:
  // Adds factor * errors of a superblock to `sum`.
  void AddTo(uint64_t superblock, float factor, std::span<float> sum) const;
  // For the call in progress: the error of each element is (sum - sent) / factor; one that is not
  // finite counts as 0.
  void Set(uint64_t superblock, float factor, std::span<const float> sum, const float* sent);
  // Ends the call. Where a committed call has not asked for a superblock, this rank does not own it
  // any more: its errors go to `contributions`(superblock, errors).
  template <typename Body>
  void End(bool committed, uint64_t operation, const Body& contributions) {
    for (Entry& entry : entries_) {
      // Its number may be that of a call on another communicator.
      if (committed) entry.operation = 0;
      if (committed && (entry.pending || !entry.empty)) {
        if (!entry.pending) {
          contributions(entry.superblock, entry.rows[entry.now]);
          entry.rows[(entry.now + 1) % 3] = {};
        }
        entry.empty = !entry.pending;
        entry.now = (entry.now + 1) % 3;
        entry.operation = operation;
      }
      entry.pending = false;
    }
  }
  // Takes back what the call of this number has committed, which was the last one.
  void TakeBack(uint64_t operation);
  void Clear();
  // Adds all errors to the elements of a vector.
  void AddAll(std::span<float> values) const;

 private:
  struct Entry {
    uint64_t superblock = 0;
    uint64_t operation = 0;  // the last committed one if that has changed it, or 0
    uint32_t now = 0;        // the row in force; after it come the pending and the former one
    bool pending = false, empty = true;
    std::array<std::array<float, kSuperblock>, 3> rows = {};
  };

  const Entry* Find(uint64_t superblock) const;

  std::vector<uint32_t> index_;  // by superblock: 1 + the index of its entry, or 0
  std::deque<Entry> entries_;
};

struct ResidualOptions {
  DataType storage = DataType::kFloat32;  // or kBfloat16, which rounds to nearest
  // In [0, 1): new residual = keep * scale * old + (1 - keep) * error of the call.
  float keep = 0;
};

// One call at a time uses a residual. SetScale, Export, Import, Reset and Settle fail with
// kInvalidUsage while one does.
class Residual {
 public:
  static Status Check(const ResidualOptions& options);
  Residual(uint64_t count, const ResidualOptions& options);

  uint64_t count() const { return count_; }

  // A call begins on a communicator of this lineage, as Settle begins it; kInvalidUsage while
  // another one uses the residual. End gives it back.
  Status Take(const Lineage& lineage);
  // With the name of the call: the pending residual becomes the residual.
  void End(const std::optional<CallName>& committed);
  // For the call: scale * residual of elements [first, first + x.size()).
  void Scaled(uint64_t first, std::span<float> x) const;
  // For the call: sums[i] = x[i] + scale * residual of element first + i. x is of `type`: fp32,
  // fp16 or bf16, as are the sums.
  void Add(uint64_t first, DataType type, const void* x, uint64_t count, void* sums) const;
  // For the call: sets the pending residual of these elements from their errors: what Add makes of
  // x, before it is rounded to `type`, minus `sent`. One that is not finite counts as 0.
  void SetErrors(uint64_t first, DataType type, const void* x, std::span<const float> sent);
  void SetErrors(uint64_t first, std::span<const float> errors);
  // For the call, of totals that this rank alone encodes (TotalFeedback), by superblock.
  void CorrectTotal(uint64_t superblock, float factor, std::span<float> sum) const {
    totals_.AddTo(superblock, factor * scale_, sum);
  }
  void SetTotal(uint64_t superblock, float factor, std::span<const float> sum, const float* sent) {
    totals_.Set(superblock, factor, sum, sent);
  }

  // The factor of the residual in the next calls: the ratio of learning rates.
  Status SetScale(float scale);
  // All elements. What this rank has left out of totals is in them; Import brings it back as a part
  // of the rank's contribution.
  Status Export(std::span<float> values);
  Status Import(std::span<const float> values);
  Status Reset();
  // Back to the state before the last committed call, unless that counts.
  Status Settle(const Lineage& lineage);

 private:
  using Bytes = std::vector<std::byte>;
  // Runs `body` while no call uses the residual.
  template <typename Body>
  Status WhileUnused(const Body& body);
  Status CheckCount(size_t count) const;
  void TakeBackUncounted(const Lineage& lineage);
  void AddToContributions(uint64_t first, std::span<const float> errors);
  Corrected Correction(uint64_t first, DataType type, const void* x, float scale) const;
  void Load(const Bytes& from, uint64_t first, std::span<float> x) const;
  void Store(uint64_t first, std::span<const float> x, Bytes* to) const;

  const uint64_t count_;
  const ResidualOptions options_;
  float scale_ = 1;
  // The residual, its state before the last committed call, and what the call in progress writes.
  Bytes current_, former_, pending_;
  TotalResidual totals_;
  CallName last_;  // the last committed call; operation 0: `former_` is not its state
  std::atomic<bool> taken_{false};
};

// A call's use of a residual, which ends without effect unless the call commits it.
class ResidualUse {
 public:
  ResidualUse(Residual* residual, const Lineage& lineage)
      : residual_(residual), status_(residual->Take(lineage)), communicator_(lineage.number()) {}
  ~ResidualUse() { End({}); }
  ResidualUse(const ResidualUse&) = delete;
  ResidualUse& operator=(const ResidualUse&) = delete;

  const Status& status() const { return status_; }
  void Commit(uint64_t operation) { End(CallName{communicator_, operation}); }

 private:
  void End(const std::optional<CallName>& committed) {
    if (residual_ != nullptr && status_.ok()) residual_->End(committed);
    residual_ = nullptr;
  }

  Residual* residual_;
  const Status status_;
  const uint64_t communicator_;
};

// Error feedback around the state of any codec: every read of this rank's input adds the scaled
// residual, and what the codec leaves out of the sum becomes the pending residual. The arithmetic
// is in fp32 (fp64 for fp64 elements), product before sum, so it is the same on all instruction
// sets.

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
  // sums = x + scaled residual, of a piece of a range.
  void Correct(const Range& piece, const std::byte* x, std::byte* sums);
  // Sets the pending residual of the piece.
  Status SetErrors(const Range& piece, const std::byte* x, const std::byte* sums);
  // Marks the superblocks of this range; false if all of them had a pending residual already.
  bool Account(const Range& range);
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
  // Of the current Combine: its inputs; the sums of its elements and the scaled residual, in the
  // call's type, which the codec reads; what a piece of them counts as.
  std::vector<Term> inputs_;
  std::vector<std::byte> corrected_;
  std::vector<float> own_;
};

}  // namespace inccl

#endif  // INCCL_COMPRESS_RESIDUAL_RESIDUAL_H_
