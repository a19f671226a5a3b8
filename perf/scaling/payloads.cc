// SPDX-License-Identifier: Apache-2.0
#include "perf/scaling/payloads.h"

#include <algorithm>

#include "compress/codecs.h"
#include "compress/hbi/config.h"
#include "compress/hbi/side_words.h"
#include "compress/hbi/slice.h"

namespace inccl::perf {
namespace {

constexpr uint32_t kTop = 150;  // the scale of every block: any code will do

uint32_t SuperblocksOf(uint32_t count) { return (count + kSuperblock - 1) / kSuperblock; }

}  // namespace

Result<std::unique_ptr<Payloads>> Payloads::Make(const std::string& spec, int nranks,
                                                 uint64_t count) {
  Result<std::shared_ptr<const Codec>> codec = MakeCodec(spec);
  if (!codec.ok()) return codec.status();
  auto made = std::make_unique<Payloads>();
  made->codec_ = *codec;
  if ((*codec)->spec() == "none") return made;
  Result<CodecSpec> parsed = CodecSpec::Parse(spec);
  if (!parsed.ok()) return parsed.status();
  if (parsed->name() != "hbi") return InvalidArgument("codec " + spec + ": not none or hbi");
  if (Status status =
          (*codec)->Supports(Collective::kAllReduce, DataType::kFloat32, ReduceOp::kSum, nranks);
      !status.ok()) {
    return status;
  }
  if (Status status = (*codec)->Fits(Collective::kAllReduce, nranks); !status.ok()) return status;
  Result<hbi::Config> config = hbi::ParseConfig(*parsed);
  if (!config.ok()) return config.status();
  if (config->m != 0) return InvalidArgument("codec " + spec + ": no groups (m)");
  made->planner_ = std::make_unique<hbi::Planner>(Collective::kAllReduce, nranks, *config);
  made->last_begin_ = count == 0 ? 0 : (count - 1) / kWindow * kWindow;
  std::vector<uint8_t> words(size_t{kWindow / kSuperblock} * hbi::kWordBytes);
  for (size_t s = 0; s < kWindow / kSuperblock; ++s) hbi::StoreWord(kTop, words.data(), s);
  const auto plan = [&](uint32_t elements, Window* window) {
    window->points.resize(SuperblocksOf(elements));
    window->sums.resize(static_cast<size_t>(nranks) + 1);
    hbi::PlanSummary summary;
    made->planner_->Plan(words.data(), window->points, &summary);
  };
  plan(kWindow, &made->whole_);
  plan(static_cast<uint32_t>(count - made->last_begin_), &made->last_);
  return made;
}

// The library's functions tell the bytes of one superblock; a slice has the sum of its superblocks.
const Payloads::Sums& Payloads::SumsOf(uint32_t contributions, Window* window) const {
  Sums& sums = window->sums[contributions];
  if (!sums.empty()) return sums;
  sums.reserve(window->points.size() + 1);
  uint32_t bytes = 0;
  for (const uint8_t& point : window->points) {
    sums.push_back(bytes);
    hbi::SliceContext slice;
    slice.planner = planner_.get();
    slice.count = kSuperblock;
    slice.points = &point;
    bytes += static_cast<uint32_t>(contributions == 0 ? hbi::ResultBytes(slice)
                                                      : hbi::SumBytes(slice, contributions));
  }
  sums.push_back(bytes);
  return sums;
}

uint32_t Payloads::Bytes(const Format& format, const Range& range) {
  if (planner_ == nullptr) return range.count * static_cast<uint32_t>(sizeof(float));
  const uint32_t superblocks = SuperblocksOf(range.count);
  const uint32_t more = codec_->UncountedBytes();
  if (format.form == Form::kSide) return superblocks * hbi::kWordBytes + more;
  const Sums& sums = SumsOf(format.form == Form::kResult ? 0 : format.contributions,
                            range.first < last_begin_ ? &whole_ : &last_);
  const auto first = static_cast<uint32_t>(range.first % kWindow) / kSuperblock;
  return sums[first + superblocks] - sums[first] + more;
}

double Payloads::Work(const StepShape& shape, uint32_t count, bool large, const Machine& m) const {
  const double n = count, bytes = shape.bytes;
  const double more_payloads = shape.payloads > 1 ? shape.payloads - 1 : 0;
  if (shape.side) {
    const double merges = shape.own + shape.sums - 1;
    return n * ((shape.own != 0 ? m.scales : 0) + merges * m.merge + (shape.output ? m.plan : 0)) +
           more_payloads * bytes * m.copy_byte;
  }
  const double touched = large ? (shape.own + (shape.output ? 1 : 0)) * sizeof(float) : 0;
  double time = n * touched * m.memory_byte;
  if (planner_ == nullptr) {
    const double terms = shape.own + shape.sums;
    const double outputs = shape.payloads + (shape.output ? 1 : 0);
    const double fold = terms > 1 ? (terms - 1) * m.add : m.copy;
    return time + n * fold + (outputs - 1) * bytes * m.copy_byte;
  }
  if (shape.forwards) {
    return time + shape.payloads * bytes * m.copy_byte + (shape.output ? n * m.decode : 0);
  }
  double element = 0;
  if (shape.own != 0) element = shape.sums != 0 ? m.hop : m.encode;
  if (shape.sums > 1) element += (shape.sums - 1) * m.add_packed;
  if (shape.result || shape.output) element += m.finish;
  return time + n * element + more_payloads * bytes * m.copy_byte;
}

}  // namespace inccl::perf
