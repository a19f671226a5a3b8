// SPDX-License-Identifier: Apache-2.0
//
// An engine that does its work later, in a simulated world's time, and shows who did not wait for
// it.
#ifndef INCCL_TESTS_FAKES_SIM_ENGINE_H_
#define INCCL_TESTS_FAKES_SIM_ENGINE_H_

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <span>

#include "base/rng.h"
#include "engine/engine.h"
#include "verify/sim_world.h"

namespace inccl::test {

// Each Combine is, at random, done at once or at a later virtual time; until then its outputs hold
// poison (those that are not also inputs). The world and the engine outlive all completions. With
// immediate = 1 it is the CpuEngine, with 0 always late.
class SimEngine final : public Engine {
 public:
  SimEngine(SimWorld* world, int rank, uint64_t seed, double immediate = 0.25)
      : world_(world), rank_(rank), rng_(seed), immediate_(immediate) {}

  Result<CompletionId> Combine(CodecState* state, const Range& range, std::span<const Term> inputs,
                               std::span<Term> outputs) override {
    if (rng_.Uniform() < immediate_) {
      if (Status status = state->Combine(range, inputs, outputs); !status.ok()) return status;
      return CompletionId{0};
    }
    for (const Term& output : outputs) {
      if (output.data != nullptr && !Overlaps(output, inputs)) {
        std::memset(output.data, static_cast<int>(sim::kPoison), output.bytes);
      }
    }
    const CompletionId completion = ++last_;
    pending_[completion] = Pending{};
    world_->Schedule(rank_, [this, completion, state, range, inputs, outputs] {
      Pending& entry = pending_[completion];
      entry.status = state->Combine(range, inputs, outputs);
      entry.done = true;
    });
    return completion;
  }

  Result<bool> Done(CompletionId completion) override {
    if (completion == 0) return true;
    const auto it = pending_.find(completion);
    if (it == pending_.end()) return InternalError("SimEngine: Done of an unknown completion");
    if (!it->second.done) return false;
    const Status status = it->second.status;
    pending_.erase(it);
    if (!status.ok()) return status;
    return true;
  }

  // Completions handed out and not yet found done.
  size_t pending() const { return pending_.size(); }

 private:
  struct Pending {
    bool done = false;
    Status status;
  };
  static bool Overlaps(const Term& output, std::span<const Term> inputs) {
    return std::any_of(inputs.begin(), inputs.end(), [&](const Term& input) {
      const std::less<const std::byte*> before;
      return before(input.data, output.data + output.bytes) &&
             before(output.data, input.data + input.bytes);
    });
  }

  SimWorld* world_;
  int rank_;
  Rng rng_;
  double immediate_;
  CompletionId last_ = 0;
  std::map<CompletionId, Pending> pending_;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_FAKES_SIM_ENGINE_H_
