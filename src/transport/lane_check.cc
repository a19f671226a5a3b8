// SPDX-License-Identifier: Apache-2.0
#include "transport/lane_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace inccl {
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
