// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/slice.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "compress/hbi/codes.h"
#include "compress/hbi/format.h"
#include "compress/kernels/convert.h"
#include "compress/kernels/stream.h"

namespace inccl::hbi {
namespace {

constexpr uint32_t kMaxPacked = PackedBytes(16);

// The walk over one slice. Holds the tiles, all of them in L1.
class Walker {
 public:
  explicit Walker(const SliceContext& slice)
      : slice_(slice), plain_(slice.type == DataType::kFloat32 && !slice.rotate) {}

  uint32_t superblocks() const { return slice_.superblocks(); }
  const Point& PointOf(uint32_t s) const { return slice_.planner->points()[slice_.points[s]]; }
  const uint8_t* Codes(uint32_t s) const { return slice_.codes + size_t{s} * kBlocks; }
  // Whether superblock s lies in the caller's memory as the 256 floats that are coded.
  bool InPlace(uint32_t s) const { return plain_ && Count(s) == kSuperblock; }
  uint32_t Count(uint32_t s) const { return std::min(kSuperblock, slice_.count - s * kSuperblock); }

  // 256 floats of superblock s: in place if they lie there, else converted, padded and rotated.
  const float* Elements(uint32_t s, const std::byte* elements) {
    const uint32_t count = Count(s);
    const std::byte* first = elements + size_t{s} * kSuperblock * SizeOf(slice_.type);
    if (InPlace(s)) {
      return reinterpret_cast<const float*>(first);
    }
    ToFloat(slice_.type, first, x_, count);
    std::memset(x_ + count, 0, (kSuperblock - count) * sizeof(float));
    if (slice_.rotate) slice_.kernels->rotate(x_, Signs(s));
    return x_;
  }

  // How many superblocks from s on have the same levels.
  uint32_t Run(uint32_t s) const {
    uint32_t end = s + 1;
    while (end < superblocks() && slice_.points[end] == slice_.points[s]) ++end;
    return end - s;
  }

  // How many of them can be read as elements where they lie; 1 if s itself cannot.
  uint32_t PlainRun(uint32_t s, uint32_t run) const {
    if (!plain_) return 1;
    const uint32_t whole = slice_.count / kSuperblock;
    uint32_t plain = 0;
    while (plain < run && s + plain < whole && !HasPoison(Codes(s + plain))) ++plain;
    return std::max(plain, 1u);
  }

  // What is quantized of superblock s.
  QuantizeArgs Own(uint32_t s, const std::byte* elements, const Point& point) {
    const uint8_t* codes = Codes(s);
    const float* x = Elements(s, elements);
    if (HasPoison(codes)) {
      if (x != x_) std::memcpy(x_, x, sizeof x_);
      ClearPoisoned(codes, x_);
      x = x_;
    }
    return {.x = x,
            .codes = codes,
            .factor = point.sum->factor,
            .k = point.k,
            .counter = slice_.counter + s * (kSuperblock / 2),
            .shift = slice_.shift};
  }

  // How many of `run` superblocks lie in `bytes` bytes with `slack` behind them; at least 1, which
  // Take and Room can always do.
  static uint32_t Within(std::ptrdiff_t bytes, uint32_t width, uint32_t slack, uint32_t run) {
    const size_t usable =
        static_cast<size_t>(bytes) < slack ? 0 : static_cast<size_t>(bytes) - slack;
    return static_cast<uint32_t>(std::clamp<size_t>(usable / PackedBytes(width), 1, run));
  }

  // The next superblocks of a packed stream, with kReadSlack behind them; at most Within.
  const uint8_t* Take(Source* source, uint32_t width, uint32_t run = 1) {
    const size_t bytes = size_t{run} * PackedBytes(width);
    const uint8_t* in = source->at;
    source->at += bytes;
    if (static_cast<size_t>(source->end - in) >= bytes + kReadSlack) return in;
    std::memcpy(in_, in, PackedBytes(width));
    return in_;
  }

  // Where the next superblocks are to be packed, with kWriteSlack behind them, at most Within; Put
  // ends it.
  uint8_t* Room(const Sink& sink, uint32_t width, uint32_t run = 1) {
    const size_t bytes = size_t{run} * PackedBytes(width);
    return static_cast<size_t>(sink.limit - sink.at) >= bytes + kWriteSlack ? sink.at : out_;
  }
  void Put(const uint8_t* packed, uint32_t width, Sink* sink, uint32_t run = 1) {
    if (packed == out_) std::memcpy(sink->at, out_, PackedBytes(width));
    sink->at += size_t{run} * PackedBytes(width);
  }

