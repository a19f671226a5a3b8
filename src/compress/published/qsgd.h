// SPDX-License-Identifier: Apache-2.0
//
// The options of a quantizer of the family QSGDMaxNorm: "Unbiased Single-scale and Multi-scale
// Quantizers for Distributed Optimization" (arXiv 2109.12497). docs/codecs.md lists the
// differences.
//
// The bytes of qsgd and qsgd_ms.
//
// Vectors, segments, superblocks and windows (numbered from 0 within their vector), mix64,
// lowbias32, the rounding of types and the field strings are those of docs/format.md, with
// fields of any number of elements: what is left of a superblock's last byte is zero. Arithmetic
// is fp64 unless said otherwise, each operation rounded once, from left to right. A second
// implementation that shares no code with the library (tests/support/qsgd_oracle.cc) and the
// checksums in tests/compress/qsgd_golden.txt check the library against this section.
//
// - First side payload, of any range of a window: the bits of its largest magnitude in fp32, 4
//   bytes; 7f800000 where an element is NaN or infinite. MAX gives M.
// - Factors: f_k = s_k / M, and 0 where M is 0 or not finite. u_k = M / s_k, NaN where M is not
//   finite; for an average u_k / n.
// - Second side payload (several scales): for each superblock the field string of the indices of
//   its elements, of bit_width(S - 1) bits. The index is the largest k with |x| f_k <= s_0, 0
//   where there is none. MIN over the ranks.
// - Code of x at place t of superblock b in window w of segment g at rank r: s_0 where f_0 is 0;
//   else v = x f_k, clamped to [-s_0, s_0], and the code is floor(v + s_0 + h 2^-32) with h =
//   lowbias32((key + 256 (b mod 4096) + t) mod 2^32) and key = mix64(seed ^ mix64(step ^
//   mix64(mix64(w ^ mix64(g)) ^ mix64(r)))) mod 2^32.
// - Sum of h contributions (kSum) and result (kResult, h = n; in an all-gather h = 1): for each
//   superblock the field string of the sums of its elements' codes, of bit_width(2 h s_0) bits.
//   A sum above 2 h s_0 is refused.
// - Output: v = u_k (sum - h s_0), rounded to fp32, then to the type. Let T be the type's
//   largest number. Where |v| > T >= |v| - h u_k, T with the sign of v. For fp64 T is that of
//   fp32, and where |v| > T the output is v.
#ifndef INCCL_COMPRESS_PUBLISHED_QSGD_H_
#define INCCL_COMPRESS_PUBLISHED_QSGD_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compress/bit_fields.h"
#include "compress/checked_state.h"
#include "compress/codec.h"
#include "compress/kernels/published_kernels.h"

namespace inccl::qsgd {

// Payload of the first side phase for any range: the bits of its largest magnitude.
inline constexpr uint32_t kLargestBytes = sizeof(uint32_t);

struct Config {
  const char* name = "";
  std::string spec;              // canonical
  std::vector<uint32_t> scales;  // the numbers of levels, ascending

  // The codes of every scale lie in [-levels(), levels()].
  uint32_t levels() const { return scales[0]; }
  // Bits of the index of an element's scale; 0 if there is only one scale.
  uint32_t index_bits() const { return static_cast<uint32_t>(std::bit_width(scales.size() - 1)); }
};

// Sums of n codes, with n * s added, lie in [0, 2 n s].
inline constexpr uint64_t kFieldLimit = uint64_t{1} << 31;
constexpr uint32_t Width(uint32_t contributions, uint32_t levels) {
  return static_cast<uint32_t>(std::bit_width(uint64_t{2} * contributions * levels));
}

Status CheckCall(const Config& config, Collective collective, DataType type, ReduceOp op,
                 int nranks);

std::unique_ptr<CodecState> NewState(std::shared_ptr<const Config> config);

// Packs and unpacks the fields of one superblock (bit_fields.h), with vector kernels if available.

// Arrays have room for 256 elements; the first `count` are used. `left` is the number of readable
// bytes at `in`, at least those of the fields.

// sums += fields; returns the largest field.
uint32_t AddSums(const std::byte* in, uint64_t left, uint32_t count, uint32_t width,
                 uint32_t* sums);
void PackSums(const uint32_t* sums, uint32_t count, uint32_t width, std::byte* out);

// `width` is at most 8.
void UnpackIndices(const std::byte* in, uint64_t left, uint32_t count, uint32_t width,
                   uint8_t* indices);
void PackIndices(const uint8_t* indices, uint32_t count, uint32_t width, std::byte* out);

// One call of QSGDMaxNorm on one rank. In the side phase the ranks agree on the largest magnitude M
// of a window (in an all-gather it is the sender's). Codes are integers in units of M / s; their
// sums are exact and travel in fields that n ranks cannot overflow. With several scales, a second
// side phase agrees on the finest scale that fits an element on all ranks.

inline constexpr uint32_t kPoison = 0x7F800000;  // a magnitude that is not finite

inline uint64_t Windows(uint64_t count) { return (count + kWindow - 1) / kWindow; }

// A superblock of a range.
struct Part {
  uint64_t superblock;
  uint32_t at, count;  // elements of the range
};

// The number of elements that kernels touch in arrays of this size.
inline uint32_t Padded(uint32_t count) { return (count + 31) / 32 * 32; }

class State final : public CheckedState {
 public:
  explicit State(std::shared_ptr<const Config> config)
      : CheckedState(config->name), config_(std::move(config)) {}

