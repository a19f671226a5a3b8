// SPDX-License-Identifier: Apache-2.0
//
// Codecs that decode, add and encode at each hop: a wire format for floats is all there is to
// write. MakeWireCodec makes a codec of it.
//
// Every contribution is encoded once by the rank that owns it, also where that rank adds it itself,
// so that all ranks count it alike; sums are fp32, in the order of the inputs, and are encoded when
// they leave the rank. Of an all-reduce and an all-gather every rank, the owner too, gets what the
// encoded result decodes to: all ranks return the same bytes. Which bytes depends on the order of
// the additions, hence on the algorithm. The result of a reduce-scatter exists once and is not
// encoded. An average multiplies contributions by 1/n (fp32) before they are encoded.
#ifndef INCCL_COMPRESS_WIRE_FLOAT_WIRE_H_
#define INCCL_COMPRESS_WIRE_FLOAT_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "compress/codec.h"
#include "compress/cuda/kernel_args.h"

namespace inccl {

// Thread-safe. Encode(Decode(Encode(x))) = Encode(x) for all x. A range's payload is those of its
// superblocks one after the other: Encode and Decode get whole superblocks, but for the last.
class FloatWire {
 public:
  virtual ~FloatWire() = default;
  virtual const char* name() const = 0;
  virtual std::string spec() const = 0;  // canonical
  virtual double bits() const = 0;       // per element
  // What rounding moves an element by, at most, relative to the largest one of its block; in the
  // range where the format has its full precision.
  virtual double unit() const = 0;
  virtual uint64_t Bytes(uint32_t count) const = 0;
  virtual void Encode(const float* in, uint32_t count, std::byte* out) const = 0;
  // What Decode makes of Encode's bytes, in place.
  virtual void Round(float* x, uint32_t count) const = 0;
  // Any bytes decode to something.
  virtual void Decode(const std::byte* in, uint32_t count, float* out) const = 0;
  // Kernels that write what Encode writes and read what Decode reads.
  virtual std::optional<cuda::CastFormat> kernels() const { return std::nullopt; }
};

std::shared_ptr<const Codec> MakeWireCodec(std::shared_ptr<const FloatWire> wire);

}  // namespace inccl

#endif  // INCCL_COMPRESS_WIRE_FLOAT_WIRE_H_
