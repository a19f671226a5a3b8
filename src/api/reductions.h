// SPDX-License-Identifier: Apache-2.0
//
// The reductions that a communicator's caller has made, by the numbers that stand for them in the
// C API. A place is used again, but the number changes with every use: one that was destroyed stays
// unknown for millions of others.
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
  // At the same time.
  static constexpr int kMost = 1 << 16;

  // Its number, above those of ccl_redop_t; kInvalidUsage: there are kMost. May throw
  // std::bad_alloc, and has no effect then.
  Result<int> Add(const PreMulSum& reduction);
  const PreMulSum* Find(int number) const;  // nullptr: there is none
  bool Remove(int number);                  // false: there is none
  void Clear();

 private:
  static constexpr int kGenerations = 1 << 14;
  static constexpr size_t kRest = 256;  // places that stay free, for as long as may be
  static constexpr size_t kNone = kMost;
  struct Place {
    std::optional<PreMulSum> reduction;
    int generation = 0;
    size_t next = kNone;  // of those that are free, the oldest first
  };
  static size_t PlaceOf(int number);
  const Place* At(int number) const;

  std::deque<Place> places_;
  size_t free_ = 0, first_ = kNone, last_ = kNone;
};

}  // namespace inccl

#endif  // INCCL_API_REDUCTIONS_H_
