// SPDX-License-Identifier: Apache-2.0
//
// The custom reductions of a communicator, by their numbers in the C API. An entry is reused with
// another generation in its number, so the number of a destroyed reduction stays unknown for
// millions of later ones.
#ifndef INCCL_API_REDUCTIONS_H_
#define INCCL_API_REDUCTIONS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "base/status.h"
#include "base/types.h"
#include "compress/codec.h"

namespace inccl {

// A reduction of ccl_redop_create_premulsum.
struct PreMulSum {
  DataType type = DataType::kFloat32;
  Scalar scalar{};
  const void* scalar_at = nullptr;  // CCL_SCALAR_DEVICE: read when a call runs
};

class Reductions {
 public:
  // The limit of reductions at the same time.
  static constexpr int kMost = 1 << 16;

  // Returns the number of the new reduction, above those of ccl_redop_t; kInvalidUsage if there are
  // kMost. May throw std::bad_alloc, without effect.
  Result<int> Add(const PreMulSum& reduction);
  const PreMulSum* Find(int number) const;  // nullptr: there is none
  bool Remove(int number);                  // false: there is none
  void Clear();

 private:
  static constexpr int kGenerations = 1 << 14;
  static constexpr size_t kRest = 256;  // free entries that are kept unused as long as possible
  static constexpr size_t kNone = kMost;
  struct Place {
    std::optional<PreMulSum> reduction;
    int generation = 0;
    size_t next = kNone;  // the next free entry; the list starts with the oldest
  };
  static size_t PlaceOf(int number);
  const Place* At(int number) const;

  std::deque<Place> places_;
  size_t free_ = 0, first_ = kNone, last_ = kNone;
};

}  // namespace inccl

#endif  // INCCL_API_REDUCTIONS_H_
