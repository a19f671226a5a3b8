// SPDX-License-Identifier: Apache-2.0
//
// What travels. A codec turns elements into payloads, sums payloads, and turns sums into elements,
// all through one operation: outputs = combine(inputs), over a range of elements, straight from
// slot to slot. A schedule says which form every operand has; the codec alone knows what bytes a
// form is made of.
//
// Adding a codec: one file with a Codec and a CodecState, one line in registry.cc, one row in the
// codecs' test table.
#ifndef INCCL_COMPRESS_CODEC_H_
#define INCCL_COMPRESS_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/types.h"

namespace inccl {

// What an operand holds.
enum class Form : uint8_t {
  kInput,   // this rank's elements in the caller's type: one contribution
  kOutput,  // the caller's result, in the caller's type
  kSum,     // a partial sum of `contributions` ranks, in the codec's representation
  kResult,  // the final value on its way to the ranks, in the codec's representation, forwarded
            // verbatim
  kSide,    // side information (hbi: scale codes, combined by MAX); see Codec::has_side_phase
            // (`contributions`: 1 in the second side phase)
};

struct Format {
  Form form = Form::kInput;
  uint16_t contributions = 0;  // kSum: how many ranks are in it
  friend bool operator==(const Format&, const Format&) = default;
};

// An operand bound to memory. As an input `bytes` is the length of the payload; as an output it is
// the capacity, and Combine replaces it by the length written. Memory of kInput and kOutput holds
// range.count elements. An output of form kSide with data == nullptr is the codec's own state (the
// agreed side information).
struct Term {
  Format format;
  std::byte* data = nullptr;  // inputs are only read
  uint32_t bytes = 0;
};

// Elements [first, first + count) of one vector of CallDesc::count elements. Calls are about one
// vector (segment 0) or several (SegmentsOf).
struct Range {
  uint32_t segment = 0;
  uint64_t first = 0;  // a multiple of kSuperblock
  uint32_t count = 0;  // a multiple of kSuperblock, except at the end of the vector
};

inline constexpr uint32_t kBlock = 32;  // elements that share a scale
inline constexpr uint32_t kSuperblock =
    256;  // elements that share a width; the grain of all chunking
inline constexpr uint32_t kWindow = 1u << 20;  // elements that share a plan

struct CallDesc {
  Collective collective = Collective::kAllReduce;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Scalar scalar{};  // kPreMulSum: what this rank's elements are multiplied by
  int nranks = 1;
  int rank = 0;
  uint64_t count = 0;  // elements of one vector (of one segment)
  uint64_t seed = 0;
  uint64_t step = 0;
  // The result is larger than what caches hold: write it past them where that is possible.
  bool stream = false;
  // Payloads are written for other cores, more of them than what caches hold, and are in nobody's
  // way there: likewise.
  bool stream_payloads = false;
};

struct CodecStats {
  double error_bound = 0;
  uint64_t zero_blocks = 0;
  uint64_t dropped_superblocks = 0;
  uint64_t poisoned_blocks = 0;
};

class DeviceWork;  // compress/device_work.h

// The state of one call on one rank. Used by one thread at a time; reused from call to call, so
// that a warm call allocates nothing.
class CodecState {
 public:
  virtual ~CodecState() = default;
  virtual Status Begin(const CallDesc& call) = 0;
  // outputs = fold of inputs in the order they stand. Several outputs of one format get the same
  // bytes. A payload whose length is not what this rank expects is an error (kInternalError naming
  // both lengths), never read past its end.
  virtual Status Combine(const Range& range, std::span<const Term> inputs,
                         std::span<Term> outputs) = 0;
  // Combine in two halves, where elements (kInput, kOutput) are in memory of a device. Launch
  // checks what Combine checks and launches kernels; false: there are none for this, and nothing
  // has been done. When they are done Complete does what is left: copies, checksums, the lengths of
  // the outputs. In between come the halves of other Combines, of other ranges or forms.
  virtual Result<bool> Launch(const Range& /*range*/, std::span<const Term> /*inputs*/,
                              std::span<Term> /*outputs*/, DeviceWork* /*work*/) {
    return false;
  }
  virtual Status Complete(const Range& /*range*/, std::span<const Term> /*inputs*/,
                          std::span<Term> /*outputs*/, DeviceWork* /*work*/) {
    return Status::Ok();
  }
  // Whether a peer may use the caller's memory in the place of a payload: the payload kSum of one
  // contribution is the input as it stands; kResult is the output.
  virtual bool InputIsPayload() const { return false; }
  virtual bool ResultIsPayload() const { return false; }
  // Whether the consumer of such a kSum may take the producer's input in its place, as an operand
  // of its own (kInput): what is done to inputs is the same on all ranks.
  virtual bool InputsAreAlike() const { return InputIsPayload(); }
  // Ends the call; stats may be null.
  virtual void Finish(CodecStats* stats) = 0;
};

// Which of the schedules can run a codec.
struct Route {
  enum class Kind : uint8_t { kAny, kTwoShot, kRing };
  Kind kind = Kind::kAny;
  const char* because = "";  // what of the specification asks for it
  int group = 0;             // kTwoShot: so many ranks may add up before an owner does; 0: none
};

// Immutable, made from a canonical spec, shared by all calls and threads.
class Codec {
 public:
  virtual ~Codec() = default;
  // Canonical: every key, sorted. Equal specs mean equal bytes.
  virtual const std::string& spec() const = 0;
  // Whether calls of this kind can go through this codec; the message says why not.
  virtual Status Supports(Collective collective, DataType type, ReduceOp op, int nranks) const = 0;
  // Whether this specification can hold what it promises in such calls, whatever their type and
  // operation; where not, a call is refused rather than run uncompressed. The message names the
  // key.
  virtual Status Fits(Collective /*collective*/, int /*nranks*/) const { return Status::Ok(); }
  // True: the schedule runs a phase on side lanes, row by row ahead of the data, in which all ranks
  // get the side information of every segment: where something is reduced that of all ranks
  // together, else its sender's. kInput -> kSide, (kSide, kInput) -> kSide, kSide -> kSide.
  virtual bool has_side_phase() const = 0;
  virtual Route route() const { return {}; }
  // True: a payload is about a whole chunk of a row, so a chunk is one slice.
  virtual bool whole_chunks() const { return false; }
  // True: another such phase follows, row by row between the first and the data.
  virtual bool has_second_side_phase() const { return false; }
  // Bytes of the side information of `count` elements of a row, at most (of either phase).
  virtual uint32_t SideBytes(uint32_t count) const {
    return (count / kSuperblock + (count % kSuperblock != 0 ? 1 : 0)) * (kSuperblock / kBlock);
  }
  // Of a payload of this form in the reference algorithm of `bits`: bytes that these do not count
  // (hbi: checksums, what parts say of themselves).
  virtual uint32_t UncountedBytes(Form /*form*/) const { return 0; }
  // Elements of one row of the schedule (a window of a vector). 0: any.
  virtual uint64_t window_elements() const = 0;
  // Upper bound of the payload of `count` elements in any form this codec uses on data lanes, in
  // bytes.
  virtual uint32_t MaxBytes(DataType type, int nranks, uint32_t count) const = 0;
  virtual uint64_t min_bytes() const { return 0; }
  // A priori: bits per element and phase that a reference algorithm sends (0: those of the type, or
  // fewer), and the bound on the absolute error of an element of the sum relative to n times the
  // largest max|x| of its block over the ranks; where nothing is reduced, to the sender's. 0 for a
  // lossless codec. For codecs without scales per block docs/codecs.md says what stands for a
  // block.
  virtual void Bound(Collective collective, int nranks, double* bits,
                     double* relative_error) const = 0;
  // Of an all-reduce.
  void Bound(int nranks, double* bits, double* relative_error) const {
    Bound(Collective::kAllReduce, nranks, bits, relative_error);
  }
  virtual std::unique_ptr<CodecState> NewState() const = 0;
};

// Parses "name:key=value,...". Errors name the key or value.
Result<std::shared_ptr<const Codec>> MakeCodec(std::string_view spec);

// The codec "none": elements travel as they are and are reduced by the call's operation.
const std::shared_ptr<const Codec>& IdentityCodec();

}  // namespace inccl

#endif  // INCCL_COMPRESS_CODEC_H_
