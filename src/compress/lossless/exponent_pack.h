// SPDX-License-Identifier: Apache-2.0
//
// Lossless packing of floats: most exponents of a superblock lie in a small range, so a few bits
// code them; signs and mantissas are incompressible and stay unchanged.
//
// A superblock of `count` elements (256, fewer at the end of a vector) starts with a control byte:
//   0xFF    the elements follow unchanged
//   0xFE    nothing follows: all bits of all elements are zero
//   else    bits 0 to 3 are a width w, bit 4 a flag z; then follow
//           the base exponent (u16);
//           sign and mantissa: the low 8 bits of all elements, then the next 8 bits of all, ..., as
//           far as there are whole bytes;
//           w + r bit planes of ceil(count / 8) bytes (bit_fields.h): the code of every element,
//           and the remaining r bits of sign and mantissa (fp16: 3, fp64: 5, else 0);
//           the exponent field (u8, for fp64 u16) of every element with the code 2^w - 1.
// The code of an element is 0 if z is set and its exponent field is 0, exponent - base + z if that
// is below 2^w - 1, and else 2^w - 1. With w = 0 all exponents equal the base. w is at most 6, for
// fp16 5; z is 0 if w < 2; every code below 2^w - 1 stands for an exponent of the type.
//
// The packer guesses w, z and base from a sample of 128 exponents. If the sample does not look like
// numbers of similar magnitude, or many more exponents of the superblock have no code than the
// sample had let expect, the packer counts all exponents and chooses the cheapest w, as it does at
// the end of a vector.
#ifndef INCCL_COMPRESS_LOSSLESS_EXPONENT_PACK_H_
#define INCCL_COMPRESS_LOSSLESS_EXPONENT_PACK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/types.h"
#include "compress/codec.h"
#include "compress/kernels/exponent_kernels.h"

