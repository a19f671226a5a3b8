// SPDX-License-Identifier: Apache-2.0
//
// What HbiState does where sums are taken in groups: which inputs make the groups of an owner, and
// whether their payloads can be what they are due to be.
#include <fmt/format.h>

#include "compress/checked_state.h"
#include "compress/hbi/format.h"
#include "compress/hbi/hbi_state.h"
#include "compress/hbi/side_words.h"

namespace inccl::hbi {
namespace {

Status Unexpected(const Term& term) {
  return InternalError(fmt::format("hbi: {} of {} contributions cannot be an input here",
                                   Name(term.format.form), term.format.contributions));
}

}  // namespace

uint32_t HbiState::GroupFrom(uint32_t first) const {
  return std::min(planner_->group(), planner_->contributions() - first);
}

Status HbiState::CheckGroupedSum(const Range& range, const SliceContext& slice,
                                 const Term& input) const {
  const uint32_t h = input.format.contributions;
  const uint64_t bytes = GroupedSumBytes(slice, h);
  if (Status status = CheckPayload(range, input, bytes); !status.ok()) return status;
  if (h == 1 || AreValid(Unsigned(input.data), slice.superblocks())) return Status::Ok();
  return InternalError(fmt::format("hbi: an invalid side word in a sum of elements {} to {}",
                                   range.first, range.first + range.count));
}

Status HbiState::TakeGroups(const Range& range, const SliceContext& slice,
                            std::span<const Term> inputs, uint32_t* contributions) {
  const uint32_t n = planner_->contributions(), m = planner_->group();
  *contributions = 0;
  for (const Term& input : inputs) {
    *contributions += input.format.form == Form::kInput ? 1u : input.format.contributions;
  }
  // The inputs are all groups, this rank's whole group, or a part of this rank's group.
  uint32_t rank = *contributions == n ? 0 : static_cast<uint32_t>(call_.rank) / m * m;
  if (*contributions > n || (*contributions != n && *contributions > GroupFrom(rank))) {
    return InternalError(
        fmt::format("hbi: {} contributions of {} ranks in groups of {}", *contributions, n, m));
  }
  sources_.clear();
  groups_.clear();
  uint32_t members = 0;  // missing members of the current group
  for (const Term& input : inputs) {
    const uint32_t h = input.format.form == Form::kInput ? 1 : input.format.contributions;
    if (input.format.form == Form::kInput) {
      if (Status status = CheckElements(slice, input, "an input"); !status.ok()) return status;
    } else if (input.format.form != Form::kSum || h == 0) {
      return Unexpected(input);
    } else if (Status status = CheckGroupedSum(range, slice, input); !status.ok()) {
      return status;
    }
    if (members == 0) {
      members = GroupFrom(rank);
      const auto groups = static_cast<int>((n + m - 1) / m);
      groups_.emplace_back().shift = RankShift(static_cast<int>(rank / m), groups);
    } else if (h != 1) {
      return Unexpected(input);
    }
    Group& group = groups_.back();
    const uint8_t* at = Unsigned(input.data);
    if (h != 1) {
      if (h != members) return Unexpected(input);
      group.words = at;
      group.sum = {.at = at + size_t{slice.superblocks()} * kWordBytes,
                   .end = at + GroupedSumBytes(slice, h)};
    } else {
      Source source{.elements = input.data};
      if (input.format.form == Form::kSum) source = {.at = at, .end = at + SumBytes(slice, 1)};
      sources_.push_back(source);
      group.members = {sources_.data() + sources_.size() - group.members.size() - 1,
                       group.members.size() + 1};
    }
    members -= h;
    rank += h;
  }
  return Status::Ok();
}

Status HbiState::CombineGroups(const Range& range, const SliceContext& slice,
                               std::span<const Term> inputs, std::span<Term> outputs) {
  uint32_t contributions = 0;
  Status status = TakeGroups(range, slice, inputs, &contributions);
  if (!status.ok()) return status;
  SliceOutputs places;
  status = PlaceOutputs(slice, contributions, outputs, &places);
  if (!status.ok()) return status;
  if (contributions == 1) {
    FoldSources(slice, places, outputs);
    return Status::Ok();
  }
  if (places.sum.at != nullptr &&
      contributions !=
          GroupFrom(static_cast<uint32_t>(call_.rank) / planner_->group() * planner_->group())) {
    return InternalError(fmt::format("hbi: a sum of {} contributions in groups of {}",
                                     contributions, planner_->group()));
  }
  FoldGroups(slice, groups_, places);
  CopyOutputs(outputs, places);
  return Status::Ok();
}

}  // namespace inccl::hbi
