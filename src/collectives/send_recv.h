// SPDX-License-Identifier: Apache-2.0
//
// Sends and receives between pairs of ranks. All those of a group progress at the same time, those
// of one pair and direction in order, on lanes of their own that open at first use. A message
// travels in slices; a message of no elements is a slice without payload. The signature of a slice
// identifies its message, so a receive that expects another one can name both.
#ifndef INCCL_COLLECTIVES_SEND_RECV_H_
#define INCCL_COLLECTIVES_SEND_RECV_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "collectives/call.h"
#include "collectives/program.h"
#include "collectives/progress.h"

namespace inccl {

// Limit of elements of one message, so that a signature can hold the count.
inline constexpr uint64_t kMostSendRecvElements = (uint64_t{1} << 40) - 1;

class SendRecvRequest final : public Request {
 public:
  SendRecvRequest(int rank, int nranks, const SlotOptions& slots);

  // Which copies use non-temporal stores. No result depends on it.
  struct Copies {
    bool slots = false;                    // into slots
    uint64_t results = uint64_t{1} << 63;  // into receive buffers of at least this many bytes
  };
  // The calls are sends and receives in host memory. Opens lanes, and copies this rank's messages
  // to itself. Returns kInvalidUsage with the name of the first such message without a partner.
  Status Start(const std::vector<Call>& calls, const Copies& copies, LaneTable* lanes);

  Result<int> Advance(int budget) override;
  bool done() const override { return unfinished_ == 0; }
  Blocked blocked_on() const override;
  void AppendAwaited(std::vector<int>* peers) const override;
  int mismatched_peer() const override { return -1; }  // Advance reports it as an error

  // "send(count=5, float32, peer=3) and others, 2 sends and 1 receives in all"
  static std::string Describe(const std::vector<Call>& calls);

 private:
  struct Message {
    Call call;
    uint64_t bytes = 0, moved = 0;
    bool started = false;
  };
  // One direction between this rank and a peer.
  struct Direction {
    SendLane* send = nullptr;
    RecvLane* recv = nullptr;
    uint64_t messages = 0;       // finished on this lane since it opened
    uint32_t slice = 0;          // of the current message
    std::vector<Message> queue;  // of this request
    size_t next = 0;             // into queue
  };

  Status CopyToSelf(const std::vector<Call>& calls) const;
  Direction& At(bool is_send, int peer) {
    return directions_[static_cast<size_t>(peer) * 2 + (is_send ? 1 : 0)];
  }
  Result<bool> SendSlice(int peer, Direction* direction);
  Result<bool> RecvSlice(int peer, Direction* direction);
  Status Mismatch(int peer, const Message& message, uint64_t index, uint64_t theirs) const;

  const int rank_, nranks_;
  const SlotOptions slots_;
  std::vector<Direction> directions_;
  std::vector<size_t> active_;  // into directions_
  size_t unfinished_ = 0;       // messages
  Copies copies_;
};

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_SEND_RECV_H_
