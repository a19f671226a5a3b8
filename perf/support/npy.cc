// SPDX-License-Identifier: Apache-2.0
#include "perf/support/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>

namespace inccl::perf {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are read as they lie");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr uint64_t kMaxElements = (uint64_t{1} << 60) - 1;

// Reads the header's dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }, the
// keys in any order and each exactly once.
class DictionaryParser {
 public:
  DictionaryParser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  // Leaves the size of an element in *element_bytes.
  Result<std::vector<uint64_t>> Shape(uint32_t* element_bytes) {
    if (!Take('{')) return Error("no '{'");
    while (!Take('}')) {
      if (Status s = Entry(); !s.ok()) return s;
      if (Take(',')) continue;
      if (!Take('}')) return Error("neither ',' nor '}' after an entry");
      break;
    }
    SkipSpaces();
    if (text_.substr(at_) != "\n") return Error("no newline at the end, or text behind '}'");
    if (element_bytes_ == 0 || !fortran_order_)
      return Error("'descr' or 'fortran_order' is missing");
    if (!shape_) return Error("'shape' is missing");
    *element_bytes = element_bytes_;
    return *std::move(shape_);
  }

 private:
  Status Error(std::string_view what) const {
    return InvalidArgument(
        fmt::format("{}: .npy header: {} (at byte {} of {})", name_, what, at_, text_.size()));
  }

  void SkipSpaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  bool Take(char c) {
    SkipSpaces();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::optional<std::string_view> String() {
    SkipSpaces();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) return std::nullopt;
    const size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view body = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return body;
  }

  std::optional<uint64_t> Number() {
    SkipSpaces();
    const size_t begin = at_;
    uint64_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      if (value > kMaxElements / 10) return std::nullopt;
      value = value * 10 + static_cast<uint64_t>(text_[at_] - '0');
    }
    if (at_ == begin || value > kMaxElements) return std::nullopt;
    return value;
  }

  Status Entry() {
    const std::optional<std::string_view> key = String();
    if (!key) return Error("no quoted key");
    if (!Take(':')) return Error("no ':' after a key");
    if (*key == "descr") return Descr();
    if (*key == "fortran_order") return FortranOrder();
    if (*key == "shape") return ShapeTuple();
    return Error(fmt::format("unknown key '{}'", *key));
  }

  Status Descr() {
    const std::optional<std::string_view> type = String();
    if (element_bytes_ != 0) return Error("'descr' twice");
    if (!type) return Error("'descr' is not a string (a structured type?)");
    for (const uint32_t bytes : {2, 4, 8}) {
      if (*type == fmt::format("<f{}", bytes)) element_bytes_ = bytes;
    }
    if (element_bytes_ == 0) {
      return Error(fmt::format("element type '{}', only '<f2', '<f4' and '<f8' are read", *type));
    }
    return {};
  }

  Status FortranOrder() {
    if (fortran_order_) return Error("'fortran_order' twice");
    SkipSpaces();
    const std::string_view rest = text_.substr(at_);
    if (rest.starts_with("True")) return Error("Fortran order, only C order is read");
    if (!rest.starts_with("False")) return Error("'fortran_order' is neither False nor True");
    at_ += std::string_view("False").size();
    fortran_order_ = true;
    return {};
  }

  Status ShapeTuple() {
    if (shape_) return Error("'shape' twice");
    if (!Take('(')) return Error("'shape' is not a tuple");
    std::vector<uint64_t> extents;
    bool comma = true;
    while (!Take(')')) {
      if (!comma) return Error("no ',' between extents");
      const std::optional<uint64_t> extent = Number();
      if (!extent) return Error("an extent is not a number, or too large");
      if (extents.size() == 2) return Error("more than two dimensions");
      extents.push_back(*extent);
      comma = Take(',');
    }
    if (extents.empty()) return Error("no dimension, one or two are read");
    if (extents.size() == 1 && !comma) return Error("'shape' is not a tuple");
    shape_ = std::move(extents);
    return {};
  }

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0;
  uint32_t element_bytes_ = 0;
  bool fortran_order_ = false;
  std::optional<std::vector<uint64_t>> shape_;
};

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, FileCloser>;

