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
