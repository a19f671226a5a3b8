// SPDX-License-Identifier: Apache-2.0
//
// The plan: the levels of each superblock of a window, derived from the side words alone by
// integer arithmetic, so it is the same on every rank. Its tables depend on the collective, n and
// the options. Those of a choice of levels are made when a plan first has it. What errors a plan
// leaves.
#ifndef INCCL_COMPRESS_HBI_PLAN_H_
#define INCCL_COMPRESS_HBI_PLAN_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/team.h"
#include "base/types.h"
#include "compress/codec.h"
#include "compress/hbi/config.h"
#include "compress/hbi/format.h"

namespace inccl::hbi {

// The useful choices of levels: the lower convex hull of (cost, error) over all choices (in an
// all-reduce pairs, for the sum and for the all-gather), and where a plan goes from one to the
// next. It depends only on the collective, n and the options. The arithmetic is in integers but for
// one fp64 product per threshold, so it is identical on all machines.
struct HullPoint {
  uint32_t cost = 0;       // parts of a bit (PartsOfBit) per element over the hops of a plan (Hops)
  uint16_t k = 0, k2 = 0;  // levels of the sum and of the all-gather
  int32_t threshold = 0;   // taken if a superblock's energy exponent exceeds the plan's delta by
                           // this, in fifths of an octave; ascending, kAlways of the first one
};
inline constexpr int32_t kAlways = -(1 << 20);

struct Hull {
  std::vector<HullPoint> points;  // ascending in cost
  // Where superblocks may be dropped (cost 0, with an error like any other), the hull goes from
  // there to this point, at this threshold.
  size_t after_dropped = 0;
  int32_t threshold_after_dropped = 0;
};

// The hops whose bits a plan counts: n - 1, in an all-reduce for each of two phases. In an
// all-gather every hop of a segment carries the same bytes, so it counts one.
constexpr uint32_t Hops(Collective collective, int nranks) {
  return collective == Collective::kAllGather ? 1 : static_cast<uint32_t>(nranks) - 1;
}

// For n >= 2, 2 n < 65536 and all-reduce, reduce-scatter or all-gather; the latter two have k2 = 0.
Hull BuildHull(Collective collective, int nranks, const Config& config);

// Half-bits per element over the hops of a sum of k levels (its groups: k2) in the algorithm that
// `bits` counts, without side words.
uint32_t SumHalfBits(Collective collective, int nranks, const Config& config, uint32_t k,
                     uint32_t k2);
// The number of these hops that carry the sum's own side words.
uint32_t CodedHops(Collective collective, int nranks, const Config& config);

// Plans count in eighths of a bit, those of entropy-coded payloads in 64ths.
uint32_t PartsOfBit(const Config& config);
// The cost of the hops of a sum of k levels, and of a result of k2 levels on one hop.
int64_t CostOfSum(Collective collective, int nranks, const Config& config, uint32_t k, uint32_t k2);
int64_t CostOfResult(const Config& config, uint32_t k2);

// The budget of a superblock, in parts of a bit per element over the hops of a plan: `bits` minus
// side words. Negative if the side words alone exceed `bits`.
int64_t BudgetOfSuperblock(Collective collective, int nranks, const Config& config);
// The smallest bits8 for which every superblock can have K = 1.
uint32_t LeastBits8(Collective collective, int nranks, const Config& config);

// The decisions of a call's plans, for its statistics.
struct PlanSummary {
  std::array<uint16_t, 256> top{};  // by point: the largest code of its superblocks
  uint64_t dropped = 0;             // live superblocks without levels
};

// Fifths of an octave of the mean of M^2 over the blocks of a live superblock, rounded down.
int EnergyExponent(uint32_t word);

// Shared by all calls and threads.
class Planner {
 public:
  static constexpr uint8_t kDead = 0;  // the point of a superblock that is not live

  // For all-reduce, reduce-scatter or all-gather, n >= 2, and 2 n K < 65536 for every K in use
  // (HbiCodec::Supports checks that).
  Planner(Collective collective, int nranks, const Config& config);

  Collective collective() const { return collective_; }
  int nranks() const { return nranks_; }
  // Number of contributions in a complete sum.
  uint32_t contributions() const {
    return collective_ == Collective::kAllGather ? 1 : static_cast<uint32_t>(nranks_);
  }
  // True if owners decode complete sums and quantize them again before they send them.
  bool requantizes() const {
    return collective_ == Collective::kAllReduce && config_.all_gather == AllGather::kRequant;
  }
  const Config& config() const { return config_; }
  // Config::m if there is more than one group; else 0.
  uint32_t group() const {
    return collective_ == Collective::kAllReduce ? config_.GroupOf(nranks_) : 0;
  }
  // Their tables are there if a plan has the point, or after MakeTables.
  std::span<const Point> points() const { return points_; }
  // Those that a plan can choose.
  std::span<const Point> choices() const { return std::span(points_).subspan(first_choice_); }
  void MakeTables() const;  // of all points

