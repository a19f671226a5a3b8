// SPDX-License-Identifier: Apache-2.0
//
// The message by which a rank notifies its peers of an error.
#ifndef INCCL_FAILURE_NOTICE_H_
#define INCCL_FAILURE_NOTICE_H_

#include <cstddef>
#include <span>

#include "base/status.h"

namespace inccl {

// Writes as much of the error as fits; returns the bytes written. Needs no memory, because missing
// memory may be the error.
size_t WriteNotice(const Status& error, std::span<std::byte> body);

// Reads what a peer has written, its text escaped. Returns OK if the bytes are no notice of a fatal
// error; errors of arguments concern one rank alone.
Status ReadNotice(std::span<const std::byte> body);

}  // namespace inccl

#endif  // INCCL_FAILURE_NOTICE_H_