  // Where superblock s can be decoded to; PutElements ends it.
  float* ElementRoom(uint32_t s, std::byte* elements, uint32_t run = 1) {
    if (!InPlace(s)) return y_;
    if (!slice_.stream) return reinterpret_cast<float*>(elements) + size_t{s} * kSuperblock;
    if (gathered_ + run > kGathered || s != first_gathered_ + gathered_) Flush(elements);
    if (gathered_ == 0) first_gathered_ = s;
    gathered_ += run;
    return gather_ + size_t{gathered_ - run} * kSuperblock;
  }
  // How many of `run` superblocks ElementRoom has room for.
  uint32_t MostRoom(uint32_t run) const { return slice_.stream ? std::min(run, kGathered) : run; }
  // After the last PutElements.
  void Flush(std::byte* elements) {
    if (gathered_ == 0) return;
    StreamCopy(reinterpret_cast<float*>(elements) + size_t{first_gathered_} * kSuperblock, gather_,
               size_t{gathered_} * kSuperblock * sizeof(float));
    gathered_ = 0;
  }
  void PutElements(uint32_t s, const float* y, std::byte* elements) {
    if (y != y_) return;
    if (slice_.rotate) slice_.kernels->rotate_back(y_, Signs(s));
    FromFloat(slice_.type, y, elements + size_t{s} * kSuperblock * SizeOf(slice_.type), Count(s));
  }

  // Superblock s without levels: zeros, and NaN where the codes say so.
  void PutUncoded(uint32_t s, const uint8_t* codes, std::byte* elements) {
    float* y = ElementRoom(s, elements);
    for (uint32_t b = 0; b < kBlocks; ++b) {
      const float value = codes[b] == kPoison ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
      std::fill_n(y + b * kBlock, kBlock, value);
    }
    PutElements(s, y, elements);
  }

  uint16_t* tile() { return tile_; }
  float* floats() { return x_; }

 private:
  static constexpr uint32_t kGathered = 8;  // superblocks that are streamed at once

  uint32_t Signs(uint32_t s) const { return slice_.sign_counter + s * (kSuperblock / 2); }

