// SPDX-License-Identifier: Apache-2.0
//
// The interface of all transports. A lane is directed: it has one producer, a fixed set of
// consumers and `depth` slots. The producer acquires a slot once every consumer has released its
// previous contents (a credit), fills it in place and publishes it. Each consumer peeks at the
// slices in order, reads them in place and releases them. No call blocks; only
// collectives/progress.h waits.
//
// Both sides open a lane with equal specs. Until the other end exists, TryPeek finds nothing and
// TryAcquire has the credits of an empty lane, or none if the consumer grants them. One
// thread at a time uses a transport and its lanes, except where a method says otherwise.
#ifndef INCCL_TRANSPORT_TRANSPORT_H_
#define INCCL_TRANSPORT_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/exports.h"

namespace inccl {

class WakeupSource;

struct Span {
  std::byte* data = nullptr;
  size_t bytes = 0;
};

enum class LaneClass : uint8_t { kData, kSide, kSendRecv };

struct LaneSpec {
  LaneClass lane_class = LaneClass::kData;
  uint8_t channel = 0;
  int producer = 0;
  // Ascending, without the producer. More than one needs LaneCaps::multicast.
  std::vector<int> consumers;
  uint32_t slot_bytes = 0;  // largest payload of a slice
  uint16_t depth = 0;       // slots, at least 1

  // A 64-bit hash: equal specs have equal keys, different specs of one communicator different ones.
  uint64_t Key() const;
  // The position of a rank in `consumers`; consumers.size() if it is none of them.
  int PlaceOf(int rank) const;
};

// The header of a slice. On the wire a slice costs kHeaderBytes + bytes.
struct SliceHeader {
  uint32_t bytes = 0;      // size of the payload, <= slot_bytes (the lane checks it)
  uint32_t slice = 0;      // running number within the call; the executor checks it
  uint64_t signature = 0;  // of the call this slice belongs to
  // Zero copy, only where all consumers reach the producer's regions (SendLane::ReachableFrom).
  // The payload lies here instead of in the slot, until the slot is released.
  RemoteAddress source = {};
  // The consumer may write the result of these `bytes` here instead of publishing it.
  RemoteAddress target = {};
  // Bit i: consumer LaneSpec::consumers[i] already has this payload at the target that it named.
  uint64_t delivered = 0;
  // The payload is the producer's input as its caller has it, in place of what the codec makes of
  // it. Only where SendLane::marks_inputs.
  bool is_input = false;
};
inline constexpr uint32_t kHeaderBytes = 64;
inline constexpr uint32_t kCreditBytes = 16;  // cost of returning a credit on a network

class SendLane {
 public:
  virtual ~SendLane() = default;
  // Returns the next slot: 64-byte aligned, spec.slot_bytes large. data is nullptr while there is
  // no credit. Idempotent.
  virtual Result<Span> TryAcquire() = 0;
  // Sends the slot that the last TryAcquire returned. header.bytes may be 0.
  virtual Status Publish(const SliceHeader& header) = 0;
  // True if PublishFrom can send this memory of the caller. The processor cannot read it if it is
  // `on_device`.
  virtual bool SendsFrom(const std::byte* /*data*/, size_t /*bytes*/, bool /*on_device*/) const {
    return false;
  }
  // Publish with the payload at `data` instead of in the slot, where SendsFrom is true. The caller
  // leaves the payload unchanged until Transport::unsent is false, the consumer has released the
  // slice, or Transport::DropUnsent has returned.
  virtual Status PublishFrom(const SliceHeader& header, const std::byte* data, bool on_device);
  // True if the lane's slices carry SliceHeader::is_input.
  virtual bool marks_inputs() const { return false; }
  // True if all consumers have imported this region of this rank (MemoryHandle::region).
  virtual bool ReachableFrom(uint32_t /*region*/) const { return false; }
  // True if all consumers have released all slices.
  virtual Result<bool> Drained() { return true; }
  // Appends the consumers that still hold the next slot, as seen by the last TryAcquire; with
  // `everything`, those that hold any slot, as seen by the last Drained.
  virtual void AppendHolders(bool /*everything*/, std::vector<int>* ranks) const {
    ranks->insert(ranks->end(), spec().consumers.begin(), spec().consumers.end());
  }
  virtual const LaneSpec& spec() const = 0;
};

class RecvLane {
 public:
  virtual ~RecvLane() = default;
  struct Incoming {
    SliceHeader header;  // copied out of the slot and checked once
    const std::byte* payload = nullptr;
    std::byte* target = nullptr;  // address of header.target with room for header.bytes, or nullptr
  };
  // Returns true and fills *incoming if the next slice has arrived. Idempotent until Release.
  virtual Result<bool> TryPeek(Incoming* incoming) = 0;
  // Returns the slot of the last peeked slice to the producer.
  virtual Status Release() = 0;
  virtual const LaneSpec& spec() const = 0;
};

// Wakes a sleeping rank. The owner calls Arm, looks once more for work, then calls Wait or Disarm;
// a Signal after Arm is never lost.
class WakeupEvent {
 public:
  virtual ~WakeupEvent() = default;
  virtual uint32_t Arm() = 0;
  // Blocks until a Signal that came after Arm, the relative timeout in ns, or a spurious wake-up;
  // then disarms.
  virtual void Wait(uint32_t token, Time timeout) = 0;
  virtual void Disarm() = 0;
  // Any thread of this process may call it; lanes of peers signal by themselves.
  virtual void Signal() = 0;
};

// What holds for all lanes of a transport.
struct Caps {
  const char* name = "";  // "loopback", "shm", "sim", ...; lives as long as the transport
  bool timed = true;      // Progress uses its argument; if false, callers skip the clock
  uint64_t slot_memory = UINT64_MAX;  // limit of all slots of a rank together, in bytes
  // A lane of several consumers takes its slots from that memory once, not once per consumer.
  bool shared_slots = false;
  // A lane between hosts may have as many slots as a long link holds: they take memory when slices
  // need them.
  bool deep_lanes = false;
};

// What holds for the lanes from one producer to a set of consumers.
struct LaneCaps {
  bool multicast = false;      // one lane may have all of these consumers, at the cost of one
  bool read_in_place = false;  // consumers read the memory that the producer has written
  uint32_t max_slot_bytes = 1u << 30;
  bool consumer_grants = false;  // no credits before the consumer has opened its end
};

// Totals of what this rank has sent. A slice counts once per Publish.
struct TransportCounters {
  uint64_t slices = 0;
  uint64_t payload_bytes = 0;
  uint64_t credits = 0;  // releases
};

// One rank's end of a communicator's data path.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual Caps caps() const = 0;
  // The producer and all consumers of a lane get equal answers. All ranks are different ranks of
  // this transport.
  virtual LaneCaps CapsFor(int producer, std::span<const int> consumers) const = 0;
  // The consumer sets of the lanes that replace a lane to `consumers` (ascending): each consumer is
  // in one of them. The producer and each consumer get equal sets for that consumer.
  virtual std::vector<std::vector<int>> Split(int producer, std::span<const int> consumers) const;
  // Not on the fast path. OpenSend needs spec.producer == this rank; OpenRecv needs this rank in
  // spec.consumers. Each key may be opened once per side.
  virtual Result<std::unique_ptr<SendLane>> OpenSend(const LaneSpec& spec) = 0;
  virtual Result<std::unique_ptr<RecvLane>> OpenRecv(const LaneSpec& spec) = 0;
  // The caller's memory that peers reach without a copy; the default refuses all memory.
  virtual Exports* exports();
  // Appends the memory of the slots that this rank's lanes read and write, so that the caller can
  // register it with a device. The spans are whole pages and stay valid until the transport ends.
  // Later calls return more and longer spans as lanes open here and on peers.
  virtual void SlotMemory(std::vector<Span>* /*spans*/) const {}
  // Advances the transport and returns the number of events handled; an error names the peer. The
  // caller calls it in every polling round, because an emulated link shows only what is visible at
  // the `now` of the last call.
  virtual Result<int> Progress(Time now) = 0;
  // True while published slices still need Progress to leave this process. A collective does not
  // return before they have left, so peers do not depend on what its caller does next.
  virtual bool unsent() const { return false; }
  // Appends the peers to which these slices go.
  virtual void AppendUnsent(std::vector<int>* /*ranks*/) const {}
  // Called after a failed call: from then on the transport reads no memory of the caller. What it
  // had to send from there is lost, and with it the connection.
  virtual void DropUnsent() {}
  // nullptr if no rank sleeps on this transport (simulator).
  virtual WakeupEvent* wakeup_event() = 0;
  // What this transport contributes to a wait on several transports (poll_wakeup_event.h), which
  // replaces wakeup_event(); nullptr if it cannot share a wait.
  virtual WakeupSource* wakeup_source() { return nullptr; }
  // True if the peers' machines have all that this rank has published; Progress sends it. A rank
  // disconnects its control connections only then, because the disconnect would overtake its data.
  virtual bool delivered() const { return true; }
  // Afterwards no peer touches this rank's private memory, and lanes may only be destroyed.
  virtual void Quiesce(Time deadline) = 0;
  // Bytes of slot memory that this rank has committed.
  virtual uint64_t memory_bytes() const = 0;
  virtual TransportCounters counters() const { return {}; }
};

