// SPDX-License-Identifier: Apache-2.0
//
// Calls of all ranks whose states are twins (device_twin.h), and random ones of them.
#ifndef INCCL_TESTS_COMPRESS_TWIN_CALLS_H_
#define INCCL_TESTS_COMPRESS_TWIN_CALLS_H_

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/device_twin.h"
#include "compress/hbi_cases.h"
#include "compress/hbi_driver.h"
#include "compress/kernels/convert.h"

namespace inccl::test {

// One call of all ranks, on twins.
struct TwinCall {
  std::string spec;
  int n = 2;
  DataType type = DataType::kFloat32;
  bool average = false;
  uint64_t count = 1;
  Collective collective = Collective::kAllReduce;
  Kind kind = Kind::kGauss;
  uint64_t seed = 0, step = 0;
  bool in_place = false;

  std::string Description(const Places& places) const {
    return fmt::format(
        "{} of {} by {}: {} ranks, {} of {}, kind {}{}{}; slots {} + {}, {} beside{}",
        Name(collective), average ? "average" : "sum", spec, n, count, Name(type),
        static_cast<int>(kind), in_place ? ", in place" : "",
        fmt::format(", seed {} step {}", seed, step),
        places.slots_reached ? "reached" : "not reached", places.slot_offset,
        places.elements_beside, places.interleaved ? ", interleaved" : "");
  }
};

class Twins {
 public:
  Twins(DeviceBench* bench, const TwinCall& call, const Places& places, Rng* rng)
      : call_(call),
        driver_(call.spec, call.n, call.type, call.average ? ReduceOp::kAvg : ReduceOp::kSum,
                call.count, call.seed, call.step, call.collective) {
    driver_.Wrap([&](std::unique_ptr<CodecState> state) {
      auto twin = std::make_unique<TwinState>(bench, places, std::move(state),
                                              driver_.codec().NewState(), rng->Next());
      states_.push_back(twin.get());
      return twin;
    });
    const auto n = static_cast<size_t>(call.n);
    const size_t scattered = call.collective == Collective::kReduceScatter ? n : 1;
    const size_t gathered = call.collective == Collective::kAllGather ? n : 1;
    const size_t size = SizeOf(call.type);
    for (const std::vector<float>& x : MakeInputs(call.n, call.count * scattered, call.kind, rng)) {
      inputs_.emplace_back(x.size() * size);
      FromFloat(call.type, x.data(), inputs_.back().data(), x.size());
      outputs_.emplace_back(call.count * gathered * size);
    }
    for (size_t r = 0; r < n; ++r) {
      in_.push_back(inputs_[r].data());
      out_.push_back(call.in_place ? in_[r] : outputs_[r].data());
    }
  }

  HbiDriver& driver() { return driver_; }
  TwinState& state(int rank) { return *states_[static_cast<size_t>(rank)]; }
  const std::vector<std::byte*>& in() const { return in_; }

  void Run(Way way, uint32_t slice) {
    switch (call_.collective) {
      case Collective::kReduceScatter: driver_.RunReduceScatter(way, slice, in_, out_); break;
      case Collective::kAllGather: driver_.RunAllGather(slice, in_, out_); break;
      default: driver_.Run(way, slice, in_, out_);
    }
    CodecStats stats;
    for (TwinState* state : states_) state->Finish(&stats);
  }
  int Sum(int (TwinState::*count)() const) const {
    int sum = 0;
    for (const TwinState* state : states_) sum += (state->*count)();
    return sum;
  }

 private:
  const TwinCall call_;
  HbiDriver driver_;
  std::vector<TwinState*> states_;
  std::vector<std::vector<std::byte>> inputs_, outputs_;
  std::vector<std::byte*> in_, out_;
};

inline constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBfloat16, DataType::kFloat16,
                                      DataType::kFloat64};

inline Places RandomPlaces(Rng* rng) {
  static const size_t kOffsets[] = {0, 0, 4, 8, 2};  // kernels do not read at the last
  Places places;
  places.slots_reached = rng->Below(3) != 0;
  places.slot_offset = kOffsets[rng->Below(5)];
  places.elements_beside = rng->Below(3) == 0 ? 1 + rng->Below(3) : 0;
  places.interleaved = rng->Below(2) == 0;
  return places;
}

inline TwinCall RandomTwinCall(Rng* rng) {
  TwinCall call;
  call.n = 2 + static_cast<int>(rng->Below(8));
  call.type = kTypes[rng->Below(4)];
  call.average = rng->Below(3) == 0;
  call.count = 1 + rng->Below(4000);
  if (rng->Below(3) == 0) call.count = (call.count + 255) / 256 * 256;
  call.kind = static_cast<Kind>(rng->Below(kKinds));
  call.seed = rng->Next();
  call.step = rng->Below(100);
  const bool unbiased = rng->Below(3) == 0;
  const double bits = static_cast<double>(unbiased ? 56 + rng->Below(9) : 32 + rng->Below(33)) / 8;
  call.spec = rng->Below(3) == 0
                  ? fmt::format("hbi:k={},k2={}", 1 + rng->Below(40), 1 + rng->Below(200))
                  : fmt::format("hbi:bits={}", bits);
  if (unbiased) call.spec += ",unbiased=1";
  if (rng->Below(3) == 0) call.spec += ",ag=exact";
  if (rng->Below(3) == 0) call.spec += ",checksum=1";
  return call;
}

inline Way RandomWay(int n, Rng* rng) {
  const bool doubles = (n & (n - 1)) == 0;
  const uint64_t way = rng->Below(doubles ? 3 : 2);
  return way == 0 ? Way::kTwoShot : way == 1 ? Way::kRing : Way::kDoubling;
}

inline uint32_t RandomSliceLength(Rng* rng) {
  return kSuperblock * (1 + static_cast<uint32_t>(rng->Below(9)));
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_COMPRESS_TWIN_CALLS_H_
