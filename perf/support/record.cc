// SPDX-License-Identifier: Apache-2.0
#include "perf/support/record.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "perf/support/digest.h"
#include "perf/support/element.h"
#include "perf/support/host.h"
#include "perf/support/layout.h"
#include "perf/support/output.h"

namespace inccl::perf {
namespace {

using Json = nlohmann::ordered_json;
using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// NAME_us, vs_NAME, NAME_p99_us, NAME_max_us.
void AddSide(const std::optional<Measurement::Side>& side, const std::string& name, Json* record) {
  Json& r = *record;
  r[name + "_us"] = side ? Number(side->time_us) : Json(nullptr);
  r["vs_" + name] = side ? Number(side->ratio) : Json(nullptr);
  r[name + "_p99_us"] = side ? Number(side->p99_us) : Json(nullptr);
  r[name + "_max_us"] = side ? Number(side->max_us) : Json(nullptr);
}

void AddWire(const std::optional<Wire>& wire, Json* record) {
  Json& r = *record;
  r["wire_bytes"] = wire ? Json(wire->bytes) : Json(nullptr);
  r["ratio"] = wire ? Number(wire->ratio) : Json(nullptr);
  r["bits"] = wire ? Number(wire->bits) : Json(nullptr);
  r["error_bound"] = wire ? Number(wire->error_bound) : Json(nullptr);
  r["compressed"] = wire ? Json(wire->compressed) : Json(nullptr);
}

void AddAccuracy(const std::optional<Accuracy>& accuracy, Json* record) {
  Json& r = *record;
  r["wrong"] = accuracy ? Json(accuracy->wrong) : Json(nullptr);
  r["max_err"] = accuracy ? Number(accuracy->max_error) : Json(nullptr);
  r["rel_l2"] = accuracy ? Number(accuracy->RelativeL2()) : Json(nullptr);
  r["vnmse"] = accuracy ? Number(accuracy->Vnmse()) : Json(nullptr);
}

// RFC 4180.
std::string CsvCell(const Json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  auto text = value.get<std::string>();
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

Json RecordOf(const Row& row, bool in_place) {
  const Measurement& m = in_place ? row.in_place : row.out_of_place;
  Json r = {{"op", Name(row.operation)},
            {"algo", row.algorithm},
            {"transport", row.transport},
            {"codec", row.codec},
            {"codec_spec", row.codec_spec},
            {"nranks", row.nranks},
            {"bytes", row.bytes},
            {"count", row.count},
            {"type", TableName(row.type)},
            {"redop", Reduces(row.operation) ? Json(TableName(row.op)) : Json(nullptr)},
            {"root", HasRoot(row.operation) ? Json(row.root) : Json(nullptr)},
            {"in_place", in_place},
            {"time_us", Number(m.time_us)},
            {"algbw", Number(m.algbw)},
            {"busbw", Number(m.busbw)},
            {"p99_us", Number(m.p99_us)},
            {"max_us", Number(m.max_us)}};
  AddSide(m.baseline, "baseline", &r);
  AddSide(m.limit, "limit", &r);
  AddWire(m.wire, &r);
  AddAccuracy(m.accuracy, &r);
  r["identical"] = m.identical ? Json(*m.identical) : Json(nullptr);
  r["digest"] = m.digest ? Json(DigestText(*m.digest)) : Json(nullptr);
  return r;
}

std::string CsvHeading() {
  std::string line;
  const Json record = RecordOf(Row(), false);
  for (const auto& [name, value] : record.items()) {
    if (!line.empty()) line += ',';
    line += name;
  }
  return line + "\n";
}

std::string CsvLines(const Row& row) {
  std::string lines;
  for (const bool in_place : {false, true}) {
    if (in_place && !HasInPlace(row.operation)) continue;
    const Json record = RecordOf(row, in_place);
    bool first = true;
    for (const auto& [name, value] : record.items()) {
      if (!first) lines += ',';
      lines += CsvCell(value);
      first = false;
    }
    lines += "\n";
  }
  return lines;
}

Json DocumentOf(const RunHeader& header, const std::vector<Row>& rows) {
  const Host host = ThisHost();
  Json document;
  document["header"] = {
      {"version", header.version},
      {"program", header.program},
      {"command", header.command},
      {"date", host.date},
      {"host", host.name},
      {"cpu", host.cpu},
      {"cores", host.cores},
      {"nranks", header.nranks},
      {"launcher", header.launcher},
      {"device", header.device.empty() ? Json(nullptr) : Json(header.device)},
      {"devices", header.devices},
      {"data", header.data},
      {"seed", header.seed},
      {"iterations", header.iterations},
      {"warmup", header.warmup},
      {"aggregated", header.aggregated},
      {"average", header.average},
      {"baseline", header.baseline.empty() ? Json(nullptr) : Json(header.baseline)},
      {"link_gbps", header.link_gbps},
      {"link_us", header.link_us}};
  document["rows"] = Json::array();
  for (const Row& row : rows) {
    document["rows"].push_back(RecordOf(row, false));
    if (HasInPlace(row.operation)) document["rows"].push_back(RecordOf(row, true));
  }
  return document;
}

Status CheckWritable(const std::string& path) {
  const File file(std::fopen(path.c_str(), "a"), &std::fclose);
  if (file == nullptr) return SystemErrorErrno(path, errno);
  return {};
}

Status WriteDocument(const std::string& path, const Json& document) {
  return WriteFile(path, document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace inccl::perf
