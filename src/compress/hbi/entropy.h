// SPDX-License-Identifier: Apache-2.0
//
// Entropy-coded fields (docs/format.md, "Coded fields"): a prefix code in place of the packed
// fields of single contributions and of results. Packed fields are what goes in and what comes out.
#ifndef INCCL_COMPRESS_HBI_ENTROPY_H_
#define INCCL_COMPRESS_HBI_ENTROPY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/team.h"
#include "compress/codec.h"
#include "compress/hbi/format.h"
#include "compress/hbi/slice.h"
#include "compress/kernels/hbi_kernels.h"

namespace inccl::hbi {

inline constexpr uint32_t kRunSuperblocks = 8;  // superblocks of a run, which has a code
inline constexpr uint32_t kShapes = 15;         // codes of a number of levels
inline constexpr uint32_t kCodeBits = 11;       // of the longest code
inline constexpr size_t kHeadBytes = 2;         // of a run
inline constexpr size_t kFieldSlack = 16;  // bytes that the functions below touch beyond fields

// The lengths of the codes of K levels, in bits, by number of the letter; `letters` of them. The
// same on all machines.
struct CodeLengths {
  std::array<uint8_t, 256> bits{};
  uint32_t letters = 0;
};
CodeLengths LengthsOf(uint32_t k, uint32_t shape);

// 64 times the bits of an element that data of this shape have on average, rounded up, with heads.
uint32_t Cost64(uint32_t k, uint32_t shape);
// The shapes by which a plan counts: of one contribution among n ranks, and of a result.
uint32_t ShapeOfSum(uint32_t k, uint32_t nranks);
uint32_t ShapeOfResult(uint32_t k);

// Bytes of the heads of a payload.
constexpr size_t HeadBytes(size_t superblocks) {
  return (superblocks + kRunSuperblocks - 1) / kRunSuperblocks * kHeadBytes;
}

// Codes the packed fields of superblocks of one window with these levels (0: no fields), which have
// kReadSlack behind them. `out` has room for them and HeadBytes. Returns the bytes written.
size_t EntropyEncode(Team* team, const Kernels& kernels, std::span<const uint16_t> levels,
                     const uint8_t* fields, uint8_t* out);

// The reverse. False if these bytes are not what an encoder writes; then `fields` has any content.
// Never reads beyond `bytes` nor writes beyond the packed fields.
bool EntropyDecode(Team* team, const Kernels& kernels, std::span<const uint16_t> levels,
                   const uint8_t* in, size_t bytes, uint8_t* fields);

// Payloads of entropy-coded fields, around a Combine of packed ones: those that come in are decoded
// before it, those that go out are coded after it (docs/format.md, "Coded fields").

// Used by one state; its memory serves later operations again.
class CodedPayloads {
 public:
  // An operation on one slice.
  struct Call {
    const Range* range;
    const SliceContext* slice;
    int rank;
    uint32_t trailer;  // bytes of a payload's checksum
    bool codes;        // outputs, too; else they are packed
    Team* team;
  };

  // Whether payloads of this format may be coded: single contributions and results. Sums on their
  // way have packed fields.
  static bool Admits(const Format& format) {
    return format.form == Form::kResult || (format.form == Form::kSum && format.contributions == 1);
  }
  // Checks and decodes the payloads among the inputs, and finds memory for the packed outputs.
  Status Take(const Call& call, std::span<const Term> inputs, std::span<const Term> outputs);
  // For the Combine of packed payloads, without checksums. An output that several want is there
  // once, and a result that is forwarded is not; there may be no output.
  std::span<const Term> inputs() const { return inputs_; }
  std::span<Term> outputs() { return outputs_; }
  // Fills the outputs from those of the Combine, and sets their lengths.
  Status Put(const Call& call, std::span<const Term> inputs, std::span<Term> outputs);

 private:
  // The levels of a slice's superblocks in this form.
  std::span<const uint16_t> LevelsOf(const SliceContext& slice, Form form);
  Status Decode(const Call& call, const Term& input, const Term& packed);
  Status Encode(const Call& call, const Term& packed, Term* output);
  bool IsMade(const Format& format) const;

  std::vector<uint8_t> buffer_;  // packed payloads, one behind the other
  std::vector<uint8_t> coded_;   // one that may become longer than its output
  std::vector<Term> inputs_, outputs_;
  std::vector<uint16_t> levels_;
};

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_ENTROPY_H_
