// SPDX-License-Identifier: Apache-2.0
#include "communicator/plans.h"

#include <algorithm>
#include <span>
#include <utility>

#include "compress/identity_codec.h"
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

Result<Plan*> Plans::For(const Call& call, bool below_min_bytes) {
  const uint64_t hash = (call.count ^ reinterpret_cast<uintptr_t>(call.codec.get()) ^
                         uint64_t{static_cast<uint8_t>(call.collective)} << 56 ^
                         uint64_t{static_cast<uint8_t>(call.type)} << 48 ^
                         uint64_t{static_cast<uint8_t>(call.root)} << 40) *
                        0x9E3779B97F4A7C15u;
  Plan& plan = kept_[hash >> (64 - kPlaceBits)];
  const bool known = plan.chosen && plan.args.collective == call.collective &&
                     plan.args.type == call.type && plan.args.root == call.root &&
                     plan.args.count == call.count && plan.below_min_bytes == below_min_bytes &&
                     !plan.codec.owner_before(call.codec) && !call.codec.owner_before(plan.codec);
  if (known) return &plan;
  const Result<Choice> choice = ChoiceFor(call, below_min_bytes);
  if (!choice.ok()) return choice.status();
  plan = {.args = call,
          .codec = call.codec,
          .below_min_bytes = below_min_bytes,
          .chosen = true,
          .choice = *choice,
          .program = nullptr,
          .chunking = {}};
  return &plan;
}

TunerCall Plans::Tuned(const Call& call, bool below_min_bytes) const {
  const bool compresses = call.codec != nullptr && call.nranks > 1;
  return {call,
          compresses,
          comm_.reproducible,
          compresses ? call.codec->route() : Route{},
          below_min_bytes,
          options_.hosts,
          options_.slots,
          compresses && options_.hosts != nullptr
              ? WireBitsOf(*call.codec, call.collective, call.nranks)
              : WireBits()};
}

Status Plans::Bind(const Call& call, Plan* plan) {
  if (plan->program != nullptr) return Status::Ok();
  const Codec& codec = call.codec == nullptr ? *IdentityCodec() : *call.codec;
  const uint32_t slice_bytes = SliceBytesFor(call.collective, plan->choice.algorithm, call.nranks,
                                             options_.hosts, options_.slots);
  if (slice_bytes == 0) return InternalError("the slots of the chosen algorithm do not fit");
  const SlotOptions slots = SlotsOf(call.collective, plan->choice.algorithm, call.nranks,
                                    options_.hosts, options_.slots, slice_bytes);
  const Result<const Program*> program = ProgramFor(call, codec, plan->choice, slots);
  if (!program.ok()) return program.status();
  plan->chunking = CutCall(call, codec, options_.slots.channels, slice_bytes,
                           LongLinksFor(slots, options_.hosts, options_.slots.under_way));
  plan->program = *program;
  return Status::Ok();
}

Result<const Program*> Plans::ProgramFor(const Call& call, const Codec& codec, const Choice& choice,
                                         const SlotOptions& slots) {
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
    Result<std::unique_ptr<Program>> bound = inccl::Bind(*std::move(schedule), slots, lanes_);
    if (!bound.ok()) return bound.status();
    program = *std::move(bound);
  }
  return program.get();
}

}  // namespace inccl
