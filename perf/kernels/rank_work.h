// SPDX-License-Identifier: Apache-2.0
//
// One rank's work in an all-reduce, two-shot, with the payloads of its peers at hand.
#ifndef INCCL_PERF_KERNELS_RANK_WORK_H_
#define INCCL_PERF_KERNELS_RANK_WORK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/team.h"
#include "base/types.h"
#include "compress/codec.h"

namespace inccl::perf {

class RankWork {
 public:
  struct Options {
    uint64_t elements = 16 << 20;  // whole windows, or a multiple of ranks * kSuperblock below one
    DataType type = DataType::kFloat32;
    int ranks = 4;
    uint32_t slice_bytes = 128 * 1024;  // of a slot
    std::string codec = "hbi:bits=6";
    bool non_temporal = false;  // stores, as in calls that are larger than the caches
  };
  static constexpr const char* kPhases[] = {"codes", "quantize", "owner", "decode", "all"};
  static constexpr size_t kAll = 4;
  using Times = std::array<double, 5>;  // of the phases, in milliseconds

  // Terminates the program if the codec refuses the call.
  explicit RankWork(const Options& options);

  // The call on rank 0. Peers have its elements, each from another place on; the first Run prepares
  // them.
  Times Run(Team* team);

  std::span<const std::byte> output() const { return output_; }
  uint32_t slice() const { return slice_; }  // elements

 private:
  using Bytes = std::vector<std::byte>;
  static constexpr size_t kSlots = 4;  // of a lane, which are used in turns

  Term In(const Range& range, int rank = 0);
  Term Out(const Range& range);
  Term Slot(const Format& format);
  void Require(const Status& status) const;
  template <typename Body>
  void Slices(uint64_t first, uint64_t end, const Body& body);
  void Combine(const Range& range, const std::vector<Term>& in, std::vector<Term> out);
  void Agree(uint64_t window, uint64_t chunk);
  void Own(const Range& range);
  // What the peers send for a window.
  Bytes Make(const Range& range, const std::vector<Term>& in, const Format& format, size_t room,
             CodecState* state);
  void Prepare(uint64_t window, uint64_t chunk);

  const Options options_;
  const uint64_t window_;  // elements
  Bytes input_, room_;
  std::span<std::byte> output_;  // in room_
  std::shared_ptr<const Codec> codec_;
  std::unique_ptr<CodecState> state_;
  uint32_t slice_ = 0;
  size_t slot_bytes_ = 0;
  std::array<Bytes, kSlots> slots_;
  size_t next_slot_ = 0;
  Bytes side_;
  bool prepared_ = false;
  // Of the peers, in the order in which they are needed.
  std::vector<Bytes> sides_, agreed_, sums_, results_;
  size_t next_side_ = 0, next_agreed_ = 0, next_sum_ = 0, next_result_ = 0;
};

}  // namespace inccl::perf

#endif  // INCCL_PERF_KERNELS_RANK_WORK_H_
