// SPDX-License-Identifier: Apache-2.0
#include "perf/support/digest.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "base/rng.h"

namespace inccl::perf {
namespace {

constexpr uint64_t kPrime = 0x9E3779B185EBCA87u;  // odd: multiplication is a bijection

uint64_t Absorb(uint64_t state, uint64_t word) {
  state = (state ^ word) * kPrime;
  return state ^ (state >> 32);
}

uint64_t LoadWord(const std::byte* at, size_t bytes) {
  uint64_t word = 0;
  std::memcpy(&word, at, bytes);
  return word;
}

}  // namespace

uint64_t Digest(std::span<const std::byte> bytes) {
  // Four independent lanes, so that the multiplications overlap.
  std::array<uint64_t, 4> lanes = {1, 2, 3, 4};
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  while (left >= 32) {
    for (size_t lane = 0; lane < 4; ++lane) {
      lanes[lane] = Absorb(lanes[lane], LoadWord(at + 8 * lane, 8));
    }
    at += 32;
    left -= 32;
  }
  for (size_t lane = 0; left > 0; ++lane) {
    const size_t now = left < 8 ? left : 8;
    lanes[lane] = Absorb(lanes[lane], LoadWord(at, now));
    at += now;
    left -= now;
  }
  uint64_t digest = Mix64(bytes.size());
  for (const uint64_t lane : lanes) digest = Mix64(digest ^ Mix64(lane));
  return digest;
}

uint64_t CombineDigests(std::span<const uint64_t> digests) {
  return Digest(std::as_bytes(digests));
}

std::string DigestText(uint64_t digest) { return fmt::format("{:016x}", digest); }

}  // namespace inccl::perf