  // Sets the points of points.size() superblocks of one window (at most kWindow elements) from
  // their agreed side words. The window's total cost never exceeds its budget. Adds to `summary`.
  void Plan(const uint8_t* words, std::span<uint8_t> points, PlanSummary* summary,
            Team* team = Team::Alone()) const;

 private:
  static constexpr int kFirstExponent = 2 * kFirstFifth - 9, kLastExponent = 2 * 640;
  static constexpr int kExponents = kLastExponent - kFirstExponent + 1;
  // By energy, delta is in [-kMaxDelta, kMaxDelta].
  static constexpr int kMaxDelta = 1400;
  // Even levels: energies count an eighth, and those further than this below the window's largest
  // as being that far below.
  static constexpr int kEvenScale = 8, kEvenDepth = 40;

  // The place of the table of k levels.
  const LevelTable* TableOf(uint32_t k);
  void AddPoints(const Hull& hull, bool drops);
  void MakeTables(size_t point) const;
  void MakeTable(const LevelTable* table) const INCCL_REQUIRES(mutex_);
  // The live superblocks of a window.
  struct Energies {
    static constexpr uint16_t kNotLive = 0xffff;
    struct Bin {
      uint16_t exponent;
      uint32_t superblocks;
    };
    std::array<uint16_t, kWindow / kSuperblock> exponents;  // by superblock
    std::array<Bin, kExponents> bins;                       // ascending
    size_t used = 0;
    std::span<const Bin> span() const { return {bins.data(), used}; }
  };
  // How levels follow from energies: at a delta, a superblock with exponent e takes the last step
  // whose threshold is at most e - delta.
  struct Rule {
    struct Step {
      uint32_t cost;
      uint8_t point;
    };
    std::vector<Step> steps;  // ascending in cost
    int first_delta = 0, last_delta = 0;
    std::vector<uint8_t> by_distance;  // of e - delta, from the smallest one on
    std::vector<uint32_t> cost_by_distance;
    int affordable = -1;  // the largest distance whose cost is in the budget of a superblock
    size_t Distance(int exponent, int delta) const {
      return static_cast<size_t>(exponent + last_delta - delta);
    }
  };
  // Of steps that begin at these thresholds, for exponents from the first one on.
  Rule MakeRule(std::vector<Rule::Step> steps, std::span<const int> thresholds, int first_exponent,
                int exponents, int first_delta, int last_delta) const;
  void MakeRules(const Hull& hull);
  // Sets the exponents, minus kFirstExponent.
  static void Read(const uint8_t* words, size_t superblocks, Team* team, Energies* energies);
  // The rule of a window. The exponents become its own, minus its first one.
  const Rule& RuleFor(size_t superblocks, Energies* energies) const;
  static void Count(size_t superblocks, Energies* energies);  // sets the bins
  // The cost of all superblocks at this delta, in parts of a bit per element over the hops.
  static int64_t Cost(const Rule& rule, const Energies& energies, int delta);
  // The smallest delta whose cost fits. A superblock's cost grows with its distance, and each has
  // the same part of the budget, so delta lies between those with which all superblocks, and with
  // which none, have an affordable distance.
  static int FindDelta(const Rule& rule, const Energies& energies, size_t superblocks,
                       int64_t budget);
  void Spend(const uint8_t* words, const Rule& rule, const Energies& energies,
             std::span<uint8_t> points, PlanSummary* summary) const;

  // The budget of a window, in parts of a bit per element over the hops.
  int64_t Budget(size_t superblocks) const;

  Collective collective_;
  int nranks_;
  Config config_;
  // [0]: dead; then, but for `unbiased`, dropped; then the hull or the single fixed choice.
  std::vector<Point> points_;
  size_t first_choice_ = 1;
  Rule even_, energy_;
  std::unique_ptr<LevelTable[]> tables_;  // of table_levels_; see made_
  std::vector<uint32_t> table_levels_;
  // By point: its tables are made.
  std::unique_ptr<std::atomic<bool>[]> ready_;
  mutable Mutex mutex_;
  mutable std::vector<bool> made_ INCCL_GUARDED_BY(mutex_);  // by table
};

// Bounds on the absolute error of an element. docs/format.md ("Errors") has the derivation; all
// bounds hold for every input, not only on average.

// The bound for elements of a call's result in superblocks with `point` whose largest agreed code
// is at most `top`, or that are all zero or poisoned: the distance from the exact sum (or average)
// of the ranks' elements, in an all-gather from the sender's element. Infinite if the result may
// leave the range of fp32 or of the type, or is NaN.
double ErrorBound(const Planner& planner, const Point& point, uint32_t top, DataType type,
                  ReduceOp op);

// Of the result in fp32, over the contributions of a sum times the largest magnitude of the
// superblock over the ranks (in an all-gather of the sender alone); for superblocks whose largest
// magnitude is within the steps of the scales, from 2^-100 on.
double RelativeErrorBound(const Planner& planner, const Point& point);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_PLAN_H_
