// SPDX-License-Identifier: Apache-2.0
//
// The factory functions that registry.cc lists. Each makes a codec from a specification; errors
// name the key and the value.
#ifndef INCCL_COMPRESS_CODECS_H_
#define INCCL_COMPRESS_CODECS_H_

#include <memory>

#include "compress/codec.h"
#include "compress/codec_spec.h"

namespace inccl {

using MadeCodec = Result<std::shared_ptr<const Codec>>;

MadeCodec MakeBf16Codec(const CodecSpec& spec);      // wire/wire_codec.cc
MadeCodec MakeFp16Codec(const CodecSpec& spec);      // wire/wire_codec.cc
MadeCodec MakeFp8Codec(const CodecSpec& spec);       // wire/wire_codec.cc
MadeCodec MakeMxfp8Codec(const CodecSpec& spec);     // wire/wire_codec.cc
MadeCodec MakeDitherCodec(const CodecSpec& spec);    // block_code/dither.cc
MadeCodec MakeOnebitCodec(const CodecSpec& spec);    // block_code/onebit.cc
MadeCodec MakeLosslessCodec(const CodecSpec& spec);  // lossless/lossless_codec.cc
MadeCodec MakeQsgdCodec(const CodecSpec& spec);      // qsgd/qsgd_state.cc
MadeCodec MakeQsgdMsCodec(const CodecSpec& spec);    // qsgd/qsgd_state.cc

}  // namespace inccl

#endif  // INCCL_COMPRESS_CODECS_H_
