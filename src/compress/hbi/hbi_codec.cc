// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/hbi_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "compress/checked_state.h"
#include "compress/hbi/device_slices.h"
#include "compress/hbi/entropy.h"
#include "compress/hbi/format.h"
#include "compress/hbi/hbi_state.h"
#include "compress/hbi/plan.h"
#include "compress/hbi/side_words.h"
#include "compress/hbi/slice.h"

namespace inccl {
namespace {

using hbi::Config;
using hbi::Hops;
using hbi::PackedBytes;
using hbi::Planner;
using hbi::Point;
using hbi::Reference;
using hbi::Width;

constexpr double kWordBits = 0.125;  // one side word per superblock; an agreement sends it twice

// Bits per element and phase of a superblock with these levels, where fields are packed.
double BitsOf(const Planner& planner, const Point& point) {
  const auto n = static_cast<uint32_t>(planner.nranks());
  const Collective collective = planner.collective();
  const Config& config = planner.config();
  if (collective == Collective::kAllGather) return kWordBits + Width(1, point.k) / 2.0;
  const double coded = kWordBits * CodedHops(collective, planner.nranks(), config);
  const double fields = SumHalfBits(collective, planner.nranks(), config, point.k, point.k2) / 2.0;
  const double sum = 2 * kWordBits + (fields + coded) / (n - 1);
  if (collective == Collective::kReduceScatter) return sum;
  const double result =
      planner.requantizes() ? kWordBits + Width(1, point.k2) / 2.0 : Width(n, point.k) / 2.0;
  return (sum + result) / 2;
}

// What a budget of coded fields may turn out to send per bit: packed fields, where no code is
// shorter.
double MostPerBit(const Planner& planner) {
  if (planner.config().coding != hbi::Coding::kEntropy) return 1;
  const double hops = Hops(planner.collective(), planner.nranks()) *
                      (planner.collective() == Collective::kAllReduce ? 2.0 : 1.0);
  double most = 1;
  for (const Point& point : planner.choices()) {
    if (point.k == 0) continue;
    const double coded = point.cost / (hops * PartsOfBit(planner.config()));
    const double side =
        planner.collective() == Collective::kAllReduce ? 1.5 * kWordBits : kWordBits;
    most = std::max(most, BitsOf(planner, point) / (coded + side));
  }
  return most;
}

// Checks that a sum fits its field.
Status CheckRanks(const Config& config, int nranks) {
  const uint64_t k = std::max(1u, config.k);
  if (2 * static_cast<uint64_t>(nranks) * k < hbi::kFieldLimit) return Status::Ok();
  return InvalidArgument(
      fmt::format("codec hbi: sums of {} ranks with k={} need more than 16 bits", nranks, k));
}

}  // namespace

std::shared_ptr<const Planner> hbi::PlannerCache::Get(Collective collective, int nranks) {
  const MutexLock lock(&mutex_);
  for (const Known& known : planners_) {
    const Planner& planner = *known.planner;
    if (planner.nranks() == nranks && planner.collective() == collective) return known.planner;
  }
  planners_.push_back({std::make_shared<const Planner>(collective, nranks, config_), nullptr});
  return planners_.back().planner;
}

std::shared_ptr<hbi::DeviceLevels> hbi::PlannerCache::LevelsOf(
    const std::shared_ptr<const Planner>& planner) {
  const MutexLock lock(&mutex_);
  const auto known = std::find_if(planners_.begin(), planners_.end(),
                                  [&planner](const Known& one) { return one.planner == planner; });
  if (known->levels == nullptr) known->levels = std::make_shared<DeviceLevels>(*planner);
  return known->levels;
}

HbiCodec::HbiCodec(const Config& config)
    : planners_(std::make_shared<hbi::PlannerCache>(config)),
      side_words_{.bytes = hbi::TrailerBytes(config), .superblock_bytes = hbi::kWordBytes},
      spec_(config.Canonical()),
      identity_(fmt::format("{} (format {})", spec_, hbi::kFormatVersion)) {}

Route HbiCodec::route() const {
  const Config& config = planners_->config();
  return {.group = static_cast<int>(config.m),
          .because = "m of the codec hbi",
          .sums_hosts = config.local == hbi::Local::kFp32};
}

Status hbi::CheckCall(const Config& config, Collective collective, DataType type, ReduceOp op,
                      int nranks) {
  Status status = CheckFloatCall("hbi", collective, type, op, nranks);
  if (!status.ok()) return status;
  return CheckRanks(config, nranks);
}

Status hbi::CheckFit(const Config& config, Collective collective, int nranks) {
  if (Status status = CheckRanks(config, nranks); !status.ok()) return status;
  if (collective != Collective::kAllReduce && config.m != 0) {
    return InvalidArgument(fmt::format("codec hbi: m={} is for {} only, not for {}", config.m,
                                       Name(Collective::kAllReduce), Name(collective)));
  }
  if (!config.unbiased || config.bits8 == 0) return Status::Ok();
  const uint32_t least8 = LeastBits8(collective, nranks, config);
  if (config.bits8 >= least8) return Status::Ok();
  return InvalidArgument(fmt::format(
      "codec hbi: bits={} is too little for unbiased=1: {} of {} ranks needs at least bits={}",
      FormatEighths(config.bits8), Name(collective), nranks, FormatEighths(least8)));
}

Status HbiCodec::Fits(Collective collective, int nranks) const {
  return hbi::CheckFit(planners_->config(), collective, nranks);
}

Status HbiCodec::Supports(Collective collective, DataType type, ReduceOp op, int nranks) const {
  return hbi::CheckCall(planners_->config(), collective, type, op, nranks);
}

uint32_t HbiCodec::MaxBytes(DataType /*type*/, int nranks, uint32_t count) const {
  const Config& config = planners_->config();
  const uint64_t superblocks = count / kSuperblock + (count % kSuperblock != 0 ? 1 : 0);
  uint32_t sum = hbi::kMostHalfBits, result = hbi::kMostHalfBits;
  if (config.bits8 == 0) {
    sum = Width(static_cast<uint32_t>(nranks), config.k);
    result = Width(1, config.k2);
  }
  const uint64_t bytes =
      superblocks * std::max(PackedBytes(sum), hbi::kWordBytes + PackedBytes(result)) +
      hbi::TrailerBytes(config);
  return static_cast<uint32_t>(std::min<uint64_t>(bytes, std::numeric_limits<uint32_t>::max()));
}

uint32_t HbiCodec::UncountedBytes() const { return hbi::TrailerBytes(planners_->config()); }

void HbiCodec::Bound(Collective collective, int nranks, double* bits,
                     double* relative_error) const {
  const std::shared_ptr<const Planner> planner = planners_->Get(collective, nranks);
  const Config& config = planner->config();
  const bool sums_spread = collective == Collective::kAllReduce && !planner->requantizes();
  double worst_bits = 0, worst_error = 0, exact_bits = 0;
  for (const Point& point : planner->choices()) {
    worst_bits = std::max(worst_bits, BitsOf(*planner, point));
    worst_error = std::max(worst_error, hbi::RelativeErrorBound(*planner, point));
    if (sums_spread && point.k != 0) {
      // The budget counts K2 and its side words, but the sums themselves travel.
      const double planned = kWordBits + Width(1, point.k2) / 2.0;
      const double sent = Width(static_cast<uint32_t>(nranks), point.k) / 2.0;
      exact_bits = std::max(exact_bits, (sent - planned) / 2);
    }
  }
  *bits = config.bits8 == 0 ? worst_bits : config.bits8 / 8.0 * MostPerBit(*planner) + exact_bits;
  *relative_error = worst_error;
  const auto include = [&](Collective other, int contributions) {
    double other_bits = 0, other_error = 0;
    Bound(other, contributions, &other_bits, &other_error);
    *relative_error = std::max(*relative_error, other_error);
  };
  // With fewer contributions a step is larger, relative to the elements of all ranks. Two hosts are
  // the fewest.
  if (config.local == hbi::Local::kFp32 && Reduces(collective) && nranks > 2) {
    include(collective, 2);
  }
  // ccl_codec_bound tells this of a reduce-scatter and an all-gather, too.
  if (collective == Collective::kAllReduce && planner->group() == 0) {
    include(Collective::kReduceScatter, nranks);
    include(Collective::kAllGather, nranks);
  }
}

double HbiCodec::UsualBits(Collective collective, int nranks) const {
  const Config& config = planners_->config();
  if (config.coding == hbi::Coding::kEntropy && config.bits8 != 0) return config.bits8 / 8.0;
  return Codec::UsualBits(collective, nranks);
}

double HbiCodec::ShorterBits() const {
  constexpr double kLeast = 0.5;  // of packed fields of 15 levels; of fewer levels it is more
  const Config& config = planners_->config();
  return config.MayCode() && config.coding == hbi::Coding::kAuto ? kLeast : 0;
}

std::unique_ptr<CodecState> HbiCodec::NewState() const {
  return std::make_unique<hbi::HbiState>(planners_);
}

Result<std::shared_ptr<const Codec>> MakeHbiCodec(const CodecSpec& spec) {
  Result<Config> config = hbi::ParseConfig(spec);
  if (!config.ok()) return config.status();
  return std::shared_ptr<const Codec>(std::make_shared<HbiCodec>(*config));
}

}  // namespace inccl
