// SPDX-License-Identifier: Apache-2.0
//
// The C API: custom reductions.
#include <fmt/format.h>

#include <cstring>

#include "api/enums.h"
#include "api/handles.h"

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
