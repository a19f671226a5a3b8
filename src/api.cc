// SPDX-License-Identifier: Apache-2.0
//
// The C API except collectives and creation: versions, errors, queries, codecs.
#include <fmt/format.h>

#include <cstring>
#include <string>

#include "handles.h"

namespace inccl {
namespace {

thread_local std::string last_error;

}  // namespace

ccl_result_t Return(const Status& status) {
  if (!status.ok()) last_error = status.message();
  return static_cast<ccl_result_t>(status.code());
}

Status CheckComm(ccl_comm_t comm) {
  if (comm == nullptr) return InvalidArgument("comm: NULL");
  if (comm->magic != ccl_comm::kMagic) {
    return InvalidArgument("comm: not a communicator, or destroyed");
  }
  return Status::Ok();
}

Status CheckCodec(ccl_codec_t codec) {
  if (codec == nullptr) return InvalidArgument("codec: NULL");
  if (codec->magic != ccl_codec::kMagic) {
    return InvalidArgument("codec: not a codec, or destroyed");
  }
  return Status::Ok();
}

}  // namespace inccl

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

const char* ccl_get_last_error(ccl_comm_t comm) {
  if (comm != nullptr && comm->magic == ccl_comm::kMagic) {
    const Status sticky = comm->impl->error();
    if (!sticky.ok()) {
      inccl::last_error = sticky.message();
    }
  }
  return inccl::last_error.c_str();
}

ccl_result_t ccl_comm_destroy(ccl_comm_t comm) {
  if (comm == nullptr) return CCL_SUCCESS;
  return Guarded([&]() -> Status {
    if (Status status = inccl::CheckComm(comm); !status.ok()) return status;
    comm->magic = 0;
    delete comm;
    return Status::Ok();
  });
}

ccl_result_t ccl_comm_abort(ccl_comm_t comm) {
  return Guarded([&]() -> Status {
    if (Status status = inccl::CheckComm(comm); !status.ok()) return status;
    comm->impl->Abort();
    comm->magic = 0;
    delete comm;
    return Status::Ok();
  });
}

ccl_result_t ccl_comm_get_async_error(ccl_comm_t comm, ccl_result_t* error) {
  return Guarded([&]() -> Status {
    if (Status status = inccl::CheckComm(comm); !status.ok()) return status;
    if (error == nullptr) return InvalidArgument("error: NULL");
    *error = static_cast<ccl_result_t>(comm->impl->error().code());
    return Status::Ok();
  });
}

ccl_result_t ccl_comm_count(ccl_comm_t comm, int* count) {
  return Guarded([&]() -> Status {
    if (Status status = inccl::CheckComm(comm); !status.ok()) return status;
    if (count == nullptr) return InvalidArgument("count: NULL");
    *count = comm->impl->nranks();
    return Status::Ok();
  });
}

ccl_result_t ccl_comm_user_rank(ccl_comm_t comm, int* rank) {
  return Guarded([&]() -> Status {
    if (Status status = inccl::CheckComm(comm); !status.ok()) return status;
    if (rank == nullptr) return InvalidArgument("rank: NULL");
    *rank = comm->impl->rank();
    return Status::Ok();
  });
}

ccl_result_t ccl_comm_device(ccl_comm_t comm, int* device) {
  return Guarded([&]() -> Status {
    if (Status status = inccl::CheckComm(comm); !status.ok()) return status;
    if (device == nullptr) return InvalidArgument("device: NULL");
    *device = -1;
    return Status::Ok();
  });
}

ccl_result_t ccl_codec_create(ccl_codec_t* codec, const char* spec) {
  return Guarded([&]() -> Status {
    if (codec == nullptr) return InvalidArgument("codec: NULL");
    if (spec == nullptr) return InvalidArgument("spec: NULL");
    inccl::Result<std::shared_ptr<const inccl::Codec>> made = inccl::MakeCodec(spec);
    if (!made.ok()) return made.status();
    auto handle = std::make_unique<ccl_codec>();
    handle->impl = *std::move(made);
    *codec = handle.release();
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
    codec->magic = 0;
    delete codec;
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
    codec->impl->Bound(nranks, bits, relative_error_bound);
    return Status::Ok();
  });
}
