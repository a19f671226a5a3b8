// SPDX-License-Identifier: Apache-2.0
//
// The options of the codec hbi (docs/format.md, "Specification").
#ifndef INCCL_COMPRESS_HBI_CONFIG_H_
#define INCCL_COMPRESS_HBI_CONFIG_H_

#include <cstdint>
#include <string>

#include "base/status.h"
#include "compress/codec.h"
#include "compress/codecs.h"

namespace inccl::hbi {

// The algorithm whose bits the budget counts, whichever algorithm runs.
enum class Reference : uint8_t { kTwoShot, kRing };
// How the ranks of a host add up what they send to other hosts: as the codec's integers, or as
// elements.
enum class Local : uint8_t { kCodes, kFp32 };
// The payload of the all-gather phase: a second quantization of the sum, or the integer sums.
enum class AllGather : uint8_t { kRequant, kExact };

// Who gets the levels of a budget: all superblocks that are not zero about as many, so that none
// loses its small values, or those with much energy more, which makes the squared error small.
enum class Levels : uint8_t { kEven, kEnergy };

// The payloads of single contributions and of results: packed fields, which the sender codes where
// that makes a call faster; packed fields; or codes, with which the plan counts.
enum class Coding : uint8_t { kAuto, kFixed, kEntropy };

struct Config {
  uint32_t bits8 = 48;     // 8 * bits per element and phase; 0: the levels are fixed
  uint32_t k = 0, k2 = 0;  // fixed levels of the sum and of the all-gather; 0: planned from bits8
  uint32_t m = 0;          // ranks of a group; 0: all
  Reference reference = Reference::kTwoShot;
  AllGather all_gather = AllGather::kRequant;
  Local local = Local::kCodes;
  Levels levels = Levels::kEven;
  Coding coding = Coding::kAuto;
  bool unbiased = false;  // the all-gather rounds with a hash, and no superblock is dropped
  bool rht = false;       // superblocks are rotated by a randomized Hadamard transform
  bool checksum = false;  // every payload carries its CRC-32C
  // Smaller calls run uncompressed. By default those that are less than a superblock of floats,
  // since payloads have whole superblocks.
  uint64_t min_bytes = kSuperblock * sizeof(float);

  // Whether payloads may be coded: of single contributions and of results, not of sums.
  bool MayCode() const {
    return coding != Coding::kFixed && reference == Reference::kTwoShot &&
           all_gather == AllGather::kRequant && m == 0;
  }
  // m, where n contributions are more than one group; else 0.
  uint32_t GroupOf(int nranks) const { return m > 1 && m < static_cast<uint32_t>(nranks) ? m : 0; }

  // The canonical specification: every key, sorted. It parses to an equal Config.
  std::string Canonical() const;
  friend bool operator==(const Config&, const Config&) = default;
};

// Errors name key and value.
Result<Config> ParseConfig(const CodecSpec& spec);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_CONFIG_H_
