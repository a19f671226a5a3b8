// SPDX-License-Identifier: Apache-2.0
//
// The options of the codec hbi (docs/format.md, "Specification").
#ifndef INCCL_COMPRESS_HBI_CONFIG_H_
#define INCCL_COMPRESS_HBI_CONFIG_H_

#include <cstdint>
#include <string>

#include "base/status.h"
#include "compress/codec_spec.h"

namespace inccl::hbi {

// Whose bits the budget counts, whatever algorithm runs.
enum class Reference : uint8_t { kTwoShot, kRing };
// What travels after the sum: a second quantization of it, or the integer sums themselves.
enum class AllGather : uint8_t { kRequant, kExact };

// How sums travel: as integers on scales that all ranks agree on (H); each rank's elements on
// scales of its own, summed in fp32 by an owner (D); quantized anew on the way round a ring (R).
enum class Policy : uint8_t { kH, kD, kR };

struct Config {
  uint32_t bits8 = 48;     // 8 * bits per element and phase; 0: the levels are fixed
  uint32_t k = 0, k2 = 0;  // fixed levels of the sum and of the all-gather; 0: planned from bits8
  Policy policy = Policy::kH;
  // R: contributions that are summed as integers before they are quantized anew. H: ranks of a
  // group, 0 for all.
  uint32_t m = 0;
  Reference reference = Reference::kTwoShot;
  AllGather all_gather = AllGather::kRequant;
  bool unbiased = false;   // the all-gather rounds with a hash, nothing is dropped
  bool rht = false;        // superblocks are rotated by a randomized Hadamard transform
  bool checksum = false;   // every payload carries its CRC-32C
  uint64_t min_bytes = 0;  // smaller calls run uncompressed

  // Every payload carries its sender's scale codes; there is no agreement.
  bool own_scales() const { return policy == Policy::kD || (policy == Policy::kR && m == 1); }
  // m, where n contributions are more than one group; else 0.
  uint32_t GroupOf(int nranks) const { return m > 1 && m < static_cast<uint32_t>(nranks) ? m : 0; }

  // Every key, sorted; parses to an equal Config.
  std::string Canonical() const;
  friend bool operator==(const Config&, const Config&) = default;
};

// Errors name key and value.
Result<Config> ParseConfig(const CodecSpec& spec);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_CONFIG_H_
