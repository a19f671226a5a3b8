// SPDX-License-Identifier: Apache-2.0
//
// The options of a quantizer of the family QSGDMaxNorm: "Unbiased Single-scale and Multi-scale
// Quantizers for Distributed Optimization" (arXiv 2109.12497). docs/codecs.md lists the
// differences.
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
