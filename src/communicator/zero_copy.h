// SPDX-License-Identifier: Apache-2.0
//
// The registered buffers of the call in progress, which peers access in place (docs/zero-copy.md).
#ifndef INCCL_COMMUNICATOR_ZERO_COPY_H_
#define INCCL_COMMUNICATOR_ZERO_COPY_H_

#include "collectives/call.h"
#include "collectives/schedule.h"
#include "transport/transport.h"

namespace inccl {

class ZeroCopy {
 public:
  // Calls of fewer than two slices use slots, whose memory is in the caches. `transport` outlives
  // it.
  ZeroCopy(int rank, int nranks, uint32_t slice_bytes, Transport* transport)
      : rank_(rank), nranks_(nranks), slice_bytes_(slice_bytes), transport_(transport) {}

  // A call begins without registered buffers.
  void Begin() {
    input_ = {};
    output_ = {};  // not `= input_`, which would wait for the stores above
    result_ = {};
  }
  void Begin(const Call& call, Algorithm algorithm);
  // For a call on device memory, which peers only read.
  void BeginOnDevice(const Call& call, Algorithm algorithm);
  // Called after an error. Peers that do not know of it yet can no longer access this rank's
  // buffers, or their later Release fails.
  void RevokeAccess();

  const MemoryHandle& input() const { return input_; }
  const MemoryHandle& output() const { return output_; }
  const MemoryHandle& result() const { return result_; }
  bool any() const { return (input_.region | output_.region) != 0; }

 private:
  bool Applies(const Call& call, Algorithm algorithm) const;
  // Bytes of the input that peers read; 0: none.
  size_t InputBytes(const Call& call) const;
  MemoryHandle Register(const void* data, size_t bytes, const Registration& how);

  const int rank_, nranks_;
  const uint32_t slice_bytes_;
  Transport* const transport_;
  MemoryHandle input_, output_, result_;
};

}  // namespace inccl

#endif  // INCCL_COMMUNICATOR_ZERO_COPY_H_
