// SPDX-License-Identifier: Apache-2.0
//
// The interface that runs the work of a step. The executor decides which step runs next; an engine
// runs it inline on the CPU, asynchronously on a GPU stream, or at a virtual time in the simulator.
#ifndef INCCL_ENGINE_ENGINE_H_
#define INCCL_ENGINE_ENGINE_H_

#include <cstdint>
#include <span>

#include "base/status.h"
#include "compress/codec.h"

namespace inccl {

using CompletionId = uint64_t;  // 0: already done

class Engine {
 public:
  virtual ~Engine() = default;
  // Starts outputs = state->Combine(inputs). If the returned id is not 0, the engine uses the
  // terms' memory and may set outputs[i].bytes until Done(id) is true; the caller keeps the spans
  // alive until then.
  virtual Result<CompletionId> Combine(CodecState* state, const Range& range,
                                       std::span<const Term> inputs, std::span<Term> outputs) = 0;
  virtual Result<bool> Done(CompletionId completion) = 0;
};

// Runs Combine in the calling thread.
class CpuEngine final : public Engine {
 public:
  Result<CompletionId> Combine(CodecState* state, const Range& range, std::span<const Term> inputs,
                               std::span<Term> outputs) override {
    if (Status status = state->Combine(range, inputs, outputs); !status.ok()) return status;
    return CompletionId{0};
  }
  Result<bool> Done(CompletionId) override { return true; }
};

}  // namespace inccl

#endif  // INCCL_ENGINE_ENGINE_H_
