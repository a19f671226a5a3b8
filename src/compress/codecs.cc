// SPDX-License-Identifier: Apache-2.0
#include "compress/codecs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string>
#include <vector>

#include "compress/codec.h"
#include "compress/hbi/hbi_codec.h"

namespace inccl {
namespace {

bool IsLower(char c) { return c >= 'a' && c <= 'z'; }
bool IsUpper(char c) { return c >= 'A' && c <= 'Z'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameChar(char c) { return IsLower(c) || IsDigit(c) || c == '_'; }
bool IsValueChar(char c) { return IsNameChar(c) || IsUpper(c) || c == '.' || c == '+' || c == '-'; }

// Prepares text for an error message: at most one line, control and non-ASCII bytes as hex.
std::string Show(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, 80)) {
    const auto byte = static_cast<unsigned char>(c);
    shown += byte >= 0x20 && byte < 0x7f ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  return text.size() > 80 ? shown + "..." : shown;
}

Status CheckName(const char* kind, std::string_view what, std::string_view name) {
  if (name.empty()) return InvalidArgument(fmt::format("{} spec: empty {}", kind, what));
  if (name.size() > CodecSpec::kMaxName) {
    return InvalidArgument(fmt::format("{} spec: {} \"{}\" has {} characters, at most {}", kind,
                                       what, Show(name), name.size(), CodecSpec::kMaxName));
  }
  if (!IsLower(name[0]) || !std::all_of(name.begin(), name.end(), IsNameChar)) {
    return InvalidArgument(
        fmt::format("{} spec: {} \"{}\" is not made of a-z, 0-9 and _, a letter first", kind, what,
                    Show(name)));
  }
  return Status::Ok();
}

Status CheckValue(const char* kind, std::string_view key, std::string_view value) {
  if (value.empty()) return InvalidArgument(fmt::format("{} spec: {}: empty value", kind, key));
  if (value.size() > CodecSpec::kMaxValue) {
    return InvalidArgument(
        fmt::format("{} spec: {}: the value \"{}\" has {} characters, at most {}", kind, key,
                    Show(value), value.size(), CodecSpec::kMaxValue));
  }
  if (!std::all_of(value.begin(), value.end(), IsValueChar)) {
    return InvalidArgument(fmt::format(
        "{} spec: {}: the value \"{}\" is not made of letters, digits, '.', '_', '+' and '-'", kind,
        key, Show(value)));
  }
  return Status::Ok();
}

bool ParseUnsigned(std::string_view text, uint64_t* value) {
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, *value);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

}  // namespace

Result<CodecSpec> CodecSpec::Parse(std::string_view text, const char* kind) {
  if (text.size() > kMaxText) {
    return InvalidArgument(
        fmt::format("{} spec: {} characters, at most {}", kind, text.size(), kMaxText));
  }
  CodecSpec spec;
  spec.kind_ = kind;
  const size_t colon = text.find(':');
  spec.name_ = text.substr(0, colon);
  const std::string what = fmt::format("{} name", kind);
  if (Status status = CheckName(kind, what, spec.name_); !status.ok()) return status;
  if (colon == std::string_view::npos) return spec;
  std::string_view rest = text.substr(colon + 1);
  while (true) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      return InvalidArgument(
          fmt::format("{} spec: \"{}\" in \"{}\" is not key=value", kind, Show(item), Show(text)));
    }
    const std::string_view key = item.substr(0, equals), value = item.substr(equals + 1);
    if (Status status = CheckName(kind, "key", key); !status.ok()) return status;
    if (Status status = CheckValue(kind, key, value); !status.ok()) return status;
    if (const std::string* first = spec.Find(key); first != nullptr) {
      return InvalidArgument(
          fmt::format("{} spec: {} is given twice, as {} and as {}", kind, key, *first, value));
    }
    spec.items_.emplace_back(key, value);
    if (comma == std::string_view::npos) return spec;
    rest = rest.substr(comma + 1);
  }
}

const std::string* CodecSpec::Find(std::string_view key) const {
  for (const auto& [name, value] : items_) {
    if (name == key) return &value;
  }
  return nullptr;
}

Status CodecSpec::AllowOnly(std::span<const std::string_view> keys) const {
  for (const auto& [key, value] : items_) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    return InvalidArgument(
        keys.empty()
            ? fmt::format("{} {}: unknown key {} (={}); it has no keys", kind_, name_, key, value)
            : fmt::format("{} {}: unknown key {} (={}); there are {}", kind_, name_, key, value,
                          fmt::join(keys, ", ")));
  }
  return Status::Ok();
}

Result<uint64_t> CodecSpec::Integer(std::string_view key, uint64_t fallback, uint64_t low,
                                    uint64_t high) const {
  const std::string* text = Find(key);
  if (text == nullptr) return fallback;
  uint64_t value = 0;
  if (!ParseUnsigned(*text, &value) || value < low || value > high) {
    return InvalidArgument(fmt::format("{} {}: {}={} is not an integer in [{}, {}]", kind_, name_,
                                       key, *text, low, high));
  }
  return value;
}