  Result<bool> Own(const Range& range, const std::byte* x, float* y) override;
  void Finish(CodecStats* stats) override;

 protected:
  Status OnBegin() override;
  uint64_t PayloadBytes(const Range& range, const Format& format) const override;
  Status Fold(const Range& range, uint32_t contributions, std::span<const Term> inputs,
              std::span<Term> outputs) override;
  Status DecodeResult(const Range& range, const Term& payload, std::byte* elements) override;
  Status Side(const Range& range, std::span<const Term> inputs, std::span<Term> outputs) override;

 private:
  template <typename Body>
  Status ForEachPart(const Range& range, const Body& body) const;
  uint32_t LargestOf(const Range& range, const std::byte* elements) const;
  Status SideLargest(const Range& range, std::span<const Term> inputs, std::span<Term> outputs);
  Status SideScales(const Range& range, std::span<const Term> inputs, std::span<Term> outputs);
  Status FoldScales(const Range& range, const Part& part, const Term& input, uint8_t* scales) const;
  // Bytes of fields of `width` bits: of all superblocks of a range, and of those before a part.
  uint64_t RangeBytes(const Range& range, uint32_t width) const;
  uint64_t Offset(const Part& part, uint32_t width) const {
    return uint64_t{part.at / kSuperblock} * FieldBytes(kSuperblock, width);
  }
  // The agreed indices of a part's scales.
  std::byte* Scales(const Range& range, const Part& part) {
    const uint64_t superblocks = (call().count + kSuperblock - 1) / kSuperblock;
    return scales_.data() + (range.segment * superblocks + part.superblock) *
                                FieldBytes(kSuperblock, config_->index_bits());
  }
  // Selects one of the values `by_scale` for each element of a part; writes their scales to
  // `scales`.
  ScaleChoice ByScale(const Range& range, const Part& part, const double* by_scale,
                      uint8_t* scales);
  // The elements of a part in fp32, in place or copied to x.
  const float* Load(const Part& part, const std::byte* elements, float* x) const;
  void AddElements(const Range& range, const Part& part, const std::byte* elements, uint32_t* sums);
  Status AddPayload(const Range& range, const Part& part, const std::byte* payload, uint64_t left,
                    uint32_t contributions, uint32_t* sums) const;
  // Decodes sums of `contributions` to elements of `type`.
  void Store(const Range& range, const Part& part, const uint32_t* sums, uint32_t contributions,
             DataType type, std::byte* elements);
  // The same where sums may be beyond the type's largest number.
  void StoreLarge(const uint32_t* sums, uint32_t contributions, const ScaleChoice& unit,
                  uint32_t count, DataType type, std::byte* to);
  // Sets the values that all parts of a range share.
  Status Enter(const Range& range);
  uint32_t& LargestOfWindow(const Range& range) {
    return largest_[range.segment * Windows(call().count) + range.first / kWindow];
  }
  // Contributions of a complete sum.
  uint32_t complete() const {
    return Reduces(call().collective) ? static_cast<uint32_t>(call().nranks) : 1;
  }

  std::shared_ptr<const Config> config_;
  std::vector<uint32_t> largest_;  // bits of M by segment and window
  std::vector<std::byte> scales_;  // agreed scales by segment and superblock
  // For the current range, by scale.
  double factor_[kMostScales] = {};  // codes per unit; 0: all codes are zero
  double unit_[kMostScales] = {};    // value of a code in the result
  uint32_t key_ = 0;                 // key of the random rounding
};

// Calls body(part) for every superblock until one fails.
template <typename Body>
Status State::ForEachPart(const Range& range, const Body& body) const {
  Part part;
  for (part.at = 0; part.at < range.count; part.at += kSuperblock) {
    part.superblock = (range.first + part.at) / kSuperblock;
    part.count = std::min(kSuperblock, range.count - part.at);
    if (Status status = body(part); !status.ok()) return status;
  }
  return Status::Ok();
}

}  // namespace inccl::qsgd

#endif  // INCCL_COMPRESS_PUBLISHED_QSGD_H_
