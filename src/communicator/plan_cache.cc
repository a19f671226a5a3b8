// SPDX-License-Identifier: Apache-2.0
#include "communicator/plan_cache.h"

#include <algorithm>
#include <span>
#include <utility>

#include "tuning/segmentation.h"

namespace inccl {
namespace {

// Makes the schedule of some ranks of a communicator one of the communicator.
void Rename(std::span<const int> members, Schedule* schedule) {
  const auto name = [members](int rank) { return members[static_cast<size_t>(rank)]; };
  schedule->rank = name(schedule->rank);
  for (ScheduleLane& lane : schedule->lanes) {
    lane.producer = name(lane.producer);
    std::transform(lane.consumers.begin(), lane.consumers.end(), lane.consumers.begin(), name);
  }
}

}  // namespace

size_t PlanCache::PlaceOf(const CollectiveArgs& args, const Codec* codec) {
  const uint64_t hash = (args.count ^ reinterpret_cast<uintptr_t>(codec) ^
                         uint64_t{static_cast<uint8_t>(args.collective)} << 56 ^
                         uint64_t{static_cast<uint8_t>(args.type)} << 48 ^
                         uint64_t{static_cast<uint8_t>(args.root)} << 40) *
                        0x9E3779B97F4A7C15u;
  return hash >> (64 - kPlaceBits);
}

const PlanCache::Plan* PlanCache::Find(const Call& call, bool below_min_bytes) const {
  const Plan& plan = kept_[PlaceOf(call, call.codec.get())];
  const bool known = plan.program != nullptr && plan.args.collective == call.collective &&
                     plan.args.type == call.type && plan.args.root == call.root &&
                     plan.args.count == call.count && plan.below_min_bytes == below_min_bytes &&
                     !plan.codec.owner_before(call.codec) && !call.codec.owner_before(plan.codec);
  return known ? &plan : nullptr;
}

Result<PlanCache::Plan> PlanCache::Make(const Call& call, const Codec& codec, const Choice& choice,
                                        bool below_min_bytes) {
  const uint32_t slice_bytes =
      SliceBytesFor(call.collective, choice.algorithm, call.nranks, options_.hosts, options_.slots);
  if (slice_bytes == 0) return InternalError("the slots of the chosen algorithm do not fit");
  const SlotOptions slots = SlotsOf(call.collective, choice.algorithm, call.nranks, options_.hosts,
                                    options_.slots, slice_bytes);
  Result<const Program*> program = FindProgram(call, codec, choice, slots);
  if (!program.ok()) return program.status();
  return Plan{.args = call,
              .codec = call.codec,
              .below_min_bytes = below_min_bytes,
              .choice = choice,
              .chunking = CutCall(call, codec, options_.slots.channels, slice_bytes,
                                  LongLinksFor(slots, options_.hosts, options_.slots.under_way)),
              .program = *program};
}

Result<const Program*> PlanCache::FindProgram(const Call& call, const Codec& codec,
                                              const Choice& choice, const SlotOptions& slots) {
  const size_t side_phases = codec.side_phases().size();
  const bool side_one_shot = side_phases > 0 && choice.side_one_shot;
  const int group = codec.route().group;
  const uint64_t key = uint64_t{static_cast<uint8_t>(call.collective)} << 56 |
                       uint64_t{static_cast<uint8_t>(choice.algorithm)} << 52 |
                       uint64_t{static_cast<uint16_t>(group)} << 35 | uint64_t{side_phases} << 33 |
                       uint64_t{side_one_shot} << 32 | static_cast<uint32_t>(call.root);
  std::unique_ptr<Program>& program = programs_[key];
  if (program == nullptr) {
    Result<Schedule> schedule = MakeSchedule({call, choice.algorithm, options_.slots.channels,
                                              side_phases, side_one_shot, group, options_.hosts});
    if (!schedule.ok()) return InternalError(schedule.status().message());
    if (!options_.members.empty()) Rename(options_.members, &*schedule);
    Result<std::unique_ptr<Program>> bound = Bind(*std::move(schedule), slots, lanes_);
    if (!bound.ok()) return bound.status();
    program = *std::move(bound);
  }
  return program.get();
}

}  // namespace inccl