// Checks that every transport makes when it opens and uses a lane.

enum class LaneSide { kSend, kRecv };

// Returns kInvalidArgument, naming the field and its value, if `spec` is not a valid lane among
// `nranks` ranks that `rank` may open on this side of this transport.
Status CheckLaneSpec(const LaneSpec& spec, LaneSide side, int rank, int nranks,
                     const Transport& transport);

// CheckPublish returns kInvalidUsage if no slot is acquired and kInvalidArgument if the slice does
// not fit into a slot. PublishError builds the error.
Status PublishError(const LaneSpec& spec, bool acquired, const SliceHeader& header);
inline Status CheckPublish(const LaneSpec& spec, bool acquired, const SliceHeader& header) {
  if (acquired && header.bytes <= spec.slot_bytes) [[likely]]
    return Status::Ok();
  return PublishError(spec, acquired, header);
}

// kInvalidUsage: the consumer called Release without a peeked slice.
Status ReleaseError(const LaneSpec& spec);

// Errors of Attach: kInvalidArgument if `peer` is not another one of the ranks; kInvalidUsage.
Status CheckPeer(int rank, int peer, int nranks);
Status AttachedTwice(int rank, int peer);
// Errors of OpenSend and OpenRecv: kInvalidUsage.
Status NotAttached(int rank, const LaneSpec& spec, int peer);
Status OpenedTwice(int rank, const LaneSpec& spec, LaneSide side);

// "data lane 3 -> 0,1 (channel 2, 4 x 131072 bytes)", for messages.
std::string Describe(const LaneSpec& spec);

}  // namespace inccl

#endif  // INCCL_TRANSPORT_TRANSPORT_H_
