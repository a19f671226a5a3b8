// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule_builder.h"

#include <algorithm>
#include <bit>
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
    const int host = hosts.HostAt((hosts.PlaceOf(first_host) + i + (last ? 1 : 0)) % hosts.hosts());
    const std::span<const int> block = hosts.RanksOf(host);
    const auto head = static_cast<size_t>(host == first_host ? rotation : 0) % block.size();
    ranks_.insert(ranks_.end(), block.begin() + static_cast<std::ptrdiff_t>(head), block.end());
    ranks_.insert(ranks_.end(), block.begin(), block.begin() + static_cast<std::ptrdiff_t>(head));
  }
  place_ = static_cast<int>(std::find(ranks_.begin(), ranks_.end(), phase.rank()) - ranks_.begin());
}

HostOrder::HostOrder(const PhaseBuilder& phase)
    : HostOrder(phase, phase.hosts() == nullptr ? 0 : phase.hosts()->HostAt(0), false, 0) {}

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

namespace {

// In-order numbering 1..n: the height of a node is the number of its trailing zero bits, so odd
// numbers are leaves and even numbers have children. Numbers above n do not exist; their
// descendants up to n move up.
int InOrderParent(int n, int node) {
  const int root = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
  if (node == root) return 0;
  do {
    const int bit = node & -node;
    node = (node ^ bit) | (bit << 1);
  } while (node > n);
  return node;
}

std::vector<int> InOrderChildren(int n, int node) {
  std::vector<int> children;
  const int bit = node & -node;
  if (bit > 1) children.push_back(node - bit / 2);
  for (int step = bit / 2; step > 0; step /= 2) {
    if (node + step <= n) {
      children.push_back(node + step);
      break;
    }
  }
  return children;
}

int InOrderSize(int n, int node) {
  const int bit = node & -node;
  return std::min(n, node + bit - 1) - (node - bit);
}

}  // namespace

TreeNode DoubleTreeNode(int nranks, int tree, int rank) {
  // Tree 0 numbers rank r as r + 1. Tree 1 must give those ranks odd numbers that have even ones in
  // tree 0: it is mirrored, or, if the mirror keeps parity, shifted by one.
  const bool mirror = nranks % 2 == 0;
  auto number = [&](int r) {
    if (tree == 0) return r + 1;
    return mirror ? nranks - r : (r + nranks - 1) % nranks + 1;
  };
  auto rank_of = [&](int i) {
    if (tree == 0) return i - 1;
    return mirror ? nranks - i : i % nranks;
  };
  TreeNode node;
  const int i = number(rank);
  const int parent = InOrderParent(nranks, i);
  node.parent = parent == 0 ? -1 : rank_of(parent);
  for (int child : InOrderChildren(nranks, i)) node.children.push_back(rank_of(child));
  std::sort(node.children.begin(), node.children.end());
  node.size = InOrderSize(nranks, i);
  return node;
}

TreeNode RootedTreeNode(int nranks, int root, int rank) {
  const int place = (rank - root + nranks) % nranks;  // heap order: children of v are 2v+1, 2v+2
  TreeNode node;
  if (place > 0) node.parent = ((place - 1) / 2 + root) % nranks;
  for (int child = 2 * place + 1; child <= 2 * place + 2 && child < nranks; ++child) {
    node.children.push_back((child + root) % nranks);
  }
  std::sort(node.children.begin(), node.children.end());
  node.size = 0;
  for (int first = place, last = place; first < nranks;
       first = 2 * first + 1, last = 2 * last + 2) {
    node.size += std::min(last, nranks - 1) - first + 1;
  }
  return node;
}

TreeNode RootedTreeNode(const HostMap& hosts, int root, int rank) {
  const auto leader = [&](int host) {
    return host == hosts.HostOf(root) ? root : hosts.RanksOf(host).front();
  };
  const int host = hosts.HostOf(rank);
  const std::span<const int> ranks = hosts.RanksOf(host);
  const TreeNode local = RootedTreeNode(static_cast<int>(ranks.size()),
                                        hosts.LocalIndex(leader(host)), hosts.LocalIndex(rank));
  TreeNode node;
  node.size = local.size;
  if (rank == leader(host)) {
    const TreeNode above =
        RootedTreeNode(hosts.hosts(), hosts.PlaceOf(hosts.HostOf(root)), hosts.PlaceOf(host));
    if (above.parent >= 0) node.parent = leader(hosts.HostAt(above.parent));
    for (const int place : above.children) {
      const int child = leader(hosts.HostAt(place));
      node.children.push_back(child);
      node.size += RootedTreeNode(hosts, root, child).size;
    }
  } else {
    node.parent = ranks[static_cast<size_t>(local.parent)];
  }
  for (const int child : local.children) {
    node.children.push_back(ranks[static_cast<size_t>(child)]);
  }
  return node;
}

}  // namespace inccl
