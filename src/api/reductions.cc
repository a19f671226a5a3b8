// SPDX-License-Identifier: Apache-2.0
#include "api/reductions.h"

#include <fmt/format.h>

namespace inccl {

// A number is kReduceOps + generation * kMost + index of the entry.
size_t Reductions::PlaceOf(int number) {
  return static_cast<size_t>((number - kReduceOps) % kMost);
}

const Reductions::Place* Reductions::At(int number) const {
  if (number < kReduceOps || PlaceOf(number) >= places_.size()) return nullptr;
  const Place& place = places_[PlaceOf(number)];
  const bool known = place.reduction && place.generation == (number - kReduceOps) / kMost;
  return known ? &place : nullptr;
}

const PreMulSum* Reductions::Find(int number) const {
  const Place* const place = At(number);
  return place == nullptr ? nullptr : &*place->reduction;
}

Result<int> Reductions::Add(const PreMulSum& reduction) {
  size_t index = places_.size();
  if (free_ > kRest || (index == kMost && free_ > 0)) {
    index = first_;
    first_ = places_[index].next;
    --free_;
  } else if (index < kMost) {
    places_.emplace_back();
  } else {
    return InvalidUsage(
        fmt::format("op: there are {} reductions of this communicator, the most there can be; "
                    "destroy some with ccl_redop_destroy",
                    kMost));
  }
  places_[index].reduction = reduction;
  return kReduceOps + places_[index].generation * kMost + static_cast<int>(index);
}

bool Reductions::Remove(int number) {
  if (At(number) == nullptr) return false;
  const size_t index = PlaceOf(number);
  Place& place = places_[index];
  place.reduction.reset();
  place.generation = (place.generation + 1) % kGenerations;
  place.next = kNone;
  (free_ == 0 ? first_ : places_[last_].next) = index;
  last_ = index;
  ++free_;
  return true;
}

void Reductions::Clear() {
  places_.clear();
  free_ = 0;
}

}  // namespace inccl
