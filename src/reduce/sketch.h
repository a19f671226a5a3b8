// SPDX-License-Identifier: Apache-2.0
//
// A sum of sparse vectors of integers whose joint support is known: every index adds its value to
// one cell in each of three rows, sketches of several vectors are added cell by cell, and the
// values of the sum are peeled off again: a cell with one index left shows that index's value.
// Cells count modulo 2^64, so they never overflow for sums that fit 64 bits.
#ifndef INCCL_REDUCE_SKETCH_H_
#define INCCL_REDUCE_SKETCH_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace inccl {

// The cells of a support; the same for equal supports and keys. Random supports peel with almost
// certainty: 1.23 cells for each index, where 1.222 suffice for large supports, and some more for
// small ones.
class Sketch {
 public:
  static constexpr size_t kRows = 3;

  void SetSupport(std::span<const uint32_t> support, uint64_t key);

  uint64_t cells() const { return kRows * row_; }
  // `values`: one for each index of the support, in its order. `cells`: cells() of them.
  void Add(std::span<const uint64_t> values, std::span<uint64_t> cells) const;
  // Sets the values that can be peeled off, and *rest to the places in the support of the others,
  // ascending. Changes `cells`. Which ones remain depends on the support and the key alone.
  void Peel(std::span<uint64_t> cells, std::span<uint64_t> values,
            std::vector<uint32_t>* rest) const;

 private:
  uint64_t row_ = 0;                                // cells of a row
  std::vector<std::array<uint32_t, kRows>> cells_;  // by place in the support: a cell in each row
};

}  // namespace inccl

#endif  // INCCL_REDUCE_SKETCH_H_
