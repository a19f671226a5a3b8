// SPDX-License-Identifier: Apache-2.0
#include "perf/support/streaming.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

namespace inccl::perf {
namespace {

// Reads at the rate of the memory: several independent accumulators, wide enough for the compiler
// to use vectors.
uint64_t ReadAll(std::span<const std::byte> bytes) {
  std::array<uint64_t, 32> sums{};
  size_t at = 0;
  for (; at + sizeof sums <= bytes.size(); at += sizeof sums) {
    std::array<uint64_t, 32> words;
    std::memcpy(words.data(), bytes.data() + at, sizeof words);
    for (size_t i = 0; i < words.size(); ++i) sums[i] ^= words[i];
  }
  uint64_t sum = 0;
  for (const uint64_t one : sums) sum ^= one;
  for (; at < bytes.size(); ++at) sum ^= static_cast<uint64_t>(bytes[at]);
  return sum;
}

}  // namespace

Streams StreamsOf(Operation operation, const Layout& layout, DataType type, int rank, int root) {
  Streams streams{layout.send * SizeOf(type), layout.recv * SizeOf(type)};
  if (rank == root) return streams;
  switch (operation) {
    case Operation::kBroadcast:
    case Operation::kScatter: streams.read = 0; break;
    case Operation::kReduce:
    case Operation::kGather: streams.write = 0; break;
    case Operation::kAllReduce:
    case Operation::kReduceScatter:
    case Operation::kAllGather:
    case Operation::kAllToAll:
    case Operation::kSendRecv: break;
  }
  return streams;
}

void StreamOnce(std::span<const std::byte> from, std::span<std::byte> to) {
  if (from.empty()) {
    if (!to.empty()) std::memset(to.data(), 1, to.size());
    return;
  }
  const size_t copied = std::min(from.size(), to.size());
  if (copied > 0) std::memcpy(to.data(), from.data(), copied);
  for (size_t at = copied; at < to.size(); at += from.size()) {
    std::memcpy(to.data() + at, from.data(), std::min(from.size(), to.size() - at));
  }
  [[maybe_unused]] volatile uint64_t sink = ReadAll(from.subspan(copied));
}

double SharedMicroseconds() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(time).count();
}

double SpanOf(std::span<const Interval> intervals) {
  if (intervals.empty()) return 0;
  Interval whole = intervals.front();
  for (const Interval& one : intervals) {
    whole = {std::min(whole.start, one.start), std::max(whole.end, one.end)};
  }
  return whole.end - whole.start;
}

}  // namespace inccl::perf
