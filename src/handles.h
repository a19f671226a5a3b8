// SPDX-License-Identifier: Apache-2.0
//
// What the opaque pointers of the C API point to, and how errors leave the library.
#ifndef INCCL_HANDLES_H_
#define INCCL_HANDLES_H_

#include <atomic>
#include <memory>
#include <string>

#include "base/status.h"
#include "communicator.h"
#include "compress/codec.h"
#include "inccl/ccl.h"

struct ccl_comm {
  static constexpr uint64_t kMagic = 0x696e63636c636f6d;
  uint64_t magic = kMagic;
  std::unique_ptr<inccl::Communicator> impl;
  std::string last_error;  // backs ccl_get_last_error
};

struct ccl_codec {
  static constexpr uint64_t kMagic = 0x696e63636c636463;
  uint64_t magic = kMagic;
  std::shared_ptr<const inccl::Codec> impl;
};

namespace inccl {

// Keeps the text for ccl_get_last_error(NULL) and returns the code.
ccl_result_t Return(const Status& status);

// NULL or not a communicator: kInvalidArgument.
Status CheckComm(ccl_comm_t comm);
Status CheckCodec(ccl_codec_t codec);

// Runs `function`, which returns a Status; no exception passes (out of memory becomes
// kSystemError).
template <typename Function>
ccl_result_t Guarded(Function&& function) {
  try {
    return Return(function());
  } catch (const std::bad_alloc&) {
    return Return(SystemError("out of memory"));
  } catch (const std::exception& e) {
    return Return(InternalError(std::string("unexpected exception: ") + e.what()));
  }
}

}  // namespace inccl

#endif  // INCCL_HANDLES_H_
