// SPDX-License-Identifier: Apache-2.0
//
// The C API: reducers and their states.
#include "reduce/reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "api/handles.h"
#include "compress/residual/residual.h"

namespace inccl {
namespace {

// Runs `use` with the state while no call uses it.
template <typename Use>
ccl_result_t WithState(ccl_reducer_state_t state, Use&& use) {
  return Guarded([&]() -> Status {
    if (Status status = CheckReducerState(state); !status.ok()) return status;
    return use(state->impl.get());
  });
}

}  // namespace
}  // namespace inccl

using inccl::InvalidArgument;
using inccl::Lease;
using inccl::Need;
using inccl::ReducerState;
using inccl::Status;

ccl_result_t ccl_reducer_create(ccl_reducer_t* reducer, const char* spec) {
  return inccl::Guarded([&]() -> Status {
    if (reducer == nullptr) return InvalidArgument("reducer: NULL");
    if (spec == nullptr) return InvalidArgument("spec: NULL");
    auto made = inccl::MakeReducer(spec);
    if (!made.ok()) return made.status();
    *reducer = inccl::NewReducer();
    (*reducer)->impl = *std::move(made);
    return Status::Ok();
  });
}

ccl_result_t ccl_reducer_spec(ccl_reducer_t reducer, char* buffer, size_t size) {
  return inccl::Guarded([&]() -> Status {
    if (Status status = inccl::CheckReducer(reducer); !status.ok()) return status;
    if (buffer == nullptr) return InvalidArgument("buffer: NULL");
    const std::string spec = reducer->impl->spec();
    if (size <= spec.size()) {
      return InvalidArgument(
          fmt::format("size: {} is too small, {} needed", size, spec.size() + 1));
    }
    std::memcpy(buffer, spec.c_str(), spec.size() + 1);
    return Status::Ok();
  });
}

ccl_result_t ccl_reducer_destroy(ccl_reducer_t reducer) {
  if (reducer == nullptr) return CCL_SUCCESS;
  return inccl::Guarded([&]() -> Status {
    if (Status status = inccl::CheckReducer(reducer); !status.ok()) return status;
    inccl::FreeReducer(reducer);
    return Status::Ok();
  });
}

ccl_result_t ccl_reducer_state_create(ccl_reducer_state_t* state, ccl_reducer_t reducer,
                                      size_t rows, size_t cols, ccl_datatype_t type) {
  return inccl::Guarded([&]() -> Status {
    if (state == nullptr) return InvalidArgument("state: NULL");
    if (Status status = inccl::CheckReducer(reducer); !status.ok()) return status;
    const auto data_type = inccl::ToDataType(type);
    if (!data_type.ok()) return data_type.status();
    const inccl::TensorDesc tensor{rows, cols, *data_type};
    if (Status status = inccl::CheckTensor(tensor); !status.ok()) return status;
    std::shared_ptr<ReducerState> made = reducer->impl->NewState(tensor);
    *state = inccl::NewReducerState();
    (*state)->impl = std::move(made);
    return Status::Ok();
  });
}

ccl_result_t ccl_reducer_state_destroy(ccl_reducer_state_t state) {
  if (state == nullptr) return CCL_SUCCESS;
  return inccl::WithState(state, [&](ReducerState*) {
    inccl::FreeReducerState(state);
    return Status::Ok();
  });
}

ccl_result_t ccl_reducer_state_reset(ccl_reducer_state_t state) {
  return inccl::WithState(state, [](ReducerState* impl) { return impl->Reset(); });
}

ccl_result_t ccl_reducer_state_export(ccl_reducer_state_t state, void* data, size_t* size) {
  return inccl::WithState(state, [&](ReducerState* impl) -> Status {
    if (size == nullptr) return InvalidArgument("size: NULL");
    const auto bytes = impl->Export();
    if (!bytes.ok()) return bytes.status();
    const size_t room = std::exchange(*size, bytes->size());
    if (data == nullptr) return Status::Ok();
    if (room < bytes->size()) {
      return InvalidArgument(fmt::format("size: {} is too small, {} needed", room, bytes->size()));
    }
    std::memcpy(data, bytes->data(), bytes->size());
    return Status::Ok();
  });
}

ccl_result_t ccl_reducer_state_import(ccl_reducer_state_t state, const void* data, size_t size) {
  return inccl::WithState(state, [&](ReducerState* impl) -> Status {
    if (data == nullptr) return InvalidArgument("data: NULL");
    return impl->Import({static_cast<const std::byte*>(data), size});
  });
}