// fwrite of whole elements; none of them is no call (an empty vector has no address).
bool WriteElements(std::FILE* file, std::span<const float> values) {
  return values.empty() || std::fwrite(values.data(), 4, values.size(), file) == values.size();
}

uint64_t LittleEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

Status SizeError(const std::string& name, const NpyHeader& header, uint64_t size) {
  return InvalidArgument(fmt::format(
      "{}: the .npy header announces {} elements, {} bytes in all; the file has {}", name,
      header.elements, header.data_offset + header.element_bytes * header.elements, size));
}

// IEEE 754 binary16, exact in fp32.
float HalfToFloat(uint16_t code) {
  const int exponent = code >> 10 & 31;
  const int mantissa = code & 1023;
  float magnitude = 0;
  if (exponent == 31) {
    magnitude = mantissa == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  }
  return std::copysign(magnitude, code >> 15 != 0 ? -1.0f : 1.0f);
}

// Elements as fp32. An fp64 that would become infinite or zero there is an error.
Status Convert(std::string_view bytes, uint32_t element_bytes, const std::string& name,
               std::vector<float>* values) {
  if (values->empty()) return {};
  if (element_bytes == 4) {
    std::memcpy(values->data(), bytes.data(), 4 * values->size());
    return {};
  }
  for (size_t i = 0; i < values->size(); ++i) {
    const char* at = bytes.data() + element_bytes * i;
    if (element_bytes == 2) {
      uint16_t code = 0;
      std::memcpy(&code, at, sizeof code);
      (*values)[i] = HalfToFloat(code);
      continue;
    }
    double wide = 0;
    std::memcpy(&wide, at, sizeof wide);
    if (std::isfinite(wide) && std::fabs(wide) > double{std::numeric_limits<float>::max()}) {
      return InvalidArgument(
          fmt::format("{}: element {} is {}, beyond the range of fp32", name, i, wide));
    }
    (*values)[i] = static_cast<float>(wide);
    if (wide != 0 && (*values)[i] == 0) {
      return InvalidArgument(
          fmt::format("{}: element {} is {}, which is 0 in fp32", name, i, wide));
    }
  }
  return {};
}

}  // namespace

Result<NpyHeader> ParseNpyHeader(std::string_view bytes, const std::string& name) {
  if (!bytes.starts_with(kMagic) || bytes.size() < 10) {
    return InvalidArgument(fmt::format("{}: not a .npy file (its magic is missing)", name));
  }
  const int major = static_cast<uint8_t>(bytes[6]);
  const int minor = static_cast<uint8_t>(bytes[7]);
  if (major < 1 || major > 3 || minor != 0) {
    return InvalidArgument(fmt::format("{}: unknown .npy version {}.{}", name, major, minor));
  }
  const size_t prefix = major == 1 ? 10 : 12;
  if (bytes.size() < prefix) {
    return InvalidArgument(fmt::format("{}: the .npy header is cut off", name));
  }
  const uint64_t length = LittleEndian(bytes.substr(8, prefix - 8));
  if (length > kMaxNpyHeader) {
    return InvalidArgument(fmt::format("{}: a .npy header of {} bytes, at most {} are read", name,
                                       length, kMaxNpyHeader));
  }
  if (length > bytes.size() - prefix) {
    return InvalidArgument(
        fmt::format("{}: the .npy header is cut off: {} bytes announced, {} "
                    "there",
                    name, length, bytes.size() - prefix));
  }
  NpyHeader header;
  Result<std::vector<uint64_t>> shape =
      DictionaryParser(bytes.substr(prefix, length), name).Shape(&header.element_bytes);
  if (!shape.ok()) return shape.status();
  header.data_offset = prefix + length;
  header.elements = 1;
  for (const uint64_t extent : *shape) {
    if (extent != 0 && header.elements > kMaxElements / extent) {
      return InvalidArgument(fmt::format("{}: the extents of the .npy array overflow", name));
    }
    header.elements *= extent;
  }
  header.shape = *std::move(shape);
  return header;
}

