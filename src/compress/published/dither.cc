// SPDX-License-Identifier: Apache-2.0
//
// The codec "dither": of each block a norm, of each element one of the two levels around it, chosen
// at random so that the expectation is the element. A superblock is its blocks' norms (fp32), then
// the codes: fields of all of them or, where that is shorter and `sparse` is set, the places and
// codes of those that are not zero.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "compress/bit_fields.h"
#include "compress/codecs.h"
#include "compress/kernels/published_kernels.h"
#include "compress/published/block_code.h"
#include "compress/published/qsgd.h"

namespace inccl {
namespace {

constexpr float kLeastNorm = 0x1p-100f;  // smaller ones count as zero: factors stay finite
constexpr uint32_t kDense = 255;         // instead of the number of codes that are not zero

struct Options {
  std::string spec;
  uint32_t bits = 4;  // of a code
  uint32_t block = kSuperblock;
  bool powers = false, l2 = false, sparse = false;
};

class DitherCode final : public BlockCode {
 public:
  explicit DitherCode(Options options)
      : o_(std::move(options)), levels_{(1u << (o_.bits - 1)) - 1, o_.powers} {}

  const char* name() const override { return "dither"; }
  const std::string& spec() const override { return o_.spec; }
  double bits() const override {
    return o_.bits + 32.0 / o_.block + (o_.sparse ? 8.0 / kSuperblock : 0);
  }
  double unit() const override;
  double reach() const override { return LargestNorm() * (1 + kRounding); }
  uint32_t Bytes(uint32_t count) const override {
    return NormBytes(count) + (o_.sparse ? 1 : 0) + FieldBytes(count, o_.bits);
  }
  bool fixed() const override { return !o_.sparse; }
  uint32_t Encode(const float* x, uint32_t count, uint32_t random, std::byte* out) const override;
  uint32_t Add(const std::byte* in, uint64_t left, uint32_t count, bool first,
               float* sum) const override;

 private:
  static constexpr double kRounding = 0x1p-20;

  // A norm over the largest magnitude, at most.
  double LargestNorm() const { return o_.l2 ? std::sqrt(o_.block) : 1; }
  uint32_t Blocks(uint32_t count) const { return (count + o_.block - 1) / o_.block; }
  uint32_t NormBytes(uint32_t count) const {
    return Blocks(count) * static_cast<uint32_t>(sizeof(float));
  }
  void Norms(const float* x, uint32_t blocks, float* norms) const;
  // The value of level 1 of linear ones. The largest level is finite if the norm is.
  float UnitOf(float norm) const {
    const auto levels = static_cast<float>(levels_.count);
    const float unit = norm / levels;
    return std::isinf(unit * levels) && std::isfinite(norm) ? std::nextafter(unit, 0.0f) : unit;
  }
  // Writes places and codes that are not zero; 0 if that would not be shorter than all codes.
  uint32_t EncodeSparse(const uint8_t* codes, uint32_t count, std::byte* out) const;
  // Reads codes of any form; returns their bytes, or 0 if these are none.
  uint32_t Decode(const std::byte* in, uint64_t left, uint32_t count, uint8_t* codes) const;
  uint32_t DecodeSparse(const std::byte* in, uint64_t left, uint32_t count, uint8_t* codes) const;

