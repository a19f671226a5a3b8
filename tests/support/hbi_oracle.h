// SPDX-License-Identifier: Apache-2.0
//
// What the compressed collectives must return, bit for bit: the definition of the format
// (docs/format.md) written down a second time, slowly and from the whole vector, sharing no code
// with the library. Only the arithmetic that defines the result is here: no payloads, no slices.
#ifndef INCCL_TESTS_SUPPORT_HBI_ORACLE_H_
#define INCCL_TESTS_SUPPORT_HBI_ORACLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace inccl::test {

struct HbiOptions {
  int bits8 = 48;     // eighths of a bit per element and phase; unused with fixed levels
  int k = 0, k2 = 0;  // fixed levels where k > 0; k2 of an all-reduce only
  uint64_t seed = 0;
  uint64_t step = 0;
  bool ring = false;     // the reference algorithm is the ring, not direct
  bool exact = false;    // all-reduce: no second quantization
  bool average = false;  // divided by the number of ranks; not in an all-gather
  bool unbiased = false;
  bool energy = false;  // levels by energy; else even ones where `bits` allows
  bool rht = false;
  bool entropy = false;  // plans count coded fields
  int m = 0;             // ranks of a group, 0: all; all-reduce only
};

// What the codec agrees on and decides, for tests of payloads and of the plan.
struct HbiTrace {
  std::vector<uint16_t> codes;      // agreed, one per 32 elements, padded to whole superblocks
  std::vector<int> k, k2;           // per superblock
  std::vector<uint16_t> own;        // all-reduce with a second quantization: the result's own codes
  std::vector<uint32_t> total;      // sum of all ranks' codes per element, padded
  std::vector<double> window_bits;  // cost of each window's fields over the plan's hops, in bits
  std::vector<double> window_budget;
};

// inputs[r] is rank r's vector; all of one length; NaN, infinities and denormals are welcome. Two
// ranks at least.
std::vector<float> HbiAllReduce(const std::vector<std::vector<float>>& inputs,
                                const HbiOptions& options, HbiTrace* trace = nullptr);

// inputs[r] is rank r's n segments of one length; result[r] is what rank r ends with. traces: one
// per segment.
std::vector<std::vector<float>> HbiReduceScatter(const std::vector<std::vector<float>>& inputs,
                                                 const HbiOptions& options,
                                                 std::vector<HbiTrace>* traces = nullptr);

// inputs[r] is rank r's segment; the result is what every rank ends with. traces: one per segment;
// total holds the codes of the segment's rank.
std::vector<float> HbiAllGather(const std::vector<std::vector<float>>& inputs,
                                const HbiOptions& options, std::vector<HbiTrace>* traces = nullptr);

// The codes of one rank's contribution to a sum, given its elements, padded to whole superblocks.
std::vector<uint32_t> HbiQuantize(const std::vector<float>& input, int rank, int nranks,
                                  const HbiTrace& trace, const HbiOptions& options);

// Half-bits of a field for the sum of `contributions` codes of k levels.
int HbiWidth(int contributions, int k);
// The energy exponent of a live superblock's eight codes.
int HbiEnergy(const uint16_t* codes);
// The side word of a superblock's eight codes, which agree with each other.
uint32_t HbiWord(const uint16_t* codes);
// The agreement of all ranks' elements, one code per 32 elements.
std::vector<uint16_t> HbiAgree(const std::vector<std::vector<float>>& inputs);

// A choice of levels of the plan: cost in eighths of a bit (`entropy`: 64ths), and from which
// energy it is taken.
struct HbiChoice {
  int64_t cost = 0;
  int k = 0, k2 = 0, threshold = 0;
};
// The choices of an all-reduce by energy: with a dropped superblock, without `unbiased`.
std::vector<HbiChoice> HbiHull(int nranks, const HbiOptions& options);

// Fields as they travel: superblock s has the width of `contributions` codes of k[s] levels.
std::vector<uint8_t> HbiPack(const std::vector<uint32_t>& fields, const std::vector<int>& k,
                             int contributions);

}  // namespace inccl::test

#endif  // INCCL_TESTS_SUPPORT_HBI_ORACLE_H_
