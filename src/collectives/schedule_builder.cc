// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule_builder.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

namespace inccl {

PhaseBuilder::PhaseBuilder(Schedule* schedule, LaneClass lane_class, int channels,
                           const HostMap* hosts)
    : schedule_(schedule), hosts_(hosts), index_(schedule->phases.size()) {
  schedule->phases.push_back({1, static_cast<uint16_t>(channels), lane_class});
}

int PhaseBuilder::Shifted(int offset) const {
  const int n = nranks();
  return ((rank() + offset) % n + n) % n;
}

std::vector<int> PhaseBuilder::AllBut(int producer) const {
  std::vector<int> others;
  others.reserve(static_cast<size_t>(nranks()));
  for (int q = 0; q < nranks(); ++q) {
    if (q != producer) others.push_back(q);
  }
  return others;
}

void PhaseBuilder::set_chunks(int chunks) { phase().chunks = static_cast<uint32_t>(chunks); }

int PhaseBuilder::AddStrand(int channel) {
  Strand strand;
  strand.phase = static_cast<uint8_t>(index_);
  strand.channel = static_cast<uint8_t>(channel);
  schedule_->strands.push_back(std::move(strand));
  return static_cast<int>(schedule_->strands.size()) - 1;
}

int PhaseBuilder::AddLane(int channel, int plane, int producer, std::vector<int> consumers) {
  std::sort(consumers.begin(), consumers.end());
  schedule_->lanes.push_back(
      {phase().lane_class,
       static_cast<uint8_t>(kLanePlanes * channel + plane + SideNumber() * kSidePlanes), producer,
       std::move(consumers)});
  return static_cast<int>(schedule_->lanes.size()) - 1;
}

Operand PhaseBuilder::Sum(int lane, int contributions) const {
  return {Space::kLane, static_cast<uint16_t>(lane), 0, FormatOf(Form::kSum, contributions)};
}

Operand PhaseBuilder::Result(int lane) const {
  return {Space::kLane, static_cast<uint16_t>(lane), 0, FormatOf(Form::kResult, 0)};
}

Operand PhaseBuilder::Scratch(int slot, int contributions) const {
  return {Space::kScratch, static_cast<uint16_t>(slot), 0, FormatOf(Form::kSum, contributions)};
}

void PhaseBuilder::AddStep(int strand, int chunk, const std::vector<Operand>& inputs,
                           const std::vector<Operand>& outputs) {
  Step step;
  step.first_operand = static_cast<uint32_t>(schedule_->operands.size());
  step.inputs = static_cast<uint16_t>(inputs.size());
  step.outputs = static_cast<uint16_t>(outputs.size());
  for (const std::vector<Operand>* operands : {&inputs, &outputs}) {
    for (Operand operand : *operands) {
      operand.chunk = static_cast<uint32_t>(chunk);
      schedule_->operands.push_back(operand);
    }
  }
  schedule_->strands[static_cast<size_t>(strand)].steps.push_back(step);
}

Format PhaseBuilder::FormatOf(Form form, int contributions) const {
  if (phase().lane_class == LaneClass::kSide) {
    return {Form::kSide, static_cast<uint16_t>(SideNumber())};
  }
  return {form, static_cast<uint16_t>(contributions)};
}

HostOrder::HostOrder(const PhaseBuilder& phase, int first_host, bool last, int rotation) {
  const HostMap one_host = phase.hosts() == nullptr ? HostMap::OneHost(phase.nranks()) : HostMap();
  const HostMap& hosts = phase.hosts() == nullptr ? one_host : *phase.hosts();
  ranks_.reserve(static_cast<size_t>(phase.nranks()));
  for (int i = 0; i < hosts.hosts(); ++i) {
    const int host = (first_host + i + (last ? 1 : 0)) % hosts.hosts();
    const std::span<const int> block = hosts.RanksOf(host);
    const auto head = static_cast<size_t>(host == first_host ? rotation : 0) % block.size();
    ranks_.insert(ranks_.end(), block.begin() + static_cast<std::ptrdiff_t>(head), block.end());
    ranks_.insert(ranks_.end(), block.begin(), block.begin() + static_cast<std::ptrdiff_t>(head));
  }
  place_ = static_cast<int>(std::find(ranks_.begin(), ranks_.end(), phase.rank()) - ranks_.begin());
}

HostOrder::HostOrder(const PhaseBuilder& phase) : HostOrder(phase, 0, false, 0) {}

HostOrder HostOrder::From(const PhaseBuilder& phase, int root) {
  if (phase.hosts() == nullptr) return {phase, 0, false, root};
  return {phase, phase.hosts()->HostOf(root), false, phase.hosts()->LocalIndex(root)};
}

HostOrder HostOrder::To(const PhaseBuilder& phase, int root) {
  if (phase.hosts() == nullptr) return {phase, 0, true, root + 1};
  return {phase, phase.hosts()->HostOf(root), true, phase.hosts()->LocalIndex(root) + 1};
}

int HostOrder::Shifted(int offset) const {
  const int n = static_cast<int>(ranks_.size());
  return At(((place_ + offset) % n + n) % n);
}

TreeNode RootedTreeNode(const PhaseBuilder& phase, int rank) {
  return phase.hosts() == nullptr ? RootedTreeNode(phase.nranks(), phase.root(), rank)
                                  : RootedTreeNode(*phase.hosts(), phase.root(), rank);
}

RingLanes::RingLanes(PhaseBuilder* phase, const HostOrder& ring, int channel, int hops) {
  const int previous = ring.Shifted(-1), next = ring.Shifted(1);
  for (int plane = 0; plane < std::min(hops, 2); ++plane) {
    in_[plane] = phase->AddLane(channel, plane, previous, {phase->rank()});
    out_[plane] = phase->AddLane(channel, plane, phase->rank(), {next});
  }
}

int LaneSet::Of(int plane, int producer, std::vector<int> consumers) {
  const int lowest = *std::min_element(consumers.begin(), consumers.end());
  const uint64_t key = static_cast<uint64_t>(plane) << 48 | static_cast<uint64_t>(producer) << 24 |
                       static_cast<uint64_t>(lowest);
  const auto [lane, is_new] = lanes_.try_emplace(key, 0);
  if (is_new) lane->second = phase_->AddLane(channel_, plane, producer, std::move(consumers));
  return lane->second;
}

}  // namespace inccl