Result<uint64_t> CodecSpec::Eighths(std::string_view key, uint64_t fallback8, uint64_t low8,
                                    uint64_t high8) const {
  const std::string* text = Find(key);
  if (text == nullptr) return fallback8;
  const Status wrong =
      InvalidArgument(fmt::format("{} {}: {}={} is not a multiple of 0.125 in [{}, {}]", kind_,
                                  name_, key, *text, FormatEighths(low8), FormatEighths(high8)));
  const std::string_view view = *text;
  const size_t point = view.find('.');
  std::string_view fraction = point == std::string_view::npos ? "0" : view.substr(point + 1);
  while (fraction.size() > 3 && fraction.back() == '0') fraction.remove_suffix(1);
  uint64_t whole = 0, thousandths = 0;
  if (!ParseUnsigned(view.substr(0, point), &whole) || whole > high8 || fraction.size() > 3 ||
      !ParseUnsigned(fraction, &thousandths)) {
    return wrong;
  }
  for (size_t digits = fraction.size(); digits < 3; ++digits) thousandths *= 10;
  const uint64_t value8 = whole * 8 + thousandths / 125;
  if (thousandths % 125 != 0 || value8 < low8 || value8 > high8) return wrong;
  return value8;
}

Result<double> CodecSpec::Fraction(std::string_view key, double fallback) const {
  const std::string* text = Find(key);
  if (text == nullptr) return fallback;
  double value = 0;
  const char* const end = text->data() + text->size();
  const auto parsed = std::from_chars(text->data(), end, value);
  const bool fits = (value > 0 && value <= 1) || value == fallback;
  if (parsed.ec != std::errc() || parsed.ptr != end || !fits) {
    return InvalidArgument(
        fmt::format("{} {}: {}={} is not a fraction in (0, 1]", kind_, name_, key, *text));
  }
  return value;
}

Result<size_t> CodecSpec::Choice(std::string_view key, size_t fallback,
                                 std::span<const std::string_view> choices) const {
  const std::string* text = Find(key);
  if (text == nullptr) return fallback;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] == *text) return i;
  }
  return InvalidArgument(fmt::format("{} {}: {}={} is none of {}", kind_, name_, key, *text,
                                     fmt::join(choices, ", ")));
}

std::string FormatEighths(uint64_t eighths) {
  static constexpr const char* kFraction[8] = {"",   ".125", ".25", ".375",
                                               ".5", ".625", ".75", ".875"};
  return fmt::format("{}{}", eighths / 8, kFraction[eighths % 8]);
}

// The list of all codecs.

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

namespace {

constexpr int kMostRanks = 16;  // calls of more ranks take longer than what is saved
constexpr uint32_t kElements = 4 * kSuperblock;
constexpr Range kRange{.segment = 0, .first = 0, .count = kElements};

// What the owner of a chunk and another rank do with it. The owner takes the other's payload for
// that of every other rank.
class SmallCall {
 public:
  SmallCall(const Codec& codec, int nranks)
      : codec_(codec),
        nranks_(nranks),
        owner_(codec.NewState()),
        other_(codec.NewState()),
        input_(kElements),
        output_(kElements),
        payload_(std::max(codec.MaxBytes(DataType::kFloat32, nranks, kElements),
                          codec.SideBytes(kElements))),
        result_(payload_.size()) {
    for (uint32_t i = 0; i < kElements; ++i) input_[i] = 1.0f / static_cast<float>(1 + i % 8);
  }

  Status Run() {
    CollectiveArgs args;
    args.count = kElements;
    args.nranks = nranks_;
    Status status = owner_->Begin(args);
    args.rank = 1;
    if (status.ok()) status = other_->Begin(args);
    for (uint16_t phase = 0; status.ok() && phase < codec_.side_phases().size(); ++phase) {
      status = Exchange({Form::kSide, phase}, {Form::kSide, phase}, {Form::kSide, phase});
    }
    if (status.ok()) status = Exchange({Form::kSum, 1}, {Form::kResult}, {Form::kOutput});
    return status;  // No Finish: this call needs neither statistics nor warnings.
  }

 private:
  static Term Elements(Form form, std::vector<float>* of) {
    return {{form}, reinterpret_cast<std::byte*>(of->data()), kElements * sizeof(float)};
  }
  static Term Payload(Format format, std::vector<std::byte>* in) {
    return {format, in->data(), static_cast<uint32_t>(in->size())};
  }
  // The final value in this rank's memory: side information belongs to the state.
  Term Final(Format format) {
    return format.form == Form::kSide ? Term{format} : Elements(format.form, &output_);
  }

  // The other ranks send `sent`, and the owner combines it with its elements and returns
  // `returned`. All have `final` in the end.
  Status Exchange(Format sent, Format returned, Format final) {
    const Term input = Elements(Form::kInput, &input_);
    std::array<Term, 1> to_owner{Payload(sent, &payload_)};
    Status status = other_->Combine(kRange, {&input, 1}, to_owner);
    if (!status.ok()) return status;
    std::vector<Term> inputs(static_cast<size_t>(nranks_) - 1, to_owner[0]);
    inputs.push_back(input);
    std::array<Term, 2> made{Payload(returned, &result_), Final(final)};
    status = owner_->Combine(kRange, inputs, made);
    if (!status.ok()) return status;
    std::array<Term, 1> last{Final(final)};
    return other_->Combine(kRange, {made.data(), 1}, last);
  }

  const Codec& codec_;
  const int nranks_;
  const std::unique_ptr<CodecState> owner_, other_;
  std::vector<float> input_, output_;
  std::vector<std::byte> payload_, result_;
};

}  // namespace

void WarmUp(const Codec& codec, int nranks) {
  (void)CatchOutOfMemory([&] { return SmallCall(codec, std::clamp(nranks, 2, kMostRanks)).Run(); });
}

}  // namespace inccl
