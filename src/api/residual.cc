// SPDX-License-Identifier: Apache-2.0
//
// The C API: residuals.
#include "compress/residual/residual.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "api/handles.h"

namespace inccl {
namespace {

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

ccl_result_t ccl_residual_rollback(ccl_residual_t residual, uint64_t operation) {
  return inccl::WithResidual(residual, [=](Residual* impl) { return impl->Rollback(operation); });
}
