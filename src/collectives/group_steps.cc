// SPDX-License-Identifier: Apache-2.0
#include "collectives/group_steps.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

namespace inccl {

GroupSteps::GroupSteps(PhaseBuilder* phase, const RankGroups& groups, int channel)
    : phase_(phase),
      groups_(groups),
      lanes_(phase, channel),
      channel_(channel),
      rank_(phase->rank()),
      group_(groups.Of(phase->rank())),
      peers_(groups.OthersInGroup(rank_)) {
  std::rotate(peers_.begin(), std::upper_bound(peers_.begin(), peers_.end(), rank_), peers_.end());
}

std::vector<int> GroupSteps::ChunksOf(int peer, int shift, int pass) const {
  return groups_.CollectedBy(peer, (group_ + shift) % groups_.count(), pass);
}

template <typename Visit>
void GroupSteps::InStep(const Visit& visit) const {
  for (int pass = 0; pass < groups_.passes(); ++pass) {
    for (int shift = 0; shift < groups_.count(); ++shift) {
      std::vector<std::pair<int, std::vector<int>>> chunks;
      for (const int peer : peers_) chunks.emplace_back(peer, ChunksOf(peer, shift, pass));
      for (size_t round = 0, visited = 1; visited != 0; ++round) {
        visited = 0;
        for (const auto& [peer, collected] : chunks) {
          if (round >= collected.size()) continue;
          visit(peer, collected[round], shift);
          ++visited;
        }
      }
    }
  }
}

std::vector<Operand> GroupSteps::Members(int plane) {
  std::vector<Operand> parts;
  for (const int member : groups_.Members(group_)) {
    parts.push_back(member == rank_ ? phase_->Input()
                                    : phase_->Sum(lanes_.Of(plane, member, {rank_}), 1));
  }
  return parts;
}

void GroupSteps::Deal() {
  if (peers_.empty()) return;
  const int strand = phase_->AddStrand(channel_);
  InStep([&](int peer, int chunk, int shift) {
    const int plane = shift == 0 ? kSumPlane : kMemberPlane;
    const int lane = lanes_.Of(plane, rank_, {peer});
    phase_->AddStep(strand, chunk, {phase_->Input()}, {phase_->Sum(lane, 1)});
  });
}

void GroupSteps::Collect() {
  if (!groups_.Collects(rank_)) return;
  const int strand = phase_->AddStrand(channel_);
  const std::vector<Operand> parts = Members(kMemberPlane);
  for (int pass = 0; pass < groups_.passes(); ++pass) {
    for (int shift = 1; shift < groups_.count(); ++shift) {
      for (const int chunk : ChunksOf(rank_, shift, pass)) {
        const int lane = lanes_.Of(kSumPlane, rank_, {groups_.Owner(chunk)});
        phase_->AddStep(strand, chunk, parts, {phase_->Sum(lane, static_cast<int>(parts.size()))});
      }
    }
  }
}

void GroupSteps::Own(bool folds, bool sends) {
  const int strand = phase_->AddStrand(channel_);
  for (int pass = 0; pass < groups_.passes(); ++pass) {
    for (const int chunk : ChunksOf(rank_, 0, pass)) {
      std::vector<Operand> inputs, outputs;
      for (int group = 0; folds && group < groups_.count(); ++group) {
        if (group == group_) {
          const std::vector<Operand> members = Members(kSumPlane);
          inputs.insert(inputs.end(), members.begin(), members.end());
        } else {
          const int lane = lanes_.Of(kSumPlane, groups_.Collector(group, chunk), {rank_});
          inputs.push_back(phase_->Sum(lane, static_cast<int>(groups_.Members(group).size())));
        }
      }
      if (!folds) inputs.push_back(phase_->Input());
      if (sends) {
        for (std::vector<int>& readers : groups_.Readers(chunk)) {
          outputs.push_back(phase_->Result(lanes_.Of(kResultPlane, rank_, std::move(readers))));
        }
      }
      outputs.push_back(phase_->Output());
      phase_->AddStep(strand, chunk, inputs, outputs);
    }
  }
}

Operand GroupSteps::FromOwner(int chunk) {
  return phase_->Result(
      lanes_.Of(kResultPlane, groups_.Owner(chunk), groups_.ReadersWith(rank_, chunk)));
}

void GroupSteps::Forward() {
  if (!groups_.Collects(rank_)) return;
  const int strand = phase_->AddStrand(channel_);
  std::vector<Operand> outputs;
  if (!peers_.empty()) {
    outputs.push_back(phase_->Result(lanes_.Of(kForwardPlane, rank_, peers_)));
  }
  outputs.push_back(phase_->Output());
  for (int pass = 0; pass < groups_.passes(); ++pass) {
    for (int shift = 1; shift < groups_.count(); ++shift) {
      for (const int chunk : ChunksOf(rank_, shift, pass)) {
        phase_->AddStep(strand, chunk, {FromOwner(chunk)}, outputs);
      }
    }
  }
}

void GroupSteps::Gather() {
  if (peers_.empty()) return;
  const int strand = phase_->AddStrand(channel_);
  InStep([&](int peer, int chunk, int shift) {
    const Operand input =
        shift == 0 ? FromOwner(chunk)
                   : phase_->Result(lanes_.Of(kForwardPlane, peer, groups_.OthersInGroup(peer)));
    phase_->AddStep(strand, chunk, {input}, {phase_->Output()});
  });
}

}  // namespace inccl
