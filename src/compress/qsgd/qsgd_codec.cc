// SPDX-License-Identifier: Apache-2.0
//
// The codecs qsgd and qsgd_ms.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>
#include <utility>
#include <vector>

#include "compress/bit_fields.h"
#include "compress/checked_state.h"
#include "compress/codecs.h"
#include "compress/qsgd/qsgd_config.h"

namespace inccl {
namespace {

constexpr uint64_t kMaxQ = 16;

class QsgdCodec final : public Codec {
 public:
  explicit QsgdCodec(qsgd::Config config)
      : config_(std::make_shared<const qsgd::Config>(std::move(config))) {}

  const std::string& spec() const override { return config_->spec; }
  Status Supports(Collective collective, DataType type, ReduceOp op, int nranks) const override {
    return qsgd::CheckCall(*config_, collective, type, op, nranks);
  }
  std::span<const SidePhase> side_phases() const override {
    return std::span(side_phases_).first(config_->index_bits() > 0 ? 2 : 1);
  }
  uint64_t window_elements() const override { return kWindow; }
  uint32_t MaxBytes(DataType /*type*/, int nranks, uint32_t count) const override {
    const uint64_t superblocks = count / kSuperblock + (count % kSuperblock != 0 ? 1 : 0);
    const uint32_t width = qsgd::Width(static_cast<uint32_t>(nranks), config_->levels());
    return static_cast<uint32_t>(
        std::min<uint64_t>(superblocks * FieldBytes(std::min(kSuperblock, count), width),
                           std::numeric_limits<uint32_t>::max()));
  }
  // Relative to the largest magnitude of the window.
  void Bound(Collective collective, int nranks, double* bits,
             double* relative_error) const override {
    const auto n = static_cast<uint32_t>(nranks);
    const double sum = qsgd::Width(1, config_->levels()),
                 result = qsgd::Width(n, config_->levels());
    *bits = sum;
    if (collective == Collective::kAllReduce) *bits = (sum + result) / 2;
    // An agreement sends the indices twice.
    *bits += (collective == Collective::kReduceScatter ? 2 : 1) * config_->index_bits();
    *relative_error = 1.0 / config_->levels() + 0x1p-21;
  }
  std::unique_ptr<CodecState> NewState() const override { return qsgd::NewState(config_); }

 private:
  std::shared_ptr<const qsgd::Config> config_;
  // The largest magnitude of a window, and the indices of scales.
  const SidePhase side_phases_[2] = {
      {.bytes = qsgd::kLargestBytes},
      {.superblock_bytes = FieldBytes(kSuperblock, config_->index_bits())}};
};

// Parses "8" or, with several scales, "4+8": ascending numbers.
Result<std::vector<uint32_t>> ParseScales(const CodecSpec& spec, bool several) {
  const std::string* given = spec.Find("q");
  const std::string text = given != nullptr ? *given : several ? "4+8" : "8";
  std::vector<uint32_t> scales;
  uint32_t last = 0;
  for (const char* at = text.data(); at != nullptr;) {
    const char* end = text.data() + text.size();
    uint32_t q = 0;
    const auto parsed = std::from_chars(at, end, q);
    const bool ends = parsed.ptr == end;
    if (parsed.ec != std::errc() || q <= last || q > kMaxQ || (!ends && *parsed.ptr != '+')) break;
    scales.push_back((1u << q) - 1);
    last = q;
    at = ends ? nullptr : parsed.ptr + 1;
    if (!ends) continue;
    if (several ? scales.size() >= 2 && scales.size() <= qsgd::kMostScales : scales.size() == 1) {
      return scales;
    }
  }
  return InvalidArgument(fmt::format(
      "codec {}: q={} is not {}", spec.name(), text,
      several ? "two to four ascending numbers from 1 to 16, as 4+8" : "an integer in [1, 16]"));
}

std::string TextOf(const std::vector<uint32_t>& scales) {
  std::string text;
  for (const uint32_t s : scales) {
    text += fmt::format("{}{}", text.empty() ? "" : "+", std::bit_width(s));
  }
  return text;
}

}  // namespace

Status qsgd::CheckCall(const qsgd::Config& config, Collective collective, DataType type,
                       ReduceOp op, int nranks) {
  Status status = CheckFloatCall(config.name, collective, type, op, nranks);
  if (!status.ok()) return status;
  if (uint64_t{2} * static_cast<uint64_t>(nranks) * config.levels() < kFieldLimit) {
    return Status::Ok();
  }
  return InvalidArgument(fmt::format("codec {}: sums of {} ranks with {} levels need 32 bits",
                                     config.name, nranks, config.levels()));
}

namespace {

MadeCodec MakeQuantizer(const CodecSpec& spec, const char* name, bool several) {
  static constexpr std::string_view kKeys[] = {"q"};
  if (Status status = spec.AllowOnly(kKeys); !status.ok()) return status;
  Result<std::vector<uint32_t>> scales = ParseScales(spec, several);
  if (!scales.ok()) return scales.status();
  qsgd::Config config;
  config.name = name;
  config.spec = fmt::format("{}:q={}", name, TextOf(*scales));
  config.scales = *std::move(scales);
  return std::shared_ptr<const Codec>(std::make_shared<const QsgdCodec>(std::move(config)));
}

}  // namespace

MadeCodec MakeQsgdCodec(const CodecSpec& spec) { return MakeQuantizer(spec, "qsgd", false); }
MadeCodec MakeQsgdMsCodec(const CodecSpec& spec) { return MakeQuantizer(spec, "qsgd_ms", true); }

}  // namespace inccl
