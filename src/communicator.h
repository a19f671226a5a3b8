// SPDX-License-Identifier: Apache-2.0
//
// One rank's end of a communicator: owns its transport, lanes, programs and control connections,
// and runs calls.
#ifndef INCCL_COMMUNICATOR_H_
#define INCCL_COMMUNICATOR_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "call.h"
#include "collectives/engine.h"
#include "collectives/executor.h"
#include "collectives/program.h"
#include "collectives/progress.h"
#include "liveness.h"
#include "transport/control/control.h"
#include "transport/transport.h"
#include "tuner.h"

namespace inccl {

// What all ranks agree on at init.
struct CommOptions {
  AlgorithmFilter algorithms;
  int channels = 1;
  uint32_t slice_bytes = 128 * 1024;
  bool reproducible = false;
  bool abort_on_error = false;  // INCCL_ABORT_ON_ERROR: a fatal error kills the process
  Time op_timeout = 600 * kSecond;
  std::shared_ptr<const Codec> default_codec;
};

struct CommEnds {
  int rank = 0, nranks = 1;
  std::vector<std::string> peer_names;  // "host:pid" by rank
  std::unique_ptr<Transport> transport;
  int ranks_on_host = 1;
};

class Communicator {
 public:
  Communicator(CommEnds ends, CommOptions options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // To be given to the control plane, which is attached afterwards.
  Liveness* liveness() { return &liveness_; }
  void AttachControl(std::unique_ptr<ControlPlane> control);

  int rank() const { return ends_.rank; }
  int nranks() const { return ends_.nranks; }
  const CommOptions& options() const { return options_; }

  // Checked arguments in, result in call.recv. A kInvalidArgument has had no effect; any other
  // error is sticky.
  Status Run(const Call& call);
  Status error() const { return liveness_.error(); }
  // From any thread: the call in progress ends with an error; returns when it has.
  void Abort();

 private:
  struct CodecUse {
    std::shared_ptr<const Codec> codec;
    std::unique_ptr<CodecState> state;
  };

  Status RunLocked(const Call& call);
  Result<const Program*> FindProgram(const Call& call, const Codec& codec, const Choice& choice);
  CodecState* StateOf(const std::shared_ptr<const Codec>& codec);
  Chunking MakeChunking(const Call& call, const Codec& codec) const;
  void FillStats(const Call& call, const CodecStats& codec_stats, bool compressed) const;

  CommEnds ends_;
  const CommOptions options_;
  Liveness liveness_;
  std::unique_ptr<ControlPlane> control_;
  CpuEngine engine_;
  Task task_;
  Progress progress_;
  LaneTable lanes_;
  std::unordered_map<uint64_t, std::unique_ptr<Program>> programs_;
  std::vector<CodecUse> codecs_;
  std::mutex call_mutex_;  // held during a call; abort waits for it
  uint64_t sequence_ = 0;
  uint64_t compressed_calls_ = 0;
};

}  // namespace inccl

#endif  // INCCL_COMMUNICATOR_H_
