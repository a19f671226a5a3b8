// SPDX-License-Identifier: Apache-2.0
//
// The C API: reducers and their states.
#include "reduce/reducer.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "api/handles.h"

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

ccl_result_t ccl_reducer_state_rollback(ccl_reducer_state_t state, uint64_t operation) {
  return inccl::WithState(state, [=](ReducerState* impl) { return impl->Rollback(operation); });
}
