// SPDX-License-Identifier: Apache-2.0
//
// The residual of one vector: what compressed calls have left out of this rank's contributions,
// which the next call adds to its input (error feedback). A call writes the new residual beside the
// old one; the caller of the collective commits it once the call has succeeded. The state before
// the last committed call is kept as well, so that a rank whose call succeeded can go back when
// another rank's failed, also after failing in the next call itself.
#ifndef INCCL_COMPRESS_RESIDUAL_RESIDUAL_H_
#define INCCL_COMPRESS_RESIDUAL_RESIDUAL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "compress/residual/total_residual.h"

namespace inccl {

struct ResidualOptions {
  DataType storage = DataType::kFloat32;  // or kBfloat16, which rounds to nearest
  float keep = 0;  // in [0, 1): new residual = keep * old + (1 - keep) * error of the call
};

// One call at a time uses a residual. SetScale, Export, Import, Reset and Rollback fail with
// kInvalidUsage while one does.
class Residual {
 public:
  static Status Check(const ResidualOptions& options);
  Residual(uint64_t count, const ResidualOptions& options);

  uint64_t count() const { return count_; }

  // A call begins; kInvalidUsage while another one uses the residual. End gives it back.
  Status Take();
  // `committed`: the pending residual becomes the residual. `operation`: number of the call.
  void End(bool committed, uint64_t operation);
  // For the call: scale * residual of elements [first, first + x.size()).
  void Scaled(uint64_t first, std::span<float> x) const;
  // For the call: sums[i] = x[i] + scale * residual of element first + i. x and sums may be the
  // same.
  void Add(uint64_t first, const float* x, std::span<float> sums) const;
  // For the call: sets the pending residual of these elements from the errors sums[i] - sent[i],
  // without `sent` sums[i]; one that is not finite counts as 0.
  void SetErrors(uint64_t first, std::span<const float> sums, const float* sent = nullptr);
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
  // Back to the state before the last committed call, if that had a number above `operation`; else
  // that call can not be taken back any more.
  Status Rollback(uint64_t operation);

 private:
  // Runs `body` while no call uses the residual.
  template <typename Body>
  Status WhileUnused(const Body& body);
  Status CheckCount(size_t count) const;
  void AddToContributions(uint64_t first, std::span<const float> errors);
  void Load(const std::vector<std::byte>& from, uint64_t first, std::span<float> x) const;
  void Store(uint64_t first, std::span<const float> x, std::vector<std::byte>* to) const;

  const uint64_t count_;
  const ResidualOptions options_;
  float scale_ = 1;
  // The residual, its state before the last committed call, and what the call in progress writes.
  std::vector<std::byte> current_, former_, pending_;
  TotalResidual totals_;
  uint64_t undoable_ = 0;  // number of the last committed call; 0: `former_` is not its state
  std::atomic<bool> taken_{false};
};

// A call's use of a residual, which ends without effect unless the call commits it.
class ResidualUse {
 public:
  explicit ResidualUse(Residual* residual) : residual_(residual), status_(residual->Take()) {}
  ~ResidualUse() { End(false, 0); }
  ResidualUse(const ResidualUse&) = delete;
  ResidualUse& operator=(const ResidualUse&) = delete;

  const Status& status() const { return status_; }
  void Commit(uint64_t operation) { End(true, operation); }

 private:
  void End(bool committed, uint64_t operation) {
    if (residual_ != nullptr && status_.ok()) residual_->End(committed, operation);
    residual_ = nullptr;
  }

  Residual* residual_;
  const Status status_;
};

}  // namespace inccl

#endif  // INCCL_COMPRESS_RESIDUAL_RESIDUAL_H_
