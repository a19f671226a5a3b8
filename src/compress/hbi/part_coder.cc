// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/part_coder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "compress/hbi/codes.h"
#include "compress/hbi/error_bound.h"
#include "compress/hbi/format.h"

namespace inccl::hbi {
namespace {

constexpr uint32_t kMaxPacked = PackedBytes(16);

void PutUncoded(const uint8_t* codes, float* y) {
  for (uint32_t b = 0; b < kBlocks; ++b) {
    const float value = codes[b] == kPoison ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    std::fill_n(y + b * kBlock, kBlock, value);
  }
}

double TopMagnitude(const PlanSummary& plan) {
  const uint8_t top = *std::max_element(plan.top.begin(), plan.top.end());
  return top == kZeroCode ? 0 : Magnitude(top);
}

}  // namespace

uint32_t PartSuperblockBytes(uint32_t bits8, uint32_t k) {
  return bits8 != 0 ? kSuperblock / 64 * bits8 : kBlocks + PackedBytes(Width(1, k));
}

void PartCoder::Reset(std::shared_ptr<const Planner> planner, uint32_t max_superblocks) {
  planner_ = std::move(planner);
  kernels_ = &BestKernels();
  superblock_bytes_ = PartSuperblockBytes(planner_->config().bits8, planner_->config().k);
  if (points_.size() < max_superblocks) points_.resize(max_superblocks);
}

void PartCoder::Encode(float* x, uint32_t superblocks, const PartRounding& rounding,
                       PartSummary* summary, uint8_t* payload) {
  uint8_t* codes = payload;
  uint8_t* const end = payload + uint64_t{superblocks} * superblock_bytes_;
  kernels_->block_codes(x, superblocks, codes);
  PlanSummary plan;
  planner_->Plan(codes, {points_.data(), superblocks}, &plan);
  alignas(64) uint16_t tile[kSuperblock];
  alignas(64) uint8_t last[kMaxPacked + kWriteSlack];
  uint8_t* at = payload + size_t{superblocks} * kBlocks;
  for (uint32_t s = 0; s < superblocks; ++s, codes += kBlocks, x += kSuperblock) {
    const Point& point = planner_->points()[points_[s]];
    if (point.k == 0) continue;
    if (HasPoison(codes)) ClearPoisoned(codes, x);
    const QuantizeArgs args{.x = x,
                            .codes = codes,
                            .factor = point.sum->factor,
                            .k = point.k,
                            .counter = rounding.counter + s * (kSuperblock / 2),
                            .shift = rounding.shift};
    const uint32_t width = Width(1, point.k);
    const auto room = static_cast<size_t>(end - at);
    uint8_t* to = room >= PackedBytes(width) + kWriteSlack ? at : last;
    if (rounding.nearest) {
      kernels_->quantize_nearest(args, tile);
      kernels_->pack(tile, width, to);
    } else {
      kernels_->encode(args, width, to);
    }
    if (to == last) std::memcpy(at, last, PackedBytes(width));
    at += PackedBytes(width);
  }
  std::memset(at, 0, static_cast<size_t>(end - at));
  summary->magnitude = TopMagnitude(plan);
  summary->error += rounding.relative * summary->magnitude;
  summary->error += QuantizationError(*planner_, plan, rounding.nearest);
  summary->dropped += static_cast<uint32_t>(plan.dropped);
  std::memset(end, 0, kSummaryBytes);
  std::memcpy(end, &summary->error, sizeof summary->error);
  std::memcpy(end + sizeof summary->error, &summary->dropped, sizeof summary->dropped);
}

Status PartCoder::Decode(const uint8_t* payload, uint32_t superblocks, bool average, float* y,
                         PartSummary* summary) {
  const uint8_t* codes = payload;
  const uint8_t* const end = payload + uint64_t{superblocks} * superblock_bytes_;
  if (HasReserved(codes, size_t{superblocks} * kBlocks)) {
    return InternalError(
        fmt::format("hbi: a reserved scale code in a payload of {} superblocks", superblocks));
  }
  std::memcpy(&summary->error, end, sizeof summary->error);
  std::memcpy(&summary->dropped, end + sizeof summary->error, sizeof summary->dropped);
  if (!(summary->error >= 0)) {
    return InternalError(fmt::format("hbi: a payload claims an error of {}", summary->error));
  }
  PlanSummary plan;
  planner_->Plan(codes, {points_.data(), superblocks}, &plan);
  summary->magnitude = TopMagnitude(plan);
  alignas(64) uint8_t last[kMaxPacked + kReadSlack] = {};
  const uint8_t* at = payload + size_t{superblocks} * kBlocks;
  for (uint32_t s = 0; s < superblocks; ++s, codes += kBlocks, y += kSuperblock) {
    const Point& point = planner_->points()[points_[s]];
    if (point.k == 0) {
      PutUncoded(codes, y);
      continue;
    }
    const uint32_t width = Width(1, point.k);
    const uint8_t* in = at;
    if (static_cast<size_t>(end + kSummaryBytes - at) < PackedBytes(width) + kReadSlack) {
      std::memcpy(last, at, PackedBytes(width));
      in = last;
    }
    kernels_->unpack_decode(
        {.codes = codes, .step = average ? point.sum->average : point.sum->step, .zero = point.k},
        in, width, y);
    at += PackedBytes(width);
  }
  return Status::Ok();
}

}  // namespace inccl::hbi
