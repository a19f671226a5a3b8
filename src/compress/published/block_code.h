// SPDX-License-Identifier: Apache-2.0
//
// Codecs whose payloads can be decoded but not summed: each rank encodes its contribution once,
// with scales of its own, and no rank encodes a partial sum. Such a codec only needs a code for the
// floats of a superblock (BlockCode); MakeBlockCodec makes the codec.
//
// A partial sum is the list of its contributions' codes, as long as that is shorter than fp32;
// beyond that it is fp32 elements. The owner of a part decodes the codes, adds them in the order of
// their ranks, and encodes the total once more; every rank decodes that, so all ranks return the
// same bytes. While partial sums are lists, these do not depend on the algorithm. The result of a
// reduce-scatter exists once and is not encoded. An average multiplies contributions by 1/n (fp32)
// before it encodes them.
//
// The bytes of onebit and dither.
//
// Superblocks, segments, mix64, lowbias32 and field strings are those of docs/format.md,
// arithmetic is fp32, each operation rounded once. tests/compress/onebit_test.cc and
// dither_test.cc write the definitions down a second time.
//
// - Code of a range: those of its superblocks in order. A superblock of onebit: the scale of
//   each block (fp32, 4 bytes), then a bit for each element, set where the sign is; of dither:
//   the norm of each block (fp32), then the field string of the levels with their sign plus s,
//   of bits bits. The block at the end of a vector has what elements are left.
// - sparse=1: after the norms, a byte k. 255: the field string follows. Else k levels are not
//   zero: their places in the superblock, a byte each, ascending (where k is less than the bytes
//   of a bitmap), or a bitmap of the superblock; then the field string of these k levels. The
//   encoder takes the shorter one.
// - Random numbers of dither: h = lowbias32(mix64(K + b) mod 2^32 + t) for place t of superblock
//   b (modulo 2^32), with K = mix64(seed ^ mix64(step ^ mix64(segment ^ mix64(rank)))); the
//   owner of a total takes the number of ranks for its rank. Linear levels: v = |x| (s / N), at
//   most s; level floor(v), one more where floor(h / 256) 2^-24 < v - floor(v). Powers of two: v
//   = |x| (1 / N), at most 1. From 2^(1 - s) on, the level is that of the exponent of v, one
//   more where the mantissa's 23 bits and floor(h / 512) make 2^23 or more; below, level 1 where
//   floor(h / 256) 2^-24 < v 2^(s - 1), else 0.
// - Scale or norm that is not finite: NaN in the code, and NaN of the block where it is decoded.
// - Sum of h contributions (kSum): a list, in the order of ranks: h pairs of a rank and a number
//   of bytes (4 bytes each), then the codes. Where h codes of a superblock would take 1024 bytes
//   or more, the sum is fp32 elements instead; from then on the algorithm decides the order of
//   additions.
// - Result (kResult): contributions, decoded, are added in fp32 in the order of ranks to 0; the
//   code of that total. In a reduce-scatter the total is the result, in an all-gather the
//   sender's code.
// So no rank encodes a partial sum, whatever the algorithm: each element is encoded by its rank
// and once more by the owner of the total, as over direct. A ring or tree carries lists: on
// average n / 2 codes instead of one.
#ifndef INCCL_COMPRESS_PUBLISHED_BLOCK_CODE_H_
#define INCCL_COMPRESS_PUBLISHED_BLOCK_CODE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "compress/codec.h"

namespace inccl {

inline constexpr uint32_t kMostBlocks = kSuperblock / kBlock;  // with norms of their own
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kLargestFloat = std::numeric_limits<float>::max();

// A code for at most kSuperblock elements; thread-safe. The code of a range consists of those of
// its superblocks in order. Arrays of floats have room for kSuperblock elements.
class BlockCode {
 public:
  virtual ~BlockCode() = default;
  virtual const char* name() const = 0;
  virtual const std::string& spec() const = 0;  // canonical
  virtual double bits() const = 0;              // per element, at most
  // Bound on the error of an element, relative to the largest magnitude of its superblock.
  virtual double unit() const = 0;
  // The same of the magnitude of a decoded element.
  virtual double reach() const = 0;
  virtual bool needs_residual() const { return false; }  // as Codec's
  // Bytes of the code of `count` elements; if lengths depend on the contents, the largest.
  virtual uint32_t Bytes(uint32_t count) const = 0;
  virtual bool fixed() const { return true; }  // lengths do not depend on the contents
  // Writes the code and at most kSlack bytes of garbage behind it; returns its length. Elements of
  // x beyond `count` are 0. `random` is the key of random rounding.
  static constexpr uint32_t kSlack = 64;
  virtual uint32_t Encode(const float* x, uint32_t count, uint32_t random,
                          std::byte* out) const = 0;
  // Adds the values of a code, to 0 if this is the first one; returns its length, or 0 if the
  // `left` bytes do not begin with one. Elements of `sum` beyond `count` may change.
  virtual uint32_t Add(const std::byte* in, uint64_t left, uint32_t count, bool first,
                       float* sum) const = 0;
};

// What Codec::Bound says: a contribution and then the total are encoded once, on any path.
double RelativeError(const BlockCode& code, Collective collective, int nranks);

// Bytes of the code of any number of elements, or the most.
uint64_t RangeBytes(const BlockCode& code, uint64_t count);

// Makes NaN of the blocks whose bits are set: one NaN whatever its sign was.
void FillPoisoned(uint32_t blocks, uint32_t block, float* sum);

// True if a sum of so many contributions is a list of codes.
inline bool IsList(const BlockCode& code, uint64_t contributions) {
  return contributions == 1 ||
         contributions * code.Bytes(kSuperblock) < kSuperblock * sizeof(float);
}

// In a list, each code has its rank and its number of bytes before all codes.
struct ListEntry {
  uint32_t rank = 0, bytes = 0;
};

std::shared_ptr<const Codec> MakeBlockCodec(std::shared_ptr<const BlockCode> code);
std::unique_ptr<CodecState> NewBlockState(std::shared_ptr<const BlockCode> code);

}  // namespace inccl

#endif  // INCCL_COMPRESS_PUBLISHED_BLOCK_CODE_H_
