// SPDX-License-Identifier: Apache-2.0
//
// Payloads of entropy-coded fields, around a Combine of packed ones: those that come in are decoded
// before it, those that go out are coded after it (docs/format.md, "Coded fields").
#ifndef INCCL_COMPRESS_HBI_CODED_PAYLOADS_H_
#define INCCL_COMPRESS_HBI_CODED_PAYLOADS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "compress/codec.h"
#include "compress/hbi/slice.h"

namespace inccl::hbi {

// Used by one state; its memory serves later operations again.
class CodedPayloads {
 public:
  // An operation on one slice.
  struct Call {
    const Range* range;
    const SliceContext* slice;
    int rank;
    uint32_t trailer;  // bytes of a payload's checksum
    Team* team;
  };

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
  std::vector<Term> inputs_, outputs_;
  std::vector<uint16_t> levels_;
};

}  // namespace inccl::hbi

#endif  // INCCL_COMPRESS_HBI_CODED_PAYLOADS_H_
