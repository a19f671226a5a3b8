// SPDX-License-Identifier: Apache-2.0
#include "perf/support/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "perf/support/digest.h"
#include "perf/support/element.h"
#include "perf/support/layout.h"

namespace inccl::perf {
namespace {

constexpr int kMeasurementWidth = 33;  // of FormatMeasurement
constexpr int kDigestWidth = 16;

std::string WrongCell(const Measurement& m) {
  return m.accuracy ? fmt::format("{}", m.accuracy->wrong) : std::string("N/A");
}

std::string FormatMeasurement(const Measurement& m) {
  return fmt::format("  {:>7}  {:6.2f}  {:6.2f}  {:>6}", FormatTime(m.time_us), m.algbw, m.busbw,
                     WrongCell(m));
}

const std::string& NoMeasurement() {
  static const std::string cells =
      fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", "N/A", "N/A", "N/A", "N/A");
  return cells;
}

// A group of columns for another side: what the sides are called, and what a cell holds.
std::string FormatSide(const std::optional<Measurement::Side>& side, bool tails) {
  if (!side) {
    return fmt::format("  {:>7}  {:>6}", "n/a", "n/a") +
           (tails ? fmt::format("  {:>7}  {:>7}", "n/a", "n/a") : std::string());
  }
  std::string cells = fmt::format("  {:>7}  {:6.2f}", FormatTime(side->time_us), side->ratio);
  if (tails) cells += "  " + FormatTime(side->p99_us) + "  " + FormatTime(side->max_us);
  return cells;
}

void AddSideHeader(const char* side, bool tails, std::string* names, std::string* units) {
  *names += fmt::format("  {:>7}  {:>6}", side, "ours/");
  *units += fmt::format("  {:>7}  {:>6}", "(us)", side);
  if (!tails) return;
  *names += fmt::format("  {:>7}  {:>7}", "p99", "max");
  *units += fmt::format("  {:>7}  {:>7}", "(us)", "(us)");
}

// The worse of both placements.
std::optional<Accuracy> Worse(const Row& row) {
  const std::optional<Accuracy>& a = row.out_of_place.accuracy;
  const std::optional<Accuracy>& b = row.in_place.accuracy;
  if (!a || !b) return a ? a : b;
  Accuracy worse = a->Vnmse() >= b->Vnmse() ? *a : *b;
  worse.max_error = std::max(a->max_error, b->max_error);
  return worse;
}

std::string IdenticalText(const Row& row) {
  const std::optional<bool>& a = row.out_of_place.identical;
  const std::optional<bool>& b = row.in_place.identical;
  if (!a && !b) return "-";
  return a.value_or(true) && b.value_or(true) ? "yes" : "no";
}

// Of the call out of place; marked when the one in place has another.
std::string DigestCell(const Row& row) {
  const std::optional<uint64_t>& a = row.out_of_place.digest;
  const std::optional<uint64_t>& b = row.in_place.digest;
  if (!a) return "-";
  return DigestText(*a) + (b && *b != *a ? "!" : "");
}

bool RanUncompressed(const Row& row) {
  return row.codec != "none" && row.out_of_place.wire && !row.out_of_place.wire->compressed;
}

std::string CodecCell(const Row& row) { return row.codec + (RanUncompressed(row) ? "*" : ""); }

std::string RatioCell(const Row& row) {
  const std::optional<Wire>& wire = row.out_of_place.wire;
  return wire ? fmt::format("{:.2f}", wire->ratio) : std::string("-");
}

std::string BitsCell(const Row& row) {
  const std::optional<Wire>& wire = row.out_of_place.wire;
  return wire ? fmt::format("{:.2f}", wire->bits) : std::string("-");
}

}  // namespace

std::string FormatTime(double microseconds) {
  if (microseconds >= 10000) return fmt::format("{:7.0f}", microseconds);
  if (microseconds >= 100) return fmt::format("{:7.1f}", microseconds);
  return fmt::format("{:7.2f}", microseconds);
}

std::string Table::Header() const { return columns_.narrow ? NarrowHeader() : WideHeader(); }

std::string Table::Format(const Row& row) const {
  return (columns_.narrow ? FormatNarrow(row) : FormatWide(row)) + "\n";
}

void Table::AddExtraHeaders(std::string* placements, std::string* names, std::string* units) const {
  if (columns_.digest) {
    *names += fmt::format("  {:<{}}", "digest", kDigestWidth + 1);
    *units += fmt::format("  {:<{}}", "", kDigestWidth + 1);
  }
  for (const char* placement : {"out-of-place", "in-place"}) {
    const size_t begin = names->size();
    if (columns_.tails) {
      *names += fmt::format("  {:>7}  {:>7}", "p99", "max");
      *units += fmt::format("  {:>7}  {:>7}", "(us)", "(us)");
    }
    if (!columns_.baseline.empty()) {
      AddSideHeader(columns_.baseline.c_str(), columns_.tails, names, units);
    }
    if (columns_.limit) AddSideHeader("limit", columns_.tails, names, units);
    if (names->size() == begin) break;
    placements->resize(begin, ' ');
    *placements += fmt::format("{:^{}}", placement, names->size() - begin);
  }
}

std::string Table::FormatExtras(const Row& row) const {
  std::string line;
  if (columns_.digest) line += fmt::format("  {:<{}}", DigestCell(row), kDigestWidth + 1);
  for (const Measurement* m : {&row.out_of_place, &row.in_place}) {
    const bool there = m == &row.out_of_place || HasInPlace(row.operation);
    if (columns_.tails) {
      line += there ? "  " + FormatTime(m->p99_us) + "  " + FormatTime(m->max_us)
                    : fmt::format("  {:>7}  {:>7}", "N/A", "N/A");
    }
    if (!columns_.baseline.empty()) line += FormatSide(m->baseline, columns_.tails);
    if (columns_.limit) line += FormatSide(m->limit, columns_.tails);
  }
  return line;
}

// ------------------------------------------------------------------------------------ wide

std::string Table::WideHeader() const {
  std::string placements = "#" + std::string(55, ' ');
  placements +=
      fmt::format("{:^{}}{:^{}}", "out-of-place", kMeasurementWidth, "in-place", kMeasurementWidth);
  std::string names =
      fmt::format("#{:>11}  {:>12}  {:>8}  {:>6}  {:>6}", "size", "count", "type", "redop", "root");
  std::string units =
      fmt::format("#{:>11}  {:>12}  {:>8}  {:>6}  {:>6}", "(B)", "(elements)", "", "", "");
  for (int i = 0; i < 2; ++i) {
    names += fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", "time", "algbw", "busbw", "#wrong");
    units += fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", "(us)", "(GB/s)", "(GB/s)", "");
  }
  names += fmt::format("  {:<{}}  {:>12}  {:>6}  {:>6}  {:>9}  {:>9}  {:>9}  {:>9}", "codec",
                       columns_.codec_width, "wire", "ratio", "bits", "max err", "rel L2", "vNMSE",
                       "identical");
  units += fmt::format("  {:<{}}  {:>12}  {:>6}  {:>6}  {:>9}  {:>9}  {:>9}  {:>9}", "",
                       columns_.codec_width, "(B/rank)", "", "/elem", "", "", "", "");
  AddExtraHeaders(&placements, &names, &units);
  return placements + "\n" + names + "\n" + units + "\n";
}

std::string Table::FormatWide(const Row& row) const {
  std::string line =
      fmt::format("{:12}  {:12}  {:>8}  {:>6}  {:>6}", row.bytes, row.count, TableName(row.type),
                  Reduces(row.operation) ? TableName(row.op) : "none",
                  HasRoot(row.operation) ? row.root : -1) +
      FormatMeasurement(row.out_of_place) +
      (HasInPlace(row.operation) ? FormatMeasurement(row.in_place) : NoMeasurement());
  const std::optional<Wire>& wire = row.out_of_place.wire;
  line += fmt::format("  {:<{}}  {:>12}  {:>6}  {:>6}", CodecCell(row), columns_.codec_width,
                      wire ? fmt::format("{}", wire->bytes) : std::string("-"), RatioCell(row),
                      BitsCell(row));
  if (const std::optional<Accuracy> accuracy = Worse(row)) {
    line += fmt::format("  {:9.2e}  {:9.2e}  {:9.2e}", accuracy->max_error, accuracy->RelativeL2(),
                        accuracy->Vnmse());
  } else {
    line += fmt::format("  {:>9}  {:>9}  {:>9}", "N/A", "N/A", "N/A");
  }
  return line + fmt::format("  {:>9}", IdenticalText(row)) + FormatExtras(row);
}

// ------------------------------------------------------------------------------------ narrow
// Columns that the operation does not have are left out. The codec comes last: a long one moves
// nothing else.

std::string Table::NarrowHeader() const {
  const Operation operation = columns_.operation;
  std::string names = fmt::format("#{:>9}  {:>8}", "size", "type");
  std::string units = fmt::format("#{:>9}  {:>8}", "(B)", "");
  const auto add = [&](const char* name, const char* unit, int width) {
    names += fmt::format("  {:>{}}", name, width);
    units += fmt::format("  {:>{}}", unit, width);
  };
  if (Reduces(operation)) add("op", "", 4);
  if (HasRoot(operation)) add("root", "", 4);
  std::string placements(names.size(), ' ');
  placements.front() = '#';
  for (const char* placement : {"out-of-place", "in-place"}) {
    if (placement[0] == 'i' && !HasInPlace(operation)) continue;
    const size_t begin = names.size();
    add("time", "(us)", 7);
    add("busbw", "(GB/s)", 6);
    add("#wrong", "", 6);
    placements += fmt::format("{:^{}}", placement, names.size() - begin);
  }
  if (HasCompressed(operation)) {
    add("bits", "/elem", 5);
    add("ratio", "", 5);
  }
  add("rel L2", "", 8);
  add("same", "", 4);
  AddExtraHeaders(&placements, &names, &units);
  if (HasCompressed(operation)) names += "  codec";
  return placements + "\n" + names + "\n" + units + "\n";
}

std::string Table::FormatNarrow(const Row& row) const {
  std::string line = fmt::format("{:10}  {:>8}", row.bytes, TableName(row.type));
  if (Reduces(row.operation)) line += fmt::format("  {:>4}", TableName(row.op));
  if (HasRoot(row.operation)) line += fmt::format("  {:>4}", row.root);
  for (const Measurement* m : {&row.out_of_place, &row.in_place}) {
    if (m == &row.in_place && !HasInPlace(row.operation)) continue;
    line += fmt::format("  {}  {:6.2f}  {:>6}", FormatTime(m->time_us), m->busbw, WrongCell(*m));
  }
  if (HasCompressed(row.operation)) {
    line += fmt::format("  {:>5}  {:>5}", BitsCell(row), RatioCell(row));
  }
  const std::optional<Accuracy> accuracy = Worse(row);
  line += fmt::format("  {:>8}  {:>4}",
                      accuracy ? fmt::format("{:.2e}", accuracy->RelativeL2()) : "N/A",
                      IdenticalText(row));
  line += FormatExtras(row);
  return HasCompressed(row.operation) ? line + "  " + CodecCell(row) : line;
}

// ------------------------------------------------------------------------------------ footer

std::string Table::Footer(const std::vector<Row>& rows) const {
  uint64_t wrong = 0;
  double busbw = 0;
  size_t placements = 0;
  bool differ = false, uncompressed = false, digests = false;
  for (const Row& row : rows) {
    uncompressed |= RanUncompressed(row);
    const std::optional<uint64_t>& a = row.out_of_place.digest;
    const std::optional<uint64_t>& b = row.in_place.digest;
    digests |= columns_.digest && a && b && *a != *b;
    placements += HasInPlace(row.operation) ? 2 : 1;
    for (const Measurement* m : {&row.out_of_place, &row.in_place}) {
      wrong += m->accuracy ? m->accuracy->wrong : 0;
      differ |= m->identical && !*m->identical;
      busbw += m->busbw;
    }
  }
  std::string text;
  if (uncompressed) text += "# * : ran uncompressed (type, reduction or size)\n";
  if (digests) text += "# ! : the digest in place is another one\n";
  if (differ) text += "# Ranks with different results : FAILED\n";
  text += columns_.check
              ? fmt::format("# Out of bounds values : {} {}\n", wrong, wrong == 0 ? "OK" : "FAILED")
              : std::string("# Out of bounds values : not checked\n");
  const auto count = static_cast<double>(std::max<size_t>(1, placements));
  text += fmt::format("# Avg bus bandwidth    : {:.6g}\n#\n", busbw / count);
  return text;
}

}  // namespace inccl::perf
