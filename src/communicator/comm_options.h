// SPDX-License-Identifier: Apache-2.0
//
// Settings of one communicator.
#ifndef INCCL_COMMUNICATOR_COMM_OPTIONS_H_
#define INCCL_COMMUNICATOR_COMM_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "compress/codec.h"
#include "tuning/tuner.h"

namespace inccl {

inline constexpr int kMaxTimeoutMs = 24 * 3600 * 1000;

// The options that all ranks agree on at init.
struct CommOptions {
  AlgorithmFilter algorithms;
  TunerTable tuner_table;
  int channels = 1;
  uint32_t slice_bytes = 128 * 1024;
  uint64_t slot_bytes_max = 64 << 20;  // of the data slots of one algorithm, per rank
  uint64_t nt_store_bytes = 16 << 20;  // results of at least this size: non-temporal stores; each
                                       // rank's own
  int threads = 1;                     // of this rank inside a call; each rank's own
  bool reproducible = false;
  bool abort_on_error = false;  // INCCL_ABORT_ON_ERROR: the first fatal error kills the process
  bool preserve_input = false;  // in-place calls restore their buffer after an error
  Time op_timeout = 600 * kSecond;
  Time circle_stall = kSecond;  // see LivenessOptions
  std::shared_ptr<const Codec> default_codec;
  std::string name;  // of the communicator, for messages; each rank's own; "": none
};

}  // namespace inccl

#endif  // INCCL_COMMUNICATOR_COMM_OPTIONS_H_