  const SliceContext& slice_;
  const bool plain_;
  alignas(64) uint16_t tile_[kSuperblock];
  alignas(64) float x_[kSuperblock];
  alignas(64) float y_[kSuperblock];
  alignas(64) float gather_[kGathered * kSuperblock];
  uint32_t gathered_ = 0, first_gathered_ = 0;
  alignas(64) uint8_t in_[kMaxPacked + kReadSlack] = {};
  alignas(64) uint8_t out_[kMaxPacked + kWriteSlack];
};

// The sum of the sources' superblock s, as a tile.
void FoldTile(const SliceContext& slice, Walker* walker, uint32_t s, const Point& point,
              std::span<Source> sources) {
  const Kernels& kernels = *slice.kernels;
  bool first = true;
  for (Source& source : sources) {
    if (source.elements != nullptr) {
      const QuantizeArgs own = walker->Own(s, source.elements, point);
      const auto quantize = slice.nearest ? kernels.quantize_nearest : kernels.quantize;
      (first ? quantize : kernels.quantize_add)(own, walker->tile());
    } else {
      const uint32_t width = Width(source.contributions, point.k);
      const uint8_t* in = walker->Take(&source, width);
      (first ? kernels.unpack : kernels.unpack_add)(in, width, walker->tile());
    }
    first = false;
  }
}

// Sums that have a way of their own, without a tile.
enum class Fused : uint8_t { kNone, kEncode, kAddOwn, kAddPacked };

Fused FusedWay(std::span<const Source> sources) {
  size_t own = 0;
  for (const Source& source : sources) own += source.elements != nullptr ? 1 : 0;
  if (sources.size() == 1 && own == 1) return Fused::kEncode;
  if (sources.size() == 2 && own == 1) return Fused::kAddOwn;
  if (sources.size() == 2 && own == 0) return Fused::kAddPacked;
  return Fused::kNone;
}

// Own elements, added to a packed sum if there is one (`packed` not null): up to `run` superblocks
// from s on; how many were done.
uint32_t EncodeRun(const Kernels& kernels, Walker* walker, uint32_t s, uint32_t run,
                   const Source& own, Source* packed, uint32_t width, Sink* sink) {
  const Point& point = walker->PointOf(s);
  const uint32_t in_width = packed == nullptr ? 0 : Width(packed->contributions, point.k);
  run = walker->PlainRun(s, run);
  run = Walker::Within(sink->limit - sink->at, width, kWriteSlack, run);
  if (packed != nullptr) {
    run = Walker::Within(packed->end - packed->at, in_width, kReadSlack, run);
  }
  QuantizeArgs args = walker->Own(s, own.elements, point);
  args.superblocks = run;
  uint8_t* out = walker->Room(*sink, width, run);
  if (packed == nullptr) {
    kernels.encode(args, width, out);
  } else {
    kernels.add_encode(args, walker->Take(packed, in_width, run), in_width, width, out);
  }
  walker->Put(out, width, sink, run);
  return run;
}

// One packed sum of all sources by `way`; false where widths grow and a tile is needed after all.
bool FoldFused(const Kernels& kernels, Walker* walker, Fused way, uint32_t s, uint32_t run,
               std::span<Source> sources, uint32_t width, Sink* sink, uint32_t* done) {
  if (way == Fused::kNone) return false;
  if (way == Fused::kAddPacked) {
    const uint32_t k = walker->PointOf(s).k;
    if (Width(sources[0].contributions, k) != width ||
        Width(sources[1].contributions, k) != width) {
      return false;
    }
    const size_t bytes = size_t{run} * PackedBytes(width);
    AddPacked(sources[0].at, sources[1].at, bytes / 8, width, sink->at);
    for (Source& source : sources) source.at += bytes;
    sink->at += bytes;
    *done = run;
    return true;
  }
  const size_t own = sources[0].elements != nullptr ? 0 : 1;
  Source* packed = way == Fused::kAddOwn ? &sources[1 - own] : nullptr;
  *done = EncodeRun(kernels, walker, s, run, sources[own], packed, width, sink);
  return true;
}

// Decodes the sum in the tile, quantizes it again with its own codes; the tile becomes that.
void Requantize(const SliceContext& slice, Walker* walker, uint32_t s, const Point& point,
                uint32_t contributions, uint8_t* own_codes) {
  const Kernels& kernels = *slice.kernels;
  float* y = walker->floats();
  kernels.decode(
      {.codes = walker->Codes(s), .step = point.sum->step, .zero = contributions * point.k},
      walker->tile(), y);
  kernels.block_codes(y, 1, own_codes);
  if (HasPoison(own_codes)) ClearPoisoned(own_codes, y);
  const auto quantize = slice.unbiased ? kernels.quantize : kernels.quantize_nearest;
  quantize({.x = y,
            .codes = own_codes,
            .factor = point.result->factor,
            .k = point.k2,
            .counter = slice.result_counter + s * (kSuperblock / 2)},
           walker->tile());
}

// Codes of a kResult superblock that has no levels.
void UncodedResult(const uint8_t* agreed, uint8_t* own_codes) {
  for (uint32_t b = 0; b < kBlocks; ++b) own_codes[b] = agreed[b] == kPoison ? kPoison : kZeroCode;
}

}  // namespace

uint64_t SumBytes(const SliceContext& slice, uint32_t contributions) {
  uint64_t bytes = 0;
  for (uint32_t s = 0; s < slice.superblocks(); ++s) {
    bytes += PackedBytes(Width(contributions, slice.planner->points()[slice.points[s]].k));
  }
  return bytes;
}

uint64_t ResultBytes(const SliceContext& slice) {
  if (!slice.planner->requantizes()) return SumBytes(slice, slice.planner->contributions());
  uint64_t bytes = 0;
  for (uint32_t s = 0; s < slice.superblocks(); ++s) {
    bytes += kBlocks + PackedBytes(Width(1, slice.planner->points()[slice.points[s]].k2));
  }
  return bytes;
}

void FoldSlice(const SliceContext& slice, std::span<Source> sources, const SliceOutputs& outputs) {
  const Kernels& kernels = *slice.kernels;
  Walker walker(slice);
  Sink sum = outputs.sum, result = outputs.result;
  uint8_t* result_codes = result.at;
  if (result.at != nullptr) result.at += size_t{slice.superblocks()} * kBlocks;
  const bool sum_only = result.at == nullptr && outputs.elements == nullptr;
  const Fused way = sum_only && !slice.nearest ? FusedWay(sources) : Fused::kNone;
  const bool requant = slice.planner->requantizes();
  uint32_t contributions = 0;
  for (const Source& source : sources) contributions += source.contributions;
  uint8_t local_codes[kBlocks];
  for (uint32_t s = 0, done = 1; s < slice.superblocks(); s += done) {
    done = 1;
    const Point& point = walker.PointOf(s);
    const uint32_t width = Width(contributions, point.k);
    uint8_t* own_codes = result_codes != nullptr ? result_codes + s * kBlocks : local_codes;
    if (point.k == 0) {
      if (result_codes != nullptr) UncodedResult(walker.Codes(s), own_codes);
      if (outputs.elements != nullptr) walker.PutUncoded(s, walker.Codes(s), outputs.elements);
      continue;
    }
    if (FoldFused(kernels, &walker, way, s, walker.Run(s), sources, width, &sum, &done)) continue;
    FoldTile(slice, &walker, s, point, sources);
    if (sum.at != nullptr) {
      uint8_t* out = walker.Room(sum, width);
      kernels.pack(walker.tile(), width, out);
      walker.Put(out, width, &sum);
    }
    if (sum_only) continue;
    DecodeArgs decode{.codes = walker.Codes(s),
                      .step = slice.average ? point.sum->average : point.sum->step,
                      .zero = contributions * point.k};
    if (requant) {
      Requantize(slice, &walker, s, point, contributions, own_codes);
      decode = {.codes = own_codes,
                .step = slice.average ? point.result->average : point.result->step,
                .zero = point.k2};
    }
    if (result.at != nullptr) {
      uint8_t* out = walker.Room(result, Width(1, point.k2));
      kernels.pack(walker.tile(), Width(1, point.k2), out);
      walker.Put(out, Width(1, point.k2), &result);
    }
    if (outputs.elements != nullptr) {
      float* y = walker.ElementRoom(s, outputs.elements);
      kernels.decode(decode, walker.tile(), y);
      walker.PutElements(s, y, outputs.elements);
    }
  }
  walker.Flush(outputs.elements);
}

void DecodeResult(const SliceContext& slice, const uint8_t* payload, std::byte* elements) {
  const bool sums = !slice.planner->requantizes();
  const uint32_t contributions = slice.planner->contributions();
  Walker walker(slice);
  const size_t codes_bytes = sums ? 0 : size_t{slice.superblocks()} * kBlocks;
  Source source{.at = payload + codes_bytes, .end = payload + ResultBytes(slice)};
  for (uint32_t s = 0, run = 1; s < slice.superblocks(); s += run) {
    const Point& point = walker.PointOf(s);
    const uint8_t* codes = sums ? walker.Codes(s) : payload + size_t{s} * kBlocks;
    run = 1;
    if (point.k == 0) {
      walker.PutUncoded(s, codes, elements);
      continue;
    }
    const LevelTable& table = sums ? *point.sum : *point.result;
    const uint32_t width = sums ? Width(contributions, point.k) : Width(1, point.k2);
    if (walker.InPlace(s)) {
      // Up to the last whole superblock; a partial one comes by itself.
      run = walker.MostRoom(std::min(walker.Run(s), slice.count / kSuperblock - s));
      run = Walker::Within(source.end - source.at, width, kReadSlack, run);
    }
    float* y = walker.ElementRoom(s, elements, run);
    slice.kernels->unpack_decode({.codes = codes,
                                  .step = slice.average ? table.average : table.step,
                                  .zero = sums ? contributions * point.k : point.k2,
                                  .superblocks = run},
                                 walker.Take(&source, width, run), width, y);
    walker.PutElements(s, y, elements);
  }
  walker.Flush(elements);
}

void FoldOwnCodes(const SliceContext& slice, const std::byte* elements, bool first,
                  uint8_t* codes) {
  constexpr uint32_t kAtOnce = 32;
  uint8_t own[kAtOnce * kBlocks];
  Walker walker(slice);
  for (uint32_t s = 0; s < slice.superblocks();) {
    // As many whole superblocks as lie there as they are coded; else one.
    uint32_t run = 1;
    if (walker.InPlace(s)) run = std::min(slice.count / kSuperblock - s, kAtOnce);
    uint8_t* to = first ? codes + size_t{s} * kBlocks : own;
    slice.kernels->block_codes(walker.Elements(s, elements), run, to);
    if (!first) {
      for (uint32_t b = 0; b < run * kBlocks; ++b) {
        codes[size_t{s} * kBlocks + b] = std::max(codes[size_t{s} * kBlocks + b], own[b]);
      }
    }
    s += run;
  }
}

}  // namespace inccl::hbi
