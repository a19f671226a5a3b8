// SPDX-License-Identifier: Apache-2.0
//
// All ranks of a communicator in one thread: the real schedules, executor, slots and segmentation
// over loopback, for whole calls of any codec.
#ifndef INCCL_TESTS_COMPRESS_CODEC_WORLD_H_
#define INCCL_TESTS_COMPRESS_CODEC_WORLD_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/executor.h"
#include "compress/codec.h"
#include "compress/residual/residual.h"
#include "transport/loopback/loopback.h"
#include "tuning/segmentation.h"

namespace inccl::test {

// One rank's part of a call.
struct CodecBuffers {
  const std::byte* input;
  std::byte* output;
};

class CodecWorld {
 public:
  static constexpr uint32_t kSliceBytes = 4096;

  // `under_way`: as over long links, side information may run that far ahead (SlotsFor).
  CodecWorld(std::shared_ptr<const Codec> codec, int nranks, uint64_t under_way = 0)
      : codec_(std::move(codec)),
        hosts_(HostsFor(nranks)),
        slots_(SlotsFor(kSliceBytes, under_way)),
        ends_(MakeLoopback(nranks)) {
    for (const std::unique_ptr<Transport>& end : ends_) {
      ranks_.push_back(std::make_unique<Rank>(end.get(), *codec_));
    }
  }

  // Calls from now on feed back errors; `residuals` has one per rank.
  void UseResiduals(std::vector<std::unique_ptr<Residual>>* residuals) { residuals_ = residuals; }

  const Codec& codec() const { return *codec_; }
  int nranks() const { return static_cast<int>(ends_.size()); }
  // Where ranks are in algorithms for several hosts: every other one is on the second host, and the
  // last one, too.
  static HostMap HostsFor(int nranks) {
    std::vector<uint64_t> identities;
    for (int rank = 0; rank < nranks; ++rank) {
      identities.push_back(rank == nranks - 1 ? 1 : static_cast<uint64_t>(rank % 2));
    }
    return HostMap(identities);
  }

  // `call.rank` is set here. Fails the test if the call does, or if no rank makes progress.
  void Run(CollectiveArgs call, Algorithm algorithm, const std::vector<CodecBuffers>& buffers) {
    for (int r = 0; r < nranks(); ++r) {
      call.rank = r;
      ASSERT_NO_FATAL_FAILURE(Start(call, algorithm, buffers[static_cast<size_t>(r)]));
    }
    bool done = false;
    while (!done) {
      int steps = 0;
      done = true;
      for (const std::unique_ptr<Rank>& rank : ranks_) {
        const Result<int> ran = rank->task.Advance(64);
        ASSERT_TRUE(ran.ok()) << ran.status().message();
        steps += *ran;
        done = done && rank->task.done();
      }
      ASSERT_TRUE(done || steps > 0) << "no rank makes progress";
    }
    for (const std::unique_ptr<Rank>& rank : ranks_) rank->state->Finish(&rank->stats);
  }

  // Ends the use of the residuals by the call that has run.
  void EndResiduals(bool committed, uint64_t operation) {
    for (const std::unique_ptr<Residual>& residual : *residuals_) {
      residual->End(committed ? std::optional(CallName{lineage_.number(), operation})
                              : std::nullopt);
    }
  }
  const Lineage& lineage() const { return lineage_; }

  const CodecStats& stats(int rank) const { return ranks_[static_cast<size_t>(rank)]->stats; }
  const RequestStats& sent(int rank) const {
    return ranks_[static_cast<size_t>(rank)]->task.stats();
  }

 private:
  const Lineage lineage_;
  struct Rank {
    Rank(Transport* transport, const Codec& codec)
        : lanes(transport), state(codec.NewState()), task(&engine) {}
    LaneTable lanes;
    std::unique_ptr<CodecState> state;
    CpuEngine engine;
    Executor task;
    FeedbackState feedback;
    std::map<std::pair<Collective, Algorithm>, std::unique_ptr<Program>> programs;
    CodecStats stats;
  };

  void Start(const CollectiveArgs& call, Algorithm algorithm, const CodecBuffers& buffers) {
    Rank& rank = *ranks_[static_cast<size_t>(call.rank)];
    std::unique_ptr<Program>& program = rank.programs[{call.collective, algorithm}];
    if (program == nullptr) {
      Result<Schedule> schedule = MakeSchedule(
          {call, algorithm, 1, codec_->side_phases().size(), false, codec_->route().group,
           TraitsOf(algorithm).several_hosts ? &hosts_ : nullptr});
      ASSERT_TRUE(schedule.ok()) << schedule.status().message();
      auto bound = Bind(*std::move(schedule), slots_, &rank.lanes);
      ASSERT_TRUE(bound.ok()) << bound.status().message();
      program = *std::move(bound);
    }
    // Hints, which change no bit.
    rank.state->set_non_temporal(call.rank % 2 == 1, call.rank % 3 != 1);
    CodecState* state = rank.state.get();
    if (residuals_ != nullptr) {
      Residual* residual = (*residuals_)[static_cast<size_t>(call.rank)].get();
      ASSERT_TRUE(residual->Take(lineage_).ok());
      rank.feedback.Use(state, residual, TraitsOf(algorithm).one_owner);
      state = &rank.feedback;
    }
    const Status begun = state->Begin(call);
    ASSERT_TRUE(begun.ok()) << begun.message();
    rank.task.Start({.program = program.get(),
                     .chunking = CutCall(call, *codec_, 1, kSliceBytes),
                     .codec = state,
                     .input = buffers.input,
                     .output = buffers.output,
                     .signature = 1});
  }

  std::shared_ptr<const Codec> codec_;
  HostMap hosts_;
  SlotOptions slots_;
  std::vector<std::unique_ptr<Residual>>* residuals_ = nullptr;
  std::vector<std::unique_ptr<Transport>> ends_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_COMPRESS_CODEC_WORLD_H_
