// SPDX-License-Identifier: Apache-2.0
#include "perf/kernels/rank_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/clock.h"
#include "base/rng.h"
#include "compress/kernels/convert.h"
#include "perf/support/output.h"

namespace inccl::perf {
namespace {

// Normal, with a magnitude for each superblock, as gradients have.
std::vector<std::byte> Elements(DataType type, uint64_t count) {
  Rng rng(1);
  std::vector<std::byte> elements(count * SizeOf(type));
  float x[kSuperblock];
  for (uint64_t first = 0; first < count; first += kSuperblock) {
    const float scale = std::ldexp(1.0f, -static_cast<int>(rng.Below(12)));
    for (float& value : x) {
      double sum = -6;
      for (int k = 0; k < 4; ++k) sum += 3 * rng.Uniform();
      value = static_cast<float>(sum) * scale;
    }
    FromFloat(type, x, elements.data() + first * SizeOf(type),
              std::min<uint64_t>(kSuperblock, count - first));
  }
  return elements;
}

Term Of(const Format& format, std::vector<std::byte>* bytes) {
  return {format, bytes->data(), static_cast<uint32_t>(bytes->size())};
}

}  // namespace

void RankWork::Require(const Status& status) const {
  if (status.ok()) return;
  PrintError("{}: {}: {}\n", options_.codec, CodeName(status.code()), status.message());
  std::exit(3);
}

RankWork::RankWork(const Options& options)
    : options_(options),
      window_(std::min<uint64_t>(kWindow, options.elements)),
      input_(Elements(options.type, options.elements)),
      room_(input_.size() + 64) {
  // Aligned as the tensors of frameworks are.
  void* output = room_.data();
  size_t space = room_.size();
  output_ = {static_cast<std::byte*>(std::align(64, input_.size(), output, space)), input_.size()};
  if (options.codec == "none") {
    codec_ = IdentityCodec();
  } else {
    Result<std::shared_ptr<const Codec>> codec = MakeCodec(options.codec);
    Require(codec.ok() ? Status::Ok() : codec.status());
    codec_ = *codec;
  }
  state_ = codec_->NewState();
  state_->set_non_temporal(options.non_temporal, options.non_temporal);
  const uint32_t superblock = codec_->MaxBytes(options.type, options.ranks, kSuperblock);
  slice_ = std::max(1u, options.slice_bytes / superblock) * kSuperblock;
  slot_bytes_ = codec_->MaxBytes(options.type, options.ranks, slice_) + 64;
  for (Bytes& slot : slots_) slot.resize(slot_bytes_);
  side_.resize(codec_->SideBytes(kWindow) + 64);
}

template <typename Body>
void RankWork::Slices(uint64_t first, uint64_t end, const Body& body) {
  for (uint64_t at = first; at < end; at += slice_) {
    body(Range{0, at, static_cast<uint32_t>(std::min<uint64_t>(slice_, end - at))});
  }
}

RankWork::Times RankWork::Run(Team* team) {
  Times times{};
  next_side_ = next_agreed_ = next_sum_ = next_result_ = 0;
  state_->set_team(team);
  Require(state_->Begin(
      {.type = options_.type, .nranks = options_.ranks, .rank = 0, .count = options_.elements}));
  const uint64_t chunk =
      window_ / static_cast<uint64_t>(options_.ranks) / kSuperblock * kSuperblock;
  for (uint64_t window = 0; window < options_.elements; window += window_) {
    const auto timed = [&](size_t phase, const auto& body) {
      const Time start = SystemClock().Now();
      body();
      times[phase] += static_cast<double>(SystemClock().Now() - start) / 1e6;
    };
    if (!prepared_) Prepare(window, chunk);
    if (!codec_->side_phases().empty()) timed(0, [&] { Agree(window, chunk); });
    timed(1, [&] {
      Slices(window + chunk, window + window_, [&](const Range& range) {
        Combine(range, {In(range)}, {Slot({Form::kSum, 1})});
      });
    });
    timed(2, [&] { Slices(window, window + chunk, [&](const Range& range) { Own(range); }); });
    timed(3, [&] {
      Slices(window + chunk, window + window_, [&](const Range& range) {
        Combine(range, {Of({Form::kResult}, &results_[next_result_++])}, {Out(range)});
      });
    });
  }
  prepared_ = true;
  state_->Finish(nullptr);
  team->Rest();
  for (size_t p = 0; p < kAll; ++p) times[kAll] += times[p];
  return times;
}

Term RankWork::In(const Range& range, int rank) {
  const uint64_t shift = static_cast<uint64_t>(rank) * 7 * kSuperblock;
  const uint64_t first = std::min(range.first + shift, options_.elements - range.count);
  const size_t size = SizeOf(options_.type);
  return {{Form::kInput}, input_.data() + first * size, static_cast<uint32_t>(range.count * size)};
}

Term RankWork::Out(const Range& range) {
  const size_t size = SizeOf(options_.type);
  return {{Form::kOutput},
          output_.data() + range.first * size,
          static_cast<uint32_t>(range.count * size)};
}

Term RankWork::Slot(const Format& format) { return Of(format, &slots_[next_slot_++ % kSlots]); }

void RankWork::Combine(const Range& range, const std::vector<Term>& in, std::vector<Term> out) {
  Require(state_->Combine(range, in, out));
}

void RankWork::Agree(uint64_t window, uint64_t chunk) {
  const auto range = [&](uint64_t first, uint64_t end) {
    return Range{0, first, static_cast<uint32_t>(end - first)};
  };
  const Range own = range(window, window + chunk);
  std::vector<Term> in = {In(own)};
  for (int r = 1; r < options_.ranks; ++r) in.push_back(Of({Form::kSide}, &sides_[next_side_++]));
  Combine(own, in, {Of({Form::kSide}, &side_), {{Form::kSide}, nullptr, 0}});
  for (uint64_t at = window + chunk; at < window + window_; at += chunk) {
    const Range other = range(at, std::min(at + chunk, window + window_));
    Combine(other, {In(other)}, {Of({Form::kSide}, &side_)});
    Combine(other, {Of({Form::kSide}, &agreed_[next_agreed_++])}, {{{Form::kSide}, nullptr, 0}});
  }
}

void RankWork::Own(const Range& range) {
  std::vector<Term> in = {In(range)};
  for (int r = 1; r < options_.ranks; ++r) {
    in.push_back(Of({Form::kSum, 1}, &sums_[next_sum_++]));
  }
  Combine(range, in, {Slot({Form::kResult}), Out(range)});
}

RankWork::Bytes RankWork::Make(const Range& range, const std::vector<Term>& in,
                               const Format& format, size_t room, CodecState* state) {
  Bytes bytes(room);
  std::vector<Term> out = {Of(format, &bytes)};
  Require(state->Combine(range, in, out));
  bytes.resize(out[0].bytes);
  return bytes;
}

void RankWork::Prepare(uint64_t window, uint64_t chunk) {
  if (!codec_->side_phases().empty()) {
    // Of the peers: a state may keep the side words that its rank sends.
    const std::unique_ptr<CodecState> peer = codec_->NewState();
    Require(peer->Begin(
        {.type = options_.type, .nranks = options_.ranks, .rank = 1, .count = options_.elements}));
    for (uint64_t at = window; at < window + window_; at += chunk) {
      const Range range{0, at, static_cast<uint32_t>(std::min(chunk, window + window_ - at))};
      std::vector<Term> in;
      for (int r = 0; r < options_.ranks; ++r) {
        if (at == window && r != 0) {
          sides_.push_back(Make(range, {In(range, r)}, {Form::kSide}, side_.size(), peer.get()));
        }
        in.push_back(In(range, r));
      }
      if (at != window) agreed_.push_back(Make(range, in, {Form::kSide}, side_.size(), peer.get()));
    }
    const size_t side = next_side_, agreed = next_agreed_;
    Agree(window, chunk);
    next_side_ = side;
    next_agreed_ = agreed;
  }
  Slices(window, window + chunk, [&](const Range& range) {
    for (int r = 1; r < options_.ranks; ++r) {
      sums_.push_back(Make(range, {In(range, r)}, {Form::kSum, 1}, slot_bytes_, state_.get()));
    }
  });
  Slices(window + chunk, window + window_, [&](const Range& range) {
    std::vector<Term> in;
    for (int r = 0; r < options_.ranks; ++r) in.push_back(In(range, r));
    results_.push_back(Make(range, in, {Form::kResult}, slot_bytes_, state_.get()));
  });
}

}  // namespace inccl::perf
