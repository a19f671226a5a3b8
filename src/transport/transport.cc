// SPDX-License-Identifier: Apache-2.0
#include "transport/transport.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/rng.h"

namespace inccl {

uint64_t LaneSpec::Key() const {
  uint64_t key = Mix64((uint64_t{static_cast<uint8_t>(lane_class)} << 56) |
                       (uint64_t{channel} << 48) | (uint64_t{depth} << 32) | slot_bytes);
  key = Mix64(key ^ static_cast<uint64_t>(producer));
  for (const int consumer : consumers) key = Mix64(key ^ static_cast<uint64_t>(consumer));
  return key;
}

namespace {

class Refusal final : public Exports {
 public:
  Result<MemoryHandle> Register(const void* /*data*/, size_t /*bytes*/,
                                const Registration& /*how*/) override {
    return Why();
  }
  void Deregister(const MemoryHandle& /*memory*/) override {}
  Status CanRegister(const void* /*data*/, size_t /*bytes*/, bool /*on_device*/) const override {
    return Why();
  }

 private:
  static const Status& Why() {
    // One per thread: threads of all ranks copy it, which counts references.
    thread_local const Status status = InvalidArgument("this transport has no zero copy");
    return status;
  }
};

}  // namespace

Exports* NoExports() {
  static auto* const refusal = new Refusal;  // threads may use it while the process exits
  return refusal;
}

Exports* Transport::exports() { return NoExports(); }

Status SendLane::PublishFrom(const SliceHeader& /*header*/, const std::byte* /*data*/,
                             bool /*on_device*/) {
  return InternalError("this lane sends from its slots only");
}

int LaneSpec::PlaceOf(int rank) const {
  return static_cast<int>(std::find(consumers.begin(), consumers.end(), rank) - consumers.begin());
}

std::vector<std::vector<int>> Transport::Split(int producer, std::span<const int> consumers) const {
  if (CapsFor(producer, consumers).multicast) return {{consumers.begin(), consumers.end()}};
  std::vector<std::vector<int>> sets;
  for (const int consumer : consumers) sets.push_back({consumer});
  return sets;
}

namespace {

const char* ClassName(LaneClass lane_class) {
  switch (lane_class) {
    case LaneClass::kData: return "data";
    case LaneClass::kSide: return "side";
    case LaneClass::kSendRecv: return "send-receive";
  }
  return "unknown";
}

}  // namespace

std::string Describe(const LaneSpec& spec) {
  return fmt::format("{} lane {} -> {} (channel {}, {} x {} bytes)", ClassName(spec.lane_class),
                     spec.producer, fmt::join(spec.consumers, ","), spec.channel, spec.depth,
                     spec.slot_bytes);
}

Status PublishError(const LaneSpec& spec, bool acquired, const SliceHeader& header) {
  const std::string lane = fmt::format("rank {}: {}", spec.producer, Describe(spec));
  if (!acquired) return InvalidUsage(lane + ": Publish without an acquired slot");
  return InvalidArgument(fmt::format("{}: Publish of {} bytes", lane, header.bytes));
}

Status ReleaseError(const LaneSpec& spec) {
  return InvalidUsage(fmt::format("{}: Release without a peeked slice", Describe(spec)));
}

Status CheckPeer(int rank, int peer, int nranks) {
  if (peer >= 0 && peer < nranks && peer != rank) return Status::Ok();
  return InvalidArgument(
      fmt::format("rank {}: peer {} is not another one of {} ranks", rank, peer, nranks));
}

Status AttachedTwice(int rank, int peer) {
  return InvalidUsage(fmt::format("rank {}: peer rank {} is attached twice", rank, peer));
}

Status NotAttached(int rank, const LaneSpec& spec, int peer) {
  return InvalidUsage(
      fmt::format("rank {}: {}: peer rank {} is not attached", rank, Describe(spec), peer));
}

Status OpenedTwice(int rank, const LaneSpec& spec, LaneSide side) {
  return InvalidUsage(fmt::format("rank {}: {} is opened twice for {}", rank, Describe(spec),
                                  side == LaneSide::kSend ? "sending" : "receiving"));
}

Status CheckLaneSpec(const LaneSpec& spec, LaneSide side, int rank, int nranks,
                     const Transport& transport) {
  const auto wrong = [&](const std::string& what) {
    return InvalidArgument(fmt::format("rank {}: {}: {}", rank, Describe(spec), what));
  };
  if (spec.producer < 0 || spec.producer >= nranks) {
    return wrong(fmt::format("producer {} is not a rank of {}", spec.producer, nranks));
  }
  if (spec.consumers.empty()) return wrong("no consumers");
  int last = -1;
  for (const int consumer : spec.consumers) {
    if (consumer < 0 || consumer >= nranks) {
      return wrong(fmt::format("consumer {} is not a rank of {}", consumer, nranks));
    }
    if (consumer == spec.producer) return wrong("the producer is among the consumers");
    if (consumer <= last) return wrong("consumers are not in ascending order");
    last = consumer;
  }
  const LaneCaps caps = transport.CapsFor(spec.producer, spec.consumers);
  if (spec.consumers.size() > 1 && !caps.multicast) {
    return wrong(fmt::format("transport {} has no multicast to them", transport.caps().name));
  }
  if (spec.depth < 1) return wrong("depth 0");
  if (spec.slot_bytes > caps.max_slot_bytes) {
    return wrong(fmt::format("slot_bytes above the limit {} of transport {}", caps.max_slot_bytes,
                             transport.caps().name));
  }
  if (side == LaneSide::kSend && spec.producer != rank)
    return wrong("this rank is not the producer");
  if (side == LaneSide::kRecv &&
      std::find(spec.consumers.begin(), spec.consumers.end(), rank) == spec.consumers.end()) {
    return wrong("this rank is not a consumer");
  }
  return Status::Ok();
}

}  // namespace inccl
