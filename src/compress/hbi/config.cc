// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/config.h"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <utility>

#include "compress/hbi/format.h"

namespace inccl::hbi {
namespace {

constexpr uint64_t kMinBits8 = 4, kMaxBits8 = 128;

constexpr std::array<std::string_view, 13> kKeys = {
    "ag",    "bits", "checksum",  "code", "k",   "k2",      "levels",
    "local", "m",    "min_bytes", "ref",  "rht", "unbiased"};

Status Contradiction(const CodecSpec& spec, std::string_view key, std::string_view other) {
  return InvalidArgument(fmt::format("codec {}: {}={} and {}={} contradict each other", spec.name(),
                                     key, *spec.Find(key), other, *spec.Find(other)));
}

Status ParseSwitch(const CodecSpec& spec, std::string_view key, bool* on) {
  const Result<uint64_t> value = spec.Integer(key, 0, 0, 1);
  if (!value.ok()) return value.status();
  *on = *value != 0;
  return Status::Ok();
}

// local, m, ref and ag, and what they say of each other.
Status ParseGroups(const CodecSpec& spec, Config* config) {
  static constexpr std::string_view kReferences[] = {"direct", "ring"};
  static constexpr std::string_view kAllGathers[] = {"requant", "exact"};
  static constexpr std::string_view kLocals[] = {"codes", "fp32"};
  const Result<size_t> local = spec.Choice("local", 0, kLocals);
  const Result<size_t> reference = spec.Choice("ref", 0, kReferences);
  const Result<size_t> all_gather = spec.Choice("ag", 0, kAllGathers);
  const Result<uint64_t> m = spec.Integer("m", 0, 0, 1u << 15);
  if (!local.ok()) return local.status();
  if (!reference.ok()) return reference.status();
  if (!all_gather.ok()) return all_gather.status();
  if (!m.ok()) return m.status();
  config->local = static_cast<Local>(*local);
  config->reference = static_cast<Reference>(*reference);
  config->all_gather = static_cast<AllGather>(*all_gather);
  config->m = static_cast<uint32_t>(*m);
  if (*m == 0) return Status::Ok();
  if (*m == 1) {
    return InvalidArgument(
        fmt::format("codec {}: m={} makes groups of one rank", spec.name(), *spec.Find("m")));
  }
  // An owner adds the groups' sums in fp32, so m needs ref=direct and ag=requant.
  if (config->reference != Reference::kTwoShot) return Contradiction(spec, "m", "ref");
  if (config->all_gather != AllGather::kRequant) return Contradiction(spec, "m", "ag");
  return Status::Ok();
}

// By Coding.
constexpr std::string_view kCodes[] = {"auto", "fixed", "entropy"};

// code, and what entropy says of those: single contributions and results alone are coded.
Status ParseCode(const CodecSpec& spec, Config* config) {
  const Result<size_t> code = spec.Choice("code", 0, kCodes);
  if (!code.ok()) return code.status();
  config->coding = static_cast<Coding>(*code);
  if (config->coding != Coding::kEntropy) return Status::Ok();
  if (config->reference != Reference::kTwoShot) return Contradiction(spec, "code", "ref");
  if (config->all_gather != AllGather::kRequant) return Contradiction(spec, "code", "ag");
  if (config->m != 0) return Contradiction(spec, "code", "m");
  return Status::Ok();
}

// Parses levels, and bits or k and k2. 0 means "not given", as in canonical specs.
Status ParseLevels(const CodecSpec& spec, Config* config) {
  static constexpr std::string_view kRules[] = {"even", "energy"};
  const Result<size_t> levels = spec.Choice("levels", 0, kRules);
  if (!levels.ok()) return levels.status();
  config->levels = static_cast<Levels>(*levels);
  const std::string* bits_text = spec.Find("bits");
  const bool bits_given = bits_text != nullptr && *bits_text != "0";
  const Result<uint64_t> bits8 =
      bits_given ? spec.Eighths("bits", 0, kMinBits8, kMaxBits8) : Result<uint64_t>(uint64_t{0});
  const Result<uint64_t> k = spec.Integer("k", 0, 0, kMaxLevels);
  const Result<uint64_t> k2 = spec.Integer("k2", 0, 0, kMaxLevels);
  for (const Result<uint64_t>* value : {&bits8, &k, &k2}) {
    if (!value->ok()) return value->status();
  }
  if (bits_given && *k != 0) return Contradiction(spec, "bits", "k");
  if (bits_given && *k2 != 0) return Contradiction(spec, "bits", "k2");
  if (config->levels != Levels::kEven && *k != 0) return Contradiction(spec, "levels", "k");
  if (*k2 != 0 && *k == 0) {
    return InvalidArgument(
        fmt::format("codec {}: k2={} is given without k", spec.name(), *spec.Find("k2")));
  }
  if (bits_text != nullptr && !bits_given && *k == 0) {
    return InvalidArgument(
        fmt::format("codec {}: bits={} without k leaves no levels", spec.name(), *bits_text));
  }
  config->k = static_cast<uint32_t>(*k);
  config->k2 = static_cast<uint32_t>(*k2 != 0 ? *k2 : *k);
  if (*k != 0) {
    config->bits8 = 0;
  } else if (bits_given) {
    config->bits8 = static_cast<uint32_t>(*bits8);
  }
  return Status::Ok();
}

}  // namespace

std::string Config::Canonical() const {
  return fmt::format(
      "hbi:ag={},bits={},checksum={:d},code={},k={},k2={},levels={},local={},m={},min_bytes={},ref="
      "{},"
      "rht={:d},unbiased={:d}",
      all_gather == AllGather::kExact ? "exact" : "requant", FormatEighths(bits8), checksum,
      kCodes[static_cast<size_t>(coding)], k, k2, levels == Levels::kEnergy ? "energy" : "even",
      local == Local::kFp32 ? "fp32" : "codes", m, min_bytes,
      reference == Reference::kRing ? "ring" : "direct", rht, unbiased);
}

Result<Config> ParseConfig(const CodecSpec& spec) {
  if (Status status = spec.AllowOnly(kKeys); !status.ok()) return status;
  Config config;
  if (Status status = ParseGroups(spec, &config); !status.ok()) return status;
  if (Status status = ParseCode(spec, &config); !status.ok()) return status;
  for (const auto& [key, on] :
       {std::pair("checksum", &config.checksum), std::pair("rht", &config.rht),
        std::pair("unbiased", &config.unbiased)}) {
    if (Status status = ParseSwitch(spec, key, on); !status.ok()) return status;
  }
  if (Status status = ParseLevels(spec, &config); !status.ok()) return status;

  const Result<uint64_t> min_bytes = spec.Integer("min_bytes", config.min_bytes, 0, UINT64_MAX);
  if (!min_bytes.ok()) return min_bytes.status();
  config.min_bytes = *min_bytes;
  return config;
}

}  // namespace inccl::hbi
