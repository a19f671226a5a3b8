// SPDX-License-Identifier: Apache-2.0
//
// How slices travel. A lane is directed: one producer, a fixed set of consumers, `depth` slots. The
// producer acquires a slot when every consumer has released what was in it before (a credit), fills
// it in place, and publishes it; each consumer peeks at slices in order, reads them in place, and
// releases them. Every call returns at once; waiting is the business of collectives/progress.h
// alone.
//
// Lanes are opened on both sides with equal specs and wire themselves: until the other end exists,
// TryPeek finds nothing and TryAcquire has the credits of an empty lane. One thread uses a
// transport and its lanes at a time, except where a method says otherwise.
#ifndef INCCL_TRANSPORT_TRANSPORT_H_
#define INCCL_TRANSPORT_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "memory/region.h"

namespace inccl {

struct Span {
  std::byte* data = nullptr;
  size_t bytes = 0;
};

enum class LaneClass : uint8_t { kData, kSide, kSendRecv };

struct LaneSpec {
  LaneClass lane_class = LaneClass::kData;
  uint8_t channel = 0;
  int producer = 0;
  std::vector<int>
      consumers;            // ascending, without the producer; more than one needs Caps::multicast
  uint32_t slot_bytes = 0;  // largest payload of a slice
  uint16_t depth = 0;       // slots, at least 1

