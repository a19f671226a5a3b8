// SPDX-License-Identifier: Apache-2.0
//
// The work on one slice, superblock by superblock. Inputs are packed sums and own elements; outputs
// are packed sums, the requantized result and elements. The caller has checked the lengths, so no
// function here fails.
#ifndef INCCL_COMPRESS_HBI_SLICE_H_
#define INCCL_COMPRESS_HBI_SLICE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "base/types.h"
#include "compress/codec.h"
#include "compress/hbi/config.h"
#include "compress/hbi/plan.h"
#include "compress/kernels/hbi_kernels.h"

namespace inccl::hbi {

// Payloads as the kernels name them.
inline uint8_t* Unsigned(std::byte* bytes) { return reinterpret_cast<uint8_t*>(bytes); }
inline const uint8_t* Unsigned(const std::byte* bytes) {
  return reinterpret_cast<const uint8_t*>(bytes);
}

// The values that a slice's superblocks share.
struct SliceContext {
  const Kernels* kernels = nullptr;
  const Planner* planner = nullptr;
  DataType type = DataType::kFloat32;
  bool average = false;
  bool nearest = false;         // own elements are rounded to nearest, without hash and offsets
  bool rotate = false;          // superblocks are rotated on their way in and back on the way out
  bool unbiased = false;        // the second quantization has a hash, else it is to nearest
  bool stream = false;          // non-temporal stores of elements
  Offsets offsets = {};         // of this rank
  uint32_t counter = 0;         // HashCounter of the slice's first block
  uint32_t result_counter = 0;  // likewise, for the second quantization
  uint32_t sign_counter = 0;    // likewise, for the signs of a rotation
  uint32_t group_counter = 0;   // likewise, for sums of groups
  uint32_t count = 0;           // elements; the last superblock may be partial
  const uint8_t* words = nullptr;   // agreed side words (all-gather: the sender's)
  const uint8_t* points = nullptr;  // planned, one per superblock

  uint32_t superblocks() const { return (count + kSuperblock - 1) / kSuperblock; }
};

// Writable memory for packed data: [at, limit).
struct Sink {
  uint8_t* at = nullptr;
  uint8_t* limit = nullptr;
};

// Pointers are nullptr for outputs that are not wanted.
struct SliceOutputs {
  Sink sum;     // packed sum of all contributions
  Sink result;  // kResult; if not Planner::requantizes(), use `sum`
  uint8_t* result_words =
      nullptr;                    // set: where the side words of `result`, which then has none, go
  std::byte* elements = nullptr;  // decoded, in the caller's type
};

// True for a result that is decoded and forwarded instead of folded.
inline bool IsForward(std::span<const Term> inputs) {
  return inputs.size() == 1 && inputs[0].format.form == Form::kResult;
}
// Whether an output has room for so many bytes.
Status CheckCapacity(const Term& term, uint64_t needed);

// Bytes of a slice's packed sum of these contributions, and of its kResult payload.
uint64_t SumBytes(const SliceContext& slice, uint32_t contributions);
uint64_t ResultBytes(const SliceContext& slice);

// Folds the sources (at least one; `at` advances) into the outputs. `result` and `elements` need
// all contributions.
void FoldSlice(const SliceContext& slice, std::span<Source> sources, const SliceOutputs& outputs);

// Decodes a kResult payload of ResultBytes bytes whose side words have been checked.
void DecodeResult(const SliceContext& slice, const uint8_t* payload, std::byte* elements);
// The same for its side words (not read unless Planner::requantizes()) and its fields.
void DecodeFields(const SliceContext& slice, const uint8_t* words, Source fields,
                  std::byte* elements);

// Writes what the slice's elements count as in a sum: their codes, decoded; 0 without levels.
void OwnValues(const SliceContext& slice, const std::byte* elements, float* values);

// Computes the side words of a slice's elements, with zeros beyond the end. With `first` it writes
// them to `words`, else it merges them into `words`.
void FoldOwnWords(const SliceContext& slice, const std::byte* elements, bool first, uint8_t* words);

// The CRC-32C that `checksum=1` appends to a payload (docs/format.md, "Payloads").

inline constexpr uint32_t kChecksumBytes = 4;

// The bytes that checksums add to the payload sizes of the format.
inline uint32_t TrailerBytes(const Config& config) { return config.checksum ? kChecksumBytes : 0; }

// Computes the checksum of `bytes` bytes and writes it behind them.
void PutChecksum(std::byte* payload, uint64_t bytes);

// Returns kInternalError unless the checksum behind `bytes` bytes is right. The error names `what`,
// the elements and this rank.
Status VerifyChecksum(const std::byte* payload, uint64_t bytes, const char* what,
                      const Range& range, int rank);

// The work on one slice where sums are taken in groups of m neighbouring ranks (docs/format.md,
// "Groups"): exact integers inside a group, quantized anew where it ends; the groups' sums meet at
// an owner, in fp32. Lengths and side words have been checked: nothing here can fail.

// Bytes of a kSum payload. One of more than one contribution is the sum of a group: it begins with
// side words of its own, one for each superblock of the slice.
uint64_t GroupedSumBytes(const SliceContext& slice, uint32_t contributions);

// A group of ranks on its way into the sum of groups: its members, or its sum on its own scales.
struct Group {
  std::span<Source> members;  // one contribution each; if empty, `words` and `sum` are set
  const uint8_t* words = nullptr;
  Source sum;
  uint16_t shift = 0;  // for its second quantization, unless that rounds to nearest
};
// Folds groups into the outputs. `outputs.sum` takes a single group only.
void FoldGroups(const SliceContext& slice, std::span<Group> groups, const SliceOutputs& outputs);

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_SLICE_H_