Result<NpyArray> ParseNpy(std::string_view bytes, const std::string& name) {
  Result<NpyHeader> header = ParseNpyHeader(bytes, name);
  if (!header.ok()) return header.status();
  if (bytes.size() - header->data_offset != header->element_bytes * header->elements) {
    return SizeError(name, *header, bytes.size());
  }
  NpyArray array{std::move(header->shape), std::vector<float>(header->elements)};
  const Status converted =
      Convert(bytes.substr(header->data_offset), header->element_bytes, name, &array.values);
  if (!converted.ok()) return converted;
  return array;
}

Result<NpyArray> ReadNpy(const std::string& path) {
  File file(std::fopen(path.c_str(), "rb"));
  if (!file) return SystemErrorErrno(path, errno);
  if (std::fseek(file.get(), 0, SEEK_END) != 0) return SystemErrorErrno(path, errno);
  const long size = std::ftell(file.get());
  if (size < 0) return SystemErrorErrno(path, errno);
  std::rewind(file.get());
  std::string start(std::min<uint64_t>(static_cast<uint64_t>(size), kMaxNpyHeader + 12), '\0');
  if (std::fread(start.data(), 1, start.size(), file.get()) != start.size()) {
    return SystemError(fmt::format("{}: reading the first {} bytes failed", path, start.size()));
  }
  Result<NpyHeader> header = ParseNpyHeader(start, path);
  if (!header.ok()) return header.status();
  const uint64_t length = static_cast<uint64_t>(size) - header->data_offset;
  if (length != header->element_bytes * header->elements) {
    return SizeError(path, *header, static_cast<uint64_t>(size));
  }
  NpyArray array{std::move(header->shape), std::vector<float>(header->elements)};
  if (std::fseek(file.get(), static_cast<long>(header->data_offset), SEEK_SET) != 0) {
    return SystemErrorErrno(path, errno);
  }
  std::string elements(length, '\0');
  if (length != 0 && std::fread(elements.data(), 1, length, file.get()) != length) {
    return SystemError(fmt::format("{}: reading {} elements failed", path, array.values.size()));
  }
  const Status converted = Convert(elements, header->element_bytes, path, &array.values);
  if (!converted.ok()) return converted;
  return array;
}

std::string FormatNpyHeader(std::span<const uint64_t> shape) {
  const std::string tuple = shape.size() == 1 ? fmt::format("({},)", shape[0])
                                              : fmt::format("({})", fmt::join(shape, ", "));
  std::string text =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': {}, }}", tuple);
  const size_t prefix = 10;
  const size_t whole = (prefix + text.size() + 1 + 63) / 64 * 64;
  text.append(whole - prefix - text.size() - 1, ' ');
  text.push_back('\n');
  std::string header(kMagic);
  header.push_back(1);
  header.push_back(0);
  header.push_back(static_cast<char>(text.size() & 0xFF));
  header.push_back(static_cast<char>(text.size() >> 8));
  return header + text;
}

Status WriteNpy(const std::string& path, std::span<const float> values,
                std::span<const uint64_t> shape) {
  if (shape.empty() || shape.size() > 2) {
    return InvalidArgument(
        fmt::format("{}: {} dimensions, one or two are written", path, shape.size()));
  }
  const bool fits = shape.size() == 1 ? shape[0] == values.size()
                    : shape[0] == 0
                        ? values.empty()
                        : values.size() % shape[0] == 0 && values.size() / shape[0] == shape[1];
  if (!fits) {
    return InvalidArgument(fmt::format("{}: {} values do not fill the shape ({})", path,
                                       values.size(), fmt::join(shape, ", ")));
  }
  File file(std::fopen(path.c_str(), "wb"));
  if (!file) return SystemErrorErrno(path, errno);
  const std::string header = FormatNpyHeader(shape);
  if (std::fwrite(header.data(), 1, header.size(), file.get()) != header.size() ||
      !WriteElements(file.get(), values) || std::fclose(file.release()) != 0) {
    return SystemErrorErrno(fmt::format("{}: writing {} elements", path, values.size()), errno);
  }
  return {};
}

}  // namespace inccl::perf
