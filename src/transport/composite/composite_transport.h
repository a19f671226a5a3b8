// SPDX-License-Identifier: Apache-2.0
//
// A transport for ranks that no single transport joins: each lane belongs to the part that serves
// its pairs of ranks. Lanes are those of the parts, so that slices take no detour. A lane to
// consumers of several parts is split (Transport::Split).
#ifndef INCCL_TRANSPORT_COMPOSITE_COMPOSITE_TRANSPORT_H_
#define INCCL_TRANSPORT_COMPOSITE_COMPOSITE_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/poll_wakeup_event.h"
#include "transport/transport.h"

namespace inccl {

// Which part of a composite transport carries the lanes between two ranks. Equal on all ranks of a
// communicator.
class PairTable {
 public:
  static constexpr int kNone = -1;

  explicit PairTable(int nranks)
      : nranks_(nranks), parts_(static_cast<size_t>(nranks) * static_cast<size_t>(nranks), kNone) {}

  int nranks() const { return nranks_; }
  // kNone for a pair that is not set. Ranks from 0 to nranks - 1.
  int Of(int a, int b) const { return parts_[Index(a, b)]; }
  // Sets both directions.
  void Set(int a, int b, int part) {
    parts_[Index(a, b)] = parts_[Index(b, a)] = static_cast<int8_t>(part);
  }

 private:
  size_t Index(int a, int b) const {
    return static_cast<size_t>(a) * static_cast<size_t>(nranks_) + static_cast<size_t>(b);
  }

  int nranks_;
  std::vector<int8_t> parts_;
};

class CompositeTransport final : public Transport, private Exports {
 public:
  struct Part {
    Caps caps;                             // of the transport on any rank
    std::unique_ptr<Transport> transport;  // nullptr if this rank has no pair of this part
  };
  // `parts` by their number in `table`, in the order in which they are polled. Returns
  // kInternalError if a part cannot share a wait (Transport::wakeup_source).
  static Result<std::unique_ptr<CompositeTransport>> Create(int rank, PairTable table,
                                                            std::vector<Part> parts);

  Caps caps() const override { return caps_; }
  LaneCaps CapsFor(int producer, std::span<const int> consumers) const override;
  std::vector<std::vector<int>> Split(int producer, std::span<const int> consumers) const override;
  Result<std::unique_ptr<SendLane>> OpenSend(const LaneSpec& spec) override;
  Result<std::unique_ptr<RecvLane>> OpenRecv(const LaneSpec& spec) override;
  Exports* exports() override { return this; }
  void SlotMemory(std::vector<Span>* spans) const override;
  Result<int> Progress(Time now) override;
  bool unsent() const override;
  void AppendUnsent(std::vector<int>* ranks) const override;
  void DropUnsent() override;
  WakeupEvent* wakeup_event() override { return wakeup_event_.get(); }
  bool delivered() const override;
  void Quiesce(Time deadline) override;
  uint64_t memory_bytes() const override;
  TransportCounters counters() const override;

 private:
  // Exports
  Result<MemoryHandle> Register(const void* data, size_t bytes, const Registration& how) override;
  void Deregister(const MemoryHandle& memory) override;
  Status CanRegister(const void* data, size_t bytes, bool on_device) const override;
  Status RevokeAccess(const MemoryHandle& memory) override;
  void SetImporter(RegionImporter* importer) override;

  CompositeTransport(int rank, PairTable table, std::vector<Part> parts);
  // The part of all pairs of a lane; PairTable::kNone if they differ or have none.
  int PartOf(int producer, std::span<const int> consumers) const;
  // The part that opens the lane on this rank.
  Result<Transport*> Opener(const LaneSpec& spec) const;

  const int rank_;
  const PairTable table_;
  std::string name_;  // "shm+ucx"
  Caps caps_;
  std::vector<Transport*> by_number_;              // of table_; may be nullptr
  std::vector<std::unique_ptr<Transport>> parts_;  // those of this rank
  std::unique_ptr<PollWakeupEvent> wakeup_event_;  // destroyed before the parts' sources
};

}  // namespace inccl

#endif  // INCCL_TRANSPORT_COMPOSITE_COMPOSITE_TRANSPORT_H_