  const Options o_;
  const dither::Levels levels_;
};

// Levels are at most a step apart: linear ones 1 / s of the norm. Powers of two: what lies between
// 2^e and 2^(e+1) is off by less than 2^e, so by half of the largest one (that may be the norm), by
// less than itself if the norm is larger; or by the lowest level.
double DitherCode::unit() const {
  if (!o_.powers) return LargestNorm() / levels_.count + kRounding * LargestNorm();
  const double lowest = std::ldexp(LargestNorm(), 1 - static_cast<int>(levels_.count));
  return std::max(o_.l2 ? 1.0 : 0.5, lowest) + kRounding * LargestNorm();
}

// NaN where an element is not finite. An L2 norm is rounded up, so no element is larger.
void DitherCode::Norms(const float* x, uint32_t blocks, float* norms) const {
  double squares[kMostBlocks];
  if (o_.l2) dither::BestKernels().squares(x, o_.block, squares);
  for (uint32_t b = 0; b < blocks; ++b) {
    float norm;
    if (o_.l2) {
      const double root = std::sqrt(squares[b]);
      norm = root < static_cast<double>(kLargestFloat) ? static_cast<float>(root) : kLargestFloat;
      if (static_cast<double>(norm) < root && norm < kLargestFloat)
        norm = std::nextafter(norm, kLargestFloat);
      if (!std::isfinite(squares[b])) norm = kNan;
    } else {
      const uint32_t bits = qsgd::BestKernels().largest(x + b * o_.block, o_.block);
      norm = std::bit_cast<float>(bits);
      if (!std::isfinite(norm)) norm = kNan;
    }
    norms[b] = norm < kLeastNorm ? 0.0f : norm;
  }
}

uint32_t DitherCode::Encode(const float* x, uint32_t count, uint32_t random, std::byte* out) const {
  const uint32_t blocks = Blocks(count), norm_bytes = NormBytes(count);
  float norms[kMostBlocks], factors[kMostBlocks] = {};
  Norms(x, blocks, norms);
  std::memcpy(out, norms, norm_bytes);
  for (uint32_t b = 0; b < blocks; ++b) {
    if (norms[b] > 0)
      factors[b] = (o_.powers ? 1.0f : static_cast<float>(levels_.count)) / norms[b];
  }
  alignas(64) uint8_t codes[kSuperblock];
  dither::BestKernels().encode(x, random, levels_, factors, o_.block, codes);
  for (uint32_t b = 0; b < blocks; ++b) {
    if (factors[b] == 0)
      std::memset(codes + b * o_.block, static_cast<int>(levels_.count), o_.block);
  }
  std::byte* to = out + norm_bytes;
  if (o_.sparse) {
    const uint32_t bytes = EncodeSparse(codes, count, to);
    if (bytes != 0) return norm_bytes + bytes;
    *to++ = static_cast<std::byte>(kDense);
  }
  qsgd::PackIndices(codes, count, o_.bits, to);
  return Bytes(count);
}

uint32_t DitherCode::EncodeSparse(const uint8_t* codes, uint32_t count, std::byte* out) const {
  uint64_t bits[kSuperblock / 64];
  dither::BestKernels().non_zero(codes, levels_.count, bits);
  uint32_t found = 0;
  for (const uint64_t part : bits) found += static_cast<uint32_t>(std::popcount(part));
  const uint32_t bitmap = (count + 7) / 8, places = std::min(found, bitmap);
  const uint32_t bytes = 1 + places + FieldBytes(found, o_.bits);
  if (found >= kDense || bytes >= 1 + FieldBytes(count, o_.bits)) return 0;
  uint8_t at[kSuperblock], kept[kSuperblock];
  uint32_t k = 0;
  for (uint32_t word = 0; word < kSuperblock / 64; ++word) {
    for (uint64_t rest = bits[word]; rest != 0; rest &= rest - 1, ++k) {
      at[k] = static_cast<uint8_t>(word * 64 + static_cast<uint32_t>(std::countr_zero(rest)));
      kept[k] = codes[at[k]];
    }
  }
  *out++ = static_cast<std::byte>(found);
  std::memcpy(out, found < bitmap ? static_cast<const void*>(at) : bits, places);
  qsgd::PackIndices(kept, found, o_.bits, out + places);
  return bytes;
}

uint32_t DitherCode::DecodeSparse(const std::byte* in, uint64_t left, uint32_t count,
                                  uint8_t* codes) const {
  const uint32_t found = std::to_integer<uint32_t>(in[0]), bitmap = (count + 7) / 8;
  const uint32_t places = std::min(found, bitmap);
  const uint32_t bytes = 1 + places + FieldBytes(found, o_.bits);
  if (found > count || left < bytes) return 0;
  uint64_t bits[kSuperblock / 64] = {};
  if (found < bitmap) {
    for (uint32_t k = 0; k < found; ++k) {
      const uint32_t at = std::to_integer<uint32_t>(in[1 + k]);
      if (at >= count || (k > 0 && in[k] >= in[1 + k])) return 0;
      bits[at / 64] |= uint64_t{1} << at % 64;
    }
  } else {
    std::memcpy(bits, in + 1, places);
    uint32_t ones = 0;
    for (const uint64_t part : bits) ones += static_cast<uint32_t>(std::popcount(part));
    const bool inside = count == kSuperblock || bits[count / 64] >> count % 64 == 0;
    if (ones != found || !inside) return 0;
  }
  alignas(64) uint8_t kept[kSuperblock];
  qsgd::UnpackIndices(in + 1 + places, left - 1 - places, found, o_.bits, kept);
  std::memset(codes, static_cast<int>(levels_.count), kSuperblock);
  uint32_t k = 0;
  for (uint32_t word = 0; word < kSuperblock / 64; ++word) {
    for (uint64_t rest = bits[word]; rest != 0; rest &= rest - 1, ++k) {
      codes[word * 64 + static_cast<uint32_t>(std::countr_zero(rest))] = kept[k];
    }
  }
  return bytes;
}

uint32_t DitherCode::Decode(const std::byte* in, uint64_t left, uint32_t count,
                            uint8_t* codes) const {
  if (o_.sparse) {
    if (left == 0) return 0;
    if (std::to_integer<uint32_t>(in[0]) != kDense) return DecodeSparse(in, left, count, codes);
    ++in;
    --left;
  }
  const uint32_t bytes = FieldBytes(count, o_.bits);
  if (left < bytes) return 0;
  qsgd::UnpackIndices(in, left, count, o_.bits, codes);
  std::fill(codes + count, codes + kSuperblock, static_cast<uint8_t>(levels_.count));
  return bytes + (o_.sparse ? 1 : 0);
}

uint32_t DitherCode::Add(const std::byte* in, uint64_t left, uint32_t count, bool first,
                         float* sum) const {
  const uint32_t blocks = Blocks(count), norm_bytes = NormBytes(count);
  if (left < norm_bytes) return 0;
  alignas(64) uint8_t codes[kSuperblock];
  const uint32_t bytes = Decode(in + norm_bytes, left - norm_bytes, count, codes);
  if (bytes == 0) return 0;
  float units[kMostBlocks] = {};
  std::memcpy(units, in, norm_bytes);
  uint32_t poisoned = 0;  // one bit per block
  for (uint32_t b = 0; b < blocks; ++b) {
    if (!std::isfinite(units[b])) poisoned |= 1u << b;
    if (!o_.powers) units[b] = UnitOf(units[b]);
  }
  const uint32_t largest = dither::BestKernels().add(codes, levels_, units, o_.block, first, sum);
  FillPoisoned(poisoned, o_.block, sum);
  return largest > 2 * levels_.count ? 0 : norm_bytes + bytes;
}

}  // namespace

MadeCodec MakeDitherCodec(const CodecSpec& spec) {
  static constexpr std::string_view kKeys[] = {"bits", "block", "levels", "norm", "sparse"},
                                    kBlocks[] = {"32", "64", "128", "256"},
                                    kLevels[] = {"linear", "pow2"}, kNorms[] = {"max", "l2"};
  if (Status status = spec.AllowOnly(kKeys); !status.ok()) return status;
  const Result<size_t> block = spec.Choice("block", 3, kBlocks);
  const Result<size_t> levels = spec.Choice("levels", 0, kLevels);
  const Result<size_t> norm = spec.Choice("norm", 0, kNorms);
  const Result<uint64_t> sparse = spec.Integer("sparse", 0, 0, 1);
  for (const Result<size_t>* choice : {&block, &levels, &norm}) {
    if (!choice->ok()) return choice->status();
  }
  if (!sparse.ok()) return sparse.status();
  // More powers of two would be below any element that counts.
  const Result<uint64_t> bits = spec.Integer("bits", 4, 2, *levels == 1 ? 6 : 8);
  if (!bits.ok()) return bits.status();
  Options options;
  options.bits = static_cast<uint32_t>(*bits);
  options.block = kBlock << *block;
  options.powers = *levels == 1;
  options.l2 = *norm == 1;
  options.sparse = *sparse != 0;
  options.spec = fmt::format("dither:bits={},block={},levels={},norm={},sparse={}", options.bits,
                             options.block, kLevels[*levels], kNorms[*norm], *sparse);
  return MakeBlockCodec(std::make_shared<const DitherCode>(std::move(options)));
}

}  // namespace inccl
