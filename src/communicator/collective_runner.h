// SPDX-License-Identifier: Apache-2.0
//
// Runs one call of a communicator in the calling thread: settles the codec, chooses the algorithm,
// binds the schedule to lanes, registers buffers for zero copy, and drives the request to its end.
#ifndef INCCL_COMMUNICATOR_COLLECTIVE_RUNNER_H_
#define INCCL_COMMUNICATOR_COLLECTIVE_RUNNER_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/team.h"
#include "collectives/call.h"
#include "collectives/executor.h"
#include "collectives/program.h"
#include "collectives/progress.h"
#include "collectives/send_recv.h"
#include "communicator/comm_options.h"
#include "communicator/device_engines.h"
#include "communicator/host_sums.h"
#include "communicator/zero_copy.h"
#include "compress/residual/residual.h"
#include "engine/engine.h"
#include "failure/liveness.h"
#include "topology/host_map.h"
#include "transport/transport.h"
#include "tuning/segmentation.h"
#include "tuning/tuner.h"

namespace inccl {

// What a call needs besides its buffers: algorithm, schedule with its lanes, and segmentation. A
// plan is made at the first call of its kind, and kept.

struct Plan {
  CollectiveArgs args;
  // Expires with the codec, so another codec at the same address does not match.
  std::weak_ptr<const Codec> codec;
  bool below_min_bytes = false;
  bool chosen = false;  // false: an empty entry
  Choice choice;
  // From Bind on.
  const Program* program = nullptr;
  Chunking chunking;
};

// The plans of one communicator's calls among the same ranks. One thread at a time.
class Plans {
 public:
  struct Options {
    SlotBudget slots = {};
    const HostMap* hosts = nullptr;  // of the calls' ranks; nullptr: one host
    std::vector<int> members = {};   // the calls' ranks in the communicator, ascending; empty: all
    bool filtered = false;           // by the algorithms that the user admits
  };

  // All pointers outlive it.
  Plans(Options options, const CommOptions* comm, LaneTable* lanes)
      : options_(std::move(options)), comm_(*comm), lanes_(lanes) {}

  // The plan of such a call, not bound at the first one, valid until the next For. kInvalidArgument
  // if no algorithm can run the call. `below_min_bytes`: TunerCall's.
  Result<Plan*> For(const Call& call, bool below_min_bytes);
  // Gives a plan its lanes and cuts the call into slices. Does nothing for a plan that has them.
  Status Bind(const Call& call, Plan* plan);

  // The algorithm of such a call, without a plan.
  Result<Choice> ChoiceFor(const Call& call, bool below_min_bytes) const {
    return Choose(Tuned(call, below_min_bytes),
                  options_.filtered ? comm_.algorithms : AlgorithmFilter(), comm_.tuner_table);
  }
  // What the tuner sees of a call.
  TunerCall Tuned(const Call& call, bool below_min_bytes) const;

 private:
  static constexpr int kPlaceBits = 4;
  Result<const Program*> ProgramFor(const Call& call, const Codec& codec, const Choice& choice,
                                    const SlotOptions& slots);

  const Options options_;
  const CommOptions& comm_;
  LaneTable* const lanes_;
  std::map<uint64_t, std::unique_ptr<Program>> programs_;  // by collective, algorithm, root and
                                                           // side phases
  std::array<Plan, 1 << kPlaceBits> kept_;
};

// One thread at a time. All pointers outlive it.
class CollectiveRunner {
 public:
  struct Ends {
    int rank = 0, nranks = 1;
    std::string name;  // of the rank and the communicator, for messages
    const Lineage* lineage = nullptr;
    Transport* transport = nullptr;
    Liveness* liveness = nullptr;
    DeviceEngines* engines = nullptr;
    const HostMap* hosts = nullptr;  // nullptr: one host
    WaitPolicy wait;
    bool helpers_spin = false;  // each thread of the ranks has a processor
  };
  CollectiveRunner(Ends ends, const CommOptions* options);

  // `engine` belongs to the device that holds the call's buffers; nullptr for host memory. A call
  // that returns kInvalidArgument has had no effect on this communicator.
  Status Run(const Call& call, Engine* engine);
  // Runs sends and receives in host memory, all at the same time.
  Status RunSendRecv(const std::vector<Call>& calls);
  // Runs small all-reduces, one of them with the default codec.
  Status WarmUp(WaitObserver* observer);

  // The number of collectives that have begun.
  uint64_t sequence() const { return sequence_; }
  ZeroCopy* zero_copy() { return &zero_copy_; }

 private:
  struct CodecUse {
    std::shared_ptr<const Codec> codec;
    std::unique_ptr<CodecState> state;
  };

