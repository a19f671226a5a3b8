// SPDX-License-Identifier: Apache-2.0
//
// hbi: homomorphic block integers, the compressed domain of all-reduce, reduce-scatter and
// all-gather (docs/format.md): scales agreed by all ranks ahead of the data, integer codes, packed
// sums that are exact, of all ranks or (all-reduce only) of groups of them.
#ifndef INCCL_COMPRESS_HBI_HBI_CODEC_H_
#define INCCL_COMPRESS_HBI_HBI_CODEC_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "compress/codec.h"
#include "compress/codecs.h"
#include "compress/hbi/config.h"
#include "compress/hbi/plan.h"

namespace inccl {

namespace hbi {

class DeviceLevels;

// The planners of one configuration, created at the first use of a collective and number of ranks.
// Thread-safe.
class PlannerCache {
 public:
  explicit PlannerCache(const Config& config) : config_(config) {}
  const Config& config() const { return config_; }
  std::shared_ptr<const Planner> Get(Collective collective, int nranks);
  // The device levels of a planner from Get.
  std::shared_ptr<DeviceLevels> LevelsOf(const std::shared_ptr<const Planner>& planner);

 private:
  struct Known {
    std::shared_ptr<const Planner> planner;
    std::shared_ptr<DeviceLevels> levels;  // created at first use
  };
  const Config config_;
  Mutex mutex_;
  std::vector<Known> planners_ INCCL_GUARDED_BY(mutex_);
};

// Codec::Supports and Codec::Fits for this configuration.
Status CheckCall(const Config& config, Collective collective, DataType type, ReduceOp op,
                 int nranks);
Status CheckFit(const Config& config, Collective collective, int nranks);

}  // namespace hbi

class HbiCodec final : public Codec {
 public:
  explicit HbiCodec(const hbi::Config& config);

  const std::string& spec() const override { return spec_; }
  const std::string& identity() const override { return identity_; }
  Status Supports(Collective collective, DataType type, ReduceOp op, int nranks) const override;
  Status Fits(Collective collective, int nranks) const override;
  std::span<const SidePhase> side_phases() const override { return {&side_words_, 1}; }
  Route route() const override;
  uint32_t UncountedBytes() const override;
  uint64_t window_elements() const override { return kWindow; }
  uint32_t MaxBytes(DataType type, int nranks, uint32_t count) const override;
  uint64_t min_bytes() const override { return planners_->config().min_bytes; }
  // bits: with `bits=` that limit (with ag=exact the most it can become); with fixed levels their
  // cost if every superblock is live. relative_error: RelativeErrorBound of the worst levels that
  // the plan may choose; 1 or more if the budget may drop superblocks.
  void Bound(Collective collective, int nranks, double* bits,
             double* relative_error) const override;
  double UsualBits(Collective collective, int nranks) const override;
  double ShorterBits() const override;
  std::unique_ptr<CodecState> NewState() const override;

 private:
  std::shared_ptr<hbi::PlannerCache> planners_;
  SidePhase side_words_;
  std::string spec_, identity_;
};

Result<std::shared_ptr<const Codec>> MakeHbiCodec(const CodecSpec& spec);

}  // namespace inccl

#endif  // INCCL_COMPRESS_HBI_HBI_CODEC_H_
