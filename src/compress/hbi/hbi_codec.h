// SPDX-License-Identifier: Apache-2.0
//
// hbi: homomorphic block integers, the compressed domain of all-reduce, reduce-scatter and
// all-gather (docs/format.md). Policy H: scales agreed by all ranks ahead of the data, integer
// codes, packed sums that are exact, of all ranks or of groups of them. Policies D and R,
// all-reduce only: scales of the sender's own, and re-quantization on the way round a ring.
#ifndef INCCL_COMPRESS_HBI_HBI_CODEC_H_
#define INCCL_COMPRESS_HBI_HBI_CODEC_H_

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "compress/codec.h"
#include "compress/codec_spec.h"
#include "compress/hbi/config.h"
#include "compress/hbi/plan.h"

namespace inccl {

namespace hbi {

class DeviceLevels;

// The planners of one configuration, made when a collective and a number of ranks are first seen.
// Thread-safe.
class PlannerCache {
 public:
  explicit PlannerCache(const Config& config) : config_(config) {}
  const Config& config() const { return config_; }
  std::shared_ptr<const Planner> Get(Collective collective, int nranks);
  // Of one of them.
  std::shared_ptr<DeviceLevels> LevelsOf(const std::shared_ptr<const Planner>& planner);

 private:
  struct Known {
    std::shared_ptr<const Planner> planner;
    std::shared_ptr<DeviceLevels> levels;  // once they are needed
  };
  const Config config_;
  std::mutex mutex_;
  std::vector<Known> planners_;
};

// Codec::Supports and Codec::Fits of a codec with this configuration.
Status CheckCall(const Config& config, Collective collective, DataType type, ReduceOp op,
                 int nranks);
Status CheckFit(const Config& config, Collective collective, int nranks);

}  // namespace hbi

class HbiCodec final : public Codec {
 public:
  explicit HbiCodec(const hbi::Config& config);

  const std::string& spec() const override { return spec_; }
  Status Supports(Collective collective, DataType type, ReduceOp op, int nranks) const override;
  Status Fits(Collective collective, int nranks) const override;
  bool has_side_phase() const override { return !own_scales(); }
  Route route() const override;
  bool whole_chunks() const override { return own_scales(); }
  uint32_t UncountedBytes(Form form) const override;
  uint64_t window_elements() const override { return kWindow; }
  uint32_t MaxBytes(DataType type, int nranks, uint32_t count) const override;
  uint32_t SideBytes(uint32_t count) const override;
  uint64_t min_bytes() const override { return planners_->config().min_bytes; }
  // bits: with `bits=` the cap (with ag=exact what it can become), with fixed levels their cost
  // where every superblock is live. relative_error: RelativeErrorBound of the worst levels the plan
  // may choose; 1 or more as long as the budget may drop superblocks.
  void Bound(Collective collective, int nranks, double* bits,
             double* relative_error) const override;
  std::unique_ptr<CodecState> NewState() const override;

 private:
  void BoundOfParts(int nranks, double* bits, double* relative_error) const;
  bool own_scales() const { return planners_->config().own_scales(); }

  std::shared_ptr<hbi::PlannerCache> planners_;
  // With scales of the sender's own: those of the last quantization.
  std::shared_ptr<hbi::PlannerCache> result_planners_;
  std::string spec_;
};

Result<std::shared_ptr<const Codec>> MakeHbiCodec(const CodecSpec& spec);

}  // namespace inccl

#endif  // INCCL_COMPRESS_HBI_HBI_CODEC_H_