  // Checks the call's codec, drops it where the call runs uncompressed, and fills in the step.
  Status SettleCodec(Call* call, bool* below_min_bytes) const;
  Status CheckHostSums(const Call& call) const;
  // Begins and runs a call of neither a reducer nor several vectors.
  Status Begin(const Call& call, Engine* engine);
  // Settles codec and factor. A call that overwrites what it sends sends `input` instead.
  Status Settle(Call* call, std::vector<std::byte>* input, bool* below_min_bytes) const;
  // Runs a collective inside a call that has begun, on host memory and among the ranks of `plans`.
  Status RunInner(const Call& call, bool below_min_bytes, Plans* plans, uint64_t signature);
  // Drives a collective from CodecState::Begin to Finish, and commits its residual, if it has one.
  Status Execute(const Call& call, Plans* plans, Plan* plan, Engine* engine, uint64_t signature,
                 WaitObserver* observer);

  // Calls that consist of calls (inner_calls.cc).
  // Whether the ranks of a compressed all-reduce over long links send each other their inputs.
  bool GathersInputs(const Call& call, const Engine* engine, const Choice& choice) const;
  Status GatherInputs(const Call& call, uint64_t signature);
  // The ranks of each host add up their elements first.
  Status SumOnHosts(const Call& call);
  Plans* PlansOf(HostSums::Group group);
  // An all-reduce of several vectors, in host or device memory, on a copy of all of them.
  Status Concatenate(const Call& call);
  // An all-reduce as the rounds of its reducer, under one sequence number.
  Status Reduce(const Call& call);
  // kInvalidArgument if some round cannot run here.
  Status CheckRounds(const Call& call) const;
  // The round's collective, with its codec settled and without buffers. Not `sized`: its count is
  // not known yet, and the codec takes it for large enough.
  Status SettleRound(const Call& call, int round, bool sized, Call* inner,
                     bool* below_min_bytes) const;
  Status RunRounds(const Call& call, uint64_t signature, ccl_compression_stats_t* stats);
  // Runs this call on data of its own, if a short algorithm takes it (warm_up.cc).
  Status WarmUp(Call call, WaitObserver* observer);

  // Runs a call on a communicator of one rank; not a premultiplied sum on a device.
  Status RunAlone(const Call& call) const;
  Status RunAloneWithResidual(const Call& call) const;
  // Whether the output is large enough for non-temporal stores.
  bool TakesNonTemporalOutput(const Call& call) const;
  // Whether slots can be written with non-temporal stores.
  bool TakesNonTemporalSlots(Algorithm algorithm) const;
  // Whether lanes may send elements from the caller's input.
  bool SendsInput(const Call& call, Algorithm algorithm) const;
  bool AllLanesMulticast() const;
  // Logs the call and why its algorithm was chosen, at level INFO.
  void LogCall(const Call& call, bool below_min_bytes, const Plans& plans,
               const Choice& choice) const;
  CodecState* StateOf(const std::shared_ptr<const Codec>& codec);
  // Copies as much as the caller's structure holds.
  static void CopyStats(ccl_compression_stats_t stats, ccl_compression_stats_t* to);
  void FillStats(const Call& call, const CodecStats& codec_stats, bool compressed) const;

  const int rank_, nranks_;
  const std::string name_;
  const Lineage& lineage_;
  Transport* const transport_;
  Liveness* const liveness_;
  DeviceEngines* const engines_;
  const CommOptions& options_;
  const HostMap* const hosts_;
  const SlotBudget slots_;
  Team team_;
  CpuEngine engine_;
  Executor executor_;
  std::unique_ptr<SendRecvRequest> send_recv_;  // created at the first send or receive
  Progress progress_;
  LaneTable lanes_;
  Plans plans_, own_plans_;  // of the user's calls and of the library's
  // Of calls in which the ranks of each host add up their elements first; made at the first.
  struct HostPlans {
    HostPlans(const SlotBudget& slots, const HostSums& sums, HostMap one_each,
              const CommOptions* options, LaneTable* lanes);
    const HostMap rail;  // a rank on each host
    Plans inside, between;
  };
  std::optional<HostSums> host_sums_;  // with several hosts
  std::unique_ptr<HostPlans> host_plans_;
  std::vector<CodecUse> codecs_;
  FeedbackState feedback_;
  // Of calls with a reducer.
  struct RoundBuffers {
    std::vector<std::byte> sent, received;
    std::shared_ptr<Residual> errors;  // what the codec leaves out
    std::vector<float> error_values;
  };
  RoundBuffers rounds_;
  // Of calls on several vectors: their elements, one after the other, and what they feed back.
  std::vector<std::byte> fused_;
  std::vector<float> fused_errors_;
  std::shared_ptr<Residual> fused_residual_;
  std::array<StorePolicy, kCollectiveKinds> slot_stores_;
  StorePolicy send_recv_stores_;
  const bool own_processor_;  // all ranks of this host have one
  ZeroCopy zero_copy_;
  const bool all_read_in_place_;  // all other ranks read this rank's slots in place
  uint64_t sequence_ = 0;
  uint64_t compressed_calls_ = 0;
};

}  // namespace inccl

#endif  // INCCL_COMMUNICATOR_COLLECTIVE_RUNNER_H_