ccl_result_t ccl_reducer_state_rollback(ccl_reducer_state_t state, ccl_comm_t comm) {
  return inccl::WithState(state, [&](ReducerState* impl) -> Status {
    const Lease lease(comm, Need::kExists);
    if (!lease.ok()) return lease.status();
    return impl->Settle(lease->lineage());
  });
}

namespace inccl {
namespace {

// The C API: residuals.

// Reads the caller's options, which may be shorter or longer than this version's struct.
Status ReadConfig(const ccl_residual_config_t* given, ResidualOptions* options) {
  ccl_residual_config_t config = CCL_RESIDUAL_CONFIG_INIT;
  if (given != nullptr) {
    if (given->size < sizeof(size_t) || given->size > 4096) {
      return InvalidArgument(fmt::format(
          "config->size: {}, must be sizeof(ccl_residual_config_t); use CCL_RESIDUAL_CONFIG_INIT",
          given->size));
    }
    std::memcpy(&config, given, std::min(given->size, sizeof config));
  }
  int storage = 0;
  std::memcpy(&storage, &config.storage, sizeof storage);
  if (storage < 0 || storage >= kDataTypes) {
    return InvalidArgument(fmt::format("config->storage: {}: invalid datatype", storage));
  }
  *options = {.storage = static_cast<DataType>(storage), .keep = config.keep};
  if (Status status = Residual::Check(*options); !status.ok()) {
    return InvalidArgument(fmt::format("config->{}", status.message()));
  }
  return Status::Ok();
}

// Runs `use` with the residual while no call uses it.
template <typename Use>
ccl_result_t WithResidual(ccl_residual_t residual, Use&& use) {
  return Guarded([&]() -> Status {
    if (Status status = CheckResidual(residual); !status.ok()) return status;
    return use(residual->impl.get());
  });
}

}  // namespace
}  // namespace inccl

using inccl::InvalidArgument;
using inccl::Residual;
using inccl::Status;

ccl_result_t ccl_residual_create(ccl_residual_t* residual, size_t count,
                                 const ccl_residual_config_t* config) {
  return inccl::Guarded([&]() -> Status {
    if (residual == nullptr) return InvalidArgument("residual: NULL");
    inccl::ResidualOptions options;
    if (Status status = inccl::ReadConfig(config, &options); !status.ok()) return status;
    if (count > SIZE_MAX / 16) {
      return InvalidArgument(fmt::format("count: {} elements overflow size_t", count));
    }
    auto made = std::make_shared<Residual>(count, options);
    *residual = inccl::NewResidual();
    (*residual)->impl = std::move(made);
    return Status::Ok();
  });
}

ccl_result_t ccl_residual_destroy(ccl_residual_t residual) {
  if (residual == nullptr) return CCL_SUCCESS;
  return inccl::WithResidual(residual, [&](Residual*) {
    inccl::FreeResidual(residual);
    return Status::Ok();
  });
}

ccl_result_t ccl_residual_set_scale(ccl_residual_t residual, float scale) {
  return inccl::WithResidual(residual, [&](Residual* impl) -> Status {
    if (!std::isfinite(scale)) return InvalidArgument(fmt::format("scale: {}", scale));
    return impl->SetScale(scale);
  });
}

ccl_result_t ccl_residual_export(ccl_residual_t residual, float* values, size_t count) {
  return inccl::WithResidual(residual, [&](Residual* impl) -> Status {
    if (values == nullptr && count != 0) return InvalidArgument("values: NULL");
    return impl->Export({values, count});
  });
}

ccl_result_t ccl_residual_import(ccl_residual_t residual, const float* values, size_t count) {
  return inccl::WithResidual(residual, [&](Residual* impl) -> Status {
    if (values == nullptr && count != 0) return InvalidArgument("values: NULL");
    for (size_t i = 0; i < count; ++i) {
      if (std::isfinite(values[i])) continue;
      return InvalidArgument(fmt::format("values: element {} is {}", i, values[i]));
    }
    return impl->Import({values, count});
  });
}

ccl_result_t ccl_residual_reset(ccl_residual_t residual) {
  return inccl::WithResidual(residual, [](Residual* impl) { return impl->Reset(); });
}

ccl_result_t ccl_residual_rollback(ccl_residual_t residual, ccl_comm_t comm) {
  return inccl::WithResidual(residual, [&](Residual* impl) -> Status {
    const Lease lease(comm, Need::kExists);
    if (!lease.ok()) return lease.status();
    return impl->Settle(lease->lineage());
  });
}
