// SPDX-License-Identifier: Apache-2.0
//
// Runs a program: each strand in the order window -> group -> step -> slice, as far as slices and
// credits allow. It does not know what a codec does or how a lane sends, never waits and never
// reads a clock.
#ifndef INCCL_COLLECTIVES_EXECUTOR_H_
#define INCCL_COLLECTIVES_EXECUTOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/call.h"
#include "collectives/program.h"
#include "collectives/progress.h"
#include "engine/engine.h"
#include "transport/transport.h"

namespace inccl {

struct RequestArgs {
  const Program* program = nullptr;
  Chunking chunking;
  CodecState* codec = nullptr;  // Begin has been called
  Engine* engine = nullptr;     // of this call only; nullptr: the request's own
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  uint64_t signature = 0;
  // The parts of input and output that peers may access. The call does not end before the peers
  // have finished. In place, a part is registered only if all ranks have read it before a step
  // overwrites it.
  MemoryHandle registered_input = {}, registered_output = {};
  // The output, from which peers read the parts of the result that this rank has made.
  MemoryHandle registered_result = {};
  // Strands take turns at a group of a step's slices, so that peers read slices soon after this
  // rank has written them. Otherwise each strand runs as far as it can.
  bool turns = false;
  bool until_read = false;  // the call does not end before the peers have read its slices
  // Lanes may send elements from the caller's input and output. In place, input may be sent only if
  // no result of an element comes before the rank's own part of it has arrived at its consumers.
  bool sends_input = false, sends_output = false;
  bool on_device = false;  // input and output
};

struct RequestStats {
  uint64_t payload_bytes = 0;  // published on data and side lanes, once per receiver
  uint64_t slices = 0;         // published, once per receiver
  uint64_t raw_bytes = 0;      // uncompressed size of the slices on data lanes
};

class Executor final : public Request {
 public:
  explicit Executor(Engine* engine) : own_engine_(engine), engine_(engine) {}

  void Start(const RequestArgs& call);
  Result<int> Advance(int budget) override;
  bool done() const override { return unfinished_ == 0 && zero_copy_lanes_.empty(); }
  bool polls() const override { return open_completions_ > 0; }
  Blocked blocked_on() const override;
  void AppendAwaited(std::vector<int>* peers) const override;
  int mismatched_peer() const override { return mismatched_peer_; }
  const RequestStats& stats() const { return stats_; }

 private:
  // A step reads one half of a scratch slot and writes the other, because its output may be wider
  // than its input.
  struct ScratchSlot {
    std::vector<std::byte> half[2];
    uint32_t bytes = 0;  // in the half that is read
    uint8_t current = 0;
  };

  // An output operand of the step in progress.
  struct Outgoing {
    int term = -1;       // into StrandState::terms; -1: the engine does not write this output
    SliceHeader header;  // for an output on a lane
    const std::byte* payload = nullptr;  // where the lane sends from, if not from the slot
  };
  struct Target {
    int peer = -1;
    std::byte* memory = nullptr;
  };

  struct StrandState {
    uint64_t window = 0;
    uint32_t group = 0, groups = 0;
    uint16_t step = 0;
    uint32_t slice = 0, slice_end = 0;  // of the current step in the current group
    bool placed = false;                // the fields above name an existing slice
    bool finished = false;
    CompletionId completion = 0;
    Range part;               // of the current step
    uint64_t raw_bytes = 0;   // of the current slice in the caller's type
    std::vector<Term> terms;  // inputs, then outputs, of the step whose completion is pending
    uint16_t inputs = 0;      // of `terms`
    std::vector<Outgoing> outgoing;    // by output operand
    std::vector<Target> targets;       // where peers expect the result of this step
    bool delivered = false;            // the producer has written the result into the output
    std::vector<ScratchSlot> scratch;  // scratch slots x slices of a group
    Blocked blocked;
  };

  // Finds the next existing slice; returns false at the end.
  bool Place(const BoundStrand& strand, StrandState* state);
  bool WaitsDone(const BoundStrand& strand, const StrandState& state) const;
  // Returns true if the step ran or its completion completed.
  Result<bool> RunSlice(const BoundStrand& strand, StrandState* state);
  // A strand's turn. Adds the slices that ran to *ran, which does not exceed the budget.
  Status RunStrand(const BoundStrand& strand, int budget, StrandState* state, int* ran);
  Result<bool> FillTerms(const BoundStrand& strand, const BoundStep& step, const Range& range,
                         uint32_t tag, StrandState* state);
  Result<bool> FillInput(const BoundStrand& strand, const BoundOperand& operand, const Range& range,
                         uint32_t tag, StrandState* state);
  Result<bool> FillOutput(const BoundStrand& strand, const BoundStep& step,
                          const BoundOperand& operand, const Range& range, StrandState* state);
  static bool KeepsResult(const BoundStrand& strand, const BoundStep& step);
  // For an output on a lane with a slot: fills in source and target of the slice's header where
  // zero copy applies.
  void UseZeroCopy(const BoundStrand& strand, const BoundStep& step, const BoundOperand& operand,
                   const Range& range, StrandState* state, Outgoing* outgoing);
  bool Deliver(const BoundOperand& operand, StrandState* state, Outgoing* outgoing);
  // The caller's memory from which an output on a lane is sent; nullptr: from the slot. Sets
  // header->is_input.
  const std::byte* SentFrom(const BoundStrand& strand, const BoundStep& step,
                            const BoundOperand& operand, const Range& range,
                            const StrandState& state, SliceHeader* header) const;
  Status AwaitReaders();
  const std::byte* InputAt(const Range& range) const {
    return call_.input + call_.chunking.InputOffset(range) * element_bytes_;
  }
  std::byte* OutputAt(const Range& range) const {
    return call_.output + call_.chunking.OutputOffset(range) * element_bytes_;
  }
  ScratchSlot& Scratch(const BoundStrand& strand, StrandState* state, uint16_t slot);
  Status Complete(const BoundStrand& strand, const BoundStep& step, uint32_t tag,
                  StrandState* state);

  Engine* const own_engine_;
  Engine* engine_;  // of the call
  RequestArgs call_;
  size_t element_bytes_ = 0;  // of the caller's type
  std::vector<StrandState> strands_;
  size_t unfinished_ = 0;
  int open_completions_ = 0;
  std::vector<SendLane*> zero_copy_lanes_;  // peers may still read slices of the call on these
  RequestStats stats_;
  int mismatched_peer_ = -1;
};

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_EXECUTOR_H_