  // Equal specs have equal keys; different specs of one communicator have different ones. 64-bit
  // hash.
  uint64_t Key() const;
};

// A place in a region that its owner has offered to its peers.
struct RemoteAddress {
  uint32_t region = 0;  // what Transport::ExportRegion returned; 0: nowhere
  uint64_t offset = 0;
};

// What travels beside a payload. On the wire a slice costs kHeaderBytes + bytes.
struct SliceHeader {
  uint32_t bytes = 0;      // of the payload, <= slot_bytes (checked by the lane)
  uint32_t slice = 0;      // running number within the call, for protocol checks by the executor
  uint64_t signature = 0;  // of the call this slice belongs to
  Time departure = 0;      // for link emulation: when its last byte leaves the sender; else 0
  // Where all consumers reach the producer's regions (SendLane::ReachableFrom): the payload lies
  // there, not in the slot, until the slot is released;
  RemoteAddress source = {};
  // the consumer may write what becomes of these `bytes` there, in place of publishing it;
  RemoteAddress target = {};
  // the consumers that have got this payload in such a way, by their place in LaneSpec::consumers.
  uint64_t delivered = 0;
};
inline constexpr uint32_t kHeaderBytes = 64;
inline constexpr uint32_t kCreditBytes = 16;  // what returning a credit costs on a network

class SendLane {
 public:
  virtual ~SendLane() = default;
  // The next slot, 64-byte aligned, spec.slot_bytes large; data == nullptr while there is no
  // credit. Idempotent.
  virtual Result<Span> TryAcquire() = 0;
  // Sends the slot that TryAcquire returned last. bytes may be 0.
  virtual Status Publish(const SliceHeader& header) = 0;
  // True: all consumers have mapped that region of this rank (an id of Transport::ExportRegion).
  virtual bool ReachableFrom(uint32_t /*region*/) const { return false; }
  // True: all consumers have released everything.
  virtual Result<bool> Drained() { return true; }
  // Appends the consumers that hold the next slot, as the last TryAcquire has seen them;
  // `everything`: those that hold any slot, as the last Drained has seen them.
  virtual void AppendHolders(bool /*everything*/, std::vector<int>* ranks) const {
    ranks->insert(ranks->end(), spec().consumers.begin(), spec().consumers.end());
  }
  // For link emulation: the latest stamp with which a consumer released what was before in the slot
  // acquired last.
  virtual Time CreditDeparture() const { return 0; }
  virtual const LaneSpec& spec() const = 0;
};

class RecvLane {
 public:
  virtual ~RecvLane() = default;
  struct Incoming {
    SliceHeader header;  // copied out of the slot and checked once
    const std::byte* payload = nullptr;
    std::byte* target = nullptr;  // header.target, room for header.bytes; nullptr: nowhere
  };
  // True and *incoming filled if a slice is there. Idempotent until Release.
  virtual Result<bool> TryPeek(Incoming* incoming) = 0;
  // Gives the slot of the last peeked slice back to the producer.
  virtual Status Release() = 0;
  // For link emulation: Release that leaves a stamp for SendLane::CreditDeparture, and the header
  // of the slice `ahead` places behind the next one, if that is there already.
  virtual Status ReleaseStamped(Time /*departure*/) { return Release(); }
  virtual Result<bool> PeekAhead(uint32_t /*ahead*/, SliceHeader* /*header*/) { return false; }
  virtual const LaneSpec& spec() const = 0;
};

// Wakes a rank that sleeps. Arm, look once more for work, then Wait or Disarm: a Ring after Arm is
// never lost.
class WakeupEvent {
 public:
  virtual ~WakeupEvent() = default;
  virtual uint32_t Arm() = 0;
  // Blocks until a Ring since Arm, the relative timeout in ns, or a spurious wake-up; disarms.
  virtual void Wait(uint32_t token, Time timeout) = 0;
  virtual void Disarm() = 0;
  // From any thread of this process; lanes of peers ring by themselves.
  virtual void Signal() = 0;
};

struct Caps {
  bool multicast = false;  // lanes may have several consumers at the cost of one
  uint32_t max_slot_bytes = 1u << 30;
  const char* name = "";       // "loopback", "shm", "sim", ...
  bool timed = true;           // Progress looks at its argument; where it does not, asking is saved
  bool read_in_place = false;  // consumers read the very memory that the producer has written
  uint64_t slot_memory = UINT64_MAX;  // bytes that all slots of a rank can take together
};

// What this rank has sent so far, a slice once per Publish.
struct TransportCounters {
  uint64_t slices = 0;
  uint64_t payload_bytes = 0;
  uint64_t credits = 0;  // releases
};

// One per communicator end.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual Caps caps() const = 0;
  // Cold. spec.producer == this rank for OpenSend; this rank is among spec.consumers for OpenRecv.
  // Each key at most once per side and transport.
  virtual Result<std::unique_ptr<SendLane>> OpenSend(const LaneSpec& spec) = 0;
  virtual Result<std::unique_ptr<RecvLane>> OpenRecv(const LaneSpec& spec) = 0;
  // Lets peers map a region; returns the id by which they know it, 0: this transport cannot. Cheap
  // where nothing has changed. Peers map it at their leisure (Progress); until then nothing
  // reaches it. May take the place of another region, the one used longest ago, so: only between
  // calls, at most kExportsPerCall for one.
  static constexpr int kExportsPerCall = 8;
  virtual uint32_t ExportRegion(const Region& /*region*/) { return 0; }
  // After an error: from now on no slice that lies in this region can be released. What a peer that
  // is late reads there, when its owner writes to it again, so ends in an error and not in a
  // result.
  virtual void InvalidateRegion(uint32_t /*region*/) {}
  // From the next Progress on; it outlives that, until another one or nullptr is set. Without one
  // peers' memory of devices stays where this rank does not reach it.
  virtual void SetRegionImporter(RegionImporter* /*opener*/) {}
  // Appends where payloads lie that this rank's lanes read and write, as far as this is memory that
  // stays until the transport ends: what a device may be told of. Whole pages. As lanes open here
  // and elsewhere, more spans come and spans become longer.
  virtual void SlotMemory(std::vector<Span>* /*spans*/) const {}
  // Moves what needs moving; events handled. An error names the peer. Call it in every round of
  // polling: an emulated link shows what has become visible by the last call's `now`.
  virtual Result<int> Progress(Time now) = 0;
  // True: slices that were published here still need Progress to leave this process. The caller of
  // a collective does not get its thread back before they have, so that peers do not depend on what
  // it does next.
  virtual bool unsent() const { return false; }
  // Appends the peers for which these slices are.
  virtual void AppendUnsent(std::vector<int>* /*ranks*/) const {}
  // The first time after the last Progress at which something becomes visible without anybody
  // ringing (an emulated link's delivery); kNever if none.
  virtual Time NextEvent() const { return kNever; }
  // nullptr: this transport is never slept on (simulator).
  virtual WakeupEvent* wakeup_event() = 0;
  // Afterwards no peer touches this rank's private memory. Lanes may only be destroyed.
  virtual void Quiesce(Time deadline) = 0;
  // Bytes of slot memory this rank has committed.
  virtual uint64_t memory_bytes() const = 0;
  virtual TransportCounters counters() const { return {}; }
};

}  // namespace inccl

#endif  // INCCL_TRANSPORT_TRANSPORT_H_
