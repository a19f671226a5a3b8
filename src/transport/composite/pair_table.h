// SPDX-License-Identifier: Apache-2.0
//
// Which part of a composite transport carries the lanes between two ranks. Equal on all ranks of a
// communicator.
#ifndef INCCL_TRANSPORT_COMPOSITE_PAIR_TABLE_H_
#define INCCL_TRANSPORT_COMPOSITE_PAIR_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace inccl {

class PairTable {
 public:
  static constexpr int kNone = -1;

  explicit PairTable(int nranks)
      : nranks_(nranks), parts_(static_cast<size_t>(nranks) * static_cast<size_t>(nranks), kNone) {}

  int nranks() const { return nranks_; }
  // kNone for a pair that is not set. Ranks from 0 to nranks - 1.
  int Of(int a, int b) const { return parts_[Index(a, b)]; }
  // Sets both directions.
  void Set(int a, int b, int part) {
    parts_[Index(a, b)] = parts_[Index(b, a)] = static_cast<int8_t>(part);
  }

 private:
  size_t Index(int a, int b) const {
    return static_cast<size_t>(a) * static_cast<size_t>(nranks_) + static_cast<size_t>(b);
  }

  int nranks_;
  std::vector<int8_t> parts_;
};

}  // namespace inccl

#endif  // INCCL_TRANSPORT_COMPOSITE_PAIR_TABLE_H_
