// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>

#include "api/handles.h"

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

// The C API: custom reductions.

using inccl::Guarded;
using inccl::InvalidArgument;
using inccl::Status;

ccl_result_t ccl_redop_create_premulsum(ccl_redop_t* op, void* scalar, ccl_datatype_t type,
                                        ccl_scalar_residence_t residence, ccl_comm_t comm) {
  return Guarded([&]() -> Status {
    const inccl::Lease lease(comm, inccl::Need::kReady);
    if (!lease.ok()) return lease.status();
    if (op == nullptr) return InvalidArgument("op: NULL");
    if (scalar == nullptr) return InvalidArgument("scalar: NULL");
    const inccl::Result<inccl::DataType> data_type = inccl::ToDataType(type);
    if (!data_type.ok()) return data_type.status();
    const int where = inccl::Number(residence);
    if (where != CCL_SCALAR_DEVICE && where != CCL_SCALAR_HOST_IMMEDIATE) {
      return InvalidArgument(fmt::format("residence: {}: invalid scalar residence", where));
    }
    inccl::PreMulSum made;
    made.type = *data_type;
    if (where == CCL_SCALAR_DEVICE) {
      made.scalar_at = scalar;
    } else {
      std::memcpy(made.scalar.data(), scalar, inccl::SizeOf(made.type));
    }
    const inccl::Result<int> added = comm->reductions.Add(made);
    if (!added.ok()) return added.status();
    std::memcpy(op, &*added, sizeof(int));
    return Status::Ok();
  });
}

ccl_result_t ccl_redop_destroy(ccl_redop_t op, ccl_comm_t comm) {
  return Guarded([&]() -> Status {
    const inccl::Lease lease(comm, inccl::Need::kExists);
    if (!lease.ok()) return lease.status();
    const int number = inccl::Number(op);
    if (!comm->reductions.Remove(number)) {
      return InvalidArgument(fmt::format(
          "op: {} was not made by ccl_redop_create_premulsum for this communicator", number));
    }
    return Status::Ok();
  });
}
