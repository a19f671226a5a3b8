// SPDX-License-Identifier: Apache-2.0
//
// The C API: versions, errors, settings, queries, codecs.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "api/handles.h"
#include "base/log.h"
#include "compress/codecs.h"
#include "config/config_files.h"

using inccl::Guarded;
using inccl::InvalidArgument;
using inccl::Status;

ccl_result_t ccl_get_version(int* version) {
  if (version == nullptr) return inccl::Return(InvalidArgument("version: NULL"));
  *version = CCL_VERSION_CODE;
  return CCL_SUCCESS;
}

const char* ccl_get_error_string(ccl_result_t result) {
  return inccl::CodeName(static_cast<inccl::Code>(result));
}

const char* ccl_get_last_error(ccl_comm_t comm) { return inccl::LastError(comm).c_str(); }

ccl_result_t ccl_set_variable(const char* name, const char* value, const char* source) {
  return Guarded([&]() -> Status {
    if (name == nullptr) return InvalidArgument("name: NULL");
    return inccl::SetVariable(name, value, source == nullptr ? "ccl_set_variable" : source);
  });
}

ccl_result_t ccl_set_log_function(ccl_log_function_t function) {
  inccl::SetLogFunction(function);
  return CCL_SUCCESS;
}

ccl_result_t ccl_comm_get_async_error(ccl_comm_t comm, ccl_result_t* error) {
  return Guarded([&]() -> Status {
    const inccl::Lease lease(comm, inccl::Need::kHandle);
    if (!lease.ok()) return lease.status();
    if (error == nullptr) return InvalidArgument("error: NULL");
    using State = ccl_comm::State;
    const State state = comm->state.load();
    // The thread that has made it has not yet let the parent go.
    const bool delivered = comm->delivered.load();
    if (state == State::kCreating || state == State::kDividing || state == State::kFinalizing ||
        !delivered) {
      *error = CCL_IN_PROGRESS;
    } else {
      const Status sticky = state == State::kFailed ? comm->creation_error : comm->impl->error();
      *error = static_cast<ccl_result_t>(sticky.code());
    }
    return Status::Ok();
  });
}

ccl_result_t ccl_comm_count(ccl_comm_t comm, int* count) {
  return Guarded([&]() -> Status {
    const inccl::Lease lease(comm, inccl::Need::kExists);
    if (!lease.ok()) return lease.status();
    if (count == nullptr) return InvalidArgument("count: NULL");
    *count = lease->nranks();
    return Status::Ok();
  });
}

ccl_result_t ccl_comm_user_rank(ccl_comm_t comm, int* rank) {
  return Guarded([&]() -> Status {
    const inccl::Lease lease(comm, inccl::Need::kExists);
    if (!lease.ok()) return lease.status();
    if (rank == nullptr) return InvalidArgument("rank: NULL");
    *rank = lease->rank();
    return Status::Ok();
  });
}

ccl_result_t ccl_comm_device(ccl_comm_t comm, int* device) {
  return Guarded([&]() -> Status {
    const inccl::Lease lease(comm, inccl::Need::kExists);
    if (!lease.ok()) return lease.status();
    if (device == nullptr) return InvalidArgument("device: NULL");
    *device = comm->device;
    return Status::Ok();
  });
}

ccl_result_t ccl_codec_create(ccl_codec_t* codec, const char* spec) {
  return Guarded([&]() -> Status {
    if (codec == nullptr) return InvalidArgument("codec: NULL");
    if (spec == nullptr) return InvalidArgument("spec: NULL");
    inccl::Result<std::shared_ptr<const inccl::Codec>> made = inccl::MakeCodec(spec);
    if (!made.ok()) return made.status();
    inccl::WarmUp(**made, inccl::LatestRanks());
    *codec = inccl::NewCodec();
    (*codec)->impl = *std::move(made);
    return Status::Ok();
  });
}

ccl_result_t ccl_codec_spec(ccl_codec_t codec, char* buffer, size_t size) {
  return Guarded([&]() -> Status {
    if (Status status = inccl::CheckCodec(codec); !status.ok()) return status;
    if (buffer == nullptr) return InvalidArgument("buffer: NULL");
    const std::string& spec = codec->impl->spec();
    if (size < spec.size() + 1) {
      return InvalidArgument(
          fmt::format("size: {} bytes, the specification needs {}", size, spec.size() + 1));
    }
    std::memcpy(buffer, spec.c_str(), spec.size() + 1);
    return Status::Ok();
  });
}

ccl_result_t ccl_codec_destroy(ccl_codec_t codec) {
  if (codec == nullptr) return CCL_SUCCESS;
  return Guarded([&]() -> Status {
    if (Status status = inccl::CheckCodec(codec); !status.ok()) return status;
    inccl::FreeCodec(codec);
    return Status::Ok();
  });
}

ccl_result_t ccl_codec_bound(ccl_codec_t codec, size_t count, int nranks, double* bits,
                             double* relative_error_bound) {
  return Guarded([&]() -> Status {
    if (Status status = inccl::CheckCodec(codec); !status.ok()) return status;
    (void)count;  // the bound of the present codecs does not depend on it
    if (nranks < 1) return InvalidArgument(fmt::format("nranks: {}, must be at least 1", nranks));
    if (bits == nullptr) return InvalidArgument("bits: NULL");
    if (relative_error_bound == nullptr) return InvalidArgument("relative_error_bound: NULL");
    if (Status status = codec->impl->Fits(inccl::Collective::kAllReduce, std::max(2, nranks));
        !status.ok()) {
      return status;
    }
    codec->impl->Bound(nranks, bits, relative_error_bound);
    return Status::Ok();
  });
}
