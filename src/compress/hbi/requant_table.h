// SPDX-License-Identifier: Apache-2.0
//
// The second quantization as tables from sums to codes, for kernels that look up bytes. A code
// follows from the sum, the levels and the ratio of the two scales of its block. Where both scales
// are fifths of an octave (kFirstFine to kLastFine), the ratio and the roundings in fp32 follow
// from the difference of the scale codes and from the agreed code modulo 5. So few tables serve all
// scales.
#ifndef INCCL_COMPRESS_HBI_REQUANT_TABLE_H_
#define INCCL_COMPRESS_HBI_REQUANT_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace inccl::hbi {

struct Point;

// The tables of one choice of levels.
class RequantTable {
 public:
  static constexpr uint32_t kFirstFine = 31, kLastFine = 231;  // scale codes
  // Own code minus agreed code: from -kMostBelowAgreed on.
  static constexpr uint32_t kMostBelowAgreed = 9, kDifferences = 16;
  // A sum less its zero, from -64 to 63, modulo 128.
  static constexpr uint32_t kSums = 128, kMostSum = 63;

  // What tells the table of a block.
  static constexpr uint32_t KeyOf(uint32_t agreed, uint32_t own) {
    return agreed % 5 * kDifferences + (own + kMostBelowAgreed - agreed);
  }
  static constexpr bool HasKey(uint32_t agreed, uint32_t own) {
    return agreed - kFirstFine <= kLastFine - kFirstFine &&
           own - kFirstFine <= kLastFine - kFirstFine &&
           own + kMostBelowAgreed - agreed < kDifferences;
  }
  // Whether sums of that many contributions of k levels, and codes of k2 levels, have tables.
  static constexpr bool Fits(uint32_t contributions, uint32_t k, uint32_t k2) {
    return k2 < 64 && contributions * k <= kMostSum;
  }

  // Makes the tables of a point with tables of its levels.
  void Make(const Point& point);

  const uint8_t* rows() const { return rows_.data(); }            // 128, by KeyOf
  const uint8_t* codes() const { return codes_.data()->data(); }  // kSums of each row

 private:
  struct alignas(64) Row : std::array<uint8_t, kSums> {};
  static Row MakeRow(const Point& point, uint32_t agreed, uint32_t own);

  alignas(64) std::array<uint8_t, 128> rows_;
  std::array<Row, size_t{5} * kDifferences> codes_;  // first the rows that differ
};

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_REQUANT_TABLE_H_
