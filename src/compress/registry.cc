// SPDX-License-Identifier: Apache-2.0
//
// The list of all codecs.
#include <fmt/format.h>

#include <string>

#include "compress/codec.h"
#include "compress/codec_spec.h"
#include "compress/codecs.h"
#include "compress/hbi/hbi_codec.h"

namespace inccl {
namespace {

Result<std::shared_ptr<const Codec>> MakeIdentity(const CodecSpec& spec) {
  if (Status status = spec.AllowOnly({}); !status.ok()) return status;
  return IdentityCodec();
}

struct Entry {
  std::string_view name;
  Result<std::shared_ptr<const Codec>> (*make)(const CodecSpec& spec);
};

constexpr Entry kCodecs[] = {
    {"bf16", MakeBf16Codec},   {"dither", MakeDitherCodec},  {"fp16", MakeFp16Codec},
    {"fp8", MakeFp8Codec},     {"hbi", MakeHbiCodec},        {"lossless", MakeLosslessCodec},
    {"mxfp8", MakeMxfp8Codec}, {"none", MakeIdentity},       {"onebit", MakeOnebitCodec},
    {"qsgd", MakeQsgdCodec},   {"qsgd_ms", MakeQsgdMsCodec},
};

}  // namespace

Result<std::shared_ptr<const Codec>> MakeCodec(std::string_view spec) {
  Result<CodecSpec> parsed = CodecSpec::Parse(spec);
  if (!parsed.ok()) return parsed.status();
  std::string names;
  for (const Entry& entry : kCodecs) {
    if (entry.name == parsed->name()) return entry.make(*parsed);
    names += fmt::format("{}{}", names.empty() ? "" : ", ", entry.name);
  }
  return InvalidArgument(
      fmt::format("codec spec: unknown codec {}; there are {}", parsed->name(), names));
}

}  // namespace inccl