namespace inccl::lossless {

// The coding of a superblock's exponents (exponent_pack.h), shared by scalar and vector code.

inline constexpr uint32_t kWidest = 6;  // bits of a code
inline constexpr uint8_t kRaw = 0xFF, kZeros = 0xFE;
inline constexpr uint32_t kHeader = 3;  // control byte and base

struct Coding {
  uint32_t width = 0, zero = 0, base = 0;
  uint32_t escapes = 0;  // the number of exponents without a code, or an estimate
  uint32_t escape() const { return (1u << width) - 1; }
  uint32_t direct() const { return width == 0 ? 1 : escape() - zero; }  // exponents with a code
};

// The cheapest coding of exponents with this histogram, of a type with that many exponents. All
// exponents are 0 or in [lo, hi].
Coding Choose(const uint16_t* histogram, uint32_t lo, uint32_t hi, uint32_t count,
              uint32_t escape_bits, uint32_t exponents);

// The sample of a superblock: kRuns runs of kRun elements, each kRunStep behind the former.
inline constexpr uint32_t kRuns = 4, kRun = 32, kRunStep = 64, kSampled = kRuns * kRun;
constexpr uint32_t SampledElement(uint32_t i) { return i / kRun * kRunStep + i % kRun; }
// For each of these distances, the sample counts the exponents at most so far below the largest.
inline constexpr uint8_t kDistances[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13};
inline constexpr uint32_t kDistanceCount = sizeof kDistances;

// A coding whose largest exponent with a code is `below` under the sample's largest exponent.
struct Candidate {
  uint8_t width, below;
};
inline constexpr Candidate kCandidates[] = {{1, 0}, {1, 1}, {2, 0}, {2, 1}, {2, 2}, {2, 3},
                                            {3, 0}, {3, 1}, {3, 2}, {3, 3}, {4, 0}};
inline constexpr uint32_t kCandidateCount = sizeof kCandidates / sizeof kCandidates[0];

// How to compute the cost of all candidates from beyond[k], the number of sampled exponents other
// than 0 farther below the largest than kDistances[k]; 16 values each for vectors. The cost is
// `fixed` plus beyond[last] and, for those above the range, `inner` AND the number of sampled
// exponents other than 0, minus beyond[before] (kNone: 0). The unit is a byte for the sample.
struct CandidateTable {
  static constexpr uint8_t kNone = 0x80;
  alignas(16) uint8_t fixed[16];
  alignas(16) uint8_t last[16];
  alignas(16) uint8_t inner[16];
  alignas(16) uint8_t before[16];
};

constexpr CandidateTable MakeCandidateTable(uint32_t zero) {
  CandidateTable table{};
  for (uint32_t i = 0; i < 16; ++i) {
    table.fixed[i] = 0xFF;  // dearer than any candidate
    table.last[i] = table.before[i] = CandidateTable::kNone;
    if (i >= kCandidateCount || kCandidates[i].width <= zero) continue;
    const uint32_t width = kCandidates[i].width, below = kCandidates[i].below;
    const uint32_t farthest = below + (1u << width) - 1 - zero - 1;
    uint8_t last = 0;
    while (last + 1u < kDistanceCount && kDistances[last + 1] <= farthest) ++last;
    table.fixed[i] = static_cast<uint8_t>(width * kSampled / 8);
    table.last[i] = last;
    if (below == 0) continue;
    table.inner[i] = 0xFF;
    table.before[i] = static_cast<uint8_t>(below - 1);
  }
  return table;
}
// Without and with a code for exponent 0.
inline constexpr CandidateTable kCandidateTables[2] = {MakeCandidateTable(0),
                                                       MakeCandidateTable(1)};

// What the sample says.
struct Sample {
  uint32_t most = 0;    // the largest exponent
  uint32_t zeros = 0;   // number of exponents 0
  uint32_t beyond = 0;  // number of exponents other than 0 and the largest
  uint32_t best = 0;    // the cheapest candidate, the first of several
  uint32_t cost = 0;    // its cost
};

// Sets the coding that looks cheapest in the sample of a whole superblock; returns false if the
// sample cannot tell.
inline bool ChooseFrom(const Sample& sample, Coding* coding) {
  constexpr uint32_t kDear = 5 * kSampled / 8;  // a candidate of 5 bits may be cheaper
  if (sample.cost > kDear || sample.beyond == 0) return false;
  const Candidate& best = kCandidates[sample.best];
  coding->width = best.width;
  coding->zero = sample.zeros != 0 ? 1 : 0;
  const uint32_t end = sample.most - best.below + 1;
  coding->base = end - std::min(end, coding->direct());
  coding->escapes = kSuperblock / kSampled * (sample.cost - coding->width * kSampled / 8);
  return true;
}
// Whether this many exponents without a code are so many more than the sample had let expect that
// Choose should choose.
constexpr bool SampleMisled(const Coding& coding, uint32_t escapes) {
  return escapes > coding.escapes + 32;  // 32 bytes are one more bit for each element
}

// At least one exponent has no code of its own.
constexpr uint32_t WidestOf(uint32_t exponents) { return exponents < 64 ? 5 : kWidest; }

// The header of a superblock other than kRaw and kZeros, of a type with that many exponents.
inline void WriteHeader(const Coding& coding, std::byte* out) {
  out[0] = static_cast<std::byte>(coding.width | coding.zero << 4);
  const auto base = static_cast<uint16_t>(coding.base);
  std::memcpy(out + 1, &base, sizeof base);
}

// Sets all but escapes. Returns false if it is invalid; else every code stands for an exponent of
// the type.
inline bool ReadHeader(const std::byte* in, uint32_t exponents, Coding* coding) {
  const auto control = std::to_integer<uint32_t>(in[0]);
  uint16_t base = 0;
  std::memcpy(&base, in + 1, sizeof base);
  coding->width = control & 15;
  coding->zero = control >> 4;
  coding->base = base;
  return coding->width <= WidestOf(exponents) && coding->zero <= (coding->width < 2 ? 0u : 1u) &&
         coding->base + coding->direct() <= exponents;
}

bool IsZero(const std::byte* elements, uint32_t bytes);
uint32_t PackZeros(std::byte* out);
uint32_t PackRaw(const std::byte* elements, uint32_t bytes, std::byte* out);

}  // namespace inccl::lossless

namespace inccl {

// One thread at a time uses it.
class ExponentPacker {
 public:
  // `type` is a float type of 2 bytes or more.
  explicit ExponentPacker(DataType type);

  // Packs a superblock of at most 256 elements and returns the length, at most 1 + the elements'
  // bytes. `out` has room for that, even if the result is shorter.
  uint32_t Pack(const std::byte* elements, uint32_t count, std::byte* out);
  // Unpacks a superblock from at most `bytes` bytes. Returns its length, or 0 if the bytes are
  // invalid.
  uint32_t Unpack(const std::byte* in, uint64_t bytes, uint32_t count, std::byte* elements) const;

  // Packs any number of elements, superblock by superblock, into at most `room` bytes and returns
  // the length. If it is larger than `room`, or not smaller than the elements' bytes, the packer
  // has stopped somewhere, and the contents of `out` mean nothing.
  uint64_t PackAll(const std::byte* elements, uint32_t count, std::byte* out, uint64_t room);
  // Unpacks any number of elements from at most `bytes` bytes. Sets *read to the number of bytes
  // read; returns false if those behind them are invalid.
  bool UnpackAll(const std::byte* in, uint64_t bytes, uint32_t count, std::byte* elements,
                 uint64_t* read) const;

 private:
  uint32_t PackOne(const lossless::ExponentKernels* kernels, const std::byte* elements,
                   uint32_t count, std::byte* out);
  uint32_t UnpackOne(const lossless::ExponentKernels* kernels, const std::byte* in, uint64_t bytes,
                     uint32_t count, std::byte* elements) const;

  DataType type_;
  std::vector<uint16_t> histograms_;  // of exponents; all zero between calls
};

}  // namespace inccl

#endif  // INCCL_COMPRESS_LOSSLESS_EXPONENT_PACK_H_
